"""Jobs of programs on their way to whoever runs them: one lane per group, program and client."""

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
    #: Within its tenant (`client_key`).
    client: str

    @classmethod
    def of(cls, job: ProgramJob) -> Self:
        return cls(job.group, job.exec_name, job.client)


@dataclass(frozen=True)
class ClientQueueCounts:
    #: Never delivered, or to be delivered again.
    waiting: int
    #: In somebody's hand, or put off.
    unacked: int


@dataclass(frozen=True)
class QueueTotals:
    messages: int
    size_bytes: int
    #: The newest sequence: it grows with every job.
    last_sequence: int


@dataclass(frozen=True)
class Replica:
    """One copy of a stream."""

    stream: str
    name: str
    is_leader: bool
    is_current: bool
    lag: int


class ProgramQueue(Protocol):
    """At-least-once, one message per run whatever happens (GRID-8, GRID-50). Never the truth about a run.

    An outage raises Unavailable; NotStored, a kind of it, is certain.
    """

    async def start(self, on_lane: Callable[[ClientQueue], None] | None = None) -> None:
        """Begin to follow which lanes there are; `on_lane` hears of each new one. Returns once all are known."""

    async def stop(self) -> None:
        """May be called twice, or without a start."""

    def lanes(self, group: str) -> list[ClientQueue]:
        """Every lane of the group that was ever used; from memory. O(lanes)."""

    async def add_lane(self, lane: ClientQueue) -> None:
        """Make it known. No round trip when it is known already."""

    async def put(self, job: ProgramJob) -> None:
        """Returns once the message is stored, by this call or an earlier one (GRID-9).

        Raises QueueFull when the stream is at its limit, NotStored, Unavailable.
        """

    async def has(self, job: ProgramJob) -> bool:
        """Whether its message is there, as the leader knows it: one round trip."""

    async def remove(self, job: ProgramJob) -> bool:
        """Take its message out, after its run has ended. False: there was none. Two round trips."""

    async def listed(self, offset: int = 0) -> list[tuple[ClientQueue, str]]:
        """The lanes and run ids of up to 100,000 messages, in the order of their subjects, from that place on; fewer
        only at the end. One round trip."""

    async def take(self, lane: ClientQueue, count: int = 1) -> list[Delivery]:
        """Up to `count` messages that are there now, without waiting for more; makes the lane's consumer if it is
        missing (GRID-63). One round trip. `Delivery.tag` is the name of the program."""

    async def counts(self, lane: ClientQueue) -> ClientQueueCounts | None:
        """None: nobody has ever taken from this lane, so all of it waits. One round trip."""

    async def oldest(self, group: str, exec_name: str) -> float | None:
        """When the oldest message of a program was stored, be it in somebody's hand or not; None: there is none. One
        round trip."""

    async def totals(self) -> QueueTotals:
        """One round trip."""

    async def replicas(self) -> list[Replica]:
        """Who leads each stream of the grid, and how far its followers are. One round trip per stream."""
