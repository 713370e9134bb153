"""The time of day of the NATS server, so that all processes of one store agree even if their own clocks differ."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from datetime import datetime

import msgspec

from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.link import Link, Rejected

__all__ = ["StoreClock", "open_clock"]

log = get_logger(__name__)

_EVERY_SECONDS = 30.0
#: A larger difference of the local clock is logged.
_DIFFERENCE_SECONDS = 5.0


class _Info(msgspec.Struct):
    #: When the server sent the response.
    ts: datetime


def _steady() -> float:
    """Return the seconds since boot, including suspend. This clock cannot be set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class StoreClock:
    """Unix seconds of the store. Not affected by jumps or a wrong setting of the local clock.

    Accurate to one round trip in the worst case.
    """

    def __init__(self, link: Link, stream: str) -> None:
        self._link, self._stream = link, stream
        self._offset = time.time() - _steady()
        self._has_warned = False

    def __call__(self) -> float:
        return _steady() + self._offset

    async def set(self) -> None:
        """Read the time of the store: one round trip. Raises Unavailable."""
        asked_at = _steady()
        try:
            info = await self._link.insist(f"STREAM.INFO.{self._stream}", {}, _Info)
        except Rejected as error:
            raise Unavailable(f"cannot ask for the time: {error}") from error
        store_time = info.ts.timestamp()
        self.hear(store_time, asked_at, _steady())

    def hear(self, store_time: float, asked_at: float, answered_at: float) -> None:
        """Adjust to `store_time`, which was read between these two times of the steady clock.

        An offset that is consistent with this is kept, so that a slow answer does not reduce accuracy. Otherwise it is
        moved by the minimum.
        """
        self._offset = min(max(self._offset, store_time - answered_at), store_time - asked_at)
        difference = time.time() - self()
        if abs(difference) < _DIFFERENCE_SECONDS:
            self._has_warned = False
        elif not self._has_warned:
            self._has_warned = True
            log.warning("local clock differs from the NATS clock, which is used", seconds=round(difference, 1))

    async def keep(self) -> None:
        """Read the time periodically, because clocks drift."""
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            with contextlib.suppress(Unavailable):  # keep the last offset
                await self.set()


@contextlib.asynccontextmanager
async def open_clock(link: Link, stream: str) -> AsyncIterator[StoreClock]:
    """Yield a clock that is set and kept synchronised. Raises Unavailable."""
    clock = StoreClock(link, stream)
    await clock.set()
    keeping = asyncio.create_task(clock.keep(), name="store clock")
    try:
        yield clock
    finally:
        while not keeping.done():  # before Python 3.12 a cancellation can be lost
            keeping.cancel()
            await asyncio.wait({keeping}, timeout=0.5)
