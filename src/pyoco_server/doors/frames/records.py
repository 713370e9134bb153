"""The records that a door writes every five seconds: its own, and those of its connected workers (GRID-115)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pyoco_server.core.worker_record import WorkerRecord, stopped
from pyoco_server.errors import PyocoError, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.door_records.port import DoorRecord, DoorRecords
from pyoco_server.ports.registry.port import Registry

__all__ = ["Records"]

log = get_logger(__name__)

_EVERY_SECONDS = 5.0
_AT_ONCE = 16


class Records(Loop):
    """Writes the current records at each turn.

    `nudge` writes them immediately, such as after a change of the door's state.
    """

    def __init__(
        self,
        doors: DoorRecords,
        registry: Registry,
        describe_door: Callable[[], DoorRecord],
        describe_workers: Callable[[], list[WorkerRecord]],
        *,
        every_seconds: float = _EVERY_SECONDS,
    ) -> None:
        super().__init__(every_seconds=every_seconds)
        self._doors, self._registry = doors, registry
        self._describe_door, self._describe_workers = describe_door, describe_workers
        self._writing = asyncio.Semaphore(_AT_ONCE)

    async def turn(self) -> None:
        await self.announce_door()
        await asyncio.gather(*map(self._announce, self._describe_workers()))

    async def announce_door(self) -> None:
        """Best effort."""
        try:
            await self._doors.announce(self._describe_door())
        except Unavailable as error:
            log.warning("could not write the door's record", why=str(error))

    async def _announce(self, record: WorkerRecord) -> None:
        async with self._writing:
            try:
                await self._registry.announce(record)
            except PyocoError as error:
                log.warning("could not write a worker's record", worker_id=record.worker_id, why=str(error))

    async def retire(self, record: WorkerRecord, reason: str, now: float) -> None:
        """Record that a worker has disconnected. Has no effect if it is at another door by now. Best effort."""
        async with self._writing:
            try:
                await self._registry.retire(stopped(record, reason, now))
            except PyocoError as error:
                log.warning("could not retire a worker's record", worker_id=record.worker_id, why=str(error))

    async def remove_door(self, door_id: str) -> None:
        """Best effort: the record expires by itself."""
        try:
            await self._doors.remove(door_id)
        except Unavailable as error:
            log.warning("could not remove the door's record", why=str(error))
