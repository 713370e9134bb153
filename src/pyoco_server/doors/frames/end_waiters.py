"""The connections that wait for the end of runs, and how the door detects it (GRID-51)."""

from __future__ import annotations

import asyncio
from typing import Protocol

from pyoco_server.core.run import Run
from pyoco_server.errors import PyocoError
from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.runs.port import Runs, Stored

__all__ = ["EndWaiters", "Waiter"]

log = get_logger(__name__)

_EVERY_SECONDS = 2.0
#: Records read in one turn: those waited for the longest, and the others in rotation.
_READS_MAX = 250
_OLDEST = 100
#: Concurrent reads.
_AT_ONCE = 16
#: Limit of waits of all connections together; further ones are refused. Each takes some 300 bytes.
WAITS_MAX = 1_000_000


class Waiter(Protocol):
    """A client's connection."""

    def tell(self, run: Run) -> None:
        """Notify that the run has ended. Must not block."""


class EndWaiters(Loop):
    """Reads the records of awaited runs every two seconds, so a lost wakeup delays a result by at most that.

    Limitation: it reads at most 250 records per turn. If more runs are awaited, the hundred oldest waits are read each
    time and the others in rotation. Wakeups, and runs that end in this process, are not delayed by that.
    """

    def __init__(self, runs: Runs, *, every_seconds: float = _EVERY_SECONDS) -> None:
        super().__init__(every_seconds=every_seconds)
        self._runs = runs
        #: In the order in which the waits began.
        self._waits: dict[str, set[Waiter]] = {}
        self._count = 0
        #: Runs that may have ended and must be read; reads in progress.
        self._doubtful: dict[str, None] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._turned_at = 0

    def __len__(self) -> int:
        """Number of awaited runs."""
        return len(self._waits)

    @property
    def is_full(self) -> bool:
        return self._count >= WAITS_MAX

    def wait(self, run_id: str, waiter: Waiter) -> None:
        waiters = self._waits.setdefault(run_id, set())
        self._count += waiter not in waiters
        waiters.add(waiter)

    def leave(self, run_id: str, waiter: Waiter) -> None:
        waiters = self._waits.get(run_id)
        if waiters is None or waiter not in waiters:
            return
        waiters.remove(waiter)
        self._count -= 1
        if not waiters:
            del self._waits[run_id]

    def ended(self, run: Run) -> None:
        """Notify the waiters of a run whose terminal record was written or read in this process."""
        for waiter in tuple(self._waits.get(run.run_id, ())):
            waiter.tell(run)

    def doubt(self, run_id: str) -> None:
        """Read the record of a run that may have ended or been put back. Never waits."""
        if run_id in self._waits:
            self._doubtful[run_id] = None
            self._read_doubtful()

    def _read_doubtful(self) -> None:
        for run_id in list(self._doubtful):
            if len(self._reading) >= _AT_ONCE:
                return
            if run_id not in self._reading:
                del self._doubtful[run_id]
                self._reading[run_id] = asyncio.create_task(self._read_then_continue(run_id))

    async def _read_then_continue(self, run_id: str) -> None:
        try:
            await self._read(run_id)
        finally:
            del self._reading[run_id]
            self._read_doubtful()

    async def _read(self, run_id: str) -> None:
        if run_id not in self._waits:
            return
        try:
            found = await self._runs.find(run_id)
        except PyocoError as error:  # an outage, or an unreadable record: the next turn reads it again
            log.warning("could not read an awaited run", run_id=run_id, why=str(error))
            return
        if isinstance(found, Stored) and found.run.is_terminal:
            self.ended(found.run)

    async def turn(self) -> None:
        for run_id in self._picked():
            self._doubtful.setdefault(run_id)
        self._read_doubtful()

    def _picked(self) -> list[str]:
        waits = list(self._waits)
        if len(waits) <= _READS_MAX:
            return waits
        rest = waits[_OLDEST:]
        start = self._turned_at % len(rest)
        self._turned_at = start + _READS_MAX - _OLDEST
        return [*waits[:_OLDEST], *(rest + rest)[start : start + _READS_MAX - _OLDEST]]

    async def stop(self) -> None:
        await super().stop()
        self._doubtful.clear()
        for task in list(self._reading.values()):
            task.cancel()
        await asyncio.gather(*self._reading.values(), return_exceptions=True)
