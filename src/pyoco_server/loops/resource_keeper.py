"""Recreates resources that were deleted in NATS, where that loses no data, and refills the queues (SAFE-15)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from pyoco_server.actions.programs.sweep import put_lost
from pyoco_server.actions.queue_again import queue_again
from pyoco_server.actions.rescue import QueueSnapshot, has_no_job, snapshot_queue
from pyoco_server.core.holds import LOST, REBUILT, Holds
from pyoco_server.core.states import RunState
from pyoco_server.errors import PyocoError, ResourceMissing, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.index.port import Index, Summary
from pyoco_server.ports.resources.port import StoreGone
from pyoco_server.ports.runs.port import Stored

__all__ = ["ResourceKeeper"]

log = get_logger(__name__)

#: Both together: a deleted queue exists again within 15 s, plus the duration of a turn.
_EVERY_SECONDS: Final = 5.0
#: Not immediately: a restore deletes a stream before it uploads the copy, and a cluster may report wrong state briefly.
_SETTLE_SECONDS: Final = 10.0
#: A submission that has just failed withdraws its record within 17 s. More recent records are left to a later turn.
_YOUNG_SECONDS: Final = 20.0
#: How far the clocks of the processes that write records may be ahead of the store's.
_SKEW_SECONDS: Final = 30.0
_AT_ONCE: Final = 16
_BATCH: Final = 500
_TURN_SECONDS_MAX: Final = 600.0

_List = Callable[[float, float, int], Awaitable[list[Summary]]]
_Put = Callable[[str, float], Awaitable[bool]]


class ResourceKeeper(Loop):
    """Compares the streams in NATS with those that this process uses. Queues, the worker registry and the list of doors
    are recreated with their last settings; any other missing resource is reported and left to the operator, since an
    empty bucket would hide the loss.

    A stream of jobs that is newer than the records of PENDING runs cannot hold their jobs: these are queued again, for
    flows and programs. Priced runs are queued again by their own sweeper. Any number of keepers may do this
    concurrently.

    What it cannot do: queue a job whose params were too large to be stored, or whose flow.yaml was deleted. The Rescuer
    ends such a run.
    """

    def __init__(
        self,
        backend: Backend,
        index: Index,
        feeder: IndexFeeder,
        *,
        every_seconds: float = _EVERY_SECONDS,
        settle_seconds: float = _SETTLE_SECONDS,
        young_seconds: float = _YOUNG_SECONDS,
    ) -> None:
        super().__init__(every_seconds=every_seconds, turn_seconds_max=_TURN_SECONDS_MAX)
        self._backend, self._index, self._feeder = backend, index, feeder
        self._settle_seconds, self._young_seconds = settle_seconds, young_seconds
        #: Since when each resource has been missing.
        self._since: dict[str, float] = {}
        #: Per queue, the creation time of the stream that has been refilled.
        self._filled: dict[Holds, float] = {}
        self._snapshots: dict[str, QueueSnapshot] = {}
        self._left_young = False
        self._room = asyncio.Semaphore(_AT_ONCE)
        #: Callbacks, called after the resource with this content was recreated.
        self.when_made: dict[Holds, Callable[[], None]] = {}

    async def turn(self) -> None:
        now = self._backend.clock()
        missing = await self._backend.resources.missing()
        self._since = {each.name: self._since.get(each.name, now) for each in missing}
        for each in missing:
            await self._recreate(each, now - self._since[each.name])
        if await self._feeder.caught_up(0):
            await self._fill(Holds.JOBS, self._index.unfinished, self._put_flow)
            if self._backend.programs is not None:
                await self._fill(Holds.PROGRAM_JOBS, self._index.open_programs, self._put_program)

    async def _recreate(self, missing: StoreGone, seconds: float) -> None:
        lost, _ = LOST[missing.holds]
        if missing.holds not in REBUILT:
            message = "a resource in NATS and its data are missing; restore it from a backup"
            self.outage.failed(message, ResourceMissing(missing.name), resource=missing.name, lost=lost)
            return
        if seconds < self._settle_seconds:
            return
        try:
            made = await self._backend.resources.make_again(missing.name)
        except Unavailable as error:
            self.outage.failed("could not create a missing resource", error, resource=missing.name, lost=lost)
            return
        if made:
            log.warning("recreated a missing resource", resource=missing.name, lost=lost)
        callback = self.when_made.get(missing.holds)
        if callback is not None:
            callback()

    # Jobs of waiting runs.

    async def _fill(self, holds: Holds, listed: _List, put: _Put) -> None:
        begun_at = await self._backend.resources.begun_at(holds)
        if begun_at is None or self._filled.get(holds) == begun_at:
            return
        self._snapshots.clear()
        self._left_young = False
        number = 0
        async for run_ids in self._waiting(listed, begun_at + _SKEW_SECONDS):
            number += sum(await asyncio.gather(*(self._guarded(put, run_id, begun_at) for run_id in run_ids)))
        if number:
            log.warning("queued lost jobs again", queue=holds.value, runs=number)
        if not self._left_young:
            self._filled[holds] = begun_at

    @staticmethod
    async def _waiting(listed: _List, before: float) -> AsyncIterator[list[str]]:
        """Yield PENDING runs, according to the index, that were last updated before this instant; oldest first."""
        after = 0.0
        while True:
            lines = await listed(after, before, _BATCH)
            yield [line.run_id for line in lines if line.status == RunState.PENDING]
            if len(lines) < _BATCH or lines[-1].updated_at <= after:
                return
            after = lines[-1].updated_at

    async def _guarded(self, put: _Put, run_id: str, begun_at: float) -> bool:
        """Log an error instead of raising it: one malformed record must not block the others. The next turn retries."""
        async with self._room:
            try:
                return await put(run_id, begun_at)
            except PyocoError as error:
                self._left_young = True
                self.outage.failed("could not queue a run again", error, run_id=run_id)
                return False

    async def _put_flow(self, run_id: str, begun_at: float) -> bool:
        found = await self._backend.runs.find(run_id)
        if not isinstance(found, Stored) or not found.run.is_flow or found.run.status is not RunState.PENDING:
            return False
        if found.run.waits_for_time or found.stored_at >= begun_at or self._is_young(found):
            return False
        tag = found.run.tag
        snapshot = self._snapshots.get(tag)
        if snapshot is None:
            snapshot = self._snapshots[tag] = await snapshot_queue(self._backend, tag)
        return has_no_job(found, snapshot.stock) and await queue_again(self._backend, found)

    async def _put_program(self, run_id: str, begun_at: float) -> bool:
        return await put_lost(self._backend, run_id, begun_at)

    def _is_young(self, found: Stored) -> bool:
        is_young = self._backend.clock() - found.stored_at < self._young_seconds
        self._left_young = self._left_young or is_young
        return is_young
