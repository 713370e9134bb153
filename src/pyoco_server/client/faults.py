"""The only place where an error of httpx becomes a failure that the policy of `retry.py` knows."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx

from pyoco_server.client.calls import Call, Reads, Repeat
from pyoco_server.client.retry import Failure, How, Patience, read_retry_after

__all__ = ["AnswerDamaged", "NotAGateway", "Tries", "err_id_of", "failure_of", "read_answer"]

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


def failure_of(error: httpx.HTTPError, now: float) -> Failure | None:
    """None: trying again is no use. `now` is unix seconds."""
    if isinstance(error, httpx.HTTPStatusError):
        response = error.response
        return Failure(How.REFUSED, response.status_code, read_retry_after(response.headers.get("Retry-After"), now))
    if isinstance(error, (*_OURS, NotAGateway)) or not isinstance(error, httpx.TransportError | httpx.DecodingError):
        return None
    return Failure(How.UNSENT if isinstance(error, _UNSENT) else How.LOST)


def err_id_of(error: httpx.HTTPStatusError) -> str | None:
    """The gateway's own id of an error. None: somebody else has answered, a proxy perhaps."""
    try:
        body = error.response.json()
    except ValueError:
        return None
    found = body.get("err_id") if isinstance(body, dict) else None
    return found if isinstance(found, str) else None


def read_answer(call: Call[Any], response: httpx.Response) -> Any:
    """What a method returns. Raises HTTPStatusError (FLOW-415), NotAGateway."""
    response.raise_for_status()
    if call.reads is Reads.TEXT:
        return response.text
    try:
        return json.loads(response.content)
    except ValueError as error:
        raise NotAGateway(f"{call.method} {call.path} was answered with something that is no JSON") from error


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
