"""Starts delayed runs whose alarm was lost."""

from __future__ import annotations

import asyncio

from pyoco_server.actions.release_run import release_due
from pyoco_server.errors import PyocoError
from pyoco_server.logs import get_logger
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.index.port import DelayedRun, Index

__all__ = ["DelaySweeper"]

log = get_logger(__name__)

_EVERY_SECONDS = 5.0
#: An alarm that is handled normally is much faster than this.
_LATE_SECONDS = 5.0
_PAGE = 1_000
_AT_ONCE = 64


class DelaySweeper(Loop):
    """Looks for runs that are overdue by seconds, and starts them. One short index read while there are none.

    So a delayed run is started even if its alarm was purged, or lost in a restore. What it cannot do: start a run that
    the index does not show yet.
    """

    def __init__(
        self, backend: Backend, index: Index, feeder: IndexFeeder, *, every_seconds: float = _EVERY_SECONDS
    ) -> None:
        super().__init__(every_seconds=every_seconds)
        self._backend, self._index, self._feeder = backend, index, feeder
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def turn(self) -> None:
        if not await self._feeder.caught_up(0):
            return
        before = self._backend.clock() - _LATE_SECONDS
        last: DelayedRun | None = None
        while True:
            page = await self._index.delayed(last, before, _PAGE)
            await asyncio.gather(*(self._start(each) for each in page))
            if len(page) < _PAGE:
                return
            last = page[-1]

    async def _start(self, late: DelayedRun) -> None:
        async with self._room:
            try:
                await release_due(self._backend, late.run_id)
            except PyocoError as error:  # one bad record must not stop the others
                self.outage.failed("could not start a delayed run; retrying", error, run_id=late.run_id)
                return
        log.warning("started a delayed run without its alarm", run_id=late.run_id, kind=late.kind)
