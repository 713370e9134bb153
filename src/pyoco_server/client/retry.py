"""The retry policy: whether to retry, and after how long. Pure: time and randomness are arguments."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum

from pyoco_server.client.calls import Repeat

__all__ = ["BRIEFLY_AWAY", "Failure", "How", "Patience", "backoff_seconds", "read_retry_after"]

#: Temporary: a proxy without its server, a gateway without NATS, a gateway that is stopping.
BRIEFLY_AWAY = frozenset({502, 503, 504})
_TOO_MANY = 429

_FIRST_SECONDS = 0.25
_MOST_SECONDS = 5.0
#: The upper limit of Retry-After: no header can suspend a program for a day.
_RETRY_AFTER_SECONDS_MAX = 30.0


class How(Enum):
    """How an attempt failed."""

    #: The request was certainly not sent.
    UNSENT = "unsent"
    #: Unclear: the request may have arrived, but there was no complete response.
    LOST = "lost"
    #: The response was an error.
    REFUSED = "refused"


@dataclass(frozen=True)
class Failure:
    how: How
    status: int = 0
    #: From Retry-After, in seconds.
    retry_after: float | None = None
    #: The refusal is temporary: the same call may succeed a moment later.
    is_passing: bool = False

    @property
    def is_unclear(self) -> bool:
        """Whether the call may have taken effect. A 502, 503 or 504 may mean that it was interrupted half-way."""
        return self.how is How.LOST or self.status in BRIEFLY_AWAY


@dataclass(frozen=True)
class Patience:
    """How often, and for how long after its first attempt, a call is retried."""

    retries: int = 3
    seconds: float = 30.0

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if self.retries < 0 or not self.seconds >= 0:
            raise ValueError(f"retries and their seconds cannot be negative: {self.retries}, {self.seconds}")

    def lasting(self, seconds: float) -> Patience:
        """Return a patience of unlimited retries within `seconds`. Raises ValueError."""
        return replace(self, retries=sys.maxsize, seconds=seconds)

    def pause(self, repeat: Repeat, failure: Failure, tries: int, elapsed: float, chance: float) -> float | None:
        """Return the seconds to wait before the next attempt; None: do not retry.

        `tries` is the number of attempts so far, `elapsed` the seconds since the first one, `chance` a random number
        from 0 to 1. There is no retry if Retry-After exceeds the time left.
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
    if failure.status == _TOO_MANY:  # not executed; retried once, and only if Retry-After is given
        return tries == 1 and failure.retry_after is not None
    return repeat is Repeat.SAFE and (failure.is_unclear or failure.is_passing)


def backoff_seconds(tries: int, chance: float) -> float:
    """Return an exponential backoff from 0.25 s to 5 s, reduced by a random part of up to half (jitter)."""
    longest = min(_FIRST_SECONDS * 2.0 ** min(tries - 1, 10), _MOST_SECONDS)
    return longest * (1.0 - chance / 2)


def read_retry_after(text: str | None, now: float) -> float | None:
    """Parse Retry-After, a number of seconds or a date, into seconds; at most 30. `now` is unix seconds.

    None: the header is missing or invalid.
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
