"""Jobs queued for workers, and dead letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from pyoco_server.core.dead_letter import DeadLetter
from pyoco_server.core.job import Job

__all__ = ["Delivery", "Intake", "Leftover", "Notice", "Notices", "Queue", "Reply", "Stock"]


class Reply(Enum):
    """How to answer a delivery."""

    #: Done: the job leaves the queue.
    ACK = "ack"
    #: Not now: redeliver it after a pause.
    LATER = "later"
    #: No worker can run it: the job leaves the queue.
    DROP = "drop"
    #: No answer. That of a fenced worker would act on the new owner's delivery.
    NOTHING = "nothing"


class Delivery(Protocol):
    """A delivered job. Its ack timer is running: extend it with `hold`, or answer."""

    @property
    def data(self) -> bytes: ...
    @property
    def subject(self) -> str: ...
    @property
    def tag(self) -> str: ...
    @property
    def count(self) -> int:
        """How often this job has been delivered, including this time."""

    async def answer(self, reply: Reply, delay_seconds: float = 0.0) -> None:
        """Answer, best effort. A lost answer leads to one more delivery, which the claim resolves."""

    async def hold(self) -> None:
        """Restart the ack timer. Raises Unavailable if the message could not be sent."""


class Intake(Protocol):
    """Deliveries for one worker, never more than it requests."""

    @property
    def ack_wait_seconds(self) -> float:
        """The shortest ack wait of its consumers, as set on the server (FLOW-292)."""

    @property
    def max_deliver(self) -> int:
        """How often a job may be delivered; 0: unlimited."""

    @property
    def heard_at(self) -> float:
        """Monotonic time of the last message from the queue, including "no messages".

        The intake relies on it to detect a silent queue.
        """

    async def want(self, count: int) -> None:
        """Request up to `count` more deliveries from now on. 0: no more; those in transit may still arrive."""

    async def tick(self) -> None:
        """Call once a second: rebuilds the pulls if the queue is silent."""

    async def take(self, seconds: float) -> Delivery | None:
        """Return one delivery within `seconds`, or None. Do not combine with `want`."""

    async def close(self) -> None:
        """Stop taking deliveries. Returns when everything in transit has arrived."""


@dataclass(frozen=True)
class Leftover:
    """A job that is in the queue and will never be delivered again."""

    tag: str
    sequence: int
    data: bytes
    subject: str = ""


class Notice(Protocol):
    """An advisory that the queue gives up a job, delivered to one keeper.

    Unless answered, it is redelivered to any keeper.
    """

    @property
    def deliveries(self) -> int:
        """How often the job was delivered."""

    async def leftover(self) -> Leftover | None:
        """Return the job itself. None: it has left the queue. Raises Unavailable."""

    async def settle(self) -> None:
        """Mark the notice as handled, best effort: if that gets lost, the notice is redelivered."""

    async def put_off(self, seconds: float) -> None:
        """Redeliver the notice after this time. Best effort."""


class Notices(Protocol):
    """Notices of jobs that the queue has given up. They are stored until handled, even while no keeper is running."""

    async def take(self, seconds: float) -> Notice | None:
        """Return one notice within `seconds`, or None. Raises Unavailable."""

    async def stir(self) -> None:
        """Make the queue give up exhausted jobs of tags without a waiting worker, which it only does when work is
        requested.

        Takes no job, and counts no delivery. O(tags). Raises Unavailable.
        """

    async def close(self) -> None:
        """Stop taking notices."""


@dataclass(frozen=True)
class Stock:
    """The jobs of one tag, in two parts."""

    #: When the oldest job that was never delivered was stored. None: there is none.
    waiting_since: float | None
    #: Runs whose jobs were delivered and not acknowledged: being processed, or about to be redelivered.
    in_hand: frozenset[str]
    #: Runs whose jobs were never delivered. None: there are too many to read.
    waiting: frozenset[str] | None


class Queue(Protocol):
    """At-least-once delivery of jobs, one lane per tag. The run's record is authoritative, never the queue.

    A foreign record may contain a tag that cannot be a lane (`core/names.py`). Such a tag has no jobs: none are ever
    found, and none can be put there.
    """

    async def put(self, job: Job, message_id: str | None = None) -> None:
        """Store a job. Returns once it is stored. A repeat under the same id within two minutes is stored once; the id
        is by default that of the run.

        Raises NotStored (certainly not stored) or Unavailable (possibly stored).
        """

    async def bury(self, dead_letter: DeadLetter, letter_id: str) -> None:
        """Store a dead letter. A repeat of the id within two minutes is stored once. Raises Unavailable."""

    async def buried(self, tag: str | None = None) -> int:
        """Return the number of stored dead letters, of one tag or of all. One round trip. Raises Unavailable."""

    async def leftover(self, tag: str, after: int = 0) -> Leftover | None:
        """Return the first job of this tag after the sequence `after` that has exhausted its deliveries without an
        answer.

        It stays in the queue and will not be redelivered. None: there is none, as far as the queue has detected. Raises
        Unavailable.
        """

    async def remove(self, leftover: Leftover) -> None:
        """Delete the job from the queue, after its run has ended. Idempotent. Raises Unavailable."""

    async def stock(self, tag: str) -> Stock:
        """Return the jobs of this tag. Exact, at the cost of reading every delivered job, and up to 1,000 waiting ones.

        Raises Unavailable.
        """

    async def open_notices(self) -> Notices:
        """Open the notices of jobs given up, which all keepers share. Raises Unavailable."""

    async def open_intake(self, tags: Sequence[str], on_delivery: Callable[[Delivery], None]) -> Intake:
        """Bind to the lanes of these tags, creating them if missing. `on_delivery` must not block.

        Raises UsageError for a tag that cannot be a lane, and Unavailable.
        """
