"""An event loop whose clock does not count the time in which this process stood still.

For tests with short timers in which both ends of a connection, and their timers, are in this process. On a busy machine
the process may not run for seconds; with the usual clock all timers that became due meanwhile would fire before the
loop has read what had arrived. Here time advances by at most one slice per iteration, and each iteration polls all
sockets first. So no timer fires before the loop has polled the sockets some dozens of times.

`time.time`, `time.monotonic` and their variants follow this clock while the loop is open. Other processes do not.
A folder's `conftest.py` selects the loop with the hook `pytest_asyncio_loop_factories`.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import time

from simulation.bindings import Binding, find_bindings

__all__ = ["SteadyLoop"]

#: The most by which the clock advances in one iteration. Short compared to the timers of tests.
_SLICE_SECONDS = 0.01
#: Packages that may have bound functions of `time` themselves, as in `clock=time.time`.
_PACKAGES = ("pyoco_server", "nats")

_monotonic, _wall = time.monotonic, time.time


class _SteadySelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = self._read_at = _monotonic()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # An early return with no event is harmless: the loop computes the timeout again.
        found = super().select(_SLICE_SECONDS if timeout is None else min(timeout, _SLICE_SECONDS))
        read_at = _monotonic()
        self.now += min(read_at - self._read_at, _SLICE_SECONDS)
        self._read_at = read_at
        return found

    def read(self) -> float:
        """Between two iterations it advances by one slice at most, too."""
        return self.now + min(_monotonic() - self._read_at, _SLICE_SECONDS)


class SteadyLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._steady = _SteadySelector()
        super().__init__(self._steady)
        self._wall_ahead = _wall() - self._steady.now
        self._patches = contextlib.ExitStack()
        self._replace_clocks()

    def time(self) -> float:
        return self._steady.now

    def close(self) -> None:
        super().close()
        self._patches.close()

    def _replace_clocks(self) -> None:
        read = self._steady.read
        clocks = {
            "monotonic": read,
            "monotonic_ns": lambda: round(read() * 1e9),
            "time": lambda: self._wall_ahead + read(),
            "time_ns": lambda: round((self._wall_ahead + read()) * 1e9),
        }
        originals = {id(getattr(time, name)): clock for name, clock in clocks.items()}
        bindings = find_bindings(_PACKAGES, originals)
        for binding in [*bindings, *(Binding(time, name, clock) for name, clock in clocks.items())]:
            binding.replace()
            self._patches.callback(binding.restore)
