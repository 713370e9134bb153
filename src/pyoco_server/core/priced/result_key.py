"""The object keys of a run's results, which follow from its row (PRICED-165)."""

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
    """Return `dpp/{tenant_id}/{yyyy}/{mm}/{dd}/{run_id}/`, with the day of `created_at` in UTC.

    Raises ValueError for an invalid id, such as one with a slash, which would place the objects among another tenant's.
    """
    if not is_tag(tenant_id) or not is_run_id(run_id):
        raise ValueError("an object key is made of a tenant id and the UUID of a run")
    day = utc(created_at_us)
    return f"dpp/{tenant_id}/{day.year:04d}/{day.month:02d}/{day.day:02d}/{run_id}/"


def tenant_of(key: str) -> str:
    """Return the tenant that owns an object."""
    return key.removeprefix("dpp/").partition("/")[0]


def envelope_key(prefix: str) -> str:
    return f"{prefix}{ENVELOPE_NAME}"


def artifact_key(prefix: str, name: str) -> str:
    """Return the key of an artifact. Raises ValueError for an invalid name."""
    return f"{prefix}{artifact_suffix(name)}"


def artifact_suffix(name: str) -> str:
    """Return the end of the key. Raises ValueError for an invalid name."""
    if not is_artifact_name(name):
        raise ValueError("the name of an artifact has 1 to 64 of: a-z 0-9 _ . -")
    return f"artifacts/{name}"


def is_artifact_name(name: str) -> bool:
    """Whether the name matches the contract's grammar and is not `.` or `..`, which every HTTP client would resolve
    itself, and then request another object."""
    return _ARTIFACT.fullmatch(name) is not None and name not in {".", ".."}
