"""Agents: the official client of the Model Context Protocol, over both transports."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Literal, TextIO

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

__all__ = ["COMMAND", "CONTRACT", "Mode", "Said", "agent_over_http", "agent_over_stdio", "call"]

#: Word for word from the contract, section 22; `additionalProperties` is said in its text.
CONTRACT: dict[str, Any] = json.loads("""
{ "dpp_url_run_submit": { "type": "object", "required": ["urls", "max_cost_usd"], "properties": {
    "urls": { "type": "array", "items": { "type": "string", "format": "uri" }, "minItems": 1, "maxItems": 30 },
    "max_cost_usd": { "type": "number", "minimum": 0.01 },
    "timebox_sec": { "type": "integer", "minimum": 1, "maximum": 90 },
    "min_reliability_score": { "type": "number", "minimum": 0, "maximum": 1 },
    "idempotency_key": { "type": "string", "minLength": 8, "maxLength": 64 } } },
  "dpp_ocr_run_submit": { "type": "object", "required": ["input_files", "max_cost_usd"], "properties": {
    "input_files": { "type": "array", "items": { "type": "string" }, "minItems": 1, "maxItems": 10 },
    "max_cost_usd": { "type": "number", "minimum": 0.01 },
    "ocr_profile": { "type": "string", "enum": ["P1", "P2A", "P2B", "P3"] },
    "language": { "type": "string", "default": "kor+eng" },
    "timebox_sec": { "type": "integer", "minimum": 1, "maximum": 90 },
    "artifacts": { "type": "object", "properties": { "include_markdown": { "type": "boolean" },
                                                     "include_docx": { "type": "boolean" } } },
    "idempotency_key": { "type": "string", "minLength": 8, "maxLength": 64 } } },
  "dpp_decision_run_submit": { "type": "object", "required": ["question", "max_cost_usd"], "properties": {
    "question": { "type": "string" }, "context": { "type": "string" },
    "max_cost_usd": { "type": "number", "minimum": 0.01 },
    "timebox_sec": { "type": "integer", "minimum": 1, "maximum": 90 },
    "min_reliability_score": { "type": "number", "minimum": 0, "maximum": 1 },
    "idempotency_key": { "type": "string", "minLength": 8, "maxLength": 64 } } } }
""")
COMMAND = str(Path(sys.executable).parent / "pyoco-mcp")
#: The handshake of 2025, or the single requests of 2026.
Mode = Literal["legacy", "auto"]


class Said(dict[str, Any]):
    """What a tool said, as a document."""

    is_error: bool
    texts: list[str]


@contextlib.asynccontextmanager
async def agent_over_http(url: str, headers: Mapping[str, str], mode: Mode = "auto") -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers=dict(headers), timeout=100) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


@contextlib.asynccontextmanager
async def agent_over_stdio(
    errors: TextIO, *arguments: str, mode: Mode = "auto", **variables: str
) -> AsyncIterator[Client]:
    """It starts the command as agents do. What the command logs goes to `errors`."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    command = StdioServerParameters(command=COMMAND, args=list(arguments), env=kept | variables)
    async with Client(stdio_client(command, errlog=errors), mode=mode) as client:
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> Said:
    """A tool says the same twice: as text, and as a structure."""
    result = await client.call_tool(tool, arguments)
    texts = [each.text for each in result.content if each.type == "text"]
    said = Said(json.loads(texts[0]))
    assert said == result.structured_content
    said.is_error, said.texts = result.is_error, texts
    return said
