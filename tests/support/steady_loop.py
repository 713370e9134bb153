"""An event loop whose clock does not count the time in which this process stood still.

For tests with short timers in which both ends of a connection, and their timers, are in this process. On a busy machine
the process may not run for seconds; with the usual clock all timers that became due meanwhile would fire before the
loop has read what had arrived. Here time advances by at most one slice per iteration, and each iteration polls all
sockets first. So no timer fires before the loop has polled the sockets some dozens of times.

A folder's `conftest.py` selects it with the hook `pytest_asyncio_loop_factories`. Timers of other processes, and code
that reads `time.monotonic` itself, do not follow this clock.
"""

from __future__ import annotations

import asyncio
import selectors
import time

__all__ = ["SteadyLoop"]

#: The most by which the clock advances in one iteration. Short compared to the timers of tests.
_SLICE_SECONDS = 0.01


class _SteadySelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = self._read_at = time.monotonic()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # An early return with no event is harmless: the loop computes the timeout again.
        found: list[tuple[selectors.SelectorKey, int]] = super().select(
            _SLICE_SECONDS if timeout is None else min(timeout, _SLICE_SECONDS)
        )
        read_at = time.monotonic()
        self.now += min(read_at - self._read_at, _SLICE_SECONDS)
        self._read_at = read_at
        return found


class SteadyLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._steady = _SteadySelector()
        super().__init__(self._steady)

    def time(self) -> float:
        return self._steady.now
