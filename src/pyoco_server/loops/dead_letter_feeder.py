"""Keeps the index of dead letters true."""

from __future__ import annotations

import time
from contextlib import aclosing

from pyoco_server.loops.feed import Feeder
from pyoco_server.ports.dead_letters.port import DeadLetterIndex, DeadLetters

__all__ = ["DeadLetterFeeder"]


class DeadLetterFeeder(Feeder):
    """Follows the dead letters from where the index stopped, for ever: what comes, and what goes.

    What it cannot do: show a letter before its message has arrived, or drop one before it was missed in its stream.
    While NATS is away the index stands still. Memory is bounded: the next letters wait until these are written.
    """

    what = "the index of dead letters"

    def __init__(self, letters: DeadLetters, index: DeadLetterIndex) -> None:
        super().__init__(index)
        self._letters, self._index = letters, index

    def _on_heard(self) -> None:
        self._true_at = time.monotonic()
        if self._is_true:
            self._caught_up.set()

    async def _feed(self) -> None:
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
