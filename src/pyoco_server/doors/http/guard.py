"""The one entrance of the HTTP door: who asks is found out here, before anything else is looked at.

Behind it lies the shortest way to an endpoint. The framework's own way (exception and exit-stack layers, then a walk
over the routes) costs as much as a whole submission; it stays there for what is not ours: documents, wrong methods,
unknown paths.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pyoco_server.actions.authenticate import NOBODY, authenticate
from pyoco_server.doors.http.answers import error_answer
from pyoco_server.doors.http.operations import Endpoint, Operation
from pyoco_server.errors import PyocoError
from pyoco_server.logs import get_logger

__all__ = ["Guard", "Table"]

log = get_logger(__name__)

_ANY = "{}"


class Table:
    """Operations by method and path: one dictionary lookup per path segment."""

    def __init__(self, operations: tuple[Operation, ...]) -> None:
        self._root: dict[str, Any] = {}
        for operation in operations:
            node = self._root
            names = []
            for segment in operation.path.split("/")[1:]:
                if segment.startswith("{"):
                    names.append(segment.strip("{}"))
                    segment = _ANY
                node = node.setdefault(segment, {})
            # The key cannot be a segment: those hold no blank.
            node[f" {operation.method}"] = (operation.endpoint, tuple(names))

    def find(self, method: str, path: str) -> tuple[Endpoint, dict[str, str]] | None:
        """The endpoint and its path parameters; None when this is no operation of ours."""
        node = self._root
        values = []
        for segment in path.split("/")[1:]:
            step = node.get(segment)
            if step is None:
                step = node.get(_ANY)
                if step is None or not segment:
                    return None
                values.append(segment)
            node = step
        found = node.get(f" {method}")
        if found is None:
            return None
        endpoint, names = found
        return endpoint, dict(zip(names, values, strict=True))


OnError = Callable[[Request, Exception], Awaitable[Response]]


class Guard:
    """Closed unless listed as open: a path nobody thought of asks for a key (FLOW-45, FLOW-46)."""

    def __init__(self, app: ASGIApp, operations: tuple[Operation, ...], on_error: OnError) -> None:
        self._app, self._on_error = app, on_error
        self._table = Table(operations)
        self._open = frozenset(operation.path for operation in operations if operation.open)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] not in self._open:
            backend = scope["app"].state.gateway.backend
            if backend.config.http_auth_mode == "none":
                scope["caller"] = NOBODY
            else:
                try:
                    key = _key(Headers(scope=scope), backend.config.http_api_key_header)
                    scope["caller"] = await authenticate(backend, key)
                except PyocoError as error:
                    log.info("refused at the entrance", path=scope["path"], error=error)
                    await error_answer(error)(scope, receive, send)
                    return
        found = self._table.find(scope["method"], scope["path"])
        if found is None:
            await self._app(scope, receive, send)
            return
        endpoint, scope["path_params"] = found
        request = Request(scope, receive)
        try:
            answer = await endpoint(request)
        except PyocoError as error:
            answer = await self._on_error(request, error)
        await answer(scope, receive, send)


def _key(headers: Headers, name: str) -> str | None:
    """One key, two ways to send it: the header of the settings, or `Authorization: Bearer`."""
    key = headers.get(name)
    if key:
        return key
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
