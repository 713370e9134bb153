"""Render results and errors as HTTP responses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.snapshot import encode
from pyoco_server.doors.http.lingering import Lingering
from pyoco_server.doors.http.requests import MalformedProgramRequest
from pyoco_server.errors import (
    CATALOGUE,
    ArtifactExpired,
    Conflict,
    Corrupt,
    DashboardReadOnly,
    HostRefused,
    JobInDoubt,
    KeyMissing,
    KeyRefused,
    NotFound,
    OverBudget,
    Problem,
    PyocoError,
    RateLimited,
    RecordUnreadable,
    Refused,
    ResourceMissing,
    ResultGone,
    RunExpired,
    TenantRateLimited,
    TooLarge,
    TooSlow,
    Unavailable,
    ValueMissing,
    VersionMismatch,
    VersionRequired,
    missing_resource,
)

__all__ = [
    "RESOURCE_RETRY_SECONDS",
    "JsonAnswer",
    "encode_json",
    "error_answer",
    "error_body",
    "json_answer",
    "plain_error",
    "schema_answer",
    "status_of",
]

#: The only place that maps errors to HTTP statuses. The nearest base class wins.
STATUS: dict[type[PyocoError], int] = {
    KeyMissing: 401,
    OverBudget: 402,
    KeyRefused: 403,
    DashboardReadOnly: 403,
    NotFound: 404,
    TooSlow: 408,
    Conflict: 409,
    RunExpired: 410,
    ResultGone: 410,
    ArtifactExpired: 410,
    VersionMismatch: 412,
    VersionRequired: 428,
    TooLarge: 413,
    HostRefused: 421,
    Refused: 422,
    RateLimited: 429,
    TenantRateLimited: 429,
    RecordUnreadable: 503,
    Unavailable: 503,
    PyocoError: 500,
}

#: SAFE-14: `Retry-After` of a response that names a missing resource.
RESOURCE_RETRY_SECONDS = 5

_encode = msgspec.json.Encoder().encode


def status_of(error: PyocoError) -> int:
    if isinstance(error, GridRefused) and error.facts.http is not None:
        return error.facts.http  # the code decides: section 26.2
    return next(STATUS[cls] for cls in type(error).__mro__ if cls in STATUS)


class JsonAnswer(Response):
    """A JSON response that sets its raw headers directly; the framework would build them from strings."""

    media_type = "application/json"
    #: `media_type` as bytes.
    content_type = b"application/json"

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        self.raw_headers = [
            (b"content-length", b"%d" % len(self.body)),
            (b"content-type", self.content_type),
            *((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in (headers or {}).items()),
        ]


def encode_json(content: Any) -> bytes:
    """Encode as strict JSON. Raises Corrupt for other values; only records written by other software contain any."""
    try:
        return _encode(content)
    except (TypeError, ValueError, OverflowError, RecursionError):  # a lone surrogate, a number too large
        try:
            return encode(msgspec.to_builtins(content) if isinstance(content, msgspec.Struct) else content)
        except (TypeError, ValueError, RecursionError) as error:
            raise Corrupt("a stored record cannot be written as strict JSON") from error


def json_answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return JsonAnswer(encode_json(content), status, headers)


def error_body(error: PyocoError) -> dict[str, Any]:
    """FLOW-50: five fields, in both languages. `errors` lists the problems and their locations if they are known."""
    if isinstance(error, JobInDoubt):  # GRID-156: the cause describes what went wrong
        named = {"code": Code.UNAVAILABLE.value, "job_id": error.job_id, "run_id": error.run_id}
        return error_body(error.cause) | named
    text = error.text
    body: dict[str, Any] = {
        "detail": error.phrase,
        "err_id": text.err_id,
        "msg_id": text.msg_id,
        "message": text.en,
        "message_ja": text.ja,
    }
    if isinstance(error, ResourceMissing):
        body["resource"] = error.resource
    if isinstance(error, RecordUnreadable):
        body["key"] = error.key
    if isinstance(error, ValueMissing):
        body |= {"detail": str(error), **error.members}
    if isinstance(error, MalformedProgramRequest):
        body["code"] = Code.BAD_SCHEMA.value
    if isinstance(error, GridRefused):
        body |= _of_the_grid(error)
    if error.problems:
        body["errors"] = [_problem(problem) for problem in error.problems]
    elif isinstance(error, Refused):
        body["errors"] = [{"loc": [], "msg": str(error), "type": "invalid"}]
    return body


#: Maps the frame name of a member to its form field name.
_FORM_NAMES = {
    "JobId": "job_id",
    "ClientId": "client_id",
    "ExecName": "exec_name",
    "Args": "arg",
    "Files": "file",
    "TimeoutSec": "timeout_sec",
}


def _of_the_grid(error: GridRefused) -> dict[str, Any]:
    """GRID-156: the code is a separate field and also starts the text. If a job was named, its id is repeated."""
    more: dict[str, Any] = {"detail": str(error), "code": error.code.value}
    if error.field is not None:
        place = _FORM_NAMES.get(error.field, error.field)
        more["errors"] = [{"loc": [place], "msg": error.message, "type": error.code.value.lower()}]
    if error.job_id is not None:
        more["job_id"] = error.job_id
    return more


def error_answer(error: PyocoError) -> Response:
    answer = json_answer(error_body(error), status_of(error), _headers(error))
    return Lingering(answer) if _may_be_cut_short(error) else answer


def _may_be_cut_short(error: PyocoError) -> bool:
    """Return whether the request body may still be arriving and is too large to wait for."""
    return isinstance(error, TooLarge) or (isinstance(error, GridRefused) and error.code is Code.TOO_LARGE)


def schema_answer(error: Refused) -> Response:
    """Render a body or query of the wrong shape: `detail` is the list of problems (FLOW-50)."""
    body = error_body(error)
    body["detail"] = body["errors"]
    return json_answer(body, status_of(error))


def plain_error(status: int, phrase: str, number: int) -> Response:
    """Render an error that no action raised: unknown path, wrong method, internal error."""
    text = CATALOGUE[number]
    body = {
        "detail": phrase,
        "err_id": text.err_id,
        "msg_id": text.msg_id,
        "message": text.en,
        "message_ja": text.ja,
    }
    return json_answer(body, status)


def _headers(error: PyocoError) -> dict[str, str] | None:
    if isinstance(error, GridRefused) and error.facts.retry_after_ms is not None:
        return {"Retry-After": str(math.ceil(error.facts.retry_after_ms / 1000))}
    if isinstance(error, Unavailable):
        return {"Retry-After": str(RESOURCE_RETRY_SECONDS if missing_resource(error) is not None else 1)}
    if isinstance(error, RateLimited):
        return {"Retry-After": str(math.ceil(error.retry_after_seconds))}
    if isinstance(error, KeyMissing):
        return {"WWW-Authenticate": "Bearer"}
    if isinstance(error, TooSlow):
        return {"Connection": "close"}  # the rest of the body may still arrive; it is not read
    return None


def _problem(problem: Problem) -> dict[str, Any]:
    shown: dict[str, Any] = {"loc": list(problem.loc), "msg": problem.msg, "type": problem.type}
    if problem.type == "unknown_member":
        shown["nearest"] = problem.nearest
    if problem.msg_ja is not None:
        shown["message_ja"] = problem.msg_ja
    if problem.position is not None:
        shown |= {"field": problem.field, "position": problem.position}
    return shown
