"""One table: what each operation is called, who may call it, and how it is documented."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

__all__ = ["Endpoint", "Operation", "openapi_paths"]

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One method on one path. A path that is not marked open needs an API key once authentication is on."""

    method: str
    path: str
    endpoint: Endpoint
    summary: str
    #: The name of a schema in `schemas.py`, or a whole OpenAPI response.
    answer: dict[str, Any]
    description: str = ""
    body: dict[str, Any] | None = None
    parameters: tuple[dict[str, Any], ...] = ()
    #: Error statuses besides 401, 403 and 503.
    errors: tuple[int, ...] = ()
    open: bool = False
    tags: tuple[str, ...] = field(default=("runs",))


_WORDS = {
    401: "No API key was sent (only with authentication on).",
    403: "The API key does not open this server (only with authentication on).",
    404: "There is no such run, or it belongs to another tenant.",
    413: "The body is larger than it may be.",
    422: "The request is not valid; `errors` says what is wrong and where.",
    503: "NATS is not available; try again.",
}


def openapi_paths(operations: tuple[Operation, ...]) -> dict[str, Any]:
    """The `paths` of the OpenAPI document."""
    paths: dict[str, Any] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _document(operation)
    return paths


def _document(operation: Operation) -> dict[str, Any]:
    statuses = (*operation.errors, 503) if operation.open else (*operation.errors, 401, 403, 503)
    document: dict[str, Any] = {
        "operationId": operation.endpoint.__name__,
        "summary": operation.summary,
        "tags": list(operation.tags),
        "responses": {"200": operation.answer}
        | {str(status): _error(status) for status in sorted(statuses) if operation.path != "/health"},
    }
    if operation.description:
        document["description"] = operation.description
    if operation.parameters:
        document["parameters"] = list(operation.parameters)
    if operation.body is not None:
        document["requestBody"] = operation.body
    if not operation.open:
        document["security"] = [{}, {"apiKey": []}, {"bearer": []}]
    return document


def _error(status: int) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    return {"description": _WORDS[status], "content": {"application/json": {"schema": schema}}}
