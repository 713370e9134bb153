"""Judges whether JetStream answers (GRID-44)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from enum import Enum

from pyoco_server.errors import PyocoError
from pyoco_server.logs import get_logger
from pyoco_server.ports.programs import Programs

__all__ = ["Quorum", "QuorumChange"]

log = get_logger(__name__)

_EVERY_SECONDS = 1.0
#: There is no quorum if requests get no answer for this long.
_LOST_SECONDS = 5.0


class QuorumChange(Enum):
    """What a check has found. The second one takes effect with `resume`."""

    LOST = "lost"
    ANSWERS_AGAIN = "answers again"


class Quorum:
    """Whether JetStream answers, by a small request at each `check`. Without an answer for five seconds, it does not.

    A stream without a majority still answers requests for some seconds, although it stores nothing. Failed writes
    therefore count as well (`wrote`, `failed_to_write`).

    Limitation: it cannot tell a lost majority from a lost connection. Both are waited out in the same way.
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
        """`every_seconds`: how often `check` is to be called, and how long it waits at most."""
        self.every_seconds = every_seconds
        self._programs, self._wall, self._clock, self._lost_seconds = programs, wall, clock, lost_seconds
        self._asking: asyncio.Task[object] | None = None
        #: Since when requests, and writes, have been failing. None: the last one succeeded.
        self._unanswered_since: float | None = None
        self._unwritten_since: float | None = None
        self._unwritten_at = 0.0
        self.is_quorate = True

    def wrote(self) -> None:
        self._unwritten_since = None

    def failed_to_write(self) -> None:
        before, self._unwritten_at = self._unwritten_at, self._clock()
        if self._unwritten_since is None or self._unwritten_at - before >= 2 * self._lost_seconds:
            self._unwritten_since = self._unwritten_at

    async def check(self) -> QuorumChange | None:
        """Send the request, or continue to wait for the answer to the last one. Returns None if nothing has changed.

        ANSWERS_AGAIN makes every lease fresh for a while. Nothing is claimed until the caller has renewed the leases of
        its attempts and calls `resume`; each check returns it until then.
        """
        if self._asking is None:
            if self._unanswered_since is None:
                self._unanswered_since = self._clock()
            self._asking = asyncio.create_task(self._ask())
        # A slow request continues over several checks: its total duration counts.
        await asyncio.wait({self._asking}, timeout=self.every_seconds)
        if self._asking.done():
            self._asking = None
        if self._is_lost():
            return self._lose()
        if self.is_quorate or self._unanswered_since is not None:
            return None
        self._programs.grace.until = self._wall() + self._programs.config.exec_lease_fresh_sec
        return QuorumChange.ANSWERS_AGAIN

    def resume(self) -> None:
        self.is_quorate = True
        fresh_seconds = self._programs.config.exec_lease_fresh_sec
        log.info("JetStream answers again; treating every lease as fresh for a while", seconds=fresh_seconds)

    async def _ask(self) -> None:
        try:
            await self._programs.queue.totals()
            self._unanswered_since = None
        except PyocoError as error:
            log.debug("JetStream did not answer", error=error)

    def _is_lost(self) -> bool:
        now = self._clock()
        if self._unanswered_since is not None and now - self._unanswered_since >= self._lost_seconds:
            return True
        # A process that has nothing more to write will not write successfully either: forget an old failure.
        if self._unwritten_since is None or now - self._unwritten_at >= 2 * self._lost_seconds:
            return False
        return self._unwritten_at - self._unwritten_since >= self._lost_seconds

    def _lose(self) -> QuorumChange | None:
        if not self.is_quorate:
            return None
        self.is_quorate = False
        log.error("JetStream does not answer; nothing is claimed or accepted", seconds=self._lost_seconds)
        return QuorumChange.LOST

    async def close(self) -> None:
        """Cancel the request in progress."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
            self._asking = None
