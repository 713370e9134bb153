"""Keeps the index of runs true."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from contextlib import aclosing

from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.index.port import Index, Mark
from pyoco_server.ports.runs.port import Changes, Removed, Runs, Stored

__all__ = ["SILENCE_SECONDS", "IndexFeeder"]

log = get_logger(__name__)

#: A feed gives a sign of life every second. After three seconds without one it makes itself anew; whoever has not heard
#: it for longer than that takes knows nothing of what is stored now.
SILENCE_SECONDS = 5.0
#: Changes are collected for this long before they are written: a short run then costs one write, not three.
_COLLECT_SECONDS = 0.05
#: More than this is written at once, however short the time: it bounds memory while the index is built.
_COLLECT_MAX = 5000
_AGAIN_SECONDS = 1.0


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
        self._is_whole = False
        #: When the feed last said that it has told everything, and up to when what it told has been written.
        self._heard_at = self._true_at = 0.0

    async def start(self) -> None:
        """Returns once the index is open; `caught_up` tells when it is true. Raises Unavailable."""
        if self._task is None:
            self._stopping.clear()
            self._forget()
            self._mark = await self._index.open()
            self._task = asyncio.create_task(self._run(), name="IndexFeeder")

    async def caught_up(self, seconds: float) -> bool:
        """Whether the index holds all that was stored a moment ago; waits for it up to `seconds`.

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
                async with asyncio.TaskGroup() as all_of_it:
                    all_of_it.create_task(self._follow())
                    all_of_it.create_task(self._write())
                    all_of_it.create_task(self._notice_damage())
            except Exception:  # the top of a loop: start again from what the index really holds
                log.exception("feeding the index failed; it goes on from the last mark", loop=type(self).__name__)
                await self._reopen()

    async def _reopen(self) -> None:
        self._forget()
        while not self._stopping.is_set():
            await asyncio.sleep(_AGAIN_SECONDS)
            try:
                self._mark = await self._index.open()
            except Unavailable as error:
                log.error("the index of runs cannot be opened; trying again", error=error)
            else:
                return

    def _forget(self) -> None:
        """What was told is not what has been written, or not true any more: the index has to become whole again."""
        self._pending.clear()
        self._is_true = self._is_whole = False
        self._caught_up.clear()

    async def _notice_damage(self) -> None:
        """Whoever reads may find it, while nothing is there to be written: it is for us to build it anew."""
        await self._index.damaged()
        self._forget()  # at once: it may take a while until the feed is closed
        raise Unavailable("the index of runs was found damaged")

    def _on_heard(self) -> None:
        self._heard_at = time.monotonic()
        self._arrived.set()

    async def _follow(self) -> None:
        """Collects changes. Waits when the writer is far behind, so that memory stays bounded."""
        mark = self._mark
        async with aclosing(self._runs.changes(mark.revision, mark.epoch, self._on_heard)) as changes:
            async for change in changes:
                if change.epoch != self._mark.epoch:
                    self._forget()
                    self._mark = Mark(change.epoch, 0)  # first: a write that ends meanwhile makes nothing true any more
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
        while not self._stopping.is_set():
            await self._arrived.wait()
            if len(self._pending) < _COLLECT_MAX:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_COLLECT_SECONDS):
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
        """All that had been told at `heard_at` is written; unless it was of another store than we follow by now."""
        if not self._is_whole and epoch == self._mark.epoch:
            await self._index.whole()
        if epoch == self._mark.epoch:
            self._is_whole, self._true_at = True, heard_at
            self._caught_up.set()
