"""Where the objects of a run lie: the keys follow from its row (PRICED-165)."""

from __future__ import annotations

import re

from pyoco_server.core.names import is_run_id, is_tag
from pyoco_server.core.priced.instants import utc

__all__ = [
    "ENVELOPE_NAME",
    "artifact_key",
    "artifact_suffix",
    "envelope_key",
    "is_artifact_name",
    "result_prefix",
    "tenant_of",
]

ENVELOPE_NAME = "pack_envelope.json"

_ARTIFACT = re.compile(r"[a-z0-9_.-]{1,64}")


def result_prefix(tenant_id: str, created_at_us: int, run_id: str) -> str:
    """`dpp/{tenant_id}/{yyyy}/{mm}/{dd}/{run_id}/`, with the day of `created_at` in UTC.

    Raises ValueError for an id with a slash or the like: its objects would lie among another tenant's.
    """
    if not is_tag(tenant_id) or not is_run_id(run_id):
        raise ValueError("an object key is made of a tenant id and the UUID of a run")
    day = utc(created_at_us)
    return f"dpp/{tenant_id}/{day.year:04d}/{day.month:02d}/{day.day:02d}/{run_id}/"


def tenant_of(key: str) -> str:
    """Whose object it is."""
    return key.removeprefix("dpp/").partition("/")[0]


def envelope_key(prefix: str) -> str:
    return f"{prefix}{ENVELOPE_NAME}"


def artifact_key(prefix: str, name: str) -> str:
    """Raises ValueError for a name that is none."""
    return f"{prefix}{artifact_suffix(name)}"


def artifact_suffix(name: str) -> str:
    """The end of the key. Raises ValueError for a name that is none."""
    if not is_artifact_name(name):
        raise ValueError("the name of an artifact has 1 to 64 of: a-z 0-9 _ . -")
    return f"artifacts/{name}"


def is_artifact_name(name: str) -> bool:
    """The contract's grammar without `.` and `..`: every HTTP client would take those steps itself and ask for
    another object."""
    return _ARTIFACT.fullmatch(name) is not None and name not in {".", ".."}
