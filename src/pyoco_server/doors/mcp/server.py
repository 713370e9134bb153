"""The tools as a server of the MCP SDK. Importing it takes half a second, so only processes that serve agents do."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from pyoco_server.client.retry import Patience
from pyoco_server.doors.mcp.calls import PATIENCE, Send, ToolResult, call_tool
from pyoco_server.doors.mcp.flow_tools import GET_RUN, call_flow, list_flow_tools
from pyoco_server.doors.mcp.tools import INSTRUCTIONS, TOOLS, Tool
from pyoco_server.doors.release import RELEASE

__all__ = ["WayOf", "build_server", "written"]

#: Opens the way to `/v1` for a request, with the request's trace id, if any. It is closed when the call ends.
WayOf = Callable[[ServerRequestContext[Any, Any]], AbstractContextManager[tuple[Send, str | None]]]

#: The tools besides those of flows.
_KNOWN = {**TOOLS, GET_RUN.name: GET_RUN}


def build_server(way_of: WayOf, patience: Patience = PATIENCE) -> Server[Any]:
    """Build a server with the tools and nothing else. Leaves the log handlers as they are."""
    logging.getLogger("mcp").setLevel(logging.WARNING)  # the SDK logs a line for every request

    async def list_tools(
        context: ServerRequestContext[Any, Any], _: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        with way_of(context) as (send, given_trace_id):
            of_flows = await list_flow_tools(send, _trace_id(given_trace_id))
        return types.ListToolsResult(tools=[_shown(tool) for tool in (*TOOLS.values(), *of_flows)])

    async def call(
        context: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        tool, arguments = _KNOWN.get(params.name), params.arguments or {}
        with way_of(context) as (send, given_trace_id):
            trace_id = _trace_id(given_trace_id)
            if tool is not None:
                return _result(await call_tool(tool, arguments, send, trace_id, patience))
            result = await call_flow(params.name, arguments, send, trace_id, patience)
        if result is None:
            raise MCPError(code=types.INVALID_PARAMS, message=f"unknown tool; there are: {', '.join(TOOLS)}")
        return _result(result)

    return Server(
        "pyoco-server",
        version=RELEASE,
        title="pyoco-server: priced runs",
        instructions=INSTRUCTIONS,
        get_tool_input_schema=lambda name: _KNOWN[name].input_form if name in _KNOWN else None,
        on_list_tools=list_tools,
        on_call_tool=call,
    )


def _trace_id(given: str | None) -> str:
    return given or f"t_{uuid.uuid4().hex}"


def written(answer: ToolResult) -> dict[str, Any]:
    """Return the result in wire format."""
    return _result(answer).model_dump(mode="json", by_alias=True, exclude_none=True)


def _shown(tool: Tool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.input_form,
        output_schema=tool.output_form,
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=tool.is_reading,
            destructive_hint=tool.is_destructive,
            # A submission is idempotent only with an idempotency_key from the caller.
            idempotent_hint=tool.is_reading or tool.is_repeatable,
            open_world_hint=tool.is_of_the_world,
        ),
    )


def _result(answer: ToolResult) -> types.CallToolResult:
    texts = [json.dumps(answer.document, ensure_ascii=False), *([answer.hint] if answer.hint else [])]
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text) for text in texts],
        structured_content=answer.document,
        is_error=answer.is_error,
    )
