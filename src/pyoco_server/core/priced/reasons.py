"""Reasons for refused requests and failed runs: every reason code, its title and its status (contract 10.2)."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pyoco_server.core.priced.constants import RATE_LIMIT_RETRY_AFTER_SECONDS

__all__ = [
    "HTTP_STATUS",
    "KEY_RELEASING",
    "RETRY_AFTER_SECONDS",
    "RUN_FAILURES",
    "Reason",
    "problem_type",
    "title_of",
]


class Reason(StrEnum):
    """A code for programs to act on. Its meaning never changes."""

    AUTH_INVALID = "AUTH_INVALID"
    BUDGET_DRAINED = "BUDGET_DRAINED"
    RUN_NOT_FOUND = "RUN_NOT_FOUND"
    IDEMPOTENCY_CONFLICT = "IDEMPOTENCY_CONFLICT"
    IDEMPOTENCY_IN_PROGRESS = "IDEMPOTENCY_IN_PROGRESS"
    RUN_RETENTION_EXPIRED = "RUN_RETENTION_EXPIRED"
    VALIDATION_FAILED = "VALIDATION_FAILED"
    RESERVATION_BELOW_PRICE = "RESERVATION_BELOW_PRICE"
    RATE_LIMITED = "RATE_LIMITED"
    #: Used twice: as the answer to a submit, and as the reason of its failed run.
    QUEUE_ENQUEUE_FAILED = "QUEUE_ENQUEUE_FAILED"
    DEPENDENCY_UNAVAILABLE = "DEPENDENCY_UNAVAILABLE"
    WORKER_TIMEOUT = "WORKER_TIMEOUT"
    RESERVATION_EXPIRED = "RESERVATION_EXPIRED"
    TIMEBOX_EXCEEDED = "TIMEBOX_EXCEEDED"
    PACK_FAILED = "PACK_FAILED"
    #: The operator's fault: an engine, a model, language data or a store is missing or unreachable. The run costs
    #: nothing.
    PACK_UNAVAILABLE = "PACK_UNAVAILABLE"
    RESULT_STORE_FAILED = "RESULT_STORE_FAILED"
    RESULT_MISSING = "RESULT_MISSING"
    SUBMIT_ABANDONED = "SUBMIT_ABANDONED"
    #: Its caller cancelled a delayed run before its time (DELAY-7).
    CANCELLED_BEFORE_START = "CANCELLED_BEFORE_START"


#: The HTTP status of each reason. A reason that is missing here only ever ends a run.
HTTP_STATUS: Final[dict[Reason, int]] = {
    Reason.AUTH_INVALID: 401,
    Reason.BUDGET_DRAINED: 402,
    Reason.RUN_NOT_FOUND: 404,
    Reason.IDEMPOTENCY_CONFLICT: 409,
    Reason.IDEMPOTENCY_IN_PROGRESS: 409,
    Reason.RUN_RETENTION_EXPIRED: 410,
    Reason.VALIDATION_FAILED: 422,
    Reason.RESERVATION_BELOW_PRICE: 422,
    Reason.RATE_LIMITED: 429,
    Reason.QUEUE_ENQUEUE_FAILED: 503,
    Reason.DEPENDENCY_UNAVAILABLE: 503,
}

#: The `Retry-After` header of each reason.
RETRY_AFTER_SECONDS: Final[dict[Reason, int]] = {
    Reason.IDEMPOTENCY_IN_PROGRESS: 1,
    Reason.RATE_LIMITED: RATE_LIMIT_RETRY_AFTER_SECONDS,
    Reason.DEPENDENCY_UNAVAILABLE: 5,
}

#: The possible values of a run's `last_error_reason_code`.
RUN_FAILURES: Final = frozenset(
    {
        Reason.WORKER_TIMEOUT,
        Reason.RESERVATION_EXPIRED,
        Reason.QUEUE_ENQUEUE_FAILED,
        Reason.TIMEBOX_EXCEEDED,
        Reason.PACK_FAILED,
        Reason.PACK_UNAVAILABLE,
        Reason.RESULT_STORE_FAILED,
        Reason.RESULT_MISSING,
        Reason.SUBMIT_ABANDONED,
        Reason.CANCELLED_BEFORE_START,
    }
)

#: Runs that fail for these reasons release their idempotency key, because the caller was told to retry with it
#: (PRICED-89).
KEY_RELEASING: Final = frozenset({Reason.QUEUE_ENQUEUE_FAILED, Reason.SUBMIT_ABANDONED})

_TITLES: Final[dict[Reason, str]] = {
    Reason.AUTH_INVALID: "The API key is not valid",
    Reason.BUDGET_DRAINED: "The budget does not cover the reservation",
    Reason.RUN_NOT_FOUND: "The run was not found",
    Reason.IDEMPOTENCY_CONFLICT: "The idempotency key was used for another submission",
    Reason.IDEMPOTENCY_IN_PROGRESS: "A submission with this idempotency key is under way",
    Reason.RUN_RETENTION_EXPIRED: "The run is no longer kept",
    Reason.VALIDATION_FAILED: "The request is not valid",
    Reason.RESERVATION_BELOW_PRICE: "The reservation is below the price",
    Reason.RATE_LIMITED: "Too many requests",
    Reason.QUEUE_ENQUEUE_FAILED: "The run could not be queued",
    Reason.DEPENDENCY_UNAVAILABLE: "A part of the service is not available",
    Reason.WORKER_TIMEOUT: "The worker stopped answering",
    Reason.RESERVATION_EXPIRED: "The run waited too long to be started",
    Reason.TIMEBOX_EXCEEDED: "The pack took longer than its timebox",
    Reason.PACK_FAILED: "The pack failed",
    Reason.PACK_UNAVAILABLE: "The service lacks what the pack needs",
    Reason.RESULT_STORE_FAILED: "The result could not be stored",
    Reason.RESULT_MISSING: "The stored result is missing or was changed",
    Reason.SUBMIT_ABANDONED: "The submission was not finished",
    Reason.CANCELLED_BEFORE_START: "The run was cancelled before its time",
}


def title_of(reason: Reason) -> str:
    """Return the fixed title of a code. Not named `title`, which is a method of every str."""
    return _TITLES[reason]


def problem_type(reason: Reason) -> str:
    """Return the URI of the problem: `urn:dpp:problem:run-not-found`."""
    return f"urn:dpp:problem:{reason.value.lower().replace('_', '-')}"
