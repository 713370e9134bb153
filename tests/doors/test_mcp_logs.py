"""The tool that reads logs, through `/mcp/` of a gateway."""

from __future__ import annotations

import pytest

from doors.test_mcp_http import Hatch, hatch, problem
from pyoco_server.actions.priced.project import show_row
from pyoco_server.core.priced.reasons import Reason
from support.agents import agent_over_http, call
from support.printing import Printer

__all__ = ["hatch"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_an_agent_reads_what_the_runs_of_its_tenant_have_printed(hatch: Hatch) -> None:
    """LOG-6, LOG-29: and nothing of others"""
    door = hatch.door
    payer = await door.payer()
    run_id = await door.submitted(payer)
    assert await show_row(door.gateway.backend.runs, await door.completed(run_id, {"answer_text": "Yes."}))
    printer = Printer(door.gateway.backend.logs, run_id)
    printer.print("one", "two", "three", task=None)
    await printer.store(is_over=True)
    async with agent_over_http(hatch.url, payer.headers) as agent:
        said = await call(agent, "get_run_logs", run_id=run_id, tail=2, search="T")
        assert [line["text"] for line in said["lines"]] == ["two", "three"]
        problem(await call(agent, "get_run_logs", run_id=f"{run_id}/stream"), Reason.RUN_NOT_FOUND, 404)
    async with agent_over_http(hatch.url, (await door.payer()).headers) as agent:
        problem(await call(agent, "get_run_logs", run_id=run_id), Reason.RUN_NOT_FOUND, 404)
