"""Jobs that a worker process ran recently, kept so that it does not run them again (GRID-107, GRID-108)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

__all__ = ["ENTRIES_MAX", "SWEEP_SECONDS", "DedupCache", "DedupStage"]

#: GRID-107.
ENTRIES_MAX = 10_000
SWEEP_SECONDS = 60.0

T = TypeVar("T")


class DedupStage(Enum):
    """Progress of a job on this worker."""

    #: Its program is running, or waiting for a free slot.
    RUNNING = "running"
    #: It has a result that no door has confirmed yet.
    FINISHED = "finished"
    #: A door has confirmed its result.
    SETTLED = "settled"


@dataclass(slots=True)
class _Entry(Generic[T]):
    value: T
    stage: DedupStage
    #: When the result was recorded; None: still running.
    finished_at: float | None


class DedupCache(Generic[T]):
    """One value per JobId: the running attempt, or its result. For one process and one thread.

    Entries that are running or not settled are kept, whatever their age and number. The cache may therefore exceed
    `entries_max` by as many entries as the worker's slots and its spool allow. A settled entry is removed `ttl` seconds
    after its result, or earlier, oldest first, when the cache is full.
    """

    def __init__(self, ttl: float, clock: Callable[[], float], entries_max: int = ENTRIES_MAX) -> None:
        self._ttl, self._clock, self._entries_max = ttl, clock, entries_max
        self._entries: dict[str, _Entry[T]] = {}
        #: Entries that may be evicted, oldest result first. Contains each key once.
        self._settled: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._entries))

    def __contains__(self, job_id: str) -> bool:
        return self.stage(job_id) is not None

    def get(self, job_id: str) -> T | None:
        """Return the value of a job. None: not known; the job may run here."""
        entry = self._entries.get(job_id)
        return None if entry is None or self._is_over(entry) else entry.value

    def stage(self, job_id: str) -> DedupStage | None:
        """Return the stage of a job. None: not known; the job may run here."""
        entry = self._entries.get(job_id)
        return None if entry is None or self._is_over(entry) else entry.stage

    def put(self, job_id: str, value: T, stage: DedupStage = DedupStage.FINISHED) -> None:
        """Set the value and stage of a job. O(1), plus O(1) for each evicted entry."""
        known = self._entries.get(job_id)
        finished_at = None
        if stage is not DedupStage.RUNNING:
            before = known.finished_at if known is not None else None
            finished_at = self._clock() if before is None else before
        self._settled.pop(job_id, None)
        self._entries[job_id] = _Entry(value, stage, finished_at)
        if stage is DedupStage.SETTLED and finished_at is not None:
            self._settled[job_id] = finished_at
        while len(self._entries) > self._entries_max and self._settled:
            self.remove(next(iter(self._settled)))

    def settle(self, job_id: str) -> None:
        """Mark a result as confirmed by a door. Has no effect if the job is running or not known."""
        entry = self._entries.get(job_id)
        if entry is not None and entry.stage is DedupStage.FINISHED:
            self.put(job_id, entry.value, DedupStage.SETTLED)

    def remove(self, job_id: str) -> None:
        """Forget a job so that it may run here again: it ended with WORKER_ERROR, or was superseded."""
        self._entries.pop(job_id, None)
        self._settled.pop(job_id, None)

    def sweep(self) -> int:
        """Remove settled entries older than the TTL. Returns how many were removed. O(settled)."""
        old = [job_id for job_id in self._settled if self._is_over(self._entries[job_id])]
        for job_id in old:
            self.remove(job_id)
        return len(old)

    def _is_over(self, entry: _Entry[T]) -> bool:
        at = entry.finished_at
        return entry.stage is DedupStage.SETTLED and at is not None and self._clock() - at >= self._ttl
