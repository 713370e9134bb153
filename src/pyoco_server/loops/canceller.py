"""Ends cancelled runs that nobody works on."""

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
#: A run that nobody has begun is left alone for this long: its worker may be about to end it.
_QUIET_SECONDS = 2.0
_PAGE = 500
#: Cancelled runs looked at in one turn, newest first: the older ones are looked at when these have ended.
_TURN_MAX = 20_000
_AT_ONCE = 32
#: Packs cannot be cancelled; a program is ended by whoever claims it next.
_OF_OTHERS = (PACK, EXEC)


class Canceller(Loop):
    """Looks at every CANCELLING run, and ends those that nobody has begun or whose worker has gone silent.

    So a cancelled run ends within seconds whether or not a worker serves its tag, and its job is dropped by whoever
    takes it. Every keeper may do so at once: a compare-and-set decides.

    What it cannot do: stop work that goes on. That is the worker's: while it shows signs of life, its run is left
    alone. Nor can it take the job of a run that it ends out of the queue: it does not know where that lies.
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
            return  # half an index would be half a truth
        wanted = RunFilter(status=RunState.CANCELLING)
        place: ListPosition | None = None
        for _ in range(_TURN_MAX // _PAGE):
            page = await self._index.page(wanted, _PAGE, place)
            await asyncio.gather(*(self._end(line.run_id) for line in page.items if self._is_due(line)))
            place = page.next
            if place is None:
                return

    def _is_due(self, line: Summary) -> bool:
        """Whether its record is worth a look: nobody has it, or whoever had it is silent. The record decides."""
        now = self._backend.clock()
        if line.kind in _OF_OTHERS:
            return False
        silent = now - line.heartbeat_at >= self._backend.config.worker_disconnect_timeout_sec
        return now - line.updated_at >= self._quiet_seconds and (line.worker_id is None or silent)

    async def _end(self, run_id: str) -> None:
        async with self._gate_at_once:
            try:
                await end_cancelled(self._backend, run_id, self._quiet_seconds)
            except PyocoError as error:  # one that cannot be ended must not hide the others
                self.outage.failed("a cancelled run could not be ended; trying again", error, run_id=run_id)
