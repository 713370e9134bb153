"""Limits the bytes received from peers that are processed at the same time, over all connections."""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["ByteBudget"]


class ByteBudget:
    """A budget of bytes, granted in order of request. A request above the limit is granted when no bytes are in use."""

    def __init__(self, most: int) -> None:
        self._most, self.in_use = most, 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def try_take(self, size: int) -> bool:
        if self._waiting or not self._fits(size):
            return False
        self.in_use += size
        return True

    async def take(self, size: int) -> None:
        if self.try_take(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(size)
            raise

    def give(self, size: int) -> None:
        self.in_use -= size
        while self._waiting:
            wanted, turn = self._waiting[0]
            if not turn.done():
                if not self._fits(wanted):
                    return
                self.in_use += wanted
                turn.set_result(None)
            self._waiting.popleft()

    def _fits(self, size: int) -> bool:
        return not self.in_use or self.in_use + size <= self._most
