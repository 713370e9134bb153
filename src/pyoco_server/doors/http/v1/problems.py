"""Error responses of `/v1`: problem documents (RFC 9457), and the reason code of each error (contract 10.2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starlette.responses import Response
from starlette.types import Scope

from pyoco_server.core.priced.reasons import HTTP_STATUS, RETRY_AFTER_SECONDS, Reason, problem_type, title_of
from pyoco_server.doors.http.answers import RESOURCE_RETRY_SECONDS, JsonAnswer, encode_json
from pyoco_server.doors.http.lingering import Lingering
from pyoco_server.doors.http.v1.costs import Costs
from pyoco_server.doors.http.v1.visit import Visit, visit_of
from pyoco_server.errors import (
    BelowPrice,
    DashboardReadOnly,
    HostRefused,
    KeyBusy,
    KeyMissing,
    KeyRefused,
    KeyReused,
    NotFound,
    OverBudget,
    Problem,
    PyocoError,
    RateLimited,
    Refused,
    RunExpired,
    SendFailed,
    TenantRateLimited,
    TooLarge,
    TooSlow,
    Unavailable,
    missing_resource,
)
from pyoco_server.logs import get_logger

__all__ = ["REASONS", "MethodRefused", "ProblemAnswer", "answer_error", "pointer_of"]

log = get_logger(__name__)

#: More problems than this would not help the reader.
_PROBLEMS_MAX = 20


class MethodRefused(PyocoError):
    """The path exists, but not with this method."""

    def __init__(self, methods: list[str]) -> None:
        super().__init__()
        self.methods = methods


#: The only place that maps errors to reason codes. The nearest base class wins.
REASONS: dict[type[PyocoError], Reason] = {
    KeyMissing: Reason.AUTH_INVALID,
    KeyRefused: Reason.AUTH_INVALID,
    DashboardReadOnly: Reason.AUTH_INVALID,
    OverBudget: Reason.BUDGET_DRAINED,
    NotFound: Reason.RUN_NOT_FOUND,
    KeyReused: Reason.IDEMPOTENCY_CONFLICT,
    KeyBusy: Reason.IDEMPOTENCY_IN_PROGRESS,
    RunExpired: Reason.RUN_RETENTION_EXPIRED,
    BelowPrice: Reason.RESERVATION_BELOW_PRICE,
    Refused: Reason.VALIDATION_FAILED,
    TooLarge: Reason.VALIDATION_FAILED,
    TooSlow: Reason.VALIDATION_FAILED,
    MethodRefused: Reason.VALIDATION_FAILED,
    HostRefused: Reason.VALIDATION_FAILED,
    TenantRateLimited: Reason.RATE_LIMITED,
    RateLimited: Reason.RATE_LIMITED,
    SendFailed: Reason.QUEUE_ENQUEUE_FAILED,
    Unavailable: Reason.DEPENDENCY_UNAVAILABLE,
    # An internal error, or damaged data: a part of the service does not work, and retrying with the same key is safe.
    PyocoError: Reason.DEPENDENCY_UNAVAILABLE,
}
#: Errors whose HTTP status is more specific than the usual one of their reason.
_STATUS: dict[type[PyocoError], int] = {
    DashboardReadOnly: 403,
    MethodRefused: 405,
    TooSlow: 408,
    HostRefused: 421,
}

#: Fixed texts: a problem never repeats what was sent (PRICED-171).
_DETAILS: dict[Reason, str] = {
    Reason.AUTH_INVALID: "A valid API key is needed: Authorization: Bearer <key>.",
    Reason.BUDGET_DRAINED: "The available budget is smaller than max_cost_usd. Nothing was reserved; the key is free.",
    Reason.RUN_NOT_FOUND: "There is nothing here.",
    Reason.IDEMPOTENCY_CONFLICT: "The Idempotency-Key was used for another submission. Use a new one.",
    Reason.IDEMPOTENCY_IN_PROGRESS: "The same Idempotency-Key is being submitted. Try again with it.",
    Reason.RUN_RETENTION_EXPIRED: "The result of this run is gone: past its retention, or lost with its store.",
    Reason.VALIDATION_FAILED: "The request is not valid. Nothing was reserved.",
    Reason.RESERVATION_BELOW_PRICE: "max_cost_usd is below the price. Nothing was reserved; the key is free.",
    Reason.RATE_LIMITED: "Too many requests. Try again after the time that Retry-After says.",
    Reason.QUEUE_ENQUEUE_FAILED: "The run could not be queued. It was refunded; try again with the same key.",
    Reason.DEPENDENCY_UNAVAILABLE: "A part of the service did not answer. Try again with the same key.",
}
#: Without an idempotency key: files are identified by their content.
_OF_INPUTS: dict[Reason, str] = {
    Reason.DEPENDENCY_UNAVAILABLE: "A part of the service did not answer. Try again with the same file.",
}
#: Texts for statuses that are not the usual one of their reason.
_OTHERWISE = {
    403: "A page in a browser may not make this change.",
    405: "This cannot be done here; Allow says what can.",
    408: "The body arrived too slowly.",
    421: "This name in Host is not answered: PYOCO_HTTP_HOSTS lists those that are.",
}


class ProblemAnswer(JsonAnswer):
    media_type = "application/problem+json"
    content_type = b"application/problem+json"


def answer_error(scope: Scope, error: Exception) -> Response:
    """Render any error as a response, and log one line without any request data."""
    visit = visit_of(scope)
    known = error if isinstance(error, PyocoError) else PyocoError()
    reason = _nearest(REASONS, known)
    status = _status(known, reason)
    run_id = known.run_id if isinstance(known, SendFailed | RunExpired) else None
    visit.costs = _costs(visit, known)
    # Log the traceback of an internal error and the cause of an outage, but not a refusal: its text may contain data.
    write_log = log.error if status >= 500 else log.info
    write_log(
        "a priced request was answered with a problem",
        status=status,
        reason_code=reason.value,
        path=visit.logged_path,
        trace_id=visit.trace_id,
        tenant_id=visit.tenant_id,
        run_id=run_id,
        problems=len(known.problems) or None,
        error=error if status >= 500 else None,
    )
    body = _document(visit, reason, status, run_id)
    if status == 422:
        body["errors"] = _errors(known)
    if isinstance(known, BelowPrice):
        body |= {"err_id": known.text.err_id, "price_usd": known.price_usd}
    headers = visit.headers() | _headers(known, reason, status)
    missing = missing_resource(known)
    if missing is not None and status == 503:
        body |= {"err_id": missing.text.err_id, "resource": missing.resource}
        headers["Retry-After"] = str(RESOURCE_RETRY_SECONDS)
    answer = ProblemAnswer(encode_json(body), status, headers)
    return Lingering(answer) if isinstance(known, TooLarge) else answer


def _costs(visit: Visit, error: PyocoError) -> Costs:
    """Return the amounts that the error itself contains (PRICED-83)."""
    match error:
        case OverBudget():
            return visit.costs.left_with(error.balance_usd_micros)
        case SendFailed():
            return replace(visit.costs, reserved_usd_micros=visit.asked_usd_micros)
        case RunExpired():
            return replace(
                visit.costs,
                reserved_usd_micros=error.reserved_usd_micros,
                used_usd_micros=error.used_usd_micros,
                tokens=error.tokens_consumed,
            )
        case _:
            return visit.costs


def _status(error: PyocoError, reason: Reason) -> int:
    if not any(cls in REASONS for cls in type(error).__mro__ if cls is not PyocoError):
        return 500
    return next((_STATUS[cls] for cls in type(error).__mro__ if cls in _STATUS), HTTP_STATUS[reason])


def _nearest(table: dict[type[PyocoError], Reason], error: PyocoError) -> Reason:
    return next(table[cls] for cls in type(error).__mro__ if cls in table)


def _document(visit: Visit, reason: Reason, status: int, run_id: str | None) -> dict[str, Any]:
    """PRICED-67: exactly these members."""
    body: dict[str, Any] = {
        "type": problem_type(reason),
        "title": title_of(reason),
        "status": status,
        "detail": _OTHERWISE.get(status) or _detail(visit, reason),
        "instance": visit.path,
        "reason_code": reason.value,
        "trace_id": visit.trace_id,
    }
    if run_id is not None:
        body["run_id"] = run_id
    return body


def _detail(visit: Visit, reason: Reason) -> str:
    return _OF_INPUTS.get(reason, _DETAILS[reason]) if visit.is_of_inputs else _DETAILS[reason]


def _headers(error: PyocoError, reason: Reason, status: int) -> dict[str, str]:
    headers = {}
    if reason in RETRY_AFTER_SECONDS:
        headers["Retry-After"] = str(RETRY_AFTER_SECONDS[reason])
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, MethodRefused):
        headers["Allow"] = ", ".join(error.methods)
    if isinstance(error, TooSlow):
        headers["Connection"] = "close"  # the rest of the body may still arrive; it is not read
    return headers


def _errors(error: PyocoError) -> list[dict[str, str]]:
    problems = error.problems or (Problem((), str(error)),)
    return [{"pointer": pointer_of(problem.loc), "message": problem.msg} for problem in problems[:_PROBLEMS_MAX]]


def pointer_of(loc: tuple[str | int, ...]) -> str:
    """Return a JSON pointer (RFC 6901) into the body; empty for the request itself, including its headers."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in loc)
