"""Background tasks of connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine

from pyoco_server.frames.wire import WireClosed
from pyoco_server.logs import get_logger

__all__ = ["TaskSet", "beating"]

log = get_logger(__name__)

_BEAT_SECONDS = 5.0


@contextlib.asynccontextmanager
async def beating(beat: Callable[[], object]) -> AsyncIterator[None]:
    """Call `beat` every five seconds during the block: an attempt counts as alive while the door itself works on it."""

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


class TaskSet:
    """A set of tasks that are not awaited individually. They ignore the end of a connection."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._guarded(work))
        self._running.add(task)

        def over(_: object) -> None:
            self._running.discard(task)
            work.close()  # a coroutine cancelled before it began would warn

        task.add_done_callback(over)
        return task

    @staticmethod
    async def _guarded(work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except WireClosed:
            pass
        except Exception:  # the top of a task: an unexpected exception must be logged
            log.exception("task of a connection failed")

    async def settle(self, seconds: float) -> None:
        """Wait for the tasks with a time limit, and cancel the others."""
        if self._running:
            await asyncio.wait(set(self._running), timeout=seconds)
        await self.end()

    async def end(self) -> None:
        """Cancel all tasks. Idempotent. Must not be called by one of them."""
        left = set(self._running)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
