"""Keeps the index of dead letters true."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.loops.feeder import SILENCE_SECONDS
from pyoco_server.ports.index.port import Mark
from pyoco_server.ports.letters.port import LetterIndex, Letters

__all__ = ["LetterFeeder"]

log = get_logger(__name__)

_AGAIN_SECONDS = 1.0


class LetterFeeder:
    """Follows the dead letters from where the index stopped, for ever: what comes, and what goes.

    What it cannot do: show a letter before its message has arrived, or drop one before it was missed in its stream.
    While NATS is away the index stands still. Memory is bounded: the next letters wait until these are written.
    """

    def __init__(self, letters: Letters, index: LetterIndex) -> None:
        self._letters, self._index = letters, index
        self._gate = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._caught_up = asyncio.Event()
        self._mark = Mark()
        self._is_true = False
        self._heard_at = 0.0

    async def start(self) -> None:
        """Returns once the index is open; `caught_up` tells when it is true. May be repeated. Raises Unavailable."""
        async with self._gate:
            if self._task is None:
                self._stopping.clear()
                self._mark = await self._index.open()
                self._task = asyncio.create_task(self._run(), name=type(self).__name__)

    async def stop(self) -> None:
        """Returns once it has stopped and the index is closed. May be called twice, or without a start."""
        async with self._gate:
            self._stopping.set()
            task, self._task = self._task, None
            while task is not None and not task.done():
                task.cancel()  # more than once: before Python 3.12 a cancel can be swallowed by a library
                await asyncio.wait({task}, timeout=0.5)
            self._forget()
            await self._index.close()

    async def caught_up(self, seconds: float) -> bool:
        """Whether the index was true a moment ago; waits for it up to `seconds`. A silent feed makes it false."""
        if time.monotonic() - self._heard_at > SILENCE_SECONDS:
            self._caught_up.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._caught_up.wait()
        except TimeoutError:
            return False
        return True

    def _forget(self) -> None:
        self._is_true = False
        self._caught_up.clear()

    def _on_heard(self) -> None:
        self._heard_at = time.monotonic()
        if self._is_true:
            self._caught_up.set()

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                async with asyncio.TaskGroup() as both:
                    noticing = both.create_task(self._notice_damage())
                    await self._follow()
                    noticing.cancel()
            except Exception:  # the top of a loop: start again from what the index really holds
                log.exception("feeding the index failed; it goes on from the last mark", loop=type(self).__name__)
            self._forget()
            await self._reopen()

    async def _reopen(self) -> None:
        while not self._stopping.is_set():
            await asyncio.sleep(_AGAIN_SECONDS)
            try:
                self._mark = await self._index.open()
            except Unavailable as error:
                log.error("the index of dead letters cannot be opened; trying again", error=error)
            else:
                return

    async def _notice_damage(self) -> None:
        """Whoever reads may find it, while no letter comes or goes: it is for us to build it anew."""
        await self._index.damaged()
        self._forget()  # at once: it may take a while until the feed is closed
        raise Unavailable("the index of dead letters was found damaged")

    async def _follow(self) -> None:
        epoch = self._mark.epoch
        async with aclosing(self._letters.changes(self._mark.revision, epoch, self._on_heard)) as feed:
            async for changes in feed:
                if changes.epoch != epoch:
                    self._forget()
                    await self._index.reset(changes.epoch)
                    epoch = changes.epoch
                await self._index.apply(changes)
                if changes.caught_up and not self._is_true:
                    # Later ones may tell of what went alone, while nobody hears of what came.
                    self._is_true = True
                    self._caught_up.set()
