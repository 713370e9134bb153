"""The retry policy of a task, a run or a program (section 8 of the contract)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final

__all__ = [
    "DELAY_SECONDS_MAX",
    "FACTOR_MAX",
    "MATCHERS_MAX",
    "NO_RETRY",
    "TRIES_MAX",
    "Backoff",
    "RetryPolicy",
    "default_max_delay",
    "to_document",
]

TRIES_MAX: Final = 100
DELAY_SECONDS_MAX: Final = 7 * 86400.0
FACTOR_MAX: Final = 10.0
MATCHERS_MAX: Final = 50
_MAX_DELAY_SECONDS: Final = 60.0


class Backoff(StrEnum):
    """How the wait grows from try to try."""

    FIXED = "fixed"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


def default_max_delay(delay: float) -> float:
    return max(_MAX_DELAY_SECONDS, delay)


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """A validated policy (`reading.py`). Durations are seconds."""

    #: The number of tries, the first one included.
    tries: int
    backoff: Backoff = Backoff.EXPONENTIAL
    delay: float = 1.0
    max_delay: float = _MAX_DELAY_SECONDS
    #: Of exponential waits only.
    factor: float = 2.0
    jitter: float = 0.1
    retry_on: tuple[str, ...] = ("*",)
    never_on: tuple[str, ...] = ()
    #: No try begins later than this after the start of the first one.
    deadline: float | None = None

    def wait_seconds(self, failed: int, chance: float) -> float:
        """Return the wait after `failed` failed tries, at least one (RETRY-8). `chance` is random, from 0 to 1."""
        wait = self.delay
        if self.backoff is Backoff.LINEAR:
            wait = self.delay * failed
        elif self.backoff is Backoff.EXPONENTIAL:
            wait = self.delay * self.factor ** (failed - 1)  # at most 10 to the power of 99
        return min(wait, self.max_delay) * (1 - self.jitter + 2 * self.jitter * chance)


#: What overrides any other policy with none.
NO_RETRY: Final = RetryPolicy(tries=1)


def to_document(policy: RetryPolicy) -> dict[str, Any]:
    """Return the policy as JSON members, durations in seconds. `factor` is null where it has no meaning."""
    document: dict[str, Any] = {item.name: getattr(policy, item.name) for item in fields(policy)}
    document["backoff"] = policy.backoff.value
    document["retry_on"], document["never_on"] = list(policy.retry_on), list(policy.never_on)
    if policy.backoff is not Backoff.EXPONENTIAL:
        document["factor"] = None
    return document
