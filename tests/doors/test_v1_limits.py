"""The rate limits of tenants, and how they are reported."""

from __future__ import annotations

import time
import uuid

import httpx
import pytest

from pyoco_server.core.priced.reasons import Reason
from pyoco_server.core.priced.run import TenantStatus
from support.priced.gateways import Payer, PricedDoor, check_problem, costs_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMES = ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")


async def limited(door: PricedDoor, per_minute: int) -> Payer:
    payer = await door.payer()
    await door.priced.ledger.transact(lambda tx: tx.tenants.set_rate_limit(payer.tenant_id, per_minute))
    return payer


def rate(answer: httpx.Response) -> tuple[int, int]:
    limit, remaining, _ = (int(answer.headers[name]) for name in NAMES)
    return limit, remaining


async def test_an_empty_bucket_is_told_with_its_headers(priced_door: PricedDoor) -> None:
    """PRICED-172, PRICED-173, PRICED-82"""
    payer = await limited(priced_door, 2)
    run_id = str(uuid.uuid4())
    assert [rate(await priced_door.get(payer, run_id)) for _ in range(2)] == [(2, 1), (2, 0)]
    answer = await priced_door.get(payer, run_id)
    assert "run_id" not in check_problem(answer, Reason.RATE_LIMITED)
    assert answer.headers["retry-after"] == "30"
    assert rate(answer) == (2, 0)
    # Two tokens a minute: full again within one.
    assert time.time() <= int(answer.headers["x-ratelimit-reset"]) <= time.time() + 61
    assert costs_of(answer) == ("0.0000", "0.0000", "10.0000", "0")


async def test_polling_does_not_block_submitting(priced_door: PricedDoor) -> None:
    """PRICED-172: one bucket for GET, another for POST"""
    payer = await limited(priced_door, 1)
    await priced_door.get(payer, "x")
    assert (await priced_door.get(payer, "x")).status_code == 429
    assert (await priced_door.post(payer)).status_code == 202
    assert (await priced_door.post(payer)).status_code == 429
    assert await priced_door.runs_of(payer) == 1


async def test_a_bucket_fills_with_time(priced_door: PricedDoor) -> None:
    """PRICED-172"""
    payer = await limited(priced_door, 60)
    statuses = [(await priced_door.get(payer, "x")).status_code]
    while statuses[-1] == 404 and len(statuses) < 600:
        statuses.append((await priced_door.get(payer, "x")).status_code)
    assert statuses[-1] == 429
    assert len(statuses) > 60  # it fills while it is emptied: on a busy machine there are more
    with priced_door.later(2):
        assert (await priced_door.get(payer, "x")).status_code == 404


async def test_refused_requests_use_up_tokens_too(priced_door: PricedDoor) -> None:
    """PRICED-174: 404 and 422 do"""
    payer = await limited(priced_door, 3)
    assert rate(await priced_door.post(payer, b"{")) == (3, 2)
    assert rate(await priced_door.post(payer, key="short")) == (3, 1)
    assert rate(await priced_door.post(payer)) == (3, 0)
    assert (await priced_door.post(payer, b"{")).status_code == 429


async def test_a_bad_key_touches_no_bucket(priced_door: PricedDoor) -> None:
    """PRICED-173, PRICED-174: and is told nothing of one"""
    payer = await limited(priced_door, 3)
    answer = await priced_door.client.get("/v1/runs/x", headers={"Authorization": payer.headers["Authorization"] + "x"})
    check_problem(answer, Reason.AUTH_INVALID)
    assert not any(name in answer.headers for name in NAMES)
    assert rate(await priced_door.get(payer, "x")) == (3, 2)


async def test_one_tenant_does_not_slow_another_down(priced_door: PricedDoor) -> None:
    """PRICED-172"""
    anna, bert = await limited(priced_door, 1), await limited(priced_door, 1)
    assert [(await priced_door.get(each, "x")).status_code for each in (anna, anna, bert)] == [404, 429, 404]


async def test_a_tenant_without_a_limit_of_its_own_has_everybodys(priced_door: PricedDoor) -> None:
    """PRICED-172"""
    payer = await priced_door.payer()
    limit = priced_door.priced.config.priced_rate_limit_per_min
    assert rate(await priced_door.get(payer, "x"))[0] == limit


async def test_the_limit_comes_before_the_look_at_the_body(priced_door: PricedDoor) -> None:
    """PRICED-65"""
    payer = await limited(priced_door, 1)
    await priced_door.post(payer, b"{")
    check_problem(await priced_door.post(payer, b"{"), Reason.RATE_LIMITED)


async def test_a_path_nobody_serves_and_a_wrong_method_use_up_tokens_too(priced_door: PricedDoor) -> None:
    """PRICED-173, PRICED-174: each of the bucket of its method"""
    payer, client = await limited(priced_door, 2), priced_door.client
    assert rate(await client.get("/v1/nothing", headers=payer.headers)) == (2, 1)
    refused = await client.delete("/v1/runs", headers=payer.headers)
    assert (refused.status_code, rate(refused)) == (405, (2, 1))
    assert rate(await client.get("/v1/runs", headers=payer.headers)) == (2, 0)
    check_problem(await client.get("/v1/nothing", headers=payer.headers), Reason.RATE_LIMITED)
    assert (await priced_door.post(payer)).status_code == 202


async def test_a_suspended_tenant_is_refused_on_every_path(priced_door: PricedDoor) -> None:
    """PRICED-174"""
    payer = await priced_door.payer()
    await priced_door.priced.ledger.transact(lambda tx: tx.tenants.set_status(payer.tenant_id, TenantStatus.SUSPENDED))
    answer = await priced_door.client.get("/v1/nothing", headers=payer.headers)
    check_problem(answer, Reason.AUTH_INVALID)
    assert not any(name in answer.headers for name in NAMES)
