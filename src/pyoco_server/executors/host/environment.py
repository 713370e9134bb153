"""The environment variables that a child process receives from its worker.

This is no security boundary, since the user is the same: it keeps third-party code, and the processes it starts, from
passing on variables they were not meant to have.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyoco_server.config import secret_variables

__all__ = ["flow_environment", "pack_environment"]

#: Settings of this project and of the SDKs it uses: they include the credentials of every store.
_NOT_FOR_PACKS = ("PYOCO_", "AWS_", "PGPASS")


def flow_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return all variables but our own secrets: a tenant's flow.yaml can read any variable by `$env`, and its record
    shows the value.

    Flows rely on the rest, also on variables that look like ours or an SDK's. `variables` already includes the dotenv
    file; if a task read it again, it would bring the secrets back.
    """
    secrets = secret_variables()
    return {**{name: value for name, value in variables.items() if name not in secrets}, "PYOCO_LOAD_DOTENV": "false"}


def pack_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without secrets and without any that looks like a setting: a pack receives its settings
    explicitly. The dotenv file is not passed on either."""
    secrets = secret_variables()
    kept = {
        name: value for name, value in variables.items() if name not in secrets and not name.startswith(_NOT_FOR_PACKS)
    }
    return {**kept, "PYOCO_LOAD_DOTENV": "false"}
