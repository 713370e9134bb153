"""A clock that stands still between two moves."""

from __future__ import annotations

import threading

__all__ = ["VirtualClock"]

#: A wait looks for a cancel request this often. A move of the clock ends it at once.
_LOOK_SECONDS = 0.02


class VirtualClock:
    """Unix seconds. Used by any thread; as the `Pace` of tasks, too."""

    def __init__(self, now: float) -> None:
        self._now = now
        self._moved = threading.Condition()

    def __call__(self) -> float:
        return self._now

    def now(self) -> float:
        return self._now

    def chance(self) -> float:
        """Return the middle: waits are then as long as their policies say, without jitter."""
        return 0.5

    def move(self, now: float) -> None:
        """Move on to this instant. The clock is never moved back."""
        with self._moved:
            self._now = max(self._now, now)
            self._moved.notify_all()

    def wait(self, until: float, cancelled: threading.Event) -> bool:
        with self._moved:
            if self._now < until and not cancelled.is_set():
                self._moved.wait(_LOOK_SECONDS)
        return cancelled.is_set()
