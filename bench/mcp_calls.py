"""What a call of an agent's tool costs beside the same call over plain HTTP: one caller, one call at a time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from bench.priced_load import BODY
from bench.priced_site import Site, open_site
from bench.report import heading, median, table
from bench.stack import Stack

_ROUNDS = 11
_CALLS = 40
_HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
_ARGUMENTS = {"question": "Ship on Friday?", "max_cost_usd": 0.25}
_SUBMIT, _GET = "dpp_decision_run_submit", "dpp_run_get"

Call = Callable[[], Awaitable[Any]]


def main(_: Stack) -> None:
    with open_site("SQLite", 1) as site:
        heading("A tool of an agent beside the same call over plain HTTP, ms (p50)")
        took = asyncio.run(_measure(site))
    rows = [("", "read a run", "ratio", "submit a run", "ratio")]
    plain = {what: median(took["plain HTTP", what]) for what in ("read", "submit")}
    for way in dict.fromkeys(way for way, _ in took):
        cells: list[str] = [way]
        for what in ("read", "submit"):
            found = median(took[way, what])
            cells += [f"{found:.2f}", f"{found / plain[what]:.2f}"]
        rows.append(tuple(cells))  # type: ignore[arg-type]
    table(rows)


async def _measure(site: Site) -> dict[tuple[str, str], list[float]]:
    """The p50 of each round, by way and call. All ways take turns: what slows the machine slows them all."""
    async with _ways(site) as ways:
        for call in ways.values():
            await call()
        took: dict[tuple[str, str], list[float]] = {name: [] for name in ways}
        for _ in range(_ROUNDS):
            for name, call in ways.items():
                took[name].append(await _p50(call))
    return took


async def _p50(call: Call) -> float:
    each = []
    for _ in range(_CALLS):
        began = time.perf_counter()
        await call()
        each.append((time.perf_counter() - began) * 1000)
    return statistics.median(each)


@contextlib.asynccontextmanager
async def _ways(site: Site) -> AsyncIterator[dict[tuple[str, str], Call]]:
    server, key = f"http://127.0.0.1:{site.running.port}", site.keys[0]
    bearer = {"Authorization": f"Bearer {key}"}
    command = StdioServerParameters(
        command=str(Path(sys.executable).parent / "pyoco-mcp"),
        env={**os.environ, "PYOCO_SERVER_URL": server, "PYOCO_API_KEY": key},
    )
    async with (
        httpx.AsyncClient(base_url=server, headers=bearer) as plain,
        httpx2.AsyncClient(headers=bearer) as http,
        Client(streamable_http_client(f"{server}/mcp/", http_client=http)) as over_http,
        Client(stdio_client(command)) as over_stdio,
    ):
        run_id = (await _post(plain)).json()["run_id"]
        read = {"run_id": run_id}
        yield {
            ("plain HTTP", "read"): lambda: _get(plain, run_id),
            ("plain HTTP", "submit"): lambda: _post(plain),
            ("POST /mcp/, without a client's work", "read"): lambda: _message(plain, _GET, read),
            ("POST /mcp/, without a client's work", "submit"): lambda: _message(plain, _SUBMIT, _ARGUMENTS),
            ("official client, /mcp/", "read"): lambda: _tool(over_http, _GET, read),
            ("official client, /mcp/", "submit"): lambda: _tool(over_http, _SUBMIT, _ARGUMENTS),
            ("official client, pyoco-mcp", "read"): lambda: _tool(over_stdio, _GET, read),
            ("official client, pyoco-mcp", "submit"): lambda: _tool(over_stdio, _SUBMIT, _ARGUMENTS),
        }


async def _get(client: httpx.AsyncClient, run_id: str) -> None:
    answer = await client.get(f"/v1/runs/{run_id}")
    assert answer.status_code == 200, answer.text
    answer.json()


async def _post(client: httpx.AsyncClient) -> httpx.Response:
    headers = {"Idempotency-Key": str(uuid.uuid4()), "Content-Type": "application/json"}
    answer = await client.post("/v1/runs", content=json.dumps(BODY), headers=headers)
    assert answer.status_code == 202, answer.text
    return answer


async def _message(client: httpx.AsyncClient, tool: str, arguments: dict[str, Any]) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    answer = await client.post("/mcp/", content=json.dumps(message), headers=_HEADERS)
    assert answer.json()["result"]["isError"] is False, answer.text


async def _tool(client: Client, tool: str, arguments: dict[str, Any]) -> None:
    assert not (await client.call_tool(tool, arguments)).is_error
