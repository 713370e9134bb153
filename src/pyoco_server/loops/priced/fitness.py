"""Whether a worker could end the runs that it would take."""

from __future__ import annotations

import asyncio
import time

from pyoco_server.actions.priced.check_ready import check_ready
from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.priced import Priced

__all__ = ["Fitness"]

log = get_logger(__name__)

#: Time between checks while all stores answer, and its maximum while one does not.
_CHECK_SECONDS = 5.0
_FIRST_PAUSE_SECONDS = 1.0
#: A check that is not older than this is trusted.
_FRESH_SECONDS = 1.0


class Fitness(Loop):
    """Checks the ledger, the budget and the stores of results and inputs periodically.

    While one of them does not answer, or the ledger is not the one that the deployment uses, the worker receives
    nothing, so that an outage does not use up the three receives of every message (PRICED-119, SAFE-12). It cannot
    detect an outage before the next check. A message that is received in between is put back once.
    """

    def __init__(self, priced: Priced) -> None:
        super().__init__(every_seconds=_CHECK_SECONDS)
        self._priced = priced
        self._checking = asyncio.Lock()
        self._checked_at = float("-inf")
        self._pause = _FIRST_PAUSE_SECONDS
        #: Exactly one of the two is set.
        self.well, self.unwell = asyncio.Event(), asyncio.Event()
        self.unwell.set()  # until the first check
        self._is_reported = False

    async def turn(self) -> None:
        async with self._checking:
            await self._check()

    async def is_well_now(self) -> bool:
        """Whether all stores answer, by a check that is at most about a second old."""
        async with self._checking:
            if self.well.is_set() and time.monotonic() - self._checked_at > _FRESH_SECONDS:
                await self._check()
        return self.well.is_set()

    def doubt(self) -> None:
        """Report that a store did not answer: nothing is received until a check succeeds."""
        self._turn_unwell()
        self.nudge()

    async def _check(self) -> None:
        ready = await check_ready(self._priced)
        if ready.can_execute:
            if self.unwell.is_set():
                log.info("the stores of priced runs answer")
            self._is_reported = False
            self._checked_at, self._every_seconds, self._pause = time.monotonic(), _CHECK_SECONDS, _FIRST_PAUSE_SECONDS
            self.unwell.clear()
            self.well.set()
            return
        self._turn_unwell()
        self._every_seconds, self._pause = self._pause, min(self._pause * 2, _CHECK_SECONDS)
        if not self._is_reported:  # once for each outage
            self._is_reported = True
            log.warning("receiving no priced runs: a store does not answer", checks=ready.document()["checks"])

    def _turn_unwell(self) -> None:
        self.well.clear()
        self.unwell.set()
