"""Jobs on their way to a worker, and those set aside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from pyoco_server.core.dead_letter import DeadLetter
from pyoco_server.core.job import Job

__all__ = ["Delivery", "Intake", "Leftover", "Notice", "Notices", "Queue", "Reply", "Stock"]


class Reply(Enum):
    """What the queue hears of a delivery."""

    #: Done with: it leaves the queue.
    ACK = "ack"
    #: Not now: deliver it again after a pause.
    LATER = "later"
    #: Nobody can run it: it leaves the queue.
    DROP = "drop"
    #: Silence. A fenced worker's word would act on the new owner's delivery, so it says none.
    NOTHING = "nothing"


class Delivery(Protocol):
    """A job in hand. Its ack timer runs: hold it, or answer it."""

    @property
    def data(self) -> bytes: ...
    @property
    def subject(self) -> str: ...
    @property
    def tag(self) -> str: ...
    @property
    def count(self) -> int:
        """How often this job has been delivered, this time included."""

    async def answer(self, reply: Reply, delay_seconds: float = 0.0) -> None:
        """Best effort: an answer that gets lost leads to one more delivery, and the claim sorts it out."""

    async def hold(self) -> None:
        """Restart the ack timer. Raises Unavailable when it could not be sent."""


class Intake(Protocol):
    """Deliveries for one worker, never more than it wants."""

    @property
    def ack_wait_seconds(self) -> float:
        """The shortest ack timer among its consumers, as the server really has it (FLOW-292)."""

    @property
    def max_deliver(self) -> int:
        """How often a job may be delivered; 0 when there is no limit."""

    @property
    def heard_at(self) -> float:
        """Monotonic time of the last word from the queue, be it "nothing there". A silent one is deaf."""

    async def want(self, count: int) -> None:
        """Take up to `count` more deliveries from now on. 0: no more; what is under way may still arrive."""

    async def tick(self) -> None:
        """Once a second: a deaf intake rebuilds itself."""

    async def take(self, seconds: float) -> Delivery | None:
        """One delivery within `seconds`, or None. Not to be mixed with `want`."""

    async def close(self) -> None:
        """Take nothing more. Returns when everything under way has arrived."""


@dataclass(frozen=True)
class Leftover:
    """A job that the queue holds and will never deliver again."""

    tag: str
    sequence: int
    data: bytes
    subject: str = ""


class Notice(Protocol):
    """The queue's word that it gives a job up, in one keeper's hand. Unanswered it comes again, to any keeper."""

    @property
    def deliveries(self) -> int:
        """How often the job was delivered."""

    async def leftover(self) -> Leftover | None:
        """The job itself. None: it has left the queue since. Raises Unavailable."""

    async def settle(self) -> None:
        """Dealt with: the word does not come again. Best effort: lost, it comes once more."""

    async def put_off(self, seconds: float) -> None:
        """Not yet: it comes again then. Best effort."""


class Notices(Protocol):
    """What the queue has given up, kept until somebody has dealt with it, also while no keeper is there."""

    async def take(self, seconds: float) -> Notice | None:
        """One notice within `seconds`, or None. Raises Unavailable."""

    async def stir(self) -> None:
        """Have the queue give up what it may not deliver again, of tags that nobody asks for: it does so only when it
        is asked for work. Nothing is taken, and no delivery is counted. O(tags). Raises Unavailable."""

    async def close(self) -> None:
        """Take nothing more."""


@dataclass(frozen=True)
class Stock:
    """The jobs of one tag, in two parts."""

    #: When the oldest job that was never delivered was stored; None: there is none.
    waiting_since: float | None
    #: The runs whose jobs were delivered and are still there: in somebody's hand, or about to come again.
    in_hand: frozenset[str]
    #: The runs whose jobs were never delivered; None: they are too many to look at each.
    waiting: frozenset[str] | None


class Queue(Protocol):
    """At-least-once delivery of jobs, one lane per tag. It is never the truth about a run: the record is.

    A tag that can be no lane (`core/names.py`), as a stranger's record may have one, has no jobs: nothing of it is ever
    found, and nothing can be put there.
    """

    async def put(self, job: Job) -> None:
        """Returns once the job is stored. Repeating it within two minutes stores it once.

        Raises NotStored (certainly not) or Unavailable (perhaps).
        """

    async def bury(self, letter: DeadLetter, letter_id: str) -> None:
        """Set a dead letter aside. The same id within two minutes is stored once. Raises Unavailable."""

    async def buried(self, tag: str | None = None) -> int:
        """How many dead letters there are now, of one tag or of all: one round trip. Raises Unavailable."""

    async def leftover(self, tag: str, after: int = 0) -> Leftover | None:
        """The first job of this tag, behind the sequence `after`, that was delivered as often as it may be and never
        answered for: it lies in the queue and will not come again. None: there is none, as far as the queue knows.
        Raises Unavailable."""

    async def remove(self, leftover: Leftover) -> None:
        """Take it out of the queue, after its run has ended. May be repeated. Raises Unavailable."""

    async def stock(self, tag: str) -> Stock:
        """What is there of this tag: exact, at the price of reading every job in hand, and up to 1,000 that wait.
        Raises Unavailable."""

    async def open_notices(self) -> Notices:
        """The notices of jobs given up; every keeper shares them. Raises Unavailable."""

    async def open_intake(self, tags: Sequence[str], on_delivery: Callable[[Delivery], None]) -> Intake:
        """Bind to the lanes of these tags, making them if missing. `on_delivery` must not block. Raises UsageError for
        a tag that can be no lane, and Unavailable."""
