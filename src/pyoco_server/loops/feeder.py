"""Keeps the index of runs true."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from pyoco_server.logs import get_logger
from pyoco_server.ports.index.port import Index, Mark
from pyoco_server.ports.runs.port import Runs

__all__ = ["IndexFeeder"]

log = get_logger(__name__)


class IndexFeeder:
    """Follows every change of a run from where the index stopped, for ever.

    What it cannot do: show a change before its message has arrived. While NATS is away the index stands still.
    """

    def __init__(self, runs: Runs, index: Index) -> None:
        self._runs, self._index = runs, index
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._caught_up = asyncio.Event()

    async def start(self) -> None:
        """Returns once the index is open; `caught_up` tells when it is true."""
        if self._task is None:
            self._stopping.clear()
            mark = await self._index.open()
            self._task = asyncio.create_task(self._run(mark), name="IndexFeeder")

    async def caught_up(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._caught_up.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        self._stopping.set()
        task, self._task = self._task, None
        while task is not None and not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=0.5)
        await self._index.close()

    async def _run(self, mark: Mark) -> None:
        while not self._stopping.is_set():
            try:
                mark = await self._follow(mark)
            except Exception:  # the top of a loop: a failed write to the index is tried again from the last mark
                log.exception("feeding the index failed", loop="IndexFeeder")
                await asyncio.sleep(1)

    async def _follow(self, mark: Mark) -> Mark:
        async with aclosing(self._runs.changes(mark.revision, mark.epoch)) as changes:
            async for change in changes:
                if change.epoch != mark.epoch:
                    await self._index.reset(change.epoch)
                    mark = Mark(change.epoch, 0)
                if change.items:
                    mark = Mark(change.epoch, change.items[-1].revision)
                    await self._index.apply(change.items, mark)
                if change.caught_up:
                    self._caught_up.set()
                if self._stopping.is_set():
                    break
        return mark
