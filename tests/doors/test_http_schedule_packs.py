"""Schedules of priced runs, and of tenants with keys (SCHED-2, SCHED-13, SCHED-14)."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx
import pytest

from pyoco_server.actions.schedules.handle import advance_schedule
from pyoco_server.core.packs import PACKS, PackSpec
from pyoco_server.core.packs.prices import Prices
from pyoco_server.core.packs.spec import PackCheckFailed
from pyoco_server.core.priced.projection import project
from pyoco_server.core.schedules.ids import pack_key_of_tick, schedule_key, tick_id
from support.priced.gateways import BODY, Payer, PricedDoor
from support.schedules import make_schedule, schedule_now

pytestmark = pytest.mark.asyncio(loop_scope="module")

WHAT = {"kind": "pack", **BODY}


async def create(door: PricedDoor, payer: Payer, what: Any = None, **more: Any) -> httpx.Response:
    body = {"name": "s", "what": WHAT if what is None else what, "when": {"every": 1}, "overlap": "allow"} | more
    return await door.client.post("/schedules", json=body, headers=payer.headers)


async def ticked(door: PricedDoor, payer: Payer) -> list[dict[str, Any]]:
    """The history, once there is a tick in it."""
    key = schedule_key(payer.tenant_id, "s")
    while True:
        await advance_schedule(door.gateway.backend, key)
        items = (await door.client.get("/schedules/s/ticks", headers=payer.headers)).json()["items"]
        if items:
            return list(items)
        await asyncio.sleep(0.05)


async def test_a_tick_of_a_pack_is_one_priced_run(priced_door: PricedDoor) -> None:
    """SCHED-13, SCHED-14"""
    payer = await priced_door.payer("10.0000")
    inputs = {"question": "Ship on {{ scheduled_time.date }}?"}
    created = await create(priced_door, payer, WHAT | {"inputs": inputs})
    assert created.status_code == 201, created.text
    entry = (await ticked(priced_door, payer))[-1]
    assert entry["outcome"] == "run"
    row = await priced_door.row(entry["run_id"])
    assert row.idempotency_key == pack_key_of_tick(tick_id(created.json()["id"], entry["tick"]))
    assert row.schedule == {"id": created.json()["id"], "name": "s", "tick": entry["tick"], "source": "tick"}
    asked = await priced_door.priced.ledger.read(lambda tx: tx.runs.inputs(row.run_id))
    assert asked is not None
    assert asked["question"] == f"Ship on {time.strftime('%Y-%m-%d', time.gmtime(entry['tick']))}?"
    shown = project(row)
    assert shown is not None
    assert (shown.schedule, shown.tags) == (row.schedule, ("schedule:s",))


async def test_an_empty_budget_refuses_the_tick(priced_door: PricedDoor) -> None:
    """SCHED-14"""
    payer = await priced_door.payer("0.0100")
    assert (await create(priced_door, payer)).status_code == 201
    entry = (await ticked(priced_door, payer))[-1]
    assert (entry["outcome"], entry["err_id"]) == ("refused", "ERR-PYOCO-0038")
    assert entry["message_ja"]
    assert "run_id" not in entry


def price(inputs: Mapping[str, Any], _: Prices) -> int:
    if inputs["question"] == "fail":
        raise PackCheckFailed("the check of a pack raised ValueError")
    return 20_000


@pytest.mark.parametrize(
    ("packs", "question", "told"),
    [
        (("theirs",), "?", ("refused", "ERR-PYOCO-0048", "0.0200, the price of these inputs")),
        (("theirs",), "fail", ("refused", "ERR-PYOCO-0002", "'theirs' cannot tell: the check of a pack raised")),
        ((), "?", ("run", None, "")),
    ],
)
async def test_the_price_of_a_plug_in_is_checked_by_a_keeper_that_has_it(
    priced_door: PricedDoor, packs: tuple[str, ...], question: str, told: tuple[str, str | None, str]
) -> None:
    """SAFE-1, SCHED-14: a keeper without it leaves that to the worker"""
    payer = await priced_door.payer()
    offered = {name: PackSpec(name=name, inputs=lambda _: (), executor="m:f", price=price) for name in packs}
    keeper = replace(priced_door.gateway.backend, priced=replace(priced_door.priced, packs=PACKS | offered))
    reservation = {"max_cost_usd": "0.0199"}
    what = {"kind": "pack", "pack_type": "theirs", "inputs": {"question": question}, "reservation": reservation}
    name = f"s-{uuid.uuid4()}"
    schedule = await make_schedule(keeper, name, tenant_id=payer.tenant_id, what=what, when={"every": 1})
    while not (tail := (await schedule_now(keeper, name, payer.tenant_id)).tail):
        await advance_schedule(keeper, schedule.key)
    outcome, err_id, message = told
    assert (tail[0].outcome.value, tail[0].err_id) == (outcome, err_id)
    assert message in (tail[0].message or "")
    assert await priced_door.balance(payer) == 10_000_000 - (19_900 if outcome == "run" else 0)


async def test_what_the_price_or_the_pack_does_not_allow_is_refused_at_once(priced_door: PricedDoor) -> None:
    """SCHED-2, SCHED-31"""
    payer = await priced_door.payer()
    for what, place in (
        (WHAT | {"pack_type": "cake"}, ["body", "what", "pack_type"]),
        (WHAT | {"inputs": {}}, ["body", "what", "inputs", "question"]),
        (WHAT | {"reservation": {"max_cost_usd": 1}}, ["body", "what", "reservation", "max_cost_usd"]),
        (WHAT | {"delay": 5}, ["body", "what", "delay"]),
    ):
        refused = await create(priced_door, payer, what)
        assert (refused.status_code, refused.json()["err_id"]) == (422, "ERR-PYOCO-0063")
        assert [each["loc"] for each in refused.json()["errors"]] == [place]


async def test_a_pack_takes_no_policy_and_no_timeout(priced_door: PricedDoor) -> None:
    """RETRY-19"""
    payer = await priced_door.payer()
    for member in ({"retry": {"tries": 2}}, {"timeout": "5m"}):
        refused = await create(priced_door, payer, WHAT | member)
        assert (refused.status_code, refused.json()["err_id"]) == (422, "ERR-PYOCO-0064")
        (problem,) = refused.json()["errors"]
        assert problem["loc"] == ["body", "what", *member]


async def test_tenants_do_not_see_each_others_schedules(priced_door: PricedDoor) -> None:
    one, other = await priced_door.payer(), await priced_door.payer()
    assert (await create(priced_door, one)).status_code == 201
    hidden = await priced_door.client.get("/schedules/s", headers=other.headers)
    assert (hidden.status_code, hidden.json()["err_id"]) == (404, "ERR-PYOCO-0059")
    assert (await priced_door.client.get("/schedules", headers=other.headers)).json()["items"] == []
    assert (await create(priced_door, other)).status_code == 201
    assert (await priced_door.client.delete("/schedules/s", headers=one.headers)).status_code == 200
    mine = (await priced_door.client.get("/schedules/s", headers=other.headers)).json()
    assert mine["tenant_id"] == other.tenant_id


async def test_a_pack_needs_a_key(priced_door: PricedDoor) -> None:
    refused = await priced_door.client.post("/schedules", json={"name": "s", "what": WHAT, "when": {"every": 60}})
    assert (refused.status_code, refused.json()["errors"][0]["loc"]) == (422, ["body", "what", "kind"])
