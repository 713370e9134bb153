"""What every cache of a stream is fed by: it follows the stream, and knows whether the cache tells the truth."""

from __future__ import annotations

import abc
import asyncio
import time
from typing import Protocol

from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.outages import Outage
from pyoco_server.ports.index.port import Mark

__all__ = ["SILENCE_SECONDS", "Cache", "Feeder"]

log = get_logger(__name__)

#: A feed gives a sign of life every second. After three seconds without one it makes itself anew; whoever has not heard
#: it for longer than that takes knows nothing of what is stored now.
SILENCE_SECONDS = 5.0
_AGAIN_SECONDS = 1.0


class Cache(Protocol):
    async def open(self) -> Mark:
        """How far it has read. May be called again. Raises Unavailable."""

    async def close(self) -> None: ...

    async def damaged(self) -> None:
        """Returns when somebody has found that it is of no use."""


class Feeder(abc.ABC):
    """Feeds one cache from where it stopped, for ever. `start` and `stop` may be called twice and at once."""

    #: What is fed, for messages.
    what: str

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._gate = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._caught_up = asyncio.Event()
        self._mark = Mark()
        self._is_true = False
        #: Up to when all that the feed told is in the cache.
        self._true_at = 0.0
        self._outage = Outage(log)

    @abc.abstractmethod
    async def _feed(self) -> None:
        """Goes on from the mark, until something is in the way. It calls `_forget` when the stream is another one."""

    async def start(self) -> None:
        """Returns once the cache is open; `caught_up` tells when it is true. Raises Unavailable."""
        async with self._gate:
            if self._task is None:
                self._stopping.clear()
                self._forget()
                self._mark = await self._cache.open()
                self._task = asyncio.create_task(self._run(), name=type(self).__name__)

    async def stop(self) -> None:
        """Returns once it has stopped and the cache is closed. May be called without a start."""
        async with self._gate:
            self._stopping.set()
            task, self._task = self._task, None
            while task is not None and not task.done():
                task.cancel()  # more than once: before Python 3.12 a cancel can be swallowed by a library
                await asyncio.wait({task}, timeout=0.5)
            self._forget()
            await self._cache.close()

    async def caught_up(self, seconds: float) -> bool:
        """Whether the cache holds all that was stored a moment ago; waits for it up to `seconds`.

        False, too, when the feed has gone silent: it was true once, and nobody knows since when it is not.
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
        """What was told is not true any more: the cache has to become whole again."""
        self._is_true = False
        self._caught_up.clear()

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                async with asyncio.TaskGroup() as both:
                    noticing = both.create_task(self._notice_damage())
                    await self._feed()
                    noticing.cancel()
            except Exception:  # the top of a loop: start again from what the cache really holds
                log.exception(f"feeding {self.what} failed; it goes on from the last mark", loop=type(self).__name__)
            self._forget()
            await self._reopen()

    async def _reopen(self) -> None:
        while not self._stopping.is_set():
            await asyncio.sleep(_AGAIN_SECONDS)
            try:
                self._mark = await self._cache.open()
            except Unavailable as error:
                self._outage.failed(f"{self.what} cannot be opened; trying again", error)
            else:
                self._outage.worked()
                return

    async def _notice_damage(self) -> None:
        """Whoever reads may find it, while nothing is there to be written: it is for us to build it anew."""
        await self._cache.damaged()
        self._forget()  # at once: it may take a while until the feed is closed
        raise Unavailable(f"{self.what} was found damaged")
