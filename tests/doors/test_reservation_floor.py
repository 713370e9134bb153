"""Reservations below the price, over HTTP, MCP and the command line."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.config.packs import PackConfig
from pyoco_server.core.priced.reasons import Reason
from support.agents import agent_over_http
from support.agents import call as ask_tool
from support.priced.gateways import Payer, PricedDoor, a_body, check_problem, costs_of
from support.priced.price_commands import call, client, url

__all__ = ["call", "client", "url"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

CASE = {"expected": "e", "actual": "a"}
PACKS: dict[str, tuple[dict[str, Any], str, str]] = {
    "decision": ({"question": "?"}, "0.0499", "0.0500"),
    "compliance": ({"text": "t", "rules": [{"id": "r", "kind": "MAX_LENGTH", "value": 1}]}, "0.0199", "0.0200"),
    "eval, 1 case": ({"metric": "EXACT", "cases": [CASE | {"id": "c"}]}, "0.0050", "0.0051"),
    "eval, 1,000 cases": (
        {"metric": "EXACT", "cases": [CASE | {"id": f"c{number}"} for number in range(1_000)]},
        *("0.1049", "0.1050"),
    ),
    "url": ({"urls": ["https://example.org"] * 2}, "0.0069", "0.0070"),
}


def body(pack: str, inputs: dict[str, Any], usd: str) -> dict[str, Any]:
    return a_body(pack_type=pack.partition(",")[0], inputs=inputs, reservation={"max_cost_usd": usd})


async def nothing_happened(door: PricedDoor, payer: Payer, balance: int = 10_000_000) -> None:
    assert await door.runs_of(payer) == 0
    assert await door.balance(payer) == balance


@pytest.mark.parametrize("pack", PACKS)
async def test_the_floor_is_accepted_and_less_is_refused_with_the_price(priced_door: PricedDoor, pack: str) -> None:
    """SAFE-1, PRICED-67: nothing is stored or reserved, and the key is free"""
    inputs, less, floor = PACKS[pack]
    payer = await priced_door.payer()
    for usd in ("0.0001", less):
        answer = await priced_door.post(payer, body(pack, inputs, usd), key="one-key-1")
        document = check_problem(answer, Reason.RESERVATION_BELOW_PRICE, 422)
        assert (document["err_id"], document["price_usd"]) == ("ERR-PYOCO-0048", floor)
        assert [error["pointer"] for error in document["errors"]] == ["/reservation/max_cost_usd"]
        assert costs_of(answer) == ("0.0000", "0.0000", "10.0000", "0")
    await nothing_happened(priced_door, payer)
    answer = await priced_door.post(payer, body(pack, inputs, floor), key="one-key-1")
    assert (answer.status_code, costs_of(answer)[0]) == (202, floor)
    assert "idempotency-replayed" not in answer.headers


async def test_ocr_is_reserved_for_one_page_at_least(priced_door: PricedDoor) -> None:
    """SAFE-1"""
    payer = await priced_door.payer()
    bucket = priced_door.priced.config.pack_input_bucket
    inputs = {"images": [{"kind": "s3", "bucket": bucket, "key": f"dpp/{payer.tenant_id}/a/b.png"}] * 3}
    answer = await priced_door.post(payer, body("ocr", inputs, "0.0099"))
    assert check_problem(answer, Reason.RESERVATION_BELOW_PRICE)["price_usd"] == "0.0100"
    assert (await priced_door.post(payer, body("ocr", inputs, "0.0100"))).status_code == 202


@pytest.mark.parametrize("usd", [None, "0.0001"])
async def test_who_cannot_pay_is_told_the_price_and_not_the_balance(priced_door: PricedDoor, usd: str | None) -> None:
    """SAFE-1: never 402"""
    payer = await priced_door.payer(usd)
    answer = await priced_door.post(payer, body("decision", {"question": "?"}, "0.0499"))
    check_problem(answer, Reason.RESERVATION_BELOW_PRICE)
    answer = await priced_door.post(payer, body("decision", {"question": "?"}, "0.0500"))
    check_problem(answer, Reason.BUDGET_DRAINED)


async def test_what_is_not_valid_is_told_before_the_price(priced_door: PricedDoor) -> None:
    """SAFE-1, PRICED-65"""
    payer = await priced_door.payer()
    answer = await priced_door.post(payer, body("decision", {"question": ""}, "0.0001"))
    document = check_problem(answer, Reason.VALIDATION_FAILED)
    assert [error["pointer"] for error in document["errors"]] == ["/inputs/question"]


async def test_the_prices_are_settings_of_the_gateway(priced_door: PricedDoor) -> None:
    """SAFE-1: not a whole step of four decimals, so it is rounded up"""
    pack = PackConfig.read({"PYOCO_PRICE_COMPLIANCE_USD_MICROS": "123401"})
    config = replace(priced_door.priced.config, pack=pack)
    payer, inputs = await priced_door.payer(), PACKS["compliance"][0]
    with priced_door.with_priced(replace(priced_door.priced, config=config)):
        answer = await priced_door.post(payer, body("compliance", inputs, "0.1234"))
        assert check_problem(answer, Reason.RESERVATION_BELOW_PRICE)["price_usd"] == "0.1235"
        assert (await priced_door.post(payer, body("compliance", inputs, "0.1235"))).status_code == 202


async def test_an_agent_is_told_the_price(priced_door: PricedDoor, url: str) -> None:
    """SAFE-1: over MCP, as POST /v1/runs answers"""
    payer, key = await priced_door.payer(), f"agent-{uuid.uuid4()}"
    arguments: dict[str, Any] = {"question": "?", "idempotency_key": key}
    async with agent_over_http(f"{url}/mcp/", payer.headers, "auto") as agent:
        refused = await ask_tool(agent, "dpp_decision_run_submit", **arguments, max_cost_usd=0.0499)
        assert refused.is_error
        told = (refused["status"], refused["reason_code"], refused["err_id"], refused["price_usd"])
        assert told == (422, "RESERVATION_BELOW_PRICE", "ERR-PYOCO-0048", "0.0500")
        assert [error["pointer"] for error in refused["errors"]] == ["/reservation/max_cost_usd"]
        await nothing_happened(priced_door, payer)
        receipt = await ask_tool(agent, "dpp_decision_run_submit", **arguments, max_cost_usd=0.05)
        assert receipt["reservation"]["max_cost_usd"] == "0.0500"


async def test_the_command_line_is_told_the_price(priced_door: PricedDoor, call: Callable[..., Any]) -> None:
    """SAFE-1"""
    payer = await priced_door.payer()
    words = ("price", "submit", "decision", "--input", "question=?", "--max-cost-usd")
    refused = await call(payer, *words, "0.0499")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.splitlines() == [
        "HTTP 422 RESERVATION_BELOW_PRICE: max_cost_usd is below the price. Nothing was reserved; the key is free.",
        "  /reservation/max_cost_usd: must be at least 0.0500, the price of these inputs",
        "  reserve at least the price: --max-cost-usd 0.0500",
    ]
    await nothing_happened(priced_door, payer)
    assert (await call(payer, *words, "0.0500")).code == 0
