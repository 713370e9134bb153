"""The timers of a simulated event loop, in the order (time, insertion)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from simulation.process import Process
from simulation.tasks import SimTimer

__all__ = ["Timers"]

_CANCELLED_MAX = 200


class Timers:
    def __init__(self) -> None:
        #: Heap of (time, number, timer, process). Public, because the loop reads its first entry before each step.
        self.heap: list[tuple[float, int, SimTimer, Process]] = []
        self._cancelled = 0

    def push(self, number: int, timer: SimTimer, process: Process) -> None:
        heapq.heappush(self.heap, (timer._when, number, timer, process))

    def note_cancelled(self, timer: SimTimer) -> None:
        """Most timeouts are cancelled; remove them before they fill the heap."""
        if timer._scheduled:
            self._cancelled += 1
            if self._cancelled > max(_CANCELLED_MAX, len(self.heap) // 2):
                self._keep(lambda entry: not entry[2].cancelled())

    def pop_due(self, now: float) -> Iterator[tuple[SimTimer, Process]]:
        while self.heap and self.heap[0][0] <= now:
            _, _, timer, process = heapq.heappop(self.heap)
            timer._scheduled = False
            if timer.cancelled():
                self._cancelled -= 1
            else:
                yield timer, process

    def next_time(self) -> float | None:
        """Due time of the first timer that is not cancelled."""
        while self.heap and self.heap[0][2].cancelled():
            heapq.heappop(self.heap)[2]._scheduled = False
            self._cancelled -= 1
        return self.heap[0][0] if self.heap else None

    def remove(self, process: Process) -> list[SimTimer]:
        """Remove and return the timers of one process."""
        removed = [timer for _, _, timer, owner in self.heap if owner is process]
        self._keep(lambda entry: entry[3] is not process)
        return removed

    def _keep(self, is_kept: Callable[[tuple[float, int, SimTimer, Process]], bool]) -> None:
        for entry in self.heap:
            if not is_kept(entry):
                entry[2]._scheduled = False
        self.heap[:] = [entry for entry in self.heap if is_kept(entry)]
        heapq.heapify(self.heap)
        self._cancelled = sum(entry[2].cancelled() for entry in self.heap)
