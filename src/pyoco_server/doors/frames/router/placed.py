"""Jobs of one connection that have no result yet, and what they take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

from pyoco_server.client.frames.group import Group
from pyoco_server.client.frames.job import Job
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.doors.frames.budget import ByteBudget
from pyoco_server.ports.routes.port import Route

__all__ = ["Placed", "PlacedJobs"]

#: What one connection may have under way: its jobs are kept, to be sent to another group if it comes to that.
_BYTES_MAX = 64 * 1024 * 1024
#: Of a job beside its payload.
_OWN_BYTES = 1024
#: SubmitJobs of one job that wait for their answers.
_ASKS_MAX = 64


@dataclass(eq=False)
class Placed:
    """Where a job is."""

    job: Job
    group: Group
    route: Route
    #: Of its content; empty: it is only to be cancelled.
    fingerprint: str
    #: Of what its Result answers: the latest SubmitJob.
    corr_id: UUID
    #: When it was given to the group: the grace of a group that is not there counts from then.
    since: float
    #: SubmitJobs that have not been answered.
    asks: list[UUID] = field(default_factory=list)

    @property
    def size(self) -> int:
        return _OWN_BYTES + len(self.job.payload or b"")

    def ask(self, corr_id: UUID) -> None:
        """It is submitted once more. Raises GridRefused."""
        if len(self.asks) >= _ASKS_MAX:
            raise GridRefused(Code.QUEUE_FULL, "this job was submitted too often before it was accepted")
        self.asks.append(corr_id)
        self.corr_id = corr_id

    def answered(self) -> list[UUID]:
        """Takes those that wait for an answer."""
        asks, self.asks = self.asks, []
        return asks


class PlacedJobs:
    """By JobId. Bounded, for this connection and, by `held`, for all of the router together."""

    def __init__(self, held: ByteBudget) -> None:
        self._held = held
        self._jobs: dict[str, Placed] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Placed]:
        return iter(list(self._jobs.values()))

    def get(self, job_id: str) -> Placed | None:
        return self._jobs.get(job_id)

    def put(self, placed: Placed) -> None:
        """In the place of one that was only to be cancelled, if there is one. Raises GridRefused: nothing changed."""
        if self._bytes + placed.size > _BYTES_MAX or not self._held.try_take(placed.size):
            raise GridRefused(Code.QUEUE_FULL, "too much is under way through this router; try again later")
        self.drop(placed.job.job_id)
        self._bytes += placed.size
        self._jobs[placed.job.job_id] = placed

    def drop(self, job_id: str) -> Placed | None:
        placed = self._jobs.pop(job_id, None)
        if placed is not None:
            self._bytes -= placed.size
            self._held.give(placed.size)
        return placed

    def clear(self) -> None:
        for job_id in list(self._jobs):
            self.drop(job_id)
