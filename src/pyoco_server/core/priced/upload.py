"""A file that a tenant brings for its packs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["PENDING_SECONDS", "ROOM_BYTES_MIN", "NewUpload", "Upload", "room_of"]

#: An upload that has not ended after this time never will: it, and whatever is left of it, goes.
PENDING_SECONDS: Final = 3_600
#: What the smallest file takes of its tenant's room: so the bytes that a tenant may have bound its files, too.
ROOM_BYTES_MIN: Final = 64 * 1024


def room_of(size_bytes: int) -> int:
    """What a file of this size takes of its tenant's room."""
    return max(size_bytes, ROOM_BYTES_MIN)


@dataclass(frozen=True, kw_only=True)
class NewUpload:
    """What is known of a file before its bytes are stored."""

    upload_id: str
    tenant_id: str
    key: str
    sha256: str
    size_bytes: int
    content_type: str


@dataclass(frozen=True, kw_only=True)
class Upload(NewUpload):
    """As the ledger has it. Both instants are microseconds."""

    created_at: int
    expires_at: int
