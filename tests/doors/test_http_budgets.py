"""`/budgets`: each tenant's money as the ledger has it, and to whom it is shown."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from pyoco_server.core.priced.reasons import Reason
from pyoco_server.ports.nats.link import open_link
from support.gateways import error
from support.priced.gateways import Payer, PricedDoor, fresh_priced_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOT_FOUND = error(2, "not found")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def closed_door(module_nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PricedDoor]:
    """Authentication is on."""
    link = await open_link(module_nats_url, "tests")
    folder = tmp_path_factory.mktemp("closed")
    async with fresh_priced_gateway(link, module_nats_url, folder, http_auth_mode="api_key") as door:
        yield door
    await link.close()


async def a_spender(door: PricedDoor) -> Payer:
    """10 dollars in; 0.05 charged, 0.25 set aside."""
    payer = await door.payer("10.0000")
    await door.completed(await door.submitted(payer), {"answer_text": "yes"})
    await door.submitted(payer)
    return payer


async def test_a_budget_adds_up(priced_door: PricedDoor) -> None:
    """PRICED-16: credits = available + held + charges; exact for programs, four decimals for people"""
    payer = await a_spender(priced_door)
    answer = await priced_door.client.get(f"/budgets/{payer.tenant_id}", headers=payer.headers)
    assert answer.status_code == 200
    assert answer.json() == {
        "tenant_id": payer.tenant_id,
        "display_name": payer.tenant_id,
        "status": "ACTIVE",
        "balance_usd_micros": 9_700_000,
        "balance_usd": "9.7000",
        "held_usd_micros": 250_000,
        "held_usd": "0.2500",
        "charged_usd_micros": 50_000,
        "charged_usd": "0.0500",
        "credited_usd_micros": 10_000_000,
        "credited_usd": "10.0000",
    }


async def test_the_list_has_the_tenant_of_the_key_and_nothing_without_one(priced_door: PricedDoor) -> None:
    """SAFE-5: in mode `none`, too"""
    anna, bert = [await priced_door.payer("1.0000", f"walk-{name}-{uuid.uuid4().hex[:8]}") for name in "ab"]
    for payer in (anna, bert):
        body = (await priced_door.client.get("/budgets", headers=payer.headers)).json()
        assert [each["tenant_id"] for each in body["budgets"]] == [payer.tenant_id]
    query = {"after": anna.tenant_id}
    assert (await priced_door.client.get("/budgets", params=query, headers=anna.headers)).json()["budgets"] == []
    for nothing in ({}, {"X-API-Key": "nonsense"}):
        body = (await priced_door.client.get("/budgets", headers=nothing)).json()
        assert body == {"budgets": [], "next_after": None}


async def test_the_journal_shows_every_fact_newest_first(priced_door: PricedDoor) -> None:
    """PRICED-55"""
    payer = await a_spender(priced_door)
    path = f"/budgets/{payer.tenant_id}/journal"
    whole = (await priced_door.client.get(path, headers=payer.headers)).json()
    assert [line["kind"] for line in whole["lines"]] == ["RESERVE", "SETTLE", "RESERVE", "TOPUP"]
    assert whole["next_before"] is None
    settle = whole["lines"][1]
    assert (settle["available_usd_micros"], settle["held_usd_micros"]) == (200_000, -250_000)
    assert (settle["charged_usd_micros"], settle["charged_usd"], settle["held_usd"]) == (50_000, "0.0500", "-0.2500")
    assert settle["run_id"]
    assert abs(settle["created_at"] - priced_door.gateway.backend.clock()) < 60
    for account, total in (("available", 9_700_000), ("held", 250_000), ("charged", 50_000)):
        assert sum(line[f"{account}_usd_micros"] for line in whole["lines"]) == total
    pages = []
    query: dict[str, int] = {"limit": 3}
    while True:
        page = (await priced_door.client.get(path, params=query, headers=payer.headers)).json()
        pages += page["lines"]
        if page["next_before"] is None:
            break
        query["before"] = page["next_before"]
    assert pages == whole["lines"]


async def test_spend_is_shown_over_time(priced_door: PricedDoor) -> None:
    payer = await a_spender(priced_door)
    with priced_door.later(7200):
        await priced_door.failed(await priced_door.submitted(payer), Reason.PACK_FAILED)
        query = {"seconds": 10_800, "step": 3600}
        path = f"/budgets/{payer.tenant_id}/spend"
        body = (await priced_door.client.get(path, params=query, headers=payer.headers)).json()
    assert body["step_seconds"] == 3600
    assert [(each["charged_usd_micros"], each["runs"]) for each in body["steps"]] == [(50_000, 1), (5_000, 1)]
    assert body["steps"][0]["charged_usd"] == "0.0500"
    starts = [each["start_at"] for each in body["steps"]]
    assert all(start % 3600 == 0 and body["from"] <= start <= body["now"] for start in starts)
    assert starts[1] - starts[0] in {7200, 10_800}  # an hour may end between them


@pytest.mark.parametrize("rest", ["", "/journal", "/spend"])
async def test_with_keys_a_tenant_sees_its_own_alone(closed_door: PricedDoor, rest: str) -> None:
    """PRICED-170: another's is as one that does not exist"""
    anna, bert = await a_spender(closed_door), await a_spender(closed_door)
    assert (await closed_door.client.get(f"/budgets/{anna.tenant_id}{rest}", headers=anna.headers)).status_code == 200
    foreign = await closed_door.client.get(f"/budgets/{bert.tenant_id}{rest}", headers=anna.headers)
    missing = await closed_door.client.get(f"/budgets/nobody{rest}", headers=anna.headers)
    assert (foreign.status_code, foreign.json()) == (missing.status_code, missing.json()) == (404, NOT_FOUND)
    assert (await closed_door.client.get(f"/budgets/{anna.tenant_id}{rest}")).status_code == 401


async def test_with_keys_the_list_has_one_line(closed_door: PricedDoor) -> None:
    anna = await a_spender(closed_door)
    await a_spender(closed_door)
    body = (await closed_door.client.get("/budgets", headers=anna.headers)).json()
    assert [each["tenant_id"] for each in body["budgets"]] == [anna.tenant_id]


async def test_a_tenant_with_a_key_and_no_credit_has_nothing(closed_door: PricedDoor) -> None:
    payer = await closed_door.payer(None)
    body = (await closed_door.client.get(f"/budgets/{payer.tenant_id}", headers=payer.headers)).json()
    assert (body["balance_usd_micros"], body["balance_usd"], body["status"]) == (0, "0.0000", "ACTIVE")
    body = (await closed_door.client.get(f"/budgets/{payer.tenant_id}/journal", headers=payer.headers)).json()
    assert body == {"lines": [], "next_before": None}


@pytest.mark.parametrize("tenant_id", ["nobody", "a.b", "%00", "x" * 200, "ü"])
async def test_an_unknown_tenant_is_not_found(priced_door: PricedDoor, tenant_id: str) -> None:
    for rest in ("", "/journal", "/spend"):
        answer = await priced_door.client.get(f"/budgets/{tenant_id}{rest}")
        assert (answer.status_code, answer.json()) == (404, NOT_FOUND)


@pytest.mark.parametrize(
    "query",
    [
        "/budgets?limit=0",
        "/budgets?limit=501",
        "/budgets?limit=1&limit=2",
        "/budgets?limit=x",
        "/budgets?limit=%D9%A1",
        "/budgets?after=a.b",
        "/budgets?after=%00",
        "/budgets/a/journal?before=0",
        "/budgets/a/journal?before=99999999999999999999",
        "/budgets/a/journal?before=-1",
        "/budgets/a/spend?step=59",
        "/budgets/a/spend?seconds=0",
        "/budgets/a/spend?seconds=86400000000",
        "/budgets/a/spend?seconds=864000&step=60",
    ],
)
async def test_a_query_of_the_wrong_form_is_refused(priced_door: PricedDoor, query: str) -> None:
    answer = await priced_door.client.get(query)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["loc"][0] == "query"


async def test_a_gateway_without_a_ledger_says_so(priced_door: PricedDoor) -> None:
    with priced_door.with_priced(None):
        answer = await priced_door.client.get("/budgets")
    assert (answer.status_code, answer.json()) == (503, error(36, "dependency unavailable"))
