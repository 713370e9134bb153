"""Messages that name priced runs. At least once, in any order: the ledger decides who may start a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Delivery", "PackQueue"]


@dataclass(frozen=True)
class Delivery:
    """One message in hand."""

    body: bytes
    #: 1 at first. The third is the last: without an ack the message then is a dead letter.
    count: int
    #: What the adapter knows it by; of no meaning elsewhere.
    receipt: Any


class PackQueue(Protocol):
    """An outage raises DependencyUnavailable. An expired receipt neither raises nor harms."""

    async def start(self) -> None:
        """Make what is missing: queue, dead-letter store, their settings. May be called again."""

    async def close(self) -> None: ...

    async def send(self, body: bytes, message_id: str) -> None:
        """Durable on return. The same `message_id` again, shortly after, may be dropped as a repeat."""

    async def receive(self, at_most: int, wait_seconds: int) -> Sequence[Delivery]:
        """Up to that many, invisible to others for the visibility time; none when there were none for so long."""

    async def ack(self, delivery: Delivery) -> None: ...

    async def nack(self, delivery: Delivery, delay_seconds: int) -> None:
        """Visible again after the delay."""

    async def extend(self, delivery: Delivery) -> None:
        """The visibility time begins anew."""

    async def dead_letters(self, at_most: int) -> Sequence[Delivery]:
        """Some of them. They stay; another call may give the same, or, for the visibility time, others."""

    async def redrive(self, letter: Delivery) -> None:
        """Send a dead letter again, and take it out of the store."""

    async def depth(self) -> tuple[int, int]:
        """Messages that wait or are in hand, and dead letters; roughly."""

    async def begun_at(self) -> int | None:
        """Since when it has held what it was given, in microseconds: it was made then, or restored. What was sent
        before may be in it, or gone. By its own clock, or that of whoever restored it. None: it does not lose what it
        holds."""

    async def ping(self) -> None: ...

    async def probe(self) -> None:
        """As `ping`, and raises while a message could not be stored, on a full disk for one (SAFE-13). However often it
        is called, it writes once every few seconds at most."""
