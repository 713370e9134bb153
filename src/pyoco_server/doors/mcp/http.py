"""`/mcp/`: the tools over streamable HTTP, on the gateway itself. API keys are those of `/v1`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from pyoco_server.core.priced.constants import REQUEST_BODY_MAX_BYTES
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.lingering import Lingering
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.requests import read_body
from pyoco_server.doors.http.v1.limits import priced_of
from pyoco_server.doors.http.v1.visit import MCP
from pyoco_server.doors.mcp.calls import given_up
from pyoco_server.doors.mcp.inside import asked_in, is_stopping
from pyoco_server.doors.mcp.messages import ID_LENGTH_MAX, ID_MAX, INVALID_REQUEST, METHOD_LENGTH_MAX, misfit
from pyoco_server.doors.mcp.sessions import BODY_BYTES_MAX, Sessions
from pyoco_server.doors.mcp.tools import UPLOAD
from pyoco_server.errors import TooLarge
from pyoco_server.logs import get_logger

__all__ = ["OPERATIONS", "SCHEMAS"]

log = get_logger(__name__)

_JSON = "application/json"


async def call_tools(request: Request) -> Response:
    """Handle one message. Raises DependencyUnavailable on a gateway without priced runs, TooSlow."""
    priced_of(request)
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
        return _refuse(415, INVALID_REQUEST, "the header Content-Type must be application/json")
    try:
        body = await read_body(request, BODY_BYTES_MAX)
    except TooLarge:
        return Lingering(_refuse(413, INVALID_REQUEST, f"the body has more than {BODY_BYTES_MAX} bytes"))
    if len(body) > REQUEST_BODY_MAX_BYTES and not _is_upload(body):
        return _refuse(413, INVALID_REQUEST, f"the body has more than {REQUEST_BODY_MAX_BYTES} bytes")
    wrong = misfit(body)
    if wrong is not None:
        return _refuse(400, *wrong)
    sessions: Sessions = request.app.state.agent_sessions
    return await _answered(request, body, sessions)


def _is_upload(body: bytes) -> bool:
    """Only a call that uploads a file may be this large."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return False
    params = message.get("params") if isinstance(message, dict) else None
    return isinstance(params, dict) and message.get("method") == "tools/call" and params.get("name") == UPLOAD


async def call_tools_without_slash(request: Request) -> Response:
    """The same without a redirect, with which many clients would lose the body."""
    return await call_tools(request)


async def _answered(request: Request, body: bytes, sessions: Sessions) -> Response:
    """Return the SDK's response. It is one message, never a stream: no tool sends anything before its result."""
    app = await sessions.app()
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    start: Message = {}
    parts: list[bytes] = []

    async def receive() -> Message:
        return waiting.pop() if waiting else await request.receive()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            parts.append(message.get("body", b""))

    try:
        await app(request.scope, receive, send)
    except asyncio.CancelledError:
        response = _shutdown_response(request, body)
        if response is None:
            raise
        return response
    status: int = start["status"]
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in start["headers"]}
    content = b"".join(parts)
    if status >= 400 and not headers.get("content-type", "").startswith(_JSON):
        return _refuse(status, INVALID_REQUEST, _PLAIN.get(status, "the request is not valid"))
    answer = Response(content, status, {"Cache-Control": "no-store"}, headers.get("content-type") if content else None)
    if "allow" in headers:
        answer.headers["Allow"] = headers["allow"]
    return answer


def _shutdown_response(request: Request, body: bytes) -> Response | None:
    """Return the response to a call that the stopping gateway no longer waits for.

    The submission may have been accepted and paid for, and only its key can find it again (PRICED-217). Returns None if
    nothing was sent yet, or the gateway is not stopping.
    """
    asked = asked_in(request.scope)
    if asked is None or not is_stopping(request.app):
        return None
    from pyoco_server.doors.mcp.server import written

    ask, trace_id = asked
    log.info("tool call abandoned: gateway is stopping", method=ask.method, path=ask.path, trace_id=trace_id)
    result = written(given_up(ask, trace_id))
    document = {"jsonrpc": "2.0", "id": json.loads(body)["id"], "result": result}
    return json_answer(document, 200, {"Cache-Control": "no-store"})


#: Texts for SDK responses without a body, or with a body that is not JSON.
_PLAIN = {406: "the header Accept must name application/json and text/event-stream"}


def _refuse(status: int, code: int, message: str) -> Response:
    """Refuse the message as a whole; its id is not read."""
    document = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
    return json_answer(document, status, {"Cache-Control": "no-store"})


_VERSION = {"type": "string", "enum": ["2.0"]}
_ID = {
    "anyOf": [
        {"type": "string", "maxLength": ID_LENGTH_MAX},
        {"type": "integer", "minimum": -ID_MAX, "maximum": ID_MAX},
    ]
}
SCHEMAS: dict[str, Any] = {
    "AgentMessage": schemas.object_of(
        {
            "jsonrpc": _VERSION,
            "id": _ID,
            "method": {"type": "string", "maxLength": METHOD_LENGTH_MAX},
            "params": schemas.OBJECT,
        },
        ["jsonrpc", "method"],
        "One JSON-RPC message of the Model Context Protocol. Without an id it is a notification.",
    ),
    "AgentAnswer": schemas.object_of(
        {
            "jsonrpc": _VERSION,
            "id": schemas.or_null(_ID),
            "result": schemas.OBJECT,
            "error": schemas.object_of({"code": {"type": "integer"}, "message": schemas.TEXT}, ["code"], "Why not."),
        },
        ["jsonrpc", "id"],
        "The JSON-RPC answer to a message: a result, also of a tool that was refused; or an error.",
    ),
}

_ANSWER = schemas.ref("AgentAnswer")
_REFUSALS = {
    400: "It is not a JSON-RPC message, or one of an unsupported version.",
    404: "There is no such method (2026-07-28 and later).",
    406: "The caller does not accept JSON.",
    413: "The body is too large.",
    415: "The content type of the body is not JSON.",
}


def _operation(path: str, endpoint: Any, more: str) -> Operation:
    return Operation(
        method="POST",
        path=path,
        endpoint=endpoint,
        summary="Tools for agents (MCP)",
        description=(
            "The Model Context Protocol over streamable HTTP, without sessions and with JSON answers: `initialize`, "
            "`tools/list` and `tools/call` of `dpp_url_run_submit`, `dpp_input_upload`, `dpp_ocr_run_submit`, "
            "`dpp_decision_run_submit`, `dpp_run_get` and `get_run_logs`, and of announced flows that allow it as "
            f"`flow_<name>`, with `get_run`. A tool asks `/v1`, `/runs` or `/flows` with the key of this request.{more}"
        ),
        body={"required": True, "content": {_JSON: {"schema": schemas.ref("AgentMessage")}}},
        answer=schemas.json_response(_ANSWER, "The answer to the message; also when a tool was refused."),
        more_answers={202: "A notification was taken."},
        other_answers={status: schemas.json_response(_ANSWER, words) for status, words in _REFUSALS.items()},
        problems=True,
        any_query=True,
        tags=("agents",),
    )


OPERATIONS: tuple[Operation, ...] = (
    _operation(MCP, call_tools, ""),
    _operation(MCP.rstrip("/"), call_tools_without_slash, f" The same as `{MCP}`."),
)
