"""What a child process sees of its worker's variables.

It is no wall, the user being the same: it keeps somebody else's code, and what that starts, from passing on what it was
never meant to have.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyoco_server.config import secret_variables

__all__ = ["flow_environment", "pack_environment"]

#: Settings of ours and of the SDKs we use: there are passwords and keys of every store among them.
_NOT_FOR_PACKS = ("PYOCO_", "AWS_", "PGPASS")


def flow_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """All but our own secrets: a tenant's flow.yaml reads what it likes by `$env`, and its record shows what it read.

    Flows rely on the rest, also on what looks like ours or an SDK's. The dotenv file is in `variables` already; read
    once more by a task, it would bring the secrets back.
    """
    secrets = secret_variables()
    return {**{name: value for name, value in variables.items() if name not in secrets}, "PYOCO_LOAD_DOTENV": "false"}


def pack_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Nothing that begins like a setting: a pack is told what it needs. Nor from the dotenv file."""
    secrets = secret_variables()
    kept = {
        name: value for name, value in variables.items() if name not in secrets and not name.startswith(_NOT_FOR_PACKS)
    }
    return {**kept, "PYOCO_LOAD_DOTENV": "false"}
