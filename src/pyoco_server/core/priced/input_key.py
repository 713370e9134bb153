"""The object keys of input files: where they are stored, and which of them belong to a tenant (PRICED-147)."""

from __future__ import annotations

import re
from typing import Final

from pyoco_server.core.priced.names import is_tenant

__all__ = ["KEY_LENGTH_MAX", "NAME_LENGTH_MAX", "input_key", "input_prefix", "is_own_key", "safe_name"]

#: The limit of S3, in bytes of UTF-8.
KEY_LENGTH_MAX: Final = 1024
NAME_LENGTH_MAX: Final = 64

_UPLOAD = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
_NOT_SAFE = re.compile(r"[^a-z0-9_.-]+", re.ASCII)
_NO_NAME: Final = "file"


def input_prefix(tenant_id: str) -> str:
    """Return the key prefix of a tenant. Raises ValueError for an invalid id, such as one with a slash, which would
    place the files among another tenant's."""
    if not is_tenant(tenant_id):
        raise ValueError("not the id of a tenant")
    return f"dpp/{tenant_id}/"


def input_key(tenant_id: str, upload_id: str, name: str) -> str:
    """Return `dpp/{tenant_id}/{upload_id}/{name}`, with the name made safe. Raises ValueError for invalid ids."""
    if not _UPLOAD.fullmatch(upload_id):
        raise ValueError("an upload is named by a UUID")
    return f"{input_prefix(tenant_id)}{upload_id}/{safe_name(name)}"


def safe_name(name: str) -> str:
    """Return a safe form of a file name: its last path segment, in lower case, at most 64 of `a-z 0-9 _ . -`.

    If it is too long, the end is kept, since it contains the file type. Never empty, never `.` or `..`, never with a
    leading dot.
    """
    last = name.replace("\\", "/").rpartition("/")[2][-4 * NAME_LENGTH_MAX :]
    plain = _NOT_SAFE.sub("_", last.lower())[-NAME_LENGTH_MAX:].lstrip(".-")
    return plain if plain.strip("_.-") else _NO_NAME


def is_own_key(key: str, tenant_id: str) -> bool:
    """Whether the key belongs to this tenant: it is below the tenant's prefix, and has no segments that a store or
    client might resolve to a path outside."""
    if not key.startswith(input_prefix(tenant_id)) or len(key.encode("utf-8", "replace")) > KEY_LENGTH_MAX:
        return False
    return key.isprintable() and "\\" not in key and not {"", ".", ".."} & set(key.split("/"))
