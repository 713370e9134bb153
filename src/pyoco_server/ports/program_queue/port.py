"""Jobs of programs that are queued for workers: one queue per group, program and client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from pyoco_server.core.programs.job import ProgramJob
from pyoco_server.ports.queue.port import Delivery

__all__ = ["ClientQueue", "ClientQueueCounts", "ProgramQueue", "QueueTotals", "Replica"]


@dataclass(frozen=True)
class ClientQueue:
    """The queue of one (group, program, client)."""

    group: str
    exec_name: str
    #: The client within its tenant (`client_key`).
    client: str

    @classmethod
    def of(cls, job: ProgramJob) -> Self:
        return cls(job.group, job.exec_name, job.client)


@dataclass(frozen=True)
class ClientQueueCounts:
    #: Never delivered, or to be redelivered.
    waiting: int
    #: Being processed, or waiting for a delayed redelivery.
    unacked: int


@dataclass(frozen=True)
class QueueTotals:
    messages: int
    size_bytes: int
    #: The newest sequence: it grows with every job.
    last_sequence: int


@dataclass(frozen=True)
class Replica:
    """One replica of a stream."""

    stream: str
    name: str
    is_leader: bool
    is_current: bool
    lag: int


class ProgramQueue(Protocol):
    """At-least-once delivery, always one message per run (GRID-8, GRID-50). Never the authority on a run.

    An outage raises Unavailable; its subclass NotStored is certain.
    """

    async def start(self, on_queue: Callable[[ClientQueue], None] | None = None) -> None:
        """Begin to follow which queues exist. `on_queue` is called for each new one. Returns once all are loaded."""

    async def stop(self) -> None:
        """Stop following queues. Idempotent, and harmless without `start`."""

    def client_queues(self, group: str) -> list[ClientQueue]:
        """Return every queue of the group that was ever used, from memory. O(queues)."""

    async def add_client_queue(self, queue: ClientQueue) -> None:
        """Register the queue. Takes no round trip if it is already registered."""

    async def put(self, job: ProgramJob) -> None:
        """Store a job. Returns once its message is stored, by this call or an earlier one (GRID-9).

        Raises QueueFull if the stream is at its limit, NotStored, Unavailable.
        """

    async def has(self, job: ProgramJob) -> bool:
        """Return whether the job's message exists according to the leader. One round trip."""

    async def remove(self, job: ProgramJob) -> bool:
        """Delete the job's message, after its run has ended. False: there was none. Two round trips."""

    async def listed(self, offset: int = 0) -> list[tuple[ClientQueue, str]]:
        """Return queues and run ids of up to 100,000 messages, in the order of their subjects, starting at `offset`.

        Fewer only at the end. One round trip.
        """

    async def take(self, queue: ClientQueue, count: int = 1) -> list[Delivery]:
        """Return up to `count` messages that are available now, without waiting for more.

        Creates the queue's consumer if it is missing (GRID-63). One round trip. `Delivery.tag` is the name of the
        program.
        """

    async def counts(self, queue: ClientQueue) -> ClientQueueCounts | None:
        """Return the counts of a queue.

        None: the queue has no consumer, so all its messages are waiting. One round trip.
        """

    async def oldest(self, group: str, exec_name: str) -> float | None:
        """Return when the oldest message of a program was stored, whether it is being processed or not. None: there is
        none.

        One round trip.
        """

    async def totals(self) -> QueueTotals:
        """Return the size of the complete queue. One round trip."""

    async def replicas(self) -> list[Replica]:
        """Return the leader of each stream of the grid, and the lag of its followers. One round trip per stream."""
