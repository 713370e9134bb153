"""The one entrance of the HTTP door: who asks is found out here, before anything else is looked at.

Behind it lies the shortest way to an endpoint. The framework's own way (exception and exit-stack layers, then a walk
over the routes) costs as much as a whole submission; it stays there for what is not ours: documents and unknown paths.
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
    """One step of a path. What a caller may write never meets a key of ours: `{}` is a segment, too."""

    steps: dict[str, _Node] = field(default_factory=dict)
    any: _Node | None = None
    #: What takes the rest of the path, however long, and even when it is empty.
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
        """The operation and its path parameters; None when this is none of ours."""
        for segments in _readings(scope):
            for node, values in _matches(self._root, segments, 1, ()):
                found = node.operations.get(method)
                if found is not None:
                    operation, names = found
                    return operation, dict(zip(names, values, strict=True))
        return None

    def methods(self, scope: Scope) -> list[str]:
        """What may be done on this path; nothing when it is none of ours."""
        nodes = [node for segments in _readings(scope) for node, _ in _matches(self._root, segments, 1, ())]
        return sorted({method for node in nodes for method in node.operations})


def _readings(scope: Scope) -> Iterator[list[str]]:
    """The parts of the path; then, should they lead nowhere, with `%2F` as a slash within a part."""
    yield scope["path"].split("/")
    raw: bytes = scope.get("raw_path") or b""
    if b"%2f" in raw.lower():
        yield [unquote(part) for part in raw.decode("latin-1").split("/")]


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
    if node.rest is not None:
        yield node.rest, (*values, "/".join(segments[at:]))


_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
OnError = Callable[[Request, Exception], Awaitable[Response]]


class Guard:
    """Closed unless listed as open: a path nobody thought of asks for a key (FLOW-45, FLOW-46). Under `/v1`
    and at `/mcp/`, where money is at stake, also while authentication is off (PRICED-170). A valid key counts in every
    mode: what priced runs and budgets show depends on it (SAFE-5)."""

    def __init__(self, app: ASGIApp, operations: tuple[Operation, ...], on_error: OnError) -> None:
        self._app, self._on_error = app, on_error
        self._table = Table(operations)
        opened = [operation for operation in operations if operation.open]
        self._open = frozenset(operation.path for operation in opened if not operation.tail)
        #: Everything below these is one operation's.
        self._open_below = tuple(operation.path.rpartition("{")[0] for operation in opened if operation.tail)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        send = with_html_headers(send)
        refusal = _misfit(scope) or _misnamed(scope) or (None if scope["method"] in _SAFE else _refusal(scope))
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
                await _no(scope, error)(scope, receive, send)
                return
        if found is None:
            await self._pass_on(scope, receive, send)
            return
        operation, scope["path_params"] = found
        request = Request(scope, receive)
        began = time.perf_counter()
        try:
            answer = await operation.endpoint(request)
        except asyncio.CancelledError as error:
            answer = _stopping(scope, error)
        except Exception as error:  # noqa: BLE001  (the top of a door: every error becomes an answer and is logged)
            answer = await self._on_error(request, error)
        operation.meter.answered(answer.status_code, time.perf_counter() - began)
        await answer(scope, receive, send)

    def _is_open(self, path: str, found: tuple[Operation, dict[str, str]] | None) -> bool:
        """Both have to say so, the path and what it leads to: a path can be read in two ways."""
        if path not in self._open and not path.startswith(self._open_below):
            return False
        return found is None or found[0].open

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A wrong method on a path of ours is answered here; the rest belongs to the framework."""
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


async def _counted(scope: Scope, refusal: PyocoError) -> PyocoError:
    """What is refused under `/v1` takes a token, too, of a caller who is known: nobody searches it for free. Without
    the stores it is refused all the same: that there is nothing here does not depend on them."""
    if "caller" not in scope:
        return refusal
    try:
        await admit(Request(scope), "get" if scope["method"] in _SAFE else "post")
    except DependencyUnavailable:
        return refusal
    except PyocoError as error:
        return error
    return refusal


def _misfit(scope: Scope) -> Response | None:
    """The answer to a target that is no path from the root: some servers pass on whatever they were sent, and what it
    means would depend on who reads it."""
    raw: bytes = scope.get("raw_path") or b"/"
    if scope["path"].startswith("/") and raw.startswith(b"/"):
        return None
    return plain_error(400, "bad request target", 2)


def _misnamed(scope: Scope) -> Response | None:
    """The answer to whoever asks for somebody else: perhaps a page whose name was made to lead here, and which its
    browser lets read our answers. Every `Host` has to be fine: nobody knows which of two is meant."""
    state: State = scope["app"].state.gateway
    hosts = state.backend.config.http_hosts
    if not hosts:
        return None
    strangers = [value for name, value in scope["headers"] if name == b"host" and not answers_to(hosts, value)]
    if not strangers:
        return None
    log.info("refused a request for another host", path=logged_path(scope["path"]), host=shown_value(strangers[0]))
    error = HostRefused()
    return answer_error(scope, error) if is_of_payers(scope["path"]) else error_answer(error)


def _refusal(scope: Scope) -> Response | None:
    """The answer to a change that a browser may not make; None: it may, or a program sent the request (SAFE-10)."""
    told: dict[bytes, bytes] = dict(reversed(scope["headers"]))  # of several with one name the first counts
    if not is_of_browser(told):
        return None
    path = logged_path(scope["path"])
    state: State = scope["app"].state.gateway
    fault = foreign_origin(told)
    if fault is None and state.backend.config.dashboard_read_only:
        error = DashboardReadOnly()
        log.info("refused a change from a browser: the dashboard is read-only", path=path, error=error)
        return answer_error(scope, error) if is_of_payers(scope["path"]) else error_answer(error)
    fault = fault or simple_request(told)
    if fault is None:
        return None
    log.info("refused a change from a browser", path=path, detail=fault)
    return answer_error(scope, DashboardReadOnly(fault)) if is_of_payers(scope["path"]) else plain_error(403, fault, 2)


def _no(scope: Scope, error: PyocoError) -> Response:
    """A refusal at the entrance, in the words of the place it was for."""
    if is_of_payers(scope["path"]):
        return answer_error(scope, error)
    log.info("refused at the entrance", path=scope["path"], error=error)
    return error_answer(error)


def _stopping(scope: Scope, error: asyncio.CancelledError) -> Response:
    """For a request that the stopping server waits for no longer: nothing was sent yet, and what it asked for may or
    may not have happened. Raises the cancellation again when it is somebody else's."""
    if not (getattr(scope["app"].state, "stopping", False) or server_is_stopping()):
        raise error
    log.info("a request was given up: the gateway stops", method=scope["method"], path=logged_path(scope["path"]))
    if is_of_payers(scope["path"]):
        return answer_error(scope, Unavailable("the gateway stops"))
    answer = plain_error(503, "gateway is stopping", 3)
    answer.headers["Retry-After"] = "1"
    return answer


async def _admit(state: State, scope: Scope) -> Caller:
    """Who asks, by the key that was sent. Raises what the entrance answers with: for a bad key, perhaps not at once."""
    key = _key(scope["headers"], state.backend.config.http_api_key_header)
    try:
        if is_of_payers(scope["path"]):
            _refuse_two(scope["headers"])
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


def _refuse_two(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Where money is at stake nobody guesses which of two keys is meant. Raises KeyRefused."""
    if len({value for name, value in headers if name == b"authorization"}) > 1:
        raise KeyRefused("there are two Authorization headers, and they differ")


def _key(headers: Iterable[tuple[bytes, bytes]], name: str) -> str | None:
    """One key, two ways to send it: the header of the settings, or `Authorization: Bearer`. Never in the address.

    When both are there the header of the settings counts, right or wrong: `Authorization` may have been put there by
    somebody on the way. An empty header is none; of several with one name the first that is not empty counts.
    """
    wanted = name.lower().encode("latin-1")
    bearer = b""
    for header, value in headers:
        if header == b"authorization":
            scheme, _, token = value.partition(b" ")
            if not bearer and scheme.lower() == b"bearer":
                bearer = token.strip()
            elif not bearer and header == wanted:  # named in the settings: then a key comes in it as in any other
                bearer = value.strip()
        elif header == wanted and value:
            return value.decode("latin-1")
    return bearer.decode("latin-1") if bearer else None
