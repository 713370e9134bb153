"""The only place where an error of httpx becomes a failure that the policy of `retry.py` knows."""

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
#: A mistake on this side: the next try would make it, too.
_OURS = (httpx.LocalProtocolError, httpx.UnsupportedProtocol)

#: What even a last try gets; and what it gets when the caller's time is up.
_LAST_SECONDS, _BLINK_SECONDS = 1.0, 0.05


class AnswerDamaged(httpx.RemoteProtocolError):
    """What arrived is not what a gateway sends: cut short, with another digest, or from somebody else altogether."""


class NotAGateway(AnswerDamaged):
    """Somebody else answers at this address, a proxy's login page perhaps. Asking again would not help."""


class PackProblem(httpx.HTTPStatusError):
    """A problem document (RFC 9457): how every refusal and every outage is told under `/v1`."""

    def __init__(self, body: PackProblemBody, response: httpx.Response) -> None:
        told = f"HTTP {response.status_code} {body['reason_code']}: {body.get('detail') or body.get('title') or ''}"
        super().__init__(told, request=response.request, response=response)
        self.problem = body
        #: What a program acts on: `BUDGET_DRAINED`, `IDEMPOTENCY_CONFLICT`, …
        self.reason_code: str = body["reason_code"]
        #: What an operator finds it by.
        self.trace_id: str | None = body.get("trace_id")
        self.run_id: str | None = body.get("run_id")
        #: Of a submission that is not valid: each thing that is wrong, and where.
        self.errors: list[PackProblemPlace] = body.get("errors") or []
        #: The key that was sent: a submission whose end is not clear may be sent again with it, and counts once.
        self.idempotency_key: str | None = response.request.headers.get("Idempotency-Key")


def failure_of(error: httpx.HTTPError, now: float) -> Failure | None:
    """None: trying again is no use. `now` is unix seconds."""
    if isinstance(error, httpx.HTTPStatusError):
        response = error.response
        after = read_retry_after(response.headers.get("Retry-After"), now)
        return Failure(How.REFUSED, response.status_code, after, is_passing=_is_passing(error))
    if isinstance(error, (*_OURS, NotAGateway)) or not isinstance(error, httpx.TransportError | httpx.DecodingError):
        return None
    return Failure(How.UNSENT if isinstance(error, _UNSENT) else How.LOST)


def _is_passing(error: httpx.HTTPStatusError) -> bool:
    """Whether the refusal holds for a moment only: another try of the same submission is under way."""
    return isinstance(error, PackProblem) and error.reason_code == Reason.IDEMPOTENCY_IN_PROGRESS


def err_id_of(error: httpx.HTTPStatusError) -> str | None:
    """The gateway's own id of an error. None: somebody else has answered, a proxy perhaps."""
    try:
        body = error.response.json()
    except ValueError:
        return None
    found = body.get("err_id") if isinstance(body, dict) else None
    return found if isinstance(found, str) else None


def read_answer(call: Call[Any], response: httpx.Response) -> Any:
    """What a method returns. Raises HTTPStatusError (FLOW-415), PackProblem, NotAGateway."""
    raise_for_status(response)
    if call.reads is Reads.TEXT:
        return response.text
    try:
        document = json.loads(response.content)
    except ValueError as error:
        raise NotAGateway(f"{call.method} {call.path} was answered with something that is no JSON") from error
    return _receipt(call, document, response.headers) if call.reads is Reads.RECEIPT else document


def raise_for_status(response: httpx.Response) -> None:
    """Its body has been read. Raises HTTPStatusError, and PackProblem where the answer is one."""
    try:
        response.raise_for_status()
    except httpx.HTTPStatusError as error:
        body = _problem_in(response)
        if body is None:
            raise
        raise PackProblem(body, response) from error


def _problem_in(response: httpx.Response) -> PackProblemBody | None:
    """None: the answer is no problem document, whatever its type says."""
    if response.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/problem+json":
        return None
    try:
        body = response.json()
    except ValueError:
        return None
    if not isinstance(body, dict) or not isinstance(body.get("reason_code"), str):
        return None
    return cast(PackProblemBody, body)


#: What the headers say about money, by the name that the receipt has for it.
_COSTS = {
    "reserved_usd": "X-DPP-Cost-Reserved",
    "used_usd": "X-DPP-Cost-Used",
    "budget_remaining_usd": "X-DPP-Budget-Remaining",
}


def _receipt(call: Call[Any], document: Any, headers: httpx.Headers) -> dict[str, Any]:
    """Raises NotAGateway. What a proxy took out of the headers is left out: the run is paid for all the same."""
    if not isinstance(document, dict):
        raise NotAGateway(f"{call.method} {call.path} was answered with something that is no receipt")
    costs: dict[str, Any] = {name: headers[header] for name, header in _COSTS.items() if header in headers}
    tokens = headers.get("X-DPP-Tokens-Consumed", "")
    if tokens.isascii() and tokens.isdecimal() and len(tokens) < 20:
        costs["tokens_consumed"] = int(tokens)
    replayed = headers.get("Idempotency-Replayed", "").lower() == "true"
    return {**document, "idempotency_key": call.headers["Idempotency-Key"], "replayed": replayed, "costs": costs}


class Tries:
    """The tries of one call so far. Clock and chance are given by who sends."""

    def __init__(self, patience: Patience, began: float, ends_at: float = math.inf) -> None:
        """At `ends_at` the caller wants to know, whatever has come of it."""
        self._patience, self._began, self._ends_at = patience, began, ends_at
        self._count = 0
        #: Whether one of them may have done what was asked, though its answer did not say so.
        self.were_unclear = False

    def timeout_seconds(self, timeout: float, at: float) -> float:
        """For how long the server may say nothing this time: a later try has what the earlier ones have left."""
        longest = max(self._ends_at - at, _BLINK_SECONDS)
        if self._count:
            longest = min(longest, max(self._began + max(timeout, self._patience.seconds) - at, _LAST_SECONDS))
        return min(timeout, longest)

    def pause_after(self, error: httpx.HTTPError, repeat: Repeat, *, at: float, now: float, chance: float) -> float:
        """Seconds to wait before the next try. Raises the error itself when there is none, TimeoutError when the
        caller's time is up before it."""
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
