"""The jobs of one connection that have no result yet, with limits on their size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

from pyoco_server.client.frames.group import Group
from pyoco_server.client.frames.job import Job
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.doors.frames.budget import ByteBudget
from pyoco_server.ports.routes.port import Route

__all__ = ["PlacedJob", "PlacedJobs"]

#: Limit of one connection. Its jobs are kept in memory, to be sent to another group if necessary.
_BYTES_MAX = 64 * 1024 * 1024
#: Size of a job besides its payload.
_OWN_BYTES = 1024
#: Limit of SubmitJobs of one job that wait for an answer.
_ASKS_MAX = 64


@dataclass(eq=False)
class PlacedJob:
    """The placement of a job."""

    job: Job
    group: Group
    route: Route
    #: Of its content; empty: the job is only to be cancelled.
    fingerprint: str
    #: The msgId that its Result answers: that of the latest SubmitJob.
    corr_id: UUID
    #: When it was given to the group: the grace period of a lost group counts from then.
    since: float
    #: SubmitJobs that have not been answered.
    asks: list[UUID] = field(default_factory=list)

    @property
    def size(self) -> int:
        return _OWN_BYTES + len(self.job.payload or b"")

    def ask(self, corr_id: UUID) -> None:
        """Register a repeated submission. Raises GridRefused."""
        if len(self.asks) >= _ASKS_MAX:
            raise GridRefused(Code.QUEUE_FULL, "this job was submitted too often before it was accepted")
        self.asks.append(corr_id)
        self.corr_id = corr_id

    def answered(self) -> list[UUID]:
        """Remove and return the submissions that wait for an answer."""
        asks, self.asks = self.asks, []
        return asks


class PlacedJobs:
    """Jobs by JobId. Bounded for this connection and, by `held`, for the complete router."""

    def __init__(self, held: ByteBudget) -> None:
        self._held = held
        self._jobs: dict[str, PlacedJob] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[PlacedJob]:
        return iter(list(self._jobs.values()))

    def get(self, job_id: str) -> PlacedJob | None:
        return self._jobs.get(job_id)

    def put(self, placed: PlacedJob) -> None:
        """Add a job. Replaces an entry that was only to be cancelled. Raises GridRefused: nothing changed."""
        if self._bytes + placed.size > _BYTES_MAX or not self._held.try_take(placed.size):
            raise GridRefused(Code.QUEUE_FULL, "too much is under way through this router; try again later")
        self.drop(placed.job.job_id)
        self._bytes += placed.size
        self._jobs[placed.job.job_id] = placed

    def drop(self, job_id: str) -> PlacedJob | None:
        placed = self._jobs.pop(job_id, None)
        if placed is not None:
            self._bytes -= placed.size
            self._held.give(placed.size)
        return placed

    def clear(self) -> None:
        for job_id in list(self._jobs):
            self.drop(job_id)
