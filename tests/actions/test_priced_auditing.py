"""The audit, where the budget is elsewhere: money on its way explains itself, and one micro of difference is found."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from pyoco_server.actions.priced import audit as auditing
from pyoco_server.actions.priced.audit import audit
from pyoco_server.loops.priced.auditor import Auditor
from pyoco_server.ports.budget.port import Outcome
from pyoco_server.ports.budget.redis import RedisBudget
from support.backends import fields_of
from support.priced.redis_stock import drop_reservation, set_balance
from support.priced.stacks import ACME, QUICK_SPLIT, Killed, Stack, an_ask, open_stack

DOLLAR = 1_000_000
AT_ONCE = timedelta(0)


@pytest.fixture
async def split(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with open_stack(QUICK_SPLIT, request) as stack:
        await stack.credit(DOLLAR)
        await stack.credit(DOLLAR, "other")
        yield stack


@pytest.fixture
def redis(split: Stack) -> RedisBudget:
    assert isinstance(split.priced.budget, RedisBudget)
    return split.priced.budget


@pytest.mark.parametrize("by", [1, -1, 1_000])
async def test_one_micro_is_found_and_its_tenant_named(split: Stack, redis: RedisBudget, by: int) -> None:
    """PRICED-60, second check"""
    await split.submitted()
    await set_balance(redis, ACME, 750_000 + by)
    report = await audit(split.priced, AT_ONCE)
    assert [(each.check, each.tenant_id) for each in report.differences] == [(2, ACME)]
    assert f"{by:+d} micros" in report.differences[0].detail


@pytest.mark.parametrize("point", ["submit.after_insert", "submit.after_reserve", "submit.after_mark_reserved"])
async def test_a_submit_under_way_is_no_difference(split: Stack, point: str) -> None:
    """PRICED-16, PRICED-60"""
    split.points.kill_at = point
    with pytest.raises(Killed):
        await split.submitted()
    assert (await audit(split.priced, AT_ONCE)).differences == ()


@pytest.mark.parametrize("point", ["finalize.after_claim", "finalize.after_money", "finalize.after_commit"])
async def test_an_end_under_way_is_no_difference(split: Stack, redis: RedisBudget, point: str) -> None:
    """PRICED-16, PRICED-60: and it hides none"""
    await split.submitted()
    split.points.kill_at = point
    with pytest.raises(Killed):
        await split.work()
    assert (await audit(split.priced, AT_ONCE)).differences == ()
    await set_balance(redis, ACME, await redis.balance(ACME) + 1)
    assert len((await audit(split.priced, AT_ONCE)).differences) == 1


async def test_runs_under_way_are_looked_at_some_at_a_time(
    split: Stack, redis: RedisBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands at once wait for each other until Redis has taken too long, and nothing would be audited."""
    for _ in range(4):
        await split.submitted()
    await set_balance(redis, ACME, 1)
    outcome, asked, most = redis.outcome, 0, 0

    async def counted(run_id: str) -> Outcome:
        nonlocal asked, most
        asked += 1
        most = max(most, asked)
        await asyncio.sleep(0)
        found = await outcome(run_id)
        asked -= 1
        return found

    monkeypatch.setattr(redis, "outcome", counted)
    monkeypatch.setattr(auditing, "_RUNS_AT_ONCE", 3, raising=False)
    assert len((await audit(split.priced, AT_ONCE)).differences) == 1
    assert most == 3


async def test_an_orphan_is_no_difference_and_hides_none(split: Stack, redis: RedisBudget) -> None:
    """PRICED-163: the orphan scan gives it back"""
    await redis.reserve(ACME, an_ask().run_id, 1_000, 0)
    assert (await audit(split.priced, AT_ONCE)).differences == ()
    await set_balance(redis, ACME, await redis.balance(ACME) - 1)
    assert len((await audit(split.priced, AT_ONCE)).differences) == 1


async def test_a_reservation_that_vanished_is_a_difference_once_its_money_is_missing(
    split: Stack, redis: RedisBudget
) -> None:
    """Redis has lost everything: the journal tells what it should have."""
    run = await split.submitted()
    await drop_reservation(redis, run.run_id)
    await set_balance(redis, ACME, 0)
    assert [each.tenant_id for each in (await audit(split.priced, AT_ONCE)).differences] == [ACME]


async def test_the_auditor_tells_differences_and_old_reservations(
    split: Stack, redis: RedisBudget, caplog: pytest.LogCaptureFixture
) -> None:
    """PRICED-50, section 20"""
    await split.submitted()
    await set_balance(redis, "other", 1)
    split.skew.move(86_401)
    with caplog.at_level(logging.ERROR):
        await Auditor(split.priced).turn()
    told = [fields_of(record) for record in caplog.records]
    assert [(line["alarm"], line["tenant_id"]) for line in told] == [
        ("audit_difference", "other"),
        ("old_reservation", ACME),
    ]
