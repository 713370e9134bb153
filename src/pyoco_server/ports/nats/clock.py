"""The time of day as NATS tells it, so that everybody who uses one store agrees, whatever their own clocks say."""

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
#: Worth a line in the log.
_DIFFERENCE_SECONDS = 5.0


class _Info(msgspec.Struct):
    #: When the answer was given.
    ts: datetime


def _steady() -> float:
    """Seconds since the machine was started, those it slept through included. Nobody can set it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class StoreClock:
    """Unix seconds. A jump of this machine's time of day moves nothing; a clock that was wrong from the start does no
    harm either. Right to one round trip at worst.
    """

    def __init__(self, link: Link, stream: str) -> None:
        self._link, self._stream = link, stream
        self._offset = time.time() - _steady()
        self._has_warned = False

    def __call__(self) -> float:
        return _steady() + self._offset

    async def set(self) -> None:
        """One round trip. Raises Unavailable."""
        asked = _steady()
        try:
            info = await self._link.insist(f"STREAM.INFO.{self._stream}", {}, _Info)
        except Rejected as error:
            raise Unavailable(f"cannot ask for the time: {error}") from error
        told = info.ts.timestamp()
        self.hear(told, asked, _steady())

    def hear(self, told: float, asked: float, answered: float) -> None:
        """The store said `told` at some moment between these two of the steady clock.

        While what we believe fits that, it stays: a slow answer must not make it worse. Otherwise it moves as far as it
        has to.
        """
        self._offset = min(max(self._offset, told - answered), told - asked)
        difference = time.time() - self()
        if abs(difference) < _DIFFERENCE_SECONDS:
            self._has_warned = False
        elif not self._has_warned:
            self._has_warned = True
            log.warning("this machine's clock differs from that of NATS, which counts", seconds=round(difference, 1))

    async def keep(self) -> None:
        """Look again now and then: no two clocks go equally fast."""
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            with contextlib.suppress(Unavailable):  # then it goes on as it went
                await self.set()


@contextlib.asynccontextmanager
async def open_clock(link: Link, stream: str) -> AsyncIterator[StoreClock]:
    """A clock that is right, and kept right. Raises Unavailable."""
    clock = StoreClock(link, stream)
    await clock.set()
    keeping = asyncio.create_task(clock.keep(), name="store clock")
    try:
        yield clock
    finally:
        while not keeping.done():  # before Python 3.12 a cancel can be swallowed
            keeping.cancel()
            await asyncio.wait({keeping}, timeout=0.5)
