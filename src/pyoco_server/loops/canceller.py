"""Ends cancelled runs that no worker is executing."""

from __future__ import annotations

import asyncio

from pyoco_server.actions.rescue import end_cancelled
from pyoco_server.core.programs.record import EXEC
from pyoco_server.core.run import PACK
from pyoco_server.core.states import RunState
from pyoco_server.errors import PyocoError
from pyoco_server.logs import get_logger
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.index.port import Index, ListPosition, RunFilter, Summary

__all__ = ["Canceller"]

log = get_logger(__name__)

_EVERY_SECONDS = 2.0
#: A run that was never claimed is left alone for this long: a worker may be about to end it.
_QUIET_SECONDS = 2.0
_PAGE = 500
#: Cancelled runs checked per turn, newest first; older ones are checked once these have ended.
_TURN_MAX = 20_000
_AT_ONCE = 32
#: A pack is never CANCELLING: one that is not due yet ends at once. A program is ended by the next worker to claim it.
_OF_OTHERS = (PACK, EXEC)


class Canceller(Loop):
    """Checks every CANCELLING run, and ends those that were never claimed or whose worker stopped sending heartbeats.

    A cancelled run therefore ends within seconds whether or not a worker serves its tag, and the worker that later
    receives its job drops it. Several keepers may do this concurrently: a compare-and-set decides.

    What it cannot do: stop running work. Only the worker can, and while it sends heartbeats its run is left alone. It
    also cannot remove the job of a run that it ends from the queue: it does not have the job's sequence number.
    """

    def __init__(
        self,
        backend: Backend,
        index: Index,
        feeder: IndexFeeder,
        *,
        every_seconds: float = _EVERY_SECONDS,
        quiet_seconds: float = _QUIET_SECONDS,
    ) -> None:
        super().__init__(every_seconds=every_seconds)
        self._backend, self._index, self._feeder, self._quiet_seconds = backend, index, feeder, quiet_seconds
        self._gate_at_once = asyncio.Semaphore(_AT_ONCE)

    async def turn(self) -> None:
        if not await self._feeder.caught_up(0):
            return  # a partial index would give wrong results
        wanted = RunFilter(status=RunState.CANCELLING)
        place: ListPosition | None = None
        for _ in range(_TURN_MAX // _PAGE):
            page = await self._index.page(wanted, _PAGE, place)
            await asyncio.gather(*(self._end(line.run_id) for line in page.items if self._is_due(line)))
            place = page.next
            if place is None:
                return

    def _is_due(self, line: Summary) -> bool:
        """Whether to read its record: the run has no worker, or its worker's heartbeat is stale. The record decides."""
        now = self._backend.clock()
        if line.kind in _OF_OTHERS:
            return False
        silent = now - line.heartbeat_at >= self._backend.config.worker_disconnect_timeout_sec
        return now - line.updated_at >= self._quiet_seconds and (line.worker_id is None or silent)

    async def _end(self, run_id: str) -> None:
        async with self._gate_at_once:
            try:
                await end_cancelled(self._backend, run_id, self._quiet_seconds)
            except PyocoError as error:  # one failure must not block the others
                self.outage.failed("could not end a cancelled run; retrying", error, run_id=run_id)
