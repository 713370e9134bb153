"""Access control: which clients may submit jobs for which programs, and which workers may run them (section 22)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

__all__ = ["Acl", "AclKind", "AclRecord"]

AclKind = Literal["client", "worker"]


@dataclass(frozen=True, kw_only=True)
class AclRecord:
    api_key_ids: tuple[str, ...]
    #: Patterns of program names, case-sensitive.
    execs: tuple[str, ...]
    #: Clients only: the highest cap it may have. None: only the global limit applies.
    max_cap: int | None = None
    #: Clients only: patterns of groups.
    groups: tuple[str, ...] = ("*",)


class Acl(Protocol):
    """ACL records by kind and id.

    Reads come from memory, which a watch keeps up to date. A write raises Unavailable during an outage.
    """

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def find(self, kind: AclKind, of: str) -> AclRecord | None: ...

    def all(self) -> dict[tuple[AclKind, str], AclRecord]:
        """Return every record. O(records)."""

    async def put(self, kind: AclKind, of: str, record: AclRecord) -> None:
        """Write the record; the last writer wins. The store keeps the five previous values."""

    async def delete(self, kind: AclKind, of: str) -> bool:
        """Return False if there was no such record."""
