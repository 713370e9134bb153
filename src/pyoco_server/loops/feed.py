"""Base class of the loops that feed a cache from a stream and track whether the cache is up to date."""

from __future__ import annotations

import abc
import asyncio
import time
from typing import Protocol

from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.logs.outages import Outage
from pyoco_server.ports.index.port import Mark

__all__ = ["SILENCE_SECONDS", "Cache", "Feeder"]

log = get_logger(__name__)

#: A feed signals progress every second and restarts itself after three seconds without a signal. After a longer silence
#: the cache must be assumed stale.
SILENCE_SECONDS = 5.0
_AGAIN_SECONDS = 1.0


class Cache(Protocol):
    async def open(self) -> Mark:
        """Open the cache and return the position it has read up to. Idempotent. Raises Unavailable."""

    async def close(self) -> None: ...

    async def damaged(self) -> None:
        """Return when a reader has found the cache to be unusable."""


class Feeder(abc.ABC):
    """Feeds one cache from its last position, indefinitely. `start` and `stop` are idempotent and may be called
    concurrently."""

    #: Name of the cache, for log messages.
    what: str

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._gate = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._caught_up = asyncio.Event()
        self._mark = Mark()
        self._is_true = False
        #: Everything the feed delivered up to this monotonic time is in the cache.
        self._true_at = 0.0
        self._outage = Outage(log)

    @abc.abstractmethod
    async def _feed(self) -> None:
        """Follow the stream from the mark until an error occurs. Calls `_forget` if the stream was replaced."""

    async def start(self) -> None:
        """Return once the cache is open; `caught_up` reports when it is up to date. Raises Unavailable."""
        async with self._gate:
            if self._task is None:
                self._stopping.clear()
                self._forget()
                self._mark = await self._cache.open()
                self._task = asyncio.create_task(self._run(), name=type(self).__name__)

    async def stop(self) -> None:
        """Return once the feed has stopped and the cache is closed. May be called without `start`."""
        async with self._gate:
            self._stopping.set()
            task, self._task = self._task, None
            while task is not None and not task.done():
                task.cancel()  # repeatedly: before Python 3.12 a library can swallow a cancellation
                await asyncio.wait({task}, timeout=0.5)
            self._forget()
            await self._cache.close()

    async def caught_up(self, seconds: float) -> bool:
        """Whether the cache holds everything that was stored a moment ago; waits up to `seconds` for that.

        Also returns False if the feed has stopped signalling: the cache was up to date once, but may be stale by now.
        """
        if time.monotonic() - self._true_at > SILENCE_SECONDS:
            self._caught_up.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._caught_up.wait()
        except TimeoutError:
            return False
        return True

    def _forget(self) -> None:
        """Mark the cache as stale until the feed has caught up again."""
        self._is_true = False
        self._caught_up.clear()

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                async with asyncio.TaskGroup() as both:
                    noticing = both.create_task(self._notice_damage())
                    await self._feed()
                    noticing.cancel()
            except Exception:  # top level of the loop: restart from what the cache really holds
                log.exception(f"feeding {self.what} failed; continuing from the last mark", loop=type(self).__name__)
            self._forget()
            await self._reopen()

    async def _reopen(self) -> None:
        while not self._stopping.is_set():
            await asyncio.sleep(_AGAIN_SECONDS)
            try:
                self._mark = await self._cache.open()
            except Unavailable as error:
                self._outage.failed(f"could not open {self.what}; retrying", error)
            else:
                self._outage.worked()
                return

    async def _notice_damage(self) -> None:
        """Raise Unavailable if a reader reports damage while there is nothing to write; the cache is then rebuilt."""
        await self._cache.damaged()
        self._forget()  # immediately: closing the feed may take a while
        raise Unavailable(f"{self.what} was found damaged")
