"""Work that is done beside the reading of a connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine

from pyoco_server.frames.wire import WireClosed
from pyoco_server.logs import get_logger

__all__ = ["Tasks", "beating"]

log = get_logger(__name__)

_BEAT_SECONDS = 5.0


@contextlib.asynccontextmanager
async def beating(beat: Callable[[], object]) -> AsyncIterator[None]:
    """While the door itself is at work for an attempt, that one is alive, whatever its worker says."""

    async def keep_beating() -> None:
        while True:
            beat()
            await asyncio.sleep(_BEAT_SECONDS)

    task = asyncio.create_task(keep_beating())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


class Tasks:
    """A set of tasks that nobody waits for one by one. A peer that has gone is no error of theirs."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._guarded(work))
        self._running.add(task)

        def over(_: object) -> None:
            self._running.discard(task)
            work.close()  # one that was ended before it began would complain

        task.add_done_callback(over)
        return task

    @staticmethod
    async def _guarded(work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except WireClosed:
            pass
        except Exception:  # the top of a task: what nobody foresaw must not go unheard
            log.exception("work for a connection failed")

    async def settle(self, seconds: float) -> None:
        """Wait for them, for so long at most, and end the others."""
        if self._running:
            await asyncio.wait(set(self._running), timeout=seconds)
        await self.end()

    async def end(self) -> None:
        """May be repeated. Never called by one of them."""
        left = set(self._running)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
