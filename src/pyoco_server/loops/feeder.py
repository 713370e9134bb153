"""Keeps the index of runs up to date."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from contextlib import aclosing

from pyoco_server.loops.feed import Feeder
from pyoco_server.ports.index.port import Index, Mark
from pyoco_server.ports.runs.port import Changes, Removed, Runs, Stored

__all__ = ["IndexFeeder"]

#: Changes are collected for this long before they are written: a short run then costs one write, not three.
_COLLECT_SECONDS = 0.05
#: While changes arrive at a high rate: a large batch halves the cost per change. `hurry` skips this delay.
_COLLECT_SECONDS_MANY, _MANY = 0.2, 50
#: Above this number, changes are written without delay: it bounds memory while the index is built.
_COLLECT_MAX = 5000


class IndexFeeder(Feeder):
    """Follows every change of a run from the index's last position, indefinitely.

    What it cannot do: show a change before its message has arrived. While NATS is unavailable the index does not
    change.
    """

    what = "the index of runs"

    def __init__(self, runs: Runs, index: Index, *listeners: Callable[[Changes], None]) -> None:
        """`listeners` receive every change immediately, before it is written: they must be fast and must not raise."""
        super().__init__(index)
        self._runs, self._index, self._listeners = runs, index, listeners
        #: The latest unwritten change of each run.
        self._pending: dict[str, Stored | Removed] = {}
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._hurry = asyncio.Event()
        self._is_complete = False
        #: When the feed last reported that it had delivered everything.
        self._heard_at = 0.0

    def listen(self, listener: Callable[[Changes], None]) -> None:
        """Add a listener, before the start."""
        self._listeners = (*self._listeners, listener)

    def hurry(self) -> None:
        """Write pending changes now: a caller is waiting for them."""
        self._hurry.set()

    async def _feed(self) -> None:
        async with asyncio.TaskGroup() as both:
            both.create_task(self._follow())
            both.create_task(self._write())

    def _forget(self) -> None:
        """Discard received but unwritten changes; the feed delivers them again."""
        super()._forget()
        self._pending.clear()
        self._is_complete = False

    def _on_heard(self) -> None:
        self._heard_at = time.monotonic()
        self._arrived.set()

    async def _follow(self) -> None:
        """Collect changes. Waits when the writer lags too far, so that memory stays bounded."""
        mark = self._mark
        async with aclosing(self._runs.changes(mark.revision, mark.epoch, self._on_heard)) as changes:
            async for change in changes:
                if change.epoch != self._mark.epoch:
                    self._forget()
                    self._mark = Mark(change.epoch, 0)  # first: a write in progress must not mark the index as current
                    await self._index.reset(change.epoch)
                for listener in self._listeners:
                    listener(change)
                for item in change.items:
                    self._pending[item.run.run_id if isinstance(item, Stored) else item.run_id] = item
                if change.items:
                    self._mark = Mark(change.epoch, change.items[-1].revision)
                if change.caught_up:
                    self._is_true = True
                    self._heard_at = time.monotonic()
                self._arrived.set()
                while len(self._pending) >= _COLLECT_MAX:
                    self._room.clear()
                    await self._room.wait()

    async def _write(self) -> None:
        items: tuple[Stored | Removed, ...] = ()
        while not self._stopping.is_set():
            await self._arrived.wait()
            if len(self._pending) < _COLLECT_MAX:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_COLLECT_SECONDS if len(items) < _MANY else _COLLECT_SECONDS_MANY):
                        await self._hurry.wait()
            self._arrived.clear()
            self._hurry.clear()
            items, self._pending = tuple(self._pending.values()), {}
            mark, is_true, heard_at = self._mark, self._is_true, self._heard_at
            self._room.set()
            if items:
                await self._index.apply(items, mark)
            if is_true and heard_at > self._true_at:
                await self._become_true(mark.epoch, heard_at)

    async def _become_true(self, epoch: str, heard_at: float) -> None:
        """Everything received by `heard_at` is written. Has no effect if it came from a store that has been replaced
        since."""
        if not self._is_complete and epoch == self._mark.epoch:
            await self._index.mark_complete()
        if epoch == self._mark.epoch:
            self._is_complete, self._true_at = True, heard_at
            self._caught_up.set()
