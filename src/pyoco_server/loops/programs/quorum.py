"""Whether JetStream answers (GRID-44)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from pyoco_server.errors import PyocoError
from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.programs import Programs

__all__ = ["Quorum"]

log = get_logger(__name__)

_EVERY_SECONDS = 1.0
#: Without an answer for this long, while asking: there is no quorum.
_LOST_SECONDS = 5.0


async def _nothing() -> None:
    """Nobody has anything to do first."""


class Quorum(Loop):
    """Asks JetStream something small every second. A process that gets no answer for five claims and accepts nothing.

    A stream without a majority goes on to answer questions for some seconds, while it stores nothing: so failed writes
    count as well (`wrote`, `failed_to_write`).

    What it cannot do: tell a lost majority from a cut cable. Both are waited out in the same way.
    """

    def __init__(
        self,
        programs: Programs,
        *,
        wall: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
        every_seconds: float = _EVERY_SECONDS,
        lost_seconds: float = _LOST_SECONDS,
    ) -> None:
        super().__init__(every_seconds=every_seconds)
        self._programs, self._wall, self._clock, self._lost_seconds = programs, wall, clock, lost_seconds
        self._asking: asyncio.Task[object] | None = None
        #: Since when questions, and writes, have been asked without an answer. None: the last one was answered.
        self._unanswered_since: float | None = None
        self._unwritten_since: float | None = None
        self._unwritten_at = 0.0
        self.is_quorate = True
        #: Done first when JetStream is back, before anybody hears of it.
        self.before_return: Callable[[], Awaitable[None]] = _nothing
        self.on_change: Callable[[bool], None] = lambda _: None

    def wrote(self) -> None:
        self._unwritten_since = None

    def failed_to_write(self) -> None:
        before, self._unwritten_at = self._unwritten_at, self._clock()
        if self._unwritten_since is None or self._unwritten_at - before >= 2 * self._lost_seconds:
            self._unwritten_since = self._unwritten_at

    async def turn(self) -> None:
        if self._asking is None:
            if self._unanswered_since is None:
                self._unanswered_since = self._clock()
            self._asking = asyncio.create_task(self._ask())
        # A question that takes its time is waited for beside the turns: how long it has been is what counts.
        await asyncio.wait({self._asking}, timeout=self._every_seconds)
        if self._asking.done():
            self._asking = None
        if self._is_away():
            self._lose()
        elif not self.is_quorate and self._unanswered_since is None:
            await self._return()

    async def _ask(self) -> None:
        try:
            await self._programs.queue.totals()
            self._unanswered_since = None
        except PyocoError as error:
            log.debug("JetStream did not answer", error=error)

    def _is_away(self) -> bool:
        now = self._clock()
        if self._unanswered_since is not None and now - self._unanswered_since >= self._lost_seconds:
            return True
        # Who has nothing to write any more will not write it successfully either: an old failure is forgotten.
        if self._unwritten_since is None or now - self._unwritten_at >= 2 * self._lost_seconds:
            return False
        return self._unwritten_at - self._unwritten_since >= self._lost_seconds

    def _lose(self) -> None:
        if self.is_quorate:
            self.is_quorate = False
            log.error("JetStream does not answer; nothing is claimed or accepted", seconds=self._lost_seconds)
            self.on_change(False)

    async def _return(self) -> None:
        fresh_seconds = self._programs.config.exec_lease_fresh_sec
        self._programs.grace.until = self._wall() + fresh_seconds
        await self.before_return()
        self.is_quorate = True
        log.info("JetStream answers again; every lease counts as fresh for a while", seconds=fresh_seconds)
        self.on_change(True)

    async def stop(self) -> None:
        await super().stop()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
            self._asking = None
