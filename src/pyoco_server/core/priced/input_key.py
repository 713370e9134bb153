"""Where the files of a tenant lie that its packs may read, and which keys are its own (PRICED-147)."""

from __future__ import annotations

import re
from typing import Final

from pyoco_server.core.priced.names import is_tenant

__all__ = ["KEY_LENGTH_MAX", "NAME_LENGTH_MAX", "input_key", "input_prefix", "is_own_key", "safe_name"]

#: As S3 has it, in bytes of UTF-8.
KEY_LENGTH_MAX: Final = 1024
NAME_LENGTH_MAX: Final = 64

_UPLOAD = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
_NOT_SAFE = re.compile(r"[^a-z0-9_.-]+", re.ASCII)
_NO_NAME: Final = "file"


def input_prefix(tenant_id: str) -> str:
    """Raises ValueError for an id with a slash or the like: its files would lie among another tenant's."""
    if not is_tenant(tenant_id):
        raise ValueError("the prefix of a tenant's files is made of its id")
    return f"dpp/{tenant_id}/"


def input_key(tenant_id: str, upload_id: str, name: str) -> str:
    """`dpp/{tenant_id}/{upload_id}/{name}`, the name made safe. Raises ValueError for ids that are none."""
    if not _UPLOAD.fullmatch(upload_id):
        raise ValueError("an upload is named by a UUID")
    return f"{input_prefix(tenant_id)}{upload_id}/{safe_name(name)}"


def safe_name(name: str) -> str:
    """What may be shown of a file's name: its last step, in lower case, with at most 64 of `a-z 0-9 _ . -`. The end
    stays, since it says what the file is. Never empty, never `.` or `..`, never with a dot in front."""
    last = name.replace("\\", "/").rpartition("/")[2][-4 * NAME_LENGTH_MAX :]
    plain = _NOT_SAFE.sub("_", last.lower())[-NAME_LENGTH_MAX:].lstrip(".-")
    return plain if plain.strip("_.-") else _NO_NAME


def is_own_key(key: str, tenant_id: str) -> bool:
    """Whether the key is one of this tenant's: below its prefix, without steps that some store or client would take
    for a way out."""
    if not key.startswith(input_prefix(tenant_id)) or len(key.encode("utf-8", "replace")) > KEY_LENGTH_MAX:
        return False
    return key.isprintable() and "\\" not in key and not {"", ".", ".."} & set(key.split("/"))
