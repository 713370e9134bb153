"""Whether a worker could end what it would take."""

from __future__ import annotations

import asyncio
import time

from pyoco_server.actions.priced.check_ready import check_ready
from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.priced import Priced

__all__ = ["Fitness"]

log = get_logger(__name__)

#: Between looks while all is well, and at most while it is not.
_LOOK_SECONDS = 5.0
_FIRST_PAUSE_SECONDS = 1.0
#: A look that is not older than this is believed.
_FRESH_SECONDS = 1.0


class Fitness(Loop):
    """Looks at ledger, budget and results every so often: while one of them does not answer, or the ledger is not the
    one that the deployment uses, nothing is received, so that an outage does not use up the three receives of every
    message (PRICED-119, SAFE-12).

    What it cannot do: see an outage before it looks. A message that is received in between goes back once.
    """

    def __init__(self, priced: Priced) -> None:
        super().__init__(every_seconds=_LOOK_SECONDS)
        self._priced = priced
        self._looking = asyncio.Lock()
        self._looked_at = float("-inf")
        self._pause = _FIRST_PAUSE_SECONDS
        #: Exactly one of the two is set.
        self.well, self.unwell = asyncio.Event(), asyncio.Event()
        self.unwell.set()  # until the first look

    async def turn(self) -> None:
        async with self._looking:
            await self._look()

    async def is_well_now(self) -> bool:
        """By a look that is hardly a second old."""
        async with self._looking:
            if self.well.is_set() and time.monotonic() - self._looked_at > _FRESH_SECONDS:
                await self._look()
        return self.well.is_set()

    def doubt(self) -> None:
        """A store did not answer somebody: nothing is received until it answers a look."""
        self._turn_unwell()
        self.nudge()

    async def _look(self) -> None:
        ready = await check_ready(self._priced)
        if ready.can_execute:
            if self.unwell.is_set():
                log.info("the stores of priced runs answer")
            self._looked_at, self._every_seconds, self._pause = time.monotonic(), _LOOK_SECONDS, _FIRST_PAUSE_SECONDS
            self.unwell.clear()
            self.well.set()
            return
        self._turn_unwell()
        self._every_seconds, self._pause = self._pause, min(self._pause * 2, _LOOK_SECONDS)
        log.warning("no priced run is received: a store does not answer", checks=ready.document()["checks"])

    def _turn_unwell(self) -> None:
        self.well.clear()
        self.unwell.set()
