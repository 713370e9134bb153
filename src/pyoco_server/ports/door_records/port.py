"""The doors of every group, by their own word."""

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
    """One record per door, gone 15 s after its last word. Read from memory that a watch keeps true."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def announce(self, record: DoorRecord) -> None:
        """Raises Unavailable."""

    async def remove(self, door_id: str) -> None:
        """Raises Unavailable."""

    def all(self, group: str | None = None) -> list[DoorRecord]:
        """By address. O(doors)."""
