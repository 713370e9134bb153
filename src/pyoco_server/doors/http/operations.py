"""The operation type: one table of operations defines paths, access and documentation."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

__all__ = ["Endpoint", "Meter", "Operation", "openapi_paths"]

Endpoint = Callable[[Request], Awaitable[Response]]


class Meter:
    """Counts the responses of an operation by status, and the time to their first byte."""

    #: Upper bounds in seconds; the last bucket is unbounded.
    BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

    def __init__(self) -> None:
        #: By status: responses per bucket, and their total seconds.
        self.statuses: dict[int, tuple[list[int], list[float]]] = {}

    def answered(self, status: int, seconds: float) -> None:
        """Count a response. Takes less than a microsecond: every request pays for it."""
        counts = self.statuses.get(status)
        if counts is None:
            counts = self.statuses[status] = ([0] * (len(self.BOUNDS) + 1), [0.0])
        counts[0][bisect_left(self.BOUNDS, seconds)] += 1
        counts[1][0] += seconds


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One method on one path.

    An operation that is not open needs an API key once authentication is on; one that responds with problem documents
    always does.
    """

    method: str
    path: str
    endpoint: Endpoint
    summary: str
    #: A complete OpenAPI response object.
    answer: dict[str, Any]
    description: str = ""
    body: dict[str, Any] | None = None
    parameters: tuple[dict[str, Any], ...] = ()
    #: The status of `answer`.
    status: int = 200
    #: Further responses without a body: status and description.
    more_answers: dict[int, str] = field(default_factory=dict)
    #: Further responses with a body: status and complete OpenAPI response.
    other_answers: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: Error statuses besides 401, 403, 429 and 503, and 408 where there is a body.
    errors: tuple[int, ...] = ()
    #: Errors are problem documents (RFC 9457), as everywhere under `/v1`.
    problems: bool = False
    open: bool = False
    #: The last parameter takes the rest of the path, including slashes.
    tail: bool = False
    tags: tuple[str, ...] = field(default=("runs",))
    meter: Meter = field(default_factory=Meter, compare=False)


_WORDS = {
    401: "No API key was sent (only with authentication on).",
    402: "The budget does not cover the reservation; nothing changed, and the key is free.",
    403: "The API key is not valid for this server, or not for this operation (only with authentication on), or a "
    "browser may not make this change.",
    404: "Not found, or owned by another tenant.",
    408: "The body arrived too slowly; the connection is closed.",
    409: "The request conflicts with the current state; `detail` says why.",
    410: "It has expired, or was lost with its store.",
    413: "The body is too large.",
    422: "The request is invalid; `errors` lists the problems and their locations.",
    429: "Too many requests with a bad API key came from this address, or the queue of jobs is full.",
    503: "NATS is not available, or the gateway is stopping; try again.",
}
#: The same under `/v1`, where some statuses have another meaning.
_PROBLEM_WORDS = _WORDS | {
    401: "No valid API key was sent, or its tenant is not active.",
    403: "A browser may not make this change.",
    404: "Not found, or owned by another tenant; the response does not reveal which.",
    409: "The idempotency key was used for another submission, or is being submitted right now.",
    429: "The tenant sends too many requests, or too many bad API keys came from this address.",
    503: "A store did not answer, or the run could not be queued and was refunded; try again with the same key.",
}


def openapi_paths(operations: tuple[Operation, ...]) -> dict[str, Any]:
    """Return the `paths` object of the OpenAPI document."""
    paths: dict[str, Any] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _document(operation)
    return paths


def _document(operation: Operation) -> dict[str, Any]:
    statuses = (*operation.errors, *_at_the_entrance(operation), 503)
    if operation.body is not None:
        statuses = (*statuses, 408)
    document: dict[str, Any] = {
        "operationId": operation.endpoint.__name__,
        "summary": operation.summary,
        "tags": list(operation.tags),
        "responses": {str(operation.status): operation.answer}
        | {str(status): {"description": text, "content": {}} for status, text in operation.more_answers.items()}
        | {str(status): _error(status, operation) for status in sorted(statuses) if operation.path not in _NEVER_WRONG}
        | {str(status): answer for status, answer in operation.other_answers.items()},
    }
    if operation.description:
        document["description"] = operation.description
    if operation.parameters:
        document["parameters"] = list(operation.parameters)
    if operation.body is not None:
        document["requestBody"] = operation.body
    if not operation.open:
        document["security"] = [*([] if operation.problems else [{}]), {"apiKey": []}, {"bearer": []}]
    return document


#: They check nothing.
_NEVER_WRONG = frozenset({"/health", "/healthz"})


def _at_the_entrance(operation: Operation) -> tuple[int, ...]:
    """Error statuses that the guard may return before the operation is reached."""
    if operation.open:
        return ()
    if operation.problems and operation.method == "GET":
        return (401, 429)
    return (401, 403, 429)


def _error(status: int, operation: Operation) -> dict[str, Any]:
    if operation.problems:
        schema = {"$ref": "#/components/schemas/ProblemDetails"}
        return {"description": _PROBLEM_WORDS[status], "content": {"application/problem+json": {"schema": schema}}}
    schema = {"$ref": "#/components/schemas/Error"}
    return {"description": _WORDS[status], "content": {"application/json": {"schema": schema}}}
