"""Calls functions at clock times, with one timer of the running event loop."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import time
from collections.abc import Callable
from itertools import count

from pyoco_server.ports.nats.memory.messages import SECOND_NS

__all__ = ["Timer"]


class Timer:
    """Calls functions at times of `time.time_ns`, with one timer of the running loop.

    A server may outlive the event loop it was created in, for example if several commands use it one after another. Its
    timer is then set again on the next use.
    """

    def __init__(self) -> None:
        self._calls: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due_ns = 0
        self._context = contextvars.copy_context()

    def call_at(self, ns: int, act: Callable[[], None]) -> None:
        heapq.heappush(self._calls, (ns, next(self._numbers), act))
        self.arm()

    def arm(self) -> None:
        if not self._calls:
            return
        loop = asyncio.get_running_loop()
        due = self._calls[0][0]
        if self._timer is not None and self._loop is loop and self._due_ns <= due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._loop, self._due_ns = loop, due
        seconds = max(0.0, (due - time.time_ns()) / SECOND_NS)
        self._timer = loop.call_later(seconds, self._ring, context=self._context)

    def _ring(self) -> None:
        self._timer = None
        now = time.time_ns()
        while self._calls and self._calls[0][0] <= now:
            heapq.heappop(self._calls)[2]()
        self.arm()
