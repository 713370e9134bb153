"""Keeps the index of runs true."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import aclosing

from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.index.port import Index, Mark
from pyoco_server.ports.runs.port import Changes, Removed, Runs, Stored

__all__ = ["IndexFeeder"]

log = get_logger(__name__)


#: Changes are collected for this long before they are written: a short run then costs one write, not three.
_COLLECT_SECONDS = 0.05
#: More than this is written at once, however short the time: it bounds memory while the index is built.
_COLLECT_MAX = 5000


class IndexFeeder:
    """Follows every change of a run from where the index stopped, for ever.

    What it cannot do: show a change before its message has arrived. While NATS is away the index stands still.
    """

    def __init__(self, runs: Runs, index: Index, *listeners: Callable[[Changes], None]) -> None:
        """`listeners` hear every change at once, before it is written: they must be quick and must not raise."""
        self._runs, self._index, self._listeners = runs, index, listeners
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._caught_up = asyncio.Event()
        #: The newest word on each run that has not been written yet.
        self._pending: dict[str, Stored | Removed] = {}
        self._mark = Mark()
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._hurry = asyncio.Event()
        self._is_true = False

    async def start(self) -> None:
        """Returns once the index is open; `caught_up` tells when it is true. Raises Unavailable."""
        if self._task is None:
            self._stopping.clear()
            self._mark = await self._index.open()
            self._task = asyncio.create_task(self._run(), name="IndexFeeder")

    async def caught_up(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._caught_up.wait()
        except TimeoutError:
            return False
        return True

    def hurry(self) -> None:
        """Somebody waits for what has arrived: write it now."""
        self._hurry.set()

    async def stop(self) -> None:
        self._stopping.set()
        task, self._task = self._task, None
        while task is not None and not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=0.5)
        await self._index.close()

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._follow())
                    both.create_task(self._write())
            except Exception:  # the top of a loop: start again from what the index really holds
                log.exception("feeding the index failed; it goes on from the last mark", loop=type(self).__name__)
                await self._reopen()

    async def _reopen(self) -> None:
        while not self._stopping.is_set():
            await asyncio.sleep(1)
            self._pending.clear()
            self._is_true = False
            self._caught_up.clear()
            try:
                self._mark = await self._index.open()
            except Unavailable as error:
                log.error("the index of runs cannot be opened; trying again", error=error)
            else:
                return

    async def _follow(self) -> None:
        """Collects changes. Waits when the writer is far behind, so that memory stays bounded."""
        mark = self._mark
        async with aclosing(self._runs.changes(mark.revision, mark.epoch)) as changes:
            async for change in changes:
                if change.epoch != self._mark.epoch:
                    self._pending.clear()
                    self._is_true = False
                    self._caught_up.clear()
                    await self._index.reset(change.epoch)
                    self._mark = Mark(change.epoch, 0)
                for listener in self._listeners:
                    listener(change)
                for item in change.items:
                    self._pending[item.run.run_id if isinstance(item, Stored) else item.run_id] = item
                if change.items:
                    self._mark = Mark(change.epoch, change.items[-1].revision)
                self._is_true = self._is_true or change.caught_up
                self._arrived.set()
                while len(self._pending) >= _COLLECT_MAX:
                    self._room.clear()
                    await self._room.wait()

    async def _write(self) -> None:
        while not self._stopping.is_set():
            await self._arrived.wait()
            if len(self._pending) < _COLLECT_MAX:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_COLLECT_SECONDS):
                        await self._hurry.wait()
            self._arrived.clear()
            self._hurry.clear()
            items, self._pending = tuple(self._pending.values()), {}
            mark, is_true = self._mark, self._is_true
            self._room.set()
            if items:
                await self._index.apply(items, mark)
            # Another epoch by now: everything has been forgotten while this was being written.
            if is_true and not self._caught_up.is_set() and mark.epoch == self._mark.epoch:
                await self._index.whole()
                if mark.epoch == self._mark.epoch:
                    self._caught_up.set()
