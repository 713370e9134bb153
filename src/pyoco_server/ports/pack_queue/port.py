"""Queue messages that refer to priced runs.

Delivered at least once, in any order: the ledger decides who may start a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Delivery", "PackQueue"]


@dataclass(frozen=True)
class Delivery:
    """One message that is being processed."""

    body: bytes
    #: Starts at 1. The third delivery is the last: if it is not acked, the message becomes a dead letter.
    count: int
    #: The adapter's own identification of the delivery; opaque to others.
    receipt: Any


class PackQueue(Protocol):
    """The queue of priced runs.

    An outage raises DependencyUnavailable. An expired receipt neither raises nor does harm.
    """

    async def start(self) -> None:
        """Create what is missing: queue, dead-letter store, their settings. Idempotent."""

    async def close(self) -> None: ...

    async def send(self, body: bytes, message_id: str) -> None:
        """Send a message.

        It is durable on return. A repeat of `message_id` shortly afterwards may be dropped as a duplicate.
        """

    async def receive(self, at_most: int, wait_seconds: int) -> Sequence[Delivery]:
        """Receive up to `at_most` messages, invisible to others for the visibility timeout; none if none arrive within
        `wait_seconds`."""

    async def ack(self, delivery: Delivery) -> None: ...

    async def nack(self, delivery: Delivery, delay_seconds: int) -> None:
        """Make the message visible again after the delay."""

    async def extend(self, delivery: Delivery) -> None:
        """Restart the visibility timeout."""

    async def dead_letters(self, at_most: int) -> Sequence[Delivery]:
        """Return some dead letters.

        They stay stored; another call may return the same ones or, during the visibility timeout, others.
        """

    async def redrive(self, dead_letter: Delivery) -> None:
        """Send the message of a dead letter again, and delete the dead letter."""

    async def depth(self) -> tuple[int, int]:
        """Return approximate counts: messages that are queued or being processed, and dead letters."""

    async def begun_at(self) -> int | None:
        """Return since when the queue has kept all its messages, in microseconds: when it was created, or restored.

        Messages sent before may be lost. The time is by the queue's own clock, or by that of the host that restored it.
        None: this queue does not lose messages.
        """

    async def ping(self) -> None: ...

    async def probe(self) -> None:
        """Like `ping`, but also raise while messages cannot be stored, for example on a full disk (SAFE-13).

        Writes at most once every few seconds, however often it is called.
        """
