"""The doors of every group, as they announce themselves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

__all__ = ["DoorRecord", "DoorRecords", "DoorState"]


class DoorState(StrEnum):
    SERVING = "serving"
    DRAINING = "draining"
    STANDBY = "standby"
    NO_QUORUM = "no_quorum"


@dataclass(frozen=True, kw_only=True)
class DoorRecord:
    door_id: str
    #: `host:port` for clients and workers.
    addr: str
    group: str
    state: DoorState
    started_at: float
    connections: int


class DoorRecords(Protocol):
    """One record per door, which expires 15 s after its last announcement.

    Reads come from memory, which a watch keeps up to date.
    """

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def announce(self, record: DoorRecord) -> None:
        """Write or renew the record. Raises Unavailable."""

    async def remove(self, door_id: str) -> None:
        """Delete the record. Raises Unavailable."""

    def all(self, group: str | None = None) -> list[DoorRecord]:
        """Return the live doors, sorted by address. O(doors)."""
