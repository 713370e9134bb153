"""Flows as tools of agents (APP-14): what a call sends and returns, and the tools through `/mcp/`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from contracts.registry import a_worker
from doors.test_mcp_http import Hatch, hatch
from pyoco_server.core.offered_flow import OfferedFlow
from pyoco_server.core.outcome import Completed, Failed, Outcome
from pyoco_server.core.values.kept import Kept
from pyoco_server.doors.mcp import flow_tools
from pyoco_server.doors.mcp.calls import PATIENCE, Reply, ToolResult, Unreachable, call_tool
from pyoco_server.doors.mcp.flow_tools import GET_RUN, call_flow, list_flow_tools
from pyoco_server.doors.mcp.tools import TOOLS, Ask
from support.agents import agent_over_http, call
from support.gateways import PROGRESS, Gateway, ended

__all__ = ["hatch"]

SCHEMA = {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]}
MEASURE = OfferedFlow(name="measure", app="reports", doc="Measure a page.", params=SCHEMA, tags=("size",), tool=True)
DONE = Completed(progress=PROGRESS, kept=Kept(result={"task": "a"}))


async def serve(gateway: Gateway, *flows: OfferedFlow) -> None:
    now = time.time() + 3600  # it stays alive however long a test takes
    record = a_worker(tags=("gpu",), flows=flows, flows_complete=True, last_seen_at=now, last_heartbeat_at=now)
    await gateway.backend.registry.announce(record)


class Way:
    """Sends to a gateway. Between two requests, at most `waits` times, `meanwhile` happens with the run."""

    def __init__(self, gateway: Gateway, meanwhile: Callable[[str], Awaitable[object]] | None = None) -> None:
        self._gateway, self._meanwhile = gateway, meanwhile
        self.asks: list[Ask] = []
        self.waits = 100
        #: Requests of this path have no answer.
        self.lost = ""

    async def __call__(self, ask: Ask, trace_id: str) -> Reply:
        self.asks.append(ask)
        if self.lost and ask.path.startswith(self.lost):
            raise Unreachable("the gateway is gone")
        headers = {} if ask.idempotency_key is None else {"Idempotency-Key": ask.idempotency_key}
        path = f"{ask.path}?{ask.query}" if ask.query else ask.path
        answer = await self._gateway.client.request(ask.method, path, content=ask.body, headers=headers)
        return Reply(answer.status_code, answer.content)

    async def wait(self, seconds: float) -> bool:
        self.waits -= 1
        if self._meanwhile is not None:
            await self._meanwhile(self.asks[-1].path.rpartition("/")[2])
            self._meanwhile = None
        return self.waits > 0

    async def call(self, name: str = "flow_measure", **arguments: Any) -> ToolResult:
        result = await call_flow(name, arguments, self, "t_1", PATIENCE)
        assert result is not None
        return result


def way_to_end(gateway: Gateway, outcome: Outcome) -> Way:
    return Way(gateway, lambda run_id: ended(gateway, run_id, outcome))  # type: ignore[arg-type]  # both kinds


class TestTheList:
    async def test_has_the_flows_that_allow_it_with_their_schemas(self, gateway: Gateway) -> None:
        """APP-14"""
        bare = OfferedFlow(name="bare", app="reports", tool=True)
        await serve(gateway, MEASURE, bare, replace(MEASURE, name="private", tool=False))
        first, second, last = await list_flow_tools(Way(gateway), "t_1")
        assert (first.name, first.input_form, first.is_destructive) == ("flow_bare", {"type": "object"}, None)
        assert (second.name, second.input_form) == ("flow_measure", SCHEMA)
        assert second.description.startswith("Measure a page.")
        assert last is GET_RUN

    async def test_of_many_flows_is_read_page_by_page(self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(flow_tools, "_PAGE", 2)
        monkeypatch.setattr(flow_tools, "_TOOLS_MAX", 4)
        await serve(gateway, *(replace(MEASURE, name=f"f{n}") for n in range(5)))
        tools = await list_flow_tools(Way(gateway), "t_1")
        assert [each.name for each in tools] == ["flow_f0", "flow_f1", "flow_f2", "flow_f3", "get_run"]

    async def test_is_empty_without_such_flows_and_without_a_gateway(self, gateway: Gateway) -> None:
        assert await list_flow_tools(Way(gateway), "t_1") == []
        await serve(gateway, MEASURE)
        way = Way(gateway)
        way.lost = "/flows"
        assert await list_flow_tools(way, "t_1") == []


class TestACall:
    async def test_submits_with_the_tag_of_the_flow_and_returns_the_result(self, gateway: Gateway) -> None:
        """APP-14"""
        await serve(gateway, MEASURE)
        result = await way_to_end(gateway, DONE).call(url="https://example.org")
        assert (result.is_error, result.document["status"], result.document["result"]) == (False, "COMPLETED", "ü")
        run = (await gateway.client.get(f"/runs/{result.document['run_id']}")).json()
        assert (run["flow_name"], run["params"]) == ("measure", {"url": "https://example.org"})
        assert (run["tag"], run["tags"]) == ("gpu", ["size"])

    async def test_says_why_a_run_has_failed(self, gateway: Gateway) -> None:
        """APP-14"""
        await serve(gateway, MEASURE)
        result = await way_to_end(gateway, Failed(progress=PROGRESS, message="no such page")).call(url="x")
        assert (result.is_error, result.document["status"], result.document["error"]) == (
            True,
            "FAILED",
            "no such page",
        )

    @pytest.mark.parametrize("why", ["time", "stopping", "lost"])
    async def test_returns_the_id_of_a_run_that_it_cannot_wait_for(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch, why: str
    ) -> None:
        """APP-14: after half a minute, while the gateway stops, and if it does not answer any more"""
        await serve(gateway, MEASURE)
        way = Way(gateway)
        if why == "time":
            monkeypatch.setattr(flow_tools, "_WAIT_SECONDS", 0.0)
        elif why == "stopping":
            way.waits = 1
        else:
            way.lost = "/runs/"
        result = await way.call(url="x")
        assert (result.is_error, result.document["status"]) == (False, "PENDING")
        await ended(gateway, result.document["run_id"], DONE)
        read = await call_tool(GET_RUN, {"run_id": result.document["run_id"]}, Way(gateway), "t_1")
        assert (read.is_error, read.document["status"], read.document["result"]) == (False, "COMPLETED", "ü")

    async def test_returns_the_head_of_a_long_result_and_where_the_rest_is(self, gateway: Gateway) -> None:
        await serve(gateway, MEASURE)
        text = "x" * 20_000
        entry = {"content_type": "application/json", "bytes": len(text) + 2, "sha256": "0" * 64, "text": f'"{text}"'}
        result = await way_to_end(gateway, replace(DONE, kept=Kept(result=entry))).call(url="x")
        assert result.document["result_preview"] == f'"{text}'[:1024]
        assert result.document["result_href"] == f"/runs/{result.document['run_id']}/result"

    async def test_of_another_name_is_not_answered(self, gateway: Gateway) -> None:
        await serve(gateway, replace(MEASURE, tool=False))
        way = Way(gateway)
        for name in ("flow_measure", "flow_nothing", "flow_", "measure"):
            assert await call_flow(name, {}, way, "t_1", PATIENCE) is None
        assert [ask.method for ask in way.asks] == ["GET"] * 3

    async def test_that_is_refused_says_where_and_why(self, gateway: Gateway) -> None:
        await serve(gateway, MEASURE)
        result = await Way(gateway).call(deep=_nested(100))
        assert (result.is_error, result.document["err_id"], result.document["status"]) == (True, "ERR-PYOCO-0002", 422)
        assert result.document["errors"][0]["pointer"] == "/body/params"


def _nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.asyncio(loop_scope="module")
async def test_an_agent_finds_and_calls_a_flow(hatch: Hatch) -> None:
    """APP-14, through the official client"""
    gateway = hatch.door.gateway
    await serve(gateway, MEASURE)
    payer = await hatch.door.payer()

    async def named(agent: Client) -> set[str]:
        return {each.name for each in (await agent.list_tools()).tools}

    async with agent_over_http(hatch.url, payer.headers) as agent:
        assert await named(agent) == {*TOOLS, "flow_measure", "get_run"}
        with pytest.raises(MCPError, match="unknown tool"):
            await agent.call_tool("flow_other", {})
        said = await call(agent, "flow_measure", url=_nested(100))
        assert (said.is_error, said["err_id"]) == (True, "ERR-PYOCO-0002")
        await serve(gateway)
        assert await named(agent) == set(TOOLS)
