"""CPU headroom check (GRID-70, GRID-114). Clock and reader are passed in."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

__all__ = ["LOOK_SECONDS", "CpuUse", "HeldBack", "read_machine"]

#: Interval at which a credit held back is checked again.
LOOK_SECONDS = 0.5
_OVER_SECONDS = 1.0
#: The age up to which a sample is reused: many credits at once cost one read.
_SAMPLE_SECONDS = 0.1
_STAT = Path("/proc/stat")


def read_machine() -> tuple[int, int]:
    """Return (busy, all) ticks of all CPUs since boot; (0, 0) where the system does not provide them.

    Reads a file in memory: 30 us.
    """
    try:
        line = _STAT.read_text("ascii").split("\n", 1)[0]
    except OSError:
        return 0, 0
    # user nice system idle iowait irq softirq steal; guests are within user and nice.
    ticks = [int(each) for each in line.split()[1:9]]
    return sum(ticks) - sum(ticks[3:5]), sum(ticks)


class CpuUse:
    """The busy share of all CPUs of the machine over the last second, whichever process used them."""

    def __init__(
        self, read: Callable[[], tuple[int, int]] = read_machine, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._clock = read, clock
        self._samples: deque[tuple[float, int, int]] = deque()
        self._sample(clock())

    def share(self) -> float:
        """Return the share, 0.0 to 1.0, or 0 if it is not known yet.

        To be called at least every half second: it compares with the newest sample that is a second old.
        """
        now = self._clock()
        if now - self._samples[-1][0] >= _SAMPLE_SECONDS:
            self._sample(now)
        _, busy, total = self._samples[-1]
        _, busy_then, total_then = self._samples[0]
        return (busy - busy_then) / (total - total_then) if total > total_then else 0.0

    def _sample(self, now: float) -> None:
        self._samples.append((now, *self._read()))
        while len(self._samples) > 2 and self._samples[1][0] <= now - _OVER_SECONDS:
            self._samples.popleft()


class HeldBack:
    """Credits of finished jobs, held back until the machine has CPU headroom; at most `wait_seconds` each."""

    def __init__(
        self,
        cap: float,
        wait_seconds: float,
        share: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cap, self._wait_seconds, self._share, self._clock = cap, wait_seconds, share, clock
        self._waiting: deque[float] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self) -> None:
        """Hold back the credit of a finished job."""
        self._waiting.append(self._clock())

    def due(self) -> int:
        """Return how many credits to release now, and forget them.

        To be called after `add`, and every LOOK_SECONDS while any are held back.
        """
        if self._share() < self._cap:
            count = len(self._waiting)
            self._waiting.clear()
            return count
        count, since = 0, self._clock() - self._wait_seconds
        while self._waiting and self._waiting[0] <= since:
            self._waiting.popleft()
            count += 1
        return count
