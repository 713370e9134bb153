"""The operation type: one table of operations defines paths, access, shapes and documentation.

To add an operation, declare its shapes (`shapes.py`) and name them in its `Operation`:

    class ThingsQuery(Request):
        limit: Annotated[int, Meta(ge=1, le=200, description="How many at most.")] = 50

    class Things(msgspec.Struct):
        "Some things."
        items: list[str]

    async def get_things(request: Request) -> Response:
        asked = read_query(ThingsQuery, request.query_params).checked()
        return json_answer(Things(items=[...]))

    Operation(method="GET", path="/things", endpoint=get_things, summary="List things",
              query=ThingsQuery, answer=Answer(Things, "The things."))

A JSON body is `body=Body(Shape)`, and `read_document(Shape, await read_body(request))` reads it. The OpenAPI document,
the page `docs/reference/routes.md` and the refusal of unknown members and parameters follow from the shapes. An
operation without `query` takes no parameters. Path parameters and headers stand in `parameters`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.core.unknown import unknown_members
from pyoco_server.doors.http.requests import Malformed
from pyoco_server.doors.http.shapes import Answer, Body, components_of, query_parameters
from pyoco_server.doors.http.shapes import Request as Shape
from pyoco_server.errors import Problem, Refused

__all__ = ["Endpoint", "Meter", "Operation", "openapi_components", "openapi_paths"]

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
    #: A shape, or a complete OpenAPI response object.
    answer: Answer | dict[str, Any]
    description: str = ""
    #: A shape, or a complete OpenAPI request body.
    body: Body | dict[str, Any] | None = None
    #: The parameters of the query. The endpoint reads them with `read_query`.
    query: type[Shape] | None = None
    #: Path parameters and headers; the parameters of the query where `query` does not declare them.
    parameters: tuple[dict[str, Any], ...] = ()
    #: The status of `answer`.
    status: int = 200
    #: Further responses without a body: status and description.
    more_answers: dict[int, str] = field(default_factory=dict)
    #: Further responses with a body: status and complete OpenAPI response.
    other_answers: dict[int, Answer | dict[str, Any]] = field(default_factory=dict)
    #: Error statuses besides 401, 403, 422, 429 and 503, and 408 where there is a body.
    errors: tuple[int, ...] = ()
    #: Unknown query parameters are ignored (STRICT-2): pages, static files, health and metrics.
    any_query: bool = False
    #: Raised for an unknown parameter of an operation without `query` (STRICT-3).
    unknown_error: type[Refused] = Malformed
    #: Errors are problem documents (RFC 9457), as everywhere under `/v1`.
    problems: bool = False
    open: bool = False
    #: The last parameter takes the rest of the path, including slashes.
    tail: bool = False
    tags: tuple[str, ...] = field(default=("runs",))
    meter: Meter = field(default_factory=Meter, compare=False)

    @cached_property
    def query_names(self) -> frozenset[str]:
        """The parameters that a query may have."""
        return frozenset(each["name"] for each in self.all_parameters if each["in"] == "query")

    @cached_property
    def all_parameters(self) -> tuple[dict[str, Any], ...]:
        """Every parameter as OpenAPI describes it."""
        in_query = () if self.query is None else tuple(query_parameters(self.query))
        in_path = tuple(each for each in self.parameters if each["in"] == "path")
        return (*in_path, *in_query, *(each for each in self.parameters if each["in"] != "path"))

    def unknown_parameters(self, names: Iterable[str]) -> list[Problem]:
        """Return the problems of the parameters that this operation does not know."""
        return [] if self.any_query else unknown_members(("query",), names, sorted(self.query_names))


_WORDS = {
    401: "No API key was sent (only with authentication on).",
    402: "The budget does not cover the reservation; nothing changed, and the key is free.",
    403: "The API key is not valid for this server, or not for this operation (only with authentication on), or a "
    "browser may not make this change.",
    404: "Not found, or owned by another tenant.",
    408: "The body arrived too slowly; the connection is closed.",
    409: "The request conflicts with the current state; `detail` says why.",
    410: "It has expired, or was lost with its store.",
    412: "The object is not in the version that the request names.",
    413: "The body is too large.",
    422: "The request is invalid; `errors` lists the problems and their locations.",
    428: "The object exists: the request has to name its version.",
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
    statuses = {*operation.errors, *_at_the_entrance(operation), 503}
    if operation.body is not None:
        statuses.add(408)
    if not operation.any_query:
        statuses.add(422)
    document: dict[str, Any] = {
        "operationId": operation.endpoint.__name__,
        "summary": operation.summary,
        "tags": list(operation.tags),
        "responses": {str(operation.status): _of(operation.answer)}
        | {str(status): {"description": text, "content": {}} for status, text in operation.more_answers.items()}
        | {str(status): _error(status, operation) for status in sorted(statuses) if operation.path not in _NEVER_WRONG}
        | {str(status): _of(answer) for status, answer in operation.other_answers.items()},
    }
    if operation.description:
        document["description"] = operation.description
    if operation.all_parameters:
        document["parameters"] = list(operation.all_parameters)
    if operation.body is not None:
        document["requestBody"] = _of(operation.body)
    if not operation.open:
        document["security"] = [*([] if operation.problems else [{}]), {"apiKey": []}, {"bearer": []}]
    return document


def _of(part: Answer | Body | dict[str, Any]) -> dict[str, Any]:
    return part if isinstance(part, dict) else part.document()


def openapi_components(operations: tuple[Operation, ...]) -> dict[str, Any]:
    """Return the components that the shapes of the operations declare."""
    parts = (part for each in operations for part in (each.answer, each.body, *each.other_answers.values()))
    declared = [part for part in parts if isinstance(part, Answer | Body)]
    more = (shape for part in declared if isinstance(part, Body) for shape in part.parts)
    return components_of((*(part.shape for part in declared), *more))


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
