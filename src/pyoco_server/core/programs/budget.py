"""The retry budget of a job: number of attempts and delay between them (GRID-79, GRID-80)."""

from __future__ import annotations

from enum import StrEnum

from pyoco_server.core.programs.record import Program
from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.retries.matching import TIMEOUT, Failure, exited, killed
from pyoco_server.core.retries.policy import RetryPolicy

__all__ = ["LOST_WITH", "Why", "failure_of", "is_lost", "retry_delay_seconds", "spent", "spent_tries"]

_DELAY_SECONDS_MAX = 60.0
#: ±20%.
_JITTER = 0.2
#: 2 to this power exceeds the longest delay.
_DOUBLINGS_MAX = 6


class Why(StrEnum):
    """Why an attempt did not end its run. Those of LOST_WITH count as lost, the others as failed."""

    ACK_TIMEOUT = "ack_timeout"
    WORKER_ERROR = "worker_error"
    WORKER_DOWN = "worker_down"
    HOLDER_LOST = "holder_lost"
    #: With a retry policy: the program failed, and another try is allowed.
    FAILED_TRY = "failed_try"


LOST_WITH = frozenset({Why.WORKER_DOWN, Why.HOLDER_LOST})


def is_lost(why: str) -> bool:
    """Return whether the attempt was lost with its worker or its door, which says nothing about the job itself."""
    return why in LOST_WITH


def retry_delay_seconds(failed: int, chance: float) -> float:
    """Return the delay after `failed` failed attempts (at least one): 1, 2, 4, 8 … 60 s, ±20%.

    `chance` is a random number from 0.0 to 1.0.
    """
    delay = min(_DELAY_SECONDS_MAX, 2.0 ** min(max(failed, 1) - 1, _DOUBLINGS_MAX))
    return delay * (1 - _JITTER + 2 * _JITTER * chance)


def spent(program: Program, attempt: int, max_lost: int) -> ErrorCode | None:
    """Return why no further attempt is allowed; None: one is. Assumes that all attempts up to `attempt` are over."""
    if attempt - program.lost >= program.max_attempts:
        return ErrorCode.MAX_ATTEMPTS
    return ErrorCode.MAX_LOST if program.lost >= max_lost else None


def spent_tries(policy: RetryPolicy, failed: int, lost: int, max_lost: int) -> ErrorCode | None:
    """Return the same for a run with a retry policy, after so many failed tries and lost attempts (RETRY-15)."""
    if failed >= policy.tries:
        return ErrorCode.MAX_ATTEMPTS
    return ErrorCode.MAX_LOST if lost >= max_lost else None


def failure_of(report: Report) -> Failure | None:
    """Return what a policy decides on (RETRY-18). None: the program did not fail itself, and no policy retries it."""
    if report.error_code is ErrorCode.RUN_TIMEOUT:
        return Failure(TIMEOUT)
    if report.error_code not in (ErrorCode.EXIT_NONZERO, ErrorCode.SIGNALED) or report.exit_code is None:
        return None
    return killed(-report.exit_code) if report.exit_code < 0 else exited(report.exit_code)
