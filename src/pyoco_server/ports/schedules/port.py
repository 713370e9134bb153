"""Schedules: one record each, and chunks of their histories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pyoco_server.core.schedules.history import Chunk
from pyoco_server.core.schedules.record import Schedule

__all__ = ["Kept", "Schedules"]


@dataclass(frozen=True)
class Kept:
    """A stored schedule."""

    schedule: Schedule
    revision: int


class Schedules(Protocol):
    """Schedules by their key (`core/schedules/ids.py`). Every write is a compare-and-set. An outage raises Unavailable.

    After `start` all of them are also in memory, moments behind what is stored.
    """

    async def start(self) -> None:
        """Begin to follow all changes. Returns once all schedules are loaded. Raises Unavailable."""

    async def stop(self) -> None:
        """Stop following changes. Idempotent, and harmless without `start`."""

    def listen(self, listener: Callable[[Schedule], None]) -> None:
        """Call `listener` with each schedule that was created or has changed; it must be fast and must not raise."""

    def known(self) -> list[Schedule]:
        """Return all schedules from memory. Requires `start`."""

    def look(self, key: str) -> Schedule | None:
        """Return a schedule from memory. Requires `start`."""

    def recall(self, key: str) -> Kept | None:
        """Return what is in memory, with its revision, if that is current but for the delay of the network.

        A write over it is lost if it was not.
        """

    @property
    def is_fresh(self) -> bool:
        """Whether what is in memory is current, but for the delay of the network."""

    async def find(self, key: str) -> Kept | None:
        """Return what is stored: one round trip. Raises Corrupt."""

    async def create(self, schedule: Schedule) -> Kept | None:
        """Store a new schedule. None: the name is taken."""

    async def replace(self, schedule: Schedule, kept: Kept) -> Kept | None:
        """Store a schedule over exactly the record that was read, after the chunks that this moves out of it.

        None: another writer was faster, and nothing changed.
        """

    async def delete(self, kept: Kept) -> bool:
        """Delete a schedule and its history over exactly the record that was read. False: another writer was faster;
        a part of the history may be gone."""

    async def chunk(self, schedule_id: str, number: int) -> Chunk | None:
        """Return a chunk of the history. None: it was replaced, or cannot be read."""
