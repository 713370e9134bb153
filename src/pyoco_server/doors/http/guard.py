"""The one entrance of the HTTP door: who asks is found out here, before anything else is looked at.

Behind it lies the shortest way to an endpoint. The framework's own way (exception and exit-stack layers, then a walk
over the routes) costs as much as a whole submission; it stays there for what is not ours: documents and unknown paths.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pyoco_server.actions.authenticate import NOBODY, authenticate
from pyoco_server.doors.http.answers import error_answer, plain_error
from pyoco_server.doors.http.operations import Endpoint, Operation
from pyoco_server.errors import PyocoError
from pyoco_server.logs import get_logger

__all__ = ["Guard", "Table"]

log = get_logger(__name__)


@dataclass
class _Node:
    """One step of a path. What a caller may write never meets a key of ours: `{}` is a segment, too."""

    steps: dict[str, _Node] = field(default_factory=dict)
    any: _Node | None = None
    endpoints: dict[str, tuple[Endpoint, tuple[str, ...]]] = field(default_factory=dict)


class Table:
    """Operations by method and path: about one dictionary lookup per path segment."""

    def __init__(self, operations: tuple[Operation, ...]) -> None:
        self._root = _Node()
        for operation in operations:
            node = self._root
            names = []
            for segment in operation.path.split("/")[1:]:
                if segment.startswith("{"):
                    names.append(segment.strip("{}"))
                    node.any = node.any or _Node()
                    node = node.any
                else:
                    node = node.steps.setdefault(segment, _Node())
            node.endpoints[operation.method] = (operation.endpoint, tuple(names))
            if operation.method == "GET":
                node.endpoints["HEAD"] = node.endpoints["GET"]

    def find(self, method: str, path: str) -> tuple[Endpoint, dict[str, str]] | None:
        """The endpoint and its path parameters; None when this is no operation of ours."""
        for node, values in _matches(self._root, path.split("/"), 1, ()):
            found = node.endpoints.get(method)
            if found is not None:
                endpoint, names = found
                return endpoint, dict(zip(names, values, strict=True))
        return None

    def methods(self, path: str) -> list[str]:
        """What may be done on this path; nothing when it is none of ours."""
        return sorted({method for node, _ in _matches(self._root, path.split("/"), 1, ()) for method in node.endpoints})


def _matches(
    node: _Node, segments: list[str], at: int, values: tuple[str, ...]
) -> Iterator[tuple[_Node, tuple[str, ...]]]:
    """Every way to read the path, the most literal first: `/runs/yaml` is a path of its own, and may be a run id."""
    if at == len(segments):
        yield node, values
        return
    step = node.steps.get(segments[at])
    if step is not None:
        yield from _matches(step, segments, at + 1, values)
    if node.any is not None and segments[at]:
        yield from _matches(node.any, segments, at + 1, (*values, segments[at]))


_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_CROSS_SITE = (b"sec-fetch-site", b"cross-site")

OnError = Callable[[Request, Exception], Awaitable[Response]]


class Guard:
    """Closed unless listed as open: a path nobody thought of asks for a key (FLOW-45, FLOW-46)."""

    def __init__(self, app: ASGIApp, operations: tuple[Operation, ...], on_error: OnError) -> None:
        self._app, self._on_error = app, on_error
        self._table = Table(operations)
        self._open = frozenset(operation.path for operation in operations if operation.open)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in _SAFE and _CROSS_SITE in scope["headers"]:
            # A browser says so of itself: somebody's page tries to use a server that trusts whoever reaches it.
            log.info("refused a request from another site's page", path=scope["path"])
            await plain_error(403, "cross-site request", 2)(scope, receive, send)
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
            await self._pass_on(scope, receive, send)
            return
        endpoint, scope["path_params"] = found
        request = Request(scope, receive)
        try:
            answer = await endpoint(request)
        except Exception as error:  # noqa: BLE001  (the top of a door: every error becomes an answer and is logged)
            answer = await self._on_error(request, error)
        await answer(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A wrong method on a path of ours is answered here; the rest belongs to the framework."""
        methods = self._table.methods(scope["path"])
        if not methods:
            await self._app(scope, receive, send)
            return
        answer = plain_error(405, "method not allowed", 2)
        answer.headers["Allow"] = ", ".join(methods)
        await answer(scope, receive, send)


def _key(headers: Headers, name: str) -> str | None:
    """One key, two ways to send it: the header of the settings, or `Authorization: Bearer`."""
    key = headers.get(name)
    if key and name.lower() != "authorization":
        return key
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
