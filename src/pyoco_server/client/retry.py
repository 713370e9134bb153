"""When to ask again, and how long to wait before that. Pure: clock and chance are arguments."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum

from pyoco_server.client.calls import Repeat

__all__ = ["BRIEFLY_AWAY", "Failure", "How", "Patience", "backoff_seconds", "read_retry_after"]

#: A proxy without its server, a gateway without NATS, a gateway that stops: they come back.
BRIEFLY_AWAY = frozenset({502, 503, 504})
_TOO_MANY = 429

_FIRST_SECONDS = 0.25
_MOST_SECONDS = 5.0
#: A server that asks for more is asked after this. No header can put a program to sleep for a day.
_RETRY_AFTER_SECONDS_MAX = 30.0


class How(Enum):
    """How a try went wrong."""

    #: It surely did not arrive.
    UNSENT = "unsent"
    #: Nobody knows whether it arrived; there was no whole answer.
    LOST = "lost"
    #: It was answered, with an error.
    REFUSED = "refused"


@dataclass(frozen=True)
class Failure:
    how: How
    status: int = 0
    #: What the answer asks for, in seconds.
    retry_after: float | None = None
    #: The refusal holds for a moment only; the same call may succeed after it.
    is_passing: bool = False

    @property
    def is_unclear(self) -> bool:
        """Whether it may have happened all the same. A server that is briefly away may have been cut off half-way."""
        return self.how is How.LOST or self.status in BRIEFLY_AWAY


@dataclass(frozen=True)
class Patience:
    """How often, and for how long after its beginning, a call is tried again."""

    retries: int = 3
    seconds: float = 30.0

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if self.retries < 0 or not self.seconds >= 0:
            raise ValueError(f"retries and their seconds cannot be negative: {self.retries}, {self.seconds}")

    def lasting(self, seconds: float) -> Patience:
        """For who has time: as often as it takes, for `seconds`. Raises ValueError."""
        return replace(self, retries=sys.maxsize, seconds=seconds)

    def pause(self, repeat: Repeat, failure: Failure, tries: int, elapsed: float, chance: float) -> float | None:
        """Seconds to wait before the next try; None: there is none, and the failure is the result.

        `tries` were made so far, the first one `elapsed` seconds ago; `chance` is a random number from 0 to 1. A
        server that asks for more time than is left is not asked again at all.
        """
        if repeat is Repeat.NEVER or tries > self.retries or not _may_repeat(repeat, failure, tries):
            return None
        pause = backoff_seconds(tries, chance)
        if failure.retry_after is not None:
            pause = max(pause, failure.retry_after)
        return pause if elapsed + pause < self.seconds else None


def _may_repeat(repeat: Repeat, failure: Failure, tries: int) -> bool:
    if failure.how is How.UNSENT:
        return True
    if failure.status == _TOO_MANY:  # it was not let in; once is enough for who was told when to come back
        return tries == 1 and failure.retry_after is not None
    return repeat is Repeat.SAFE and (failure.is_unclear or failure.is_passing)


def backoff_seconds(tries: int, chance: float) -> float:
    """Doubles from a quarter of a second to five; up to half of it is left to chance, so that not all come at once."""
    whole = min(_FIRST_SECONDS * 2.0 ** min(tries - 1, 10), _MOST_SECONDS)
    return whole * (1.0 - chance / 2)


def read_retry_after(text: str | None, now: float) -> float | None:
    """The header's seconds, or the seconds until its date (`now` is unix seconds); never more than half a minute.

    None: none, or nonsense.
    """
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdecimal():
        return min(float(text[:10]), _RETRY_AFTER_SECONDS_MAX)
    try:
        date = parsedate_to_datetime(text)
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        return min(max(0.0, date.timestamp() - now), _RETRY_AFTER_SECONDS_MAX)
    except (TypeError, ValueError, OverflowError):
        return None
