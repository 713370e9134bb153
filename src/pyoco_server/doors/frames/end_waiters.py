"""Which connections wait for the end of which run, and how the door hears of it (GRID-51)."""

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
#: Records that one look reads: the oldest waits, and then the others in turn.
_LOOKS_MAX = 250
_OLDEST = 100
#: Questions under way at once.
_AT_ONCE = 16
#: Waits of all connections together; more are refused. Each takes some 300 bytes.
WAITS_MAX = 1_000_000


class Waiter(Protocol):
    """A client's connection."""

    def tell(self, run: Run) -> None:
        """The run has ended. Must not block."""


class EndWaiters(Loop):
    """Every two seconds the records of the runs that are waited for are read: so a lost hint costs two seconds.

    What it cannot do: read them all when more than 250 are waited for. Then the hundred that have waited longest are
    read each time, and the others take turns; a hint or an end of our own is not put off by that.
    """

    def __init__(self, runs: Runs, *, every_seconds: float = _EVERY_SECONDS) -> None:
        super().__init__(every_seconds=every_seconds)
        self._runs = runs
        #: In the order in which the waits began.
        self._waits: dict[str, set[Waiter]] = {}
        self._count = 0
        #: Runs that somebody says have ended, to be looked at; those under way.
        self._doubtful: dict[str, None] = {}
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._turned_at = 0

    def __len__(self) -> int:
        """Runs that are waited for."""
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
        """Known for certain: the record was written or read here."""
        for waiter in tuple(self._waits.get(run.run_id, ())):
            waiter.tell(run)

    def doubt(self, run_id: str) -> None:
        """Somebody says that it has ended, or was put back: look at its record. Never waits."""
        if run_id in self._waits:
            self._doubtful[run_id] = None
            self._look_at_doubtful()

    def _look_at_doubtful(self) -> None:
        for run_id in list(self._doubtful):
            if len(self._looking) >= _AT_ONCE:
                return
            if run_id not in self._looking:
                del self._doubtful[run_id]
                self._looking[run_id] = asyncio.create_task(self._look_then_go_on(run_id))

    async def _look_then_go_on(self, run_id: str) -> None:
        try:
            await self._look(run_id)
        finally:
            del self._looking[run_id]
            self._look_at_doubtful()

    async def _look(self, run_id: str) -> None:
        if run_id not in self._waits:
            return
        try:
            found = await self._runs.find(run_id)
        except PyocoError as error:  # an outage, or a record that nobody can read: the next turn asks again
            log.warning("a run that is waited for could not be read", run_id=run_id, why=str(error))
            return
        if isinstance(found, Stored) and found.run.is_terminal:
            self.ended(found.run)

    async def turn(self) -> None:
        for run_id in self._picked():
            self._doubtful.setdefault(run_id)
        self._look_at_doubtful()

    def _picked(self) -> list[str]:
        waits = list(self._waits)
        if len(waits) <= _LOOKS_MAX:
            return waits
        rest = waits[_OLDEST:]
        start = self._turned_at % len(rest)
        self._turned_at = start + _LOOKS_MAX - _OLDEST
        return [*waits[:_OLDEST], *(rest + rest)[start : start + _LOOKS_MAX - _OLDEST]]

    async def stop(self) -> None:
        await super().stop()
        self._doubtful.clear()
        for task in list(self._looking.values()):
            task.cancel()
        await asyncio.gather(*self._looking.values(), return_exceptions=True)
