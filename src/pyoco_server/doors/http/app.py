"""The gateway's ASGI application, built from the table of operations."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Lifespan, Receive, Scope, Send

from pyoco_server.doors.dashboard.page import open_dashboard
from pyoco_server.doors.http import (
    artifacts,
    attention,
    budgets,
    cancel_many,
    dashboard,
    dlq,
    exec_acl,
    exec_clients,
    exec_events,
    exec_state,
    flows,
    health,
    jobs,
    lists,
    metrics,
    outputs,
    probes,
    queues,
    repeat,
    run_logs,
    run_table,
    runs,
    schedule_ticks,
    schedules,
    schemas,
    trends,
    watch,
    wheels,
    workers,
)
from pyoco_server.doors.http.answers import JsonAnswer, encode_json, error_answer, plain_error, schema_answer, status_of
from pyoco_server.doors.http.guard import Guard
from pyoco_server.doors.http.operations import Operation, openapi_components, openapi_paths
from pyoco_server.doors.http.requests import Malformed, MalformedQuery
from pyoco_server.doors.http.state import State
from pyoco_server.doors.http.v1 import documents, envelopes, inputs, packs, results
from pyoco_server.doors.http.v1 import runs as priced_runs
from pyoco_server.doors.http.v1.problems import answer_error
from pyoco_server.doors.http.v1.visit import is_of_payers
from pyoco_server.doors.mcp import http as agents
from pyoco_server.doors.mcp.sessions import Sessions
from pyoco_server.doors.release import RELEASE
from pyoco_server.errors import Corrupt, PyocoError, RecordUnreadable, Refused
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import GatewayBackend

__all__ = ["OPERATIONS", "Gateway", "build_app", "openapi_schemas"]

log = get_logger(__name__)

_RUNS = (run_table, runs, outputs, lists, cancel_many, repeat, watch, run_logs)
_PROGRAMS = (jobs, artifacts, exec_state, exec_events, exec_clients, exec_acl)
_PRICED = (priced_runs, packs, inputs, envelopes, results, budgets, agents)
_SCHEDULES = (schedules, schedule_ticks)
_OTHERS = (workers, flows, wheels, dlq, queues, trends, attention, metrics, dashboard)
_MODULES = (health, probes, *_RUNS, *_PROGRAMS, *_PRICED, *_SCHEDULES, *_OTHERS)
OPERATIONS: tuple[Operation, ...] = tuple(operation for module in _MODULES for operation in module.OPERATIONS)

OpenBackend = Callable[[], AbstractAsyncContextManager[GatewayBackend]]


@functools.cache
def openapi_schemas() -> dict[str, Any]:
    """Return the schemas of the OpenAPI document by name: those of shapes, and those that modules spell out."""
    spelled_out = (getattr(module, "SCHEMAS", {}) for module in (schemas, documents, *_MODULES))
    known = {name: schema for each in spelled_out for name, schema in each.items()}
    return known | openapi_components(OPERATIONS)


class Gateway(Starlette):
    """A Starlette application whose entry point is the guard.

    Every request passes the guard, and none of the framework's layers runs between the guard and our endpoints: those
    layers cost as much as a complete submission.
    """

    title = "pyoco-server"
    version = RELEASE

    def __init__(self, api_key_header: str, lifespan: Lifespan[Starlette]) -> None:
        # For code that reads `app.routes`; the guard dispatches to the endpoints directly.
        routes = [Route(each.path, each.endpoint, methods=[each.method]) for each in OPERATIONS]
        super().__init__(
            routes=[*routes, Route("/openapi.json", self._get_openapi)],
            exception_handlers={HTTPException: _on_http_exception, Exception: _on_defect},
            lifespan=lifespan,
        )
        self.state.operations = OPERATIONS  # including their meters
        self._api_key_header = api_key_header
        self._guard = Guard(super().__call__, OPERATIONS, _on_error)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        if scope["type"] == "http":
            await self._guard(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        return {
            "openapi": "3.1.0",
            "info": {
                "title": self.title,
                "version": self.version,
                "description": "Ask for work over HTTP, and it runs, once, somewhere, while you watch.",
            },
            "paths": openapi_paths(OPERATIONS),
            "components": {"schemas": openapi_schemas(), "securitySchemes": schemas.security(self._api_key_header)},
        }

    @functools.cached_property
    def _openapi_json(self) -> bytes:
        return encode_json(self.openapi())

    async def _get_openapi(self, _: Request) -> Response:
        return JsonAnswer(self._openapi_json)


def build_app(open_backend: OpenBackend, api_key_header: str) -> Gateway:
    """Build the application. It connects to NATS at startup, not here (FLOW-391)."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with open_backend() as backend:
            app.state.dashboard = await asyncio.to_thread(open_dashboard, backend.config, RELEASE)
            state = app.state.gateway = State(backend)
            agent_sessions = app.state.agent_sessions = Sessions()
            try:
                await state.start()
                yield
            finally:
                await agent_sessions.stop()
                await state.stop()

    return Gateway(api_key_header, lifespan)


async def _on_error(request: Request, error: Exception) -> Response:
    """FLOW-526, FLOW-527: log every error that becomes a response, with its cause."""
    if is_of_payers(request.scope["path"]):
        return answer_error(request.scope, error)
    if not isinstance(error, PyocoError):
        return await _on_defect(request, error)
    run_id = request.path_params.get("run_id")
    if isinstance(error, Corrupt) and run_id is not None:  # SAFE-16: whatever is wrong with the record
        unreadable = error if isinstance(error, RecordUnreadable) else RecordUnreadable(run_id, str(error))
        facts = {"path": request.url.path, "run_id": run_id, "reason": unreadable.reason}
        log.error("request answered with an error", status=503, err_id=unreadable.text.err_id, **facts)
        return error_answer(unreadable)
    status = status_of(error)
    facts = {"status": status, "path": request.url.path, "run_id": run_id}
    if isinstance(error, Refused):
        # Log neither message nor traceback: both may contain request data, which must not be logged (FLOW-531).
        places = [{"loc": ".".join(map(str, item.loc)), "type": item.type} for item in error.problems]
        log.info("request refused", err_id=error.text.err_id, problem=type(error).__name__, places=places, **facts)
    else:
        write_log = log.error if status >= 500 else log.info
        write_log("request answered with an error", error=error, **facts)
    if isinstance(error, Malformed | MalformedQuery):
        return schema_answer(error)
    return error_answer(error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    phrase = {404: "not found", 405: "method not allowed"}.get(error.status_code, "invalid request")
    log.info("request answered with an error", status=error.status_code, path=request.url.path)
    answer = plain_error(error.status_code, phrase, 2)
    answer.headers.update(error.headers or {})
    return answer


async def _on_defect(request: Request, error: Exception) -> Response:
    """Last resort for an internal error: the details go to the log, not to the caller (FLOW-49)."""
    log.error("unexpected error in request handler", path=request.url.path, error=error)
    return plain_error(500, "internal error", 25)
