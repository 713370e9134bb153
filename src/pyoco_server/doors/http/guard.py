"""The single entry point of the HTTP door: authenticates the caller before anything else.

It then dispatches straight to the endpoint. The framework's own way (exception and exit-stack layers, then a scan of
the routes) costs as much as a complete submission; it only serves the rest: documents and unknown paths.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pyoco_server.actions.authenticate import authenticate, authenticate_payer
from pyoco_server.core.run import Caller
from pyoco_server.doors.http.answers import error_answer, plain_error
from pyoco_server.doors.http.browsers import foreign_origin, is_of_browser, shown_value, simple_request
from pyoco_server.doors.http.event_stream import server_is_stopping
from pyoco_server.doors.http.hosts import answers_to
from pyoco_server.doors.http.html_headers import with_html_headers
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.state import State
from pyoco_server.doors.http.v1.limits import admit
from pyoco_server.doors.http.v1.problems import MethodRefused, answer_error
from pyoco_server.doors.http.v1.visit import is_of_payers, is_v1, logged_path
from pyoco_server.errors import (
    DashboardReadOnly,
    DependencyUnavailable,
    HostRefused,
    KeyRefused,
    NotFound,
    PyocoError,
    Unavailable,
)
from pyoco_server.logs import get_logger

__all__ = ["Guard", "Table"]

log = get_logger(__name__)


@dataclass
class _Node:
    """One segment of a path. Parameters are not keys of `steps`, because a client may send any segment, even `{}`."""

    steps: dict[str, _Node] = field(default_factory=dict)
    any: _Node | None = None
    #: Matches the rest of the path, of any length, including an empty rest.
    rest: _Node | None = None
    operations: dict[str, tuple[Operation, tuple[str, ...]]] = field(default_factory=dict)


class Table:
    """Operations by method and path: about one dictionary lookup per path segment."""

    def __init__(self, operations: tuple[Operation, ...]) -> None:
        self._root = _Node()
        for operation in operations:
            node = self._root
            names = []
            segments = operation.path.split("/")[1:]
            for place, segment in enumerate(segments, 1):
                if segment.startswith("{"):
                    names.append(segment.strip("{}"))
                    if operation.tail and place == len(segments):
                        node.rest = node.rest or _Node()
                        node = node.rest
                    else:
                        node.any = node.any or _Node()
                        node = node.any
                else:
                    node = node.steps.setdefault(segment, _Node())
            node.operations[operation.method] = (operation, tuple(names))
            if operation.method == "GET":
                node.operations["HEAD"] = node.operations["GET"]

    def find(self, method: str, scope: Scope) -> tuple[Operation, dict[str, str]] | None:
        """Return the operation and its path parameters, or None if the path is not ours."""
        for segments in _segmentations(scope):
            for node, values in _matches(self._root, segments, 1, ()):
                found = node.operations.get(method)
                if found is not None:
                    operation, names = found
                    return operation, dict(zip(names, values, strict=True))
        return None

    def methods(self, scope: Scope) -> list[str]:
        """Return the methods allowed on this path; empty if the path is not ours."""
        nodes = [node for segments in _segmentations(scope) for node, _ in _matches(self._root, segments, 1, ())]
        return sorted({method for node in nodes for method in node.operations})


def _segmentations(scope: Scope) -> Iterator[list[str]]:
    """Yield the segments of the path; then, if they match nothing, those with `%2F` as a slash within a segment."""
    yield scope["path"].split("/")
    raw: bytes = scope.get("raw_path") or b""
    if b"%2f" in raw.lower():
        yield [unquote(part) for part in raw.decode("latin-1").split("/")]


def _matches(
    node: _Node, segments: list[str], at: int, values: tuple[str, ...]
) -> Iterator[tuple[_Node, tuple[str, ...]]]:
    """Yield every match, the most literal first: `/runs/yaml` is a path of its own, and also matches a run id."""
    if at == len(segments):
        yield node, values
        return
    step = node.steps.get(segments[at])
    if step is not None:
        yield from _matches(step, segments, at + 1, values)
    if node.any is not None and segments[at]:
        yield from _matches(node.any, segments, at + 1, (*values, segments[at]))
    if node.rest is not None:
        yield node.rest, (*values, "/".join(segments[at:]))


_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
OnError = Callable[[Request, Exception], Awaitable[Response]]


class Guard:
    """Requires a key unless the operation is listed as open, so an overlooked path is closed (FLOW-45, FLOW-46).

    Under `/v1` and at `/mcp/`, where money is at stake, a key is required even with authentication off (PRICED-170). A
    valid key is honoured in every mode: what priced runs and budgets show depends on it (SAFE-5).
    """

    def __init__(self, app: ASGIApp, operations: tuple[Operation, ...], on_error: OnError) -> None:
        self._app, self._on_error = app, on_error
        self._table = Table(operations)
        opened = [operation for operation in operations if operation.open]
        self._open = frozenset(operation.path for operation in opened if not operation.tail)
        #: Prefixes below which one open operation serves every path.
        self._open_below = tuple(operation.path.rpartition("{")[0] for operation in opened if operation.tail)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        send = with_html_headers(send)
        refusal = (
            _bad_target(scope) or _bad_host(scope) or (None if scope["method"] in _SAFE else _refused_change(scope))
        )
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        found = self._table.find(scope["method"], scope)
        if not self._is_open(scope["path"], found):
            state: State = scope["app"].state.gateway
            try:
                scope["caller"] = await _admit(state, scope)
            except asyncio.CancelledError as error:
                await _stopping(scope, error)(scope, receive, send)
                return
            except PyocoError as error:
                await _refuse(scope, error)(scope, receive, send)
                return
        if found is None:
            await self._pass_on(scope, receive, send)
            return
        operation, scope["path_params"] = found
        scope["operation"] = operation
        request = Request(scope, receive)
        began = time.perf_counter()
        try:
            if scope["query_string"] and operation.query is None and not operation.problems:
                _refuse_unknown_parameters(request, operation)
            answer = await operation.endpoint(request)
        except asyncio.CancelledError as error:
            answer = _stopping(scope, error)
        except Exception as error:  # noqa: BLE001  (the top of a door: every error becomes an answer and is logged)
            answer = await self._on_error(request, error)
        operation.meter.answered(answer.status_code, time.perf_counter() - began)
        await answer(scope, receive, send)

    def _is_open(self, path: str, found: tuple[Operation, dict[str, str]] | None) -> bool:
        """Both the path and the operation must be open, because a path can be parsed in two ways."""
        if path not in self._open and not path.startswith(self._open_below):
            return False
        return found is None or found[0].open

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a wrong method on one of our paths; pass everything else to the framework."""
        methods = self._table.methods(scope)
        if is_v1(scope["path"]):
            refusal = MethodRefused(methods) if methods else NotFound()
            await answer_error(scope, await _counted(scope, refusal))(scope, receive, send)
            return
        if not methods:
            await self._app(scope, receive, send)
            return
        answer = plain_error(405, "method not allowed", 2)
        answer.headers["Allow"] = ", ".join(methods)
        await answer(scope, receive, send)


def _refuse_unknown_parameters(request: Request, operation: Operation) -> None:
    """STRICT-1, STRICT-3. Operations with a shape for their query, and those under `/v1`, check it themselves."""
    problems = operation.unknown_parameters(request.query_params)
    if problems:
        raise operation.unknown_error(problems[0].msg, problems=tuple(problems))


async def _counted(scope: Scope, refusal: PyocoError) -> PyocoError:
    """Charge the rate limit for a refused `/v1` request of a known caller, so that probing for paths is not free.

    If the stores are unavailable the request is refused all the same: the path does not exist, whatever their state.
    """
    if "caller" not in scope:
        return refusal
    try:
        await admit(Request(scope), "get" if scope["method"] in _SAFE else "post")
    except DependencyUnavailable:
        return refusal
    except PyocoError as error:
        return error
    return refusal


def _bad_target(scope: Scope) -> Response | None:
    """Refuse a target that is not an absolute path.

    Some servers pass on any target, and its meaning would depend on who parses it.
    """
    raw: bytes = scope.get("raw_path") or b"/"
    if scope["path"].startswith("/") and raw.startswith(b"/"):
        return None
    return plain_error(400, "bad request target", 2)


def _bad_host(scope: Scope) -> Response | None:
    """Refuse foreign Host headers (DNS rebinding).

    A page could have pointed its own name at this server, and its browser would let it read our responses. Every `Host`
    header must be acceptable: with two of them it is ambiguous which one counts.
    """
    state: State = scope["app"].state.gateway
    hosts = state.backend.config.http_hosts
    if not hosts:
        return None
    refused = [value for name, value in scope["headers"] if name == b"host" and not answers_to(hosts, value)]
    if not refused:
        return None
    log.info("request refused: unknown host name", path=logged_path(scope["path"]), host=shown_value(refused[0]))
    error = HostRefused()
    return answer_error(scope, error) if is_of_payers(scope["path"]) else error_answer(error)


def _refused_change(scope: Scope) -> Response | None:
    """Refuse a change that a browser may not make (SAFE-10). Returns None if it is allowed or a program sent it."""
    headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))  # of duplicate headers the first counts
    if not is_of_browser(headers):
        return None
    path = logged_path(scope["path"])
    state: State = scope["app"].state.gateway
    fault = foreign_origin(headers)
    if fault is None and state.backend.config.dashboard_read_only:
        error = DashboardReadOnly()
        log.info("browser change refused: dashboard is read-only", path=path, error=error)
        return answer_error(scope, error) if is_of_payers(scope["path"]) else error_answer(error)
    fault = fault or simple_request(headers)
    if fault is None:
        return None
    log.info("browser change refused", path=path, detail=fault)
    return answer_error(scope, DashboardReadOnly(fault)) if is_of_payers(scope["path"]) else plain_error(403, fault, 2)


def _refuse(scope: Scope, error: PyocoError) -> Response:
    """Render a refusal in the format of the API that the path belongs to."""
    if is_of_payers(scope["path"]):
        return answer_error(scope, error)
    log.info("request not admitted", path=scope["path"], error=error)
    return error_answer(error)


def _stopping(scope: Scope, error: asyncio.CancelledError) -> Response:
    """Answer a request that the stopping server no longer waits for.

    Nothing was sent yet, and the requested work may or may not have happened. Reraises a cancellation that has another
    cause.
    """
    if not (getattr(scope["app"].state, "stopping", False) or server_is_stopping()):
        raise error
    log.info("request abandoned: gateway is stopping", method=scope["method"], path=logged_path(scope["path"]))
    if is_of_payers(scope["path"]):
        return answer_error(scope, Unavailable("the gateway stops"))
    answer = plain_error(503, "gateway is stopping", 3)
    answer.headers["Retry-After"] = "1"
    return answer


async def _admit(state: State, scope: Scope) -> Caller:
    """Return the caller identified by the key. Raises the refusal; the answer to a bad key may be delayed."""
    key = _key(scope["headers"], state.backend.config.http_api_key_header)
    try:
        if is_of_payers(scope["path"]):
            _refuse_ambiguous_keys(scope["headers"])
            caller = await authenticate_payer(state.backend, key)
        else:
            caller = await authenticate(state.backend, key)
    except KeyRefused:
        client = scope.get("client")
        await state.slowdown.refused(client[0] if client else None)
        raise
    if caller.api_key_id is not None:
        state.key_uses.note(caller.api_key_id)
    return caller


def _refuse_ambiguous_keys(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Where money is at stake, refuse ambiguous keys. Raises KeyRefused."""
    if len({value for name, value in headers if name == b"authorization"}) > 1:
        raise KeyRefused("there are two Authorization headers, and they differ")


def _key(headers: Iterable[tuple[bytes, bytes]], name: str) -> str | None:
    """Return the key from the configured header or from `Authorization: Bearer`; never from the URL.

    If both are present the configured header counts, valid or not: a proxy may have added `Authorization`. An empty
    header counts as missing; of duplicates the first one that is not empty counts.
    """
    wanted = name.lower().encode("latin-1")
    bearer = b""
    for header, value in headers:
        if header == b"authorization":
            scheme, _, token = value.partition(b" ")
            if not bearer and scheme.lower() == b"bearer":
                bearer = token.strip()
            elif not bearer and header == wanted:  # `authorization` is the configured header: accept a bare key
                bearer = value.strip()
        elif header == wanted and value:
            return value.decode("latin-1")
    return bearer.decode("latin-1") if bearer else None
