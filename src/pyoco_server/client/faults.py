"""Translates httpx errors into the failures that the retry policy of `retry.py` handles."""

from __future__ import annotations

import json
import math
from typing import Any, cast

import httpx

from pyoco_server.client.calls import Call, Reads, Repeat
from pyoco_server.client.priced_results import PackProblemBody, PackProblemPlace
from pyoco_server.client.retry import Failure, How, Patience, read_retry_after
from pyoco_server.core.priced.reasons import Reason

__all__ = [
    "AnswerDamaged",
    "NotAGateway",
    "PackProblem",
    "Tries",
    "err_id_of",
    "failure_of",
    "raise_for_status",
    "read_answer",
]

#: Raised before the first byte of the request has left.
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
#: Errors on the client's side: a retry would fail in the same way.
_OURS = (httpx.LocalProtocolError, httpx.UnsupportedProtocol)

#: The least timeout of a retry, and the least timeout if the caller's deadline is near.
_LAST_SECONDS, _BLINK_SECONDS = 1.0, 0.05


class AnswerDamaged(httpx.RemoteProtocolError):
    """The response is truncated, has the wrong digest, or does not come from a gateway."""


class NotAGateway(AnswerDamaged):
    """Another server answers at this address, such as a proxy's login page. Retrying would not help."""


class PackProblem(httpx.HTTPStatusError):
    """A problem document (RFC 9457), the body of every error response under `/v1`."""

    def __init__(self, body: PackProblemBody, response: httpx.Response) -> None:
        message = f"HTTP {response.status_code} {body['reason_code']}: {body.get('detail') or body.get('title') or ''}"
        super().__init__(message, request=response.request, response=response)
        self.problem = body
        #: For programs to act on: `BUDGET_DRAINED`, `IDEMPOTENCY_CONFLICT`, …
        self.reason_code: str = body["reason_code"]
        #: Identifies the request to an operator.
        self.trace_id: str | None = body.get("trace_id")
        self.run_id: str | None = body.get("run_id")
        #: The errors of an invalid submission, each with its place.
        self.errors: list[PackProblemPlace] = body.get("errors") or []
        #: The key that was sent. After an unclear failure, submitting again with it cannot create a second run.
        self.idempotency_key: str | None = response.request.headers.get("Idempotency-Key")


def failure_of(error: httpx.HTTPError, now: float) -> Failure | None:
    """Classify an error for the retry policy. None: do not retry. `now` is unix seconds."""
    if isinstance(error, httpx.HTTPStatusError):
        response = error.response
        after = read_retry_after(response.headers.get("Retry-After"), now)
        return Failure(How.REFUSED, response.status_code, after, is_passing=_is_passing(error))
    if isinstance(error, (*_OURS, NotAGateway)) or not isinstance(error, httpx.TransportError | httpx.DecodingError):
        return None
    return Failure(How.UNSENT if isinstance(error, _UNSENT) else How.LOST)


def _is_passing(error: httpx.HTTPStatusError) -> bool:
    """Return whether the refusal is temporary: another attempt of the same submission is in progress."""
    return isinstance(error, PackProblem) and error.reason_code == Reason.IDEMPOTENCY_IN_PROGRESS


def err_id_of(error: httpx.HTTPStatusError) -> str | None:
    """Return the gateway's error id. None: the response is not from a gateway, but perhaps from a proxy."""
    try:
        body = error.response.json()
    except ValueError:
        return None
    found = body.get("err_id") if isinstance(body, dict) else None
    return found if isinstance(found, str) else None


def read_answer(call: Call[Any], response: httpx.Response) -> Any:
    """Return the decoded result of a call. Raises HTTPStatusError (FLOW-415), PackProblem, NotAGateway."""
    raise_for_status(response)
    if call.reads is Reads.TEXT:
        return response.text
    try:
        if call.reads is Reads.LINES:
            return _lines(call, response)
        document = json.loads(response.content)
    except ValueError as error:
        raise NotAGateway(f"{call.method} {call.path} was answered with something that is no JSON") from error
    return _receipt(call, document, response.headers) if call.reads is Reads.RECEIPT else document


def raise_for_status(response: httpx.Response) -> None:
    """Raise PackProblem for a problem document, HTTPStatusError for other errors. The body must have been read."""
    try:
        response.raise_for_status()
    except httpx.HTTPStatusError as error:
        body = _problem_in(response)
        if body is None:
            raise
        raise PackProblem(body, response) from error


def _problem_in(response: httpx.Response) -> PackProblemBody | None:
    """Return the problem document. None: the body is not one, even if its content type says so."""
    if response.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/problem+json":
        return None
    try:
        body = response.json()
    except ValueError:
        return None
    if not isinstance(body, dict) or not isinstance(body.get("reason_code"), str):
        return None
    return cast(PackProblemBody, body)


#: The headers about costs, by the receipt's field names.
_COSTS = {
    "reserved_usd": "X-DPP-Cost-Reserved",
    "used_usd": "X-DPP-Cost-Used",
    "budget_remaining_usd": "X-DPP-Budget-Remaining",
}


def _lines(call: Call[Any], response: httpx.Response) -> dict[str, Any]:
    """Raises NotAGateway, ValueError for a line that is not JSON."""
    lines = [json.loads(line) for line in response.content.splitlines()]
    if not all(isinstance(line, dict) and isinstance(line.get("id"), str) for line in lines):
        raise NotAGateway(f"{call.method} {call.path} was answered with something that is not a log")
    return {"lines": lines, "has_more": response.headers.get("Pyoco-Log-More") == "true"}


def _receipt(call: Call[Any], document: Any, headers: httpx.Headers) -> dict[str, Any]:
    """Return the receipt with the values from the headers. Raises NotAGateway.

    Headers that a proxy has removed are left out: the run is paid for in any case.
    """
    if not isinstance(document, dict):
        raise NotAGateway(f"{call.method} {call.path} was answered with something that is no receipt")
    costs: dict[str, Any] = {name: headers[header] for name, header in _COSTS.items() if header in headers}
    tokens = headers.get("X-DPP-Tokens-Consumed", "")
    if tokens.isascii() and tokens.isdecimal() and len(tokens) < 20:
        costs["tokens_consumed"] = int(tokens)
    replayed = headers.get("Idempotency-Replayed", "").lower() == "true"
    return {**document, "idempotency_key": call.headers["Idempotency-Key"], "replayed": replayed, "costs": costs}


class Tries:
    """The attempts of one call so far. The caller passes in time and randomness."""

    def __init__(self, patience: Patience, began: float, ends_at: float = math.inf) -> None:
        """`ends_at` is the caller's deadline for all attempts."""
        self._patience, self._began, self._ends_at = patience, began, ends_at
        self._count = 0
        #: Whether a failed attempt may have taken effect.
        self.were_unclear = False

    def timeout_seconds(self, timeout: float, at: float) -> float:
        """Return the timeout of the next attempt. Retries share the time that earlier attempts have left."""
        longest = max(self._ends_at - at, _BLINK_SECONDS)
        if self._count:
            longest = min(longest, max(self._began + max(timeout, self._patience.seconds) - at, _LAST_SECONDS))
        return min(timeout, longest)

    def pause_after(self, error: httpx.HTTPError, repeat: Repeat, *, at: float, now: float, chance: float) -> float:
        """Return the seconds to wait before the next attempt.

        Raises `error` if there is no further attempt, TimeoutError if the deadline would pass before it.
        """
        self._count += 1
        failure = failure_of(error, now)
        if failure is None:
            raise error
        pause = self._patience.pause(repeat, failure, self._count, at - self._began, chance)
        is_late = at + (pause or 0.0) >= self._ends_at
        if is_late and (pause is not None or isinstance(error, httpx.TimeoutException)):
            raise TimeoutError(str(error) or type(error).__name__) from error
        if pause is None:
            raise error
        self.were_unclear = self.were_unclear or failure.is_unclear
        return pause
