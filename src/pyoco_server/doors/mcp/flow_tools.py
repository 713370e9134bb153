"""Flows of apps as tools (APP-14). Which there are is requested from the gateway for each list and each call."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any, Final
from urllib.parse import quote, urlencode

from pyoco_server.client.retry import Patience
from pyoco_server.core.names import is_run_id
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.core.states import TERMINAL
from pyoco_server.doors.mcp import forms
from pyoco_server.doors.mcp.calls import (
    NOT_OURS,
    Reply,
    Send,
    ToolResult,
    Unreachable,
    read_document,
    send_patiently,
)
from pyoco_server.doors.mcp.problems import FLOWS, RunUnknown, problem, problem_of
from pyoco_server.doors.mcp.tools import Arguments, Ask, Tool
from pyoco_server.logs import get_logger

__all__ = ["GET_RUN", "call_flow", "list_flow_tools"]

log = get_logger(__name__)

_PREFIX: Final = "flow_"
#: How long a call waits for the end of its run.
_WAIT_SECONDS: Final = 30.0
#: Between two looks at the run: at first, and at most.
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.1, 1.0
#: More tools would fill the context of an agent.
_TOOLS_MAX: Final = 200
_PAGE: Final = 200
_TERMINAL: Final = frozenset(state.value for state in TERMINAL)

_AFTERWARDS = (
    " Waits up to half a minute and returns the result; if it takes longer, run_id: call get_run with it until status "
    "is COMPLETED or FAILED."
)


def _get(arguments: Arguments) -> Ask:
    """Raises RunUnknown."""
    run_id = arguments["run_id"]
    path = f"{FLOWS}/{quote(run_id, safe='', errors='replace')}"
    if not is_run_id(run_id):
        raise RunUnknown(path)
    return Ask("GET", path)


def _shown(snapshot: Arguments) -> Arguments:
    """Return what an agent needs to know of a run."""
    shown = {name: snapshot[name] for name in ("run_id", "status", "reason", "error") if snapshot.get(name) is not None}
    result = snapshot.get("result")
    if not isinstance(result, dict):
        return shown
    if "value" in result:
        return {**shown, "result": result["value"]}
    kept = {"result_preview": result.get("preview"), "result_href": result.get("href"), "error": _text(result)}
    return {**shown, **{name: value for name, value in kept.items() if value is not None}}


def _text(result: Arguments) -> str | None:
    """Return why the value of a result is not there."""
    error = result.get("error")
    return str(error.get("message")) if isinstance(error, dict) else None


#: Reads the run of a flow: for calls that took longer than an agent can wait. Listed while a flow is a tool.
GET_RUN: Final = Tool(
    name="get_run",
    title="Look at the run of a flow",
    description="Shows the run that a tool flow_* has started: status, and its result once COMPLETED. Free.",
    input_form=forms.GET,
    output_form=forms.FLOW_RUN,
    is_reading=True,
    write=_get,
    read=_shown,
    needs=frozenset({"run_id", "status"}),
    path=FLOWS,
)


async def list_flow_tools(send: Send, trace_id: str) -> list[Tool]:
    """Return the tools of the flows that allow it, by name, and `GET_RUN` with them. None while the gateway cannot be
    asked: the other tools stay usable."""
    tools: list[Tool] = []
    try:
        async for flow in _flows(send, trace_id):
            if len(tools) == _TOOLS_MAX:
                log.warning("too many flows are tools; the rest is not listed", tools=_TOOLS_MAX)
                break
            tools.append(_tool_of(flow))
    except Unreachable as error:
        log.warning("could not list the flows that are tools", detail=str(error), trace_id=trace_id)
    return [*tools, GET_RUN] if tools else []


async def _flows(send: Send, trace_id: str) -> AsyncIterator[Arguments]:
    """Yield the flows that are tools. Raises Unreachable."""
    query: dict[str, Any] = {"limit": _PAGE}
    while True:
        reply = await send(Ask("GET", "/flows", query=urlencode(query)), trace_id)
        page = read_document(reply.body)
        if reply.status != 200 or page is None or not isinstance(page.get("items"), list):
            raise Unreachable(f"GET /flows answered {reply.status}")
        for flow in page["items"]:
            if flow.get("tool"):
                yield flow
        if page.get("next_cursor") is None:
            return
        query["cursor"] = page["next_cursor"]


def _tool_of(flow: Arguments) -> Tool:
    name = flow["name"]
    return Tool(
        name=f"{_PREFIX}{name}",
        title=name,
        description=(flow["doc"] or f"Runs the flow {name}.") + _AFTERWARDS,
        input_form=flow["params"] or {"type": "object"},
        output_form=forms.FLOW_RUN,
        is_of_the_world=True,
        is_destructive=None,
        write=lambda arguments: _submission(flow, arguments),
        path=FLOWS,
    )


def _submission(flow: Arguments, arguments: Arguments) -> Ask:
    """The worker checks the params. All tries of a call use one key, so the run is submitted once."""
    labels = {"tags": flow["tags"]} if flow["tags"] else {}
    document = {"flow_name": flow["name"], "params": arguments, "tag": flow["tag"], **labels}
    body = json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return Ask("POST", FLOWS, body, str(uuid.uuid4()))


async def call_flow(
    tool_name: str, arguments: Arguments, send: Send, trace_id: str, patience: Patience
) -> ToolResult | None:
    """Submit a run of the flow, and wait for its end up to half a minute. None: no such flow is a tool.

    Once the run is accepted, every outcome has its id: nothing is submitted twice because an answer was lost.
    """
    if not tool_name.startswith(_PREFIX):
        return None
    path = f"/flows/{quote(tool_name.removeprefix(_PREFIX), safe='', errors='replace')}"
    try:
        flow = await _answer(send, Ask("GET", path), trace_id, patience)
        if isinstance(flow, ToolResult):
            return None if flow.document["status"] == 404 else flow
        if not flow.get("tool"):
            return None
        accepted = await _answer(send, _tool_of(flow).write(arguments), trace_id, patience)
    except Unreachable as error:
        log.warning("tool could not reach the server", tool=tool_name, trace_id=trace_id, detail=str(error))
        return ToolResult(problem(Reason.DEPENDENCY_UNAVAILABLE, str(error), trace_id, path), is_error=True)
    if isinstance(accepted, ToolResult):
        return accepted
    result = await _wait(send, str(accepted.get("run_id")), trace_id, patience)
    warning = accepted.get("warning")
    return result if warning is None else ToolResult({**result.document, "warning": warning}, is_error=result.is_error)


async def _wait(send: Send, run_id: str, trace_id: str, patience: Patience) -> ToolResult:
    """Return the run as it is at its end, or after the time to wait."""
    ends_at, pause, known = time.monotonic() + _WAIT_SECONDS, _PAUSE_SECONDS, {"run_id": run_id, "status": "PENDING"}
    ask = Ask("GET", f"{FLOWS}/{run_id}")
    while True:
        try:
            answer = await _answer(send, ask, trace_id, patience)
        except Unreachable as error:
            log.warning("tool lost the server while its run goes on", run_id=run_id, detail=str(error))
            return ToolResult(known)
        if isinstance(answer, ToolResult):
            return answer
        known = _shown(answer)
        if known.get("status") in _TERMINAL:
            return ToolResult(known, is_error=known["status"] != "COMPLETED")
        left = ends_at - time.monotonic()
        if left <= 0 or not await send.wait(min(pause, left)):
            return ToolResult(known)
        pause = min(pause * 1.5, _PAUSE_SECONDS_MAX)


async def _answer(send: Send, ask: Ask, trace_id: str, patience: Patience) -> Arguments | ToolResult:
    """Return the document of a response, or a refusal as the result of the call. Raises Unreachable."""
    reply = await send_patiently(send, ask, trace_id, patience)
    document = read_document(reply.body)
    if document is not None and 200 <= reply.status < 300:
        return document
    return ToolResult(_refusal(reply, document, ask, trace_id), is_error=True)


def _refusal(reply: Reply, document: Arguments | None, ask: Ask, trace_id: str) -> Arguments:
    """Return the problem document of an error response, with its problems."""
    found = None if document is None else problem_of(document, reply.status, trace_id, ask.path)
    if document is None or found is None:
        log.warning("invalid response to a tool call", path=ask.path, trace_id=trace_id, status=reply.status)
        return problem(Reason.DEPENDENCY_UNAVAILABLE, NOT_OURS, trace_id, ask.path)
    errors = [
        {"pointer": "".join(f"/{step}" for step in each["loc"]), "message": each["msg"]}
        for each in document.get("errors", ())
    ]
    return {**found, "errors": errors} if errors else found
