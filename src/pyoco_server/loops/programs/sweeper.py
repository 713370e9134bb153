"""Finds runs whose message is missing from the queue, and messages whose runs have ended."""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import aclosing

from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.slots import clear_abandoned
from pyoco_server.actions.programs.sweep import mend
from pyoco_server.errors import PyocoError
from pyoco_server.logs import get_logger
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.index.port import Index
from pyoco_server.ports.runs.port import Stored

__all__ = ["ProgramSweeper"]

log = get_logger(__name__)

#: ±20% (GRID-57), so that the sweeps of many processes are spread.
_JITTER = 0.2
#: Retry interval while the index has not caught up.
_SOON_SECONDS = 1.0
_AT_ONCE = 16
_BATCH = 2_000
#: Limit of messages checked for ended runs in one turn. With more messages in the queue, the next turn continues where
#: this one stopped. Such messages are harmless, since a worker that receives one drops it.
_ENDED_MAX = 20_000
_BATCHES_MAX = 1_000
_TURN_SECONDS_MAX = 600.0


class ProgramSweeper(Loop):
    """Repairs runs and messages every `exec_sweep_sec`, and at its start (GRID-57, GRID-74).

    It looks for open runs without recent changes that have no message, messages of runs that have ended, and abandoned
    slots.

    A scan of the queue costs a round trip per 100,000 messages and 8 bytes of memory for each. A run is read only if
    its message is missing, plus up to 20,000 others. Open runs come from an index if there is one; otherwise from the
    feed of changes, which is read once from the beginning, and then from where the last turn ended: O(open runs) of
    memory. Any number of processes may sweep at once.

    Limitation: it does not repair what has changed within `exec_stale_sec`.
    """

    def __init__(self, backend: Backend, index: Index | None = None, feeder: IndexFeeder | None = None) -> None:
        programs = programs_of(backend)
        super().__init__(every_seconds=programs.config.exec_sweep_sec, turn_seconds_max=_TURN_SECONDS_MAX)
        self._backend, self._programs = backend, programs
        self._index, self._feeder = index, feeder
        self._followed = _OpenRuns(backend)
        self._room = asyncio.Semaphore(_AT_ONCE)
        #: The offset at which the next check of messages begins.
        self._offset = 0
        self.mended = 0

    async def turn(self) -> None:
        if self._feeder is not None and not await self._feeder.caught_up(0):
            self._every_seconds = _SOON_SECONDS  # index has not caught up
            return
        spread = 1 - _JITTER + 2 * _JITTER * self._programs.chance()
        self._every_seconds = self._programs.config.exec_sweep_sec * spread
        await self._guarded(self._sweep_slots())
        # Read the queue first: a job queued after that has a recent record.
        queued = await self._check_queue()
        async for run_ids in self._idle_runs():
            await self._mend(run_id for run_id in run_ids if not queued.has(run_id))

    async def _sweep_slots(self) -> None:
        group = self._programs.config.exec_group
        for client in self._programs.slots.all_held(group):
            await clear_abandoned(self._backend, group, client)

    async def _check_queue(self) -> _Marks:
        """Return which runs have a message. Check some of them, in case their runs have ended."""
        marks, offset = _Marks(), 0
        window: list[str] = []
        while True:
            page = await self._programs.queue.listed(offset)
            marks.add(run_id for _, run_id in page)
            begin = max(0, self._offset - offset)
            window += [run_id for _, run_id in page[begin : begin + _ENDED_MAX - len(window)]]
            offset += len(page)
            if not page:
                break
        self._offset = self._offset + len(window) if len(window) == _ENDED_MAX else 0
        marks.sort()
        await self._mend(window)
        return marks

    async def _idle_runs(self) -> AsyncIterator[list[str]]:
        before = self._backend.clock() - self._programs.config.exec_stale_sec
        if self._index is None:
            async for run_ids in self._followed.idle(before):
                yield run_ids
            return
        after = 0.0
        for _ in range(_BATCHES_MAX):
            lines = await self._index.open_programs(after, before, _BATCH)
            yield [line.run_id for line in lines]
            if len(lines) < _BATCH or lines[-1].updated_at <= after:
                return
            after = lines[-1].updated_at

    async def _mend(self, run_ids: Iterable[str]) -> None:
        async def one(run_id: str) -> None:
            async with self._room:
                await self._guarded(self._mend_one(run_id), run_id=run_id)

        batch = list(run_ids)
        for begin in range(0, len(batch), _BATCH):
            await asyncio.gather(*map(one, batch[begin : begin + _BATCH]))

    async def _mend_one(self, run_id: str) -> None:
        is_mended = await mend(self._backend, run_id)
        self.mended += is_mended  # read only now: many are in progress

    async def _guarded(self, look: Awaitable[None], **where: str) -> None:
        """Await, and log errors: an invalid record must not stop the sweep."""
        try:
            await look
        except PyocoError as error:
            self.outage.failed("could not check a job; the next sweep tries again", error, **where)


class _Marks:
    """A set of run ids, in 8 bytes each.

    Two different ids collide with a probability of about 1 in 10^12. One of them is then assumed to have a message, and
    is found by a later sweep, after the other has ended.
    """

    def __init__(self) -> None:
        self._marks = array("Q")

    def add(self, run_ids: Iterable[str]) -> None:
        self._marks.extend(map(_mark, run_ids))

    def sort(self) -> None:
        self._marks = array("Q", sorted(self._marks))

    def has(self, run_id: str) -> bool:
        mark = _mark(run_id)
        index = bisect_left(self._marks, mark)
        return index < len(self._marks) and self._marks[index] == mark


def _mark(run_id: str) -> int:
    """Return 64 bits of the id. Ids are random or a hash, so any 64 bits are suitable."""
    try:
        return int(run_id.replace("-", "")[-16:], 16)
    except ValueError:  # not an id of ours
        return 0


class _OpenRuns:
    """The open runs of programs, for a process without an index."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._after, self._epoch = 0, ""
        #: When each was last updated.
        self._open: dict[str, float] = {}

    async def idle(self, before: float) -> AsyncIterator[list[str]]:
        await self._follow()
        found = [run_id for run_id, updated_at in self._open.items() if updated_at < before]
        for begin in range(0, len(found), _BATCH):
            yield found[begin : begin + _BATCH]

    async def _follow(self) -> None:
        """Read the changes since the last call."""
        async with aclosing(self._backend.runs.changes(self._after, self._epoch)) as feed:
            async for changes in feed:
                if changes.epoch != self._epoch:
                    self._after, self._epoch = 0, changes.epoch
                    self._open.clear()
                for item in changes.items:
                    self._after = max(self._after, item.revision)
                    if (
                        isinstance(item, Stored)
                        and item.run.is_exec
                        and not item.run.is_terminal
                        and not item.run.waits_for_time
                    ):
                        self._open[item.run.run_id] = item.run.updated_at
                    else:
                        self._open.pop(item.run.run_id if isinstance(item, Stored) else item.run_id, None)
                if changes.caught_up:
                    return
