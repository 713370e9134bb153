"""Keeps the index of dead letters up to date."""

from __future__ import annotations

import time
from contextlib import aclosing

from pyoco_server.loops.feed import Feeder
from pyoco_server.ports.dead_letters.port import DeadLetterIndex, DeadLetters

__all__ = ["DeadLetterFeeder"]


class DeadLetterFeeder(Feeder):
    """Follows the stream of dead letters from the index's last position, indefinitely: additions and deletions.

    What it cannot do: show a dead letter before its message has arrived, or drop one before its deletion from the
    stream is noticed. While NATS is unavailable the index does not change. Memory is bounded: further dead letters are
    read only after the current ones have been written.
    """

    what = "the index of dead letters"

    def __init__(self, dead_letters: DeadLetters, index: DeadLetterIndex) -> None:
        super().__init__(index)
        self._dead_letters, self._index = dead_letters, index

    def _on_heard(self) -> None:
        self._true_at = time.monotonic()
        if self._is_true:
            self._caught_up.set()

    async def _feed(self) -> None:
        epoch = self._mark.epoch
        async with aclosing(self._dead_letters.changes(self._mark.revision, epoch, self._on_heard)) as feed:
            async for changes in feed:
                if changes.epoch != epoch:
                    self._forget()
                    await self._index.reset(changes.epoch)
                    epoch = changes.epoch
                await self._index.apply(changes)
                if changes.caught_up and not self._is_true:
                    # Later change sets may report deletions only, while reading additions is failing.
                    self._is_true = True
                    self._caught_up.set()
