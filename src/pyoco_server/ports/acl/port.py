"""Who may ask for which program, and who may run it (section 22)."""

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
    #: Of a client: the highest cap it may have; None: no limit but that of all.
    max_cap: int | None = None
    #: Of a client: patterns of groups.
    groups: tuple[str, ...] = ("*",)


class Acl(Protocol):
    """Records by kind and id. Read from memory that a watch keeps true; an outage of a write raises Unavailable."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def find(self, kind: AclKind, of: str) -> AclRecord | None: ...

    def all(self) -> dict[tuple[AclKind, str], AclRecord]:
        """O(records)."""

    async def put(self, kind: AclKind, of: str, record: AclRecord) -> None:
        """The last word wins; the five before it are kept by the store."""

    async def delete(self, kind: AclKind, of: str) -> bool:
        """False: there was none."""
