"""A file that a tenant uploads for its packs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["PENDING_SECONDS", "ROOM_BYTES_MIN", "NewUpload", "Upload", "room_of"]

#: An upload that is unfinished after this time never finishes: it is removed, with everything left of it.
PENDING_SECONDS: Final = 3_600
#: The room that the smallest file takes up: so a tenant's byte limit bounds the number of its files, too.
ROOM_BYTES_MIN: Final = 64 * 1024


def room_of(size_bytes: int) -> int:
    """Return how much of its tenant's room a file of this size takes up."""
    return max(size_bytes, ROOM_BYTES_MIN)


@dataclass(frozen=True, kw_only=True)
class NewUpload:
    """The facts about a file before its bytes are stored."""

    upload_id: str
    tenant_id: str
    key: str
    sha256: str
    size_bytes: int
    content_type: str


@dataclass(frozen=True, kw_only=True)
class Upload(NewUpload):
    """An upload as stored in the ledger. Both instants are microseconds."""

    created_at: int
    expires_at: int
