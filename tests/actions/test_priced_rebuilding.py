"""A budget outside the ledger is made what the journal says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from pyoco_server.actions.priced.audit import audit
from pyoco_server.actions.priced.credit import CreditResult, credit
from pyoco_server.actions.priced.rebuild import plan_rebuild, rebuild
from pyoco_server.actions.priced.show_budget import list_budgets, show_budget
from pyoco_server.core.priced.constants import MAX_AMOUNT_USD_MICROS
from pyoco_server.core.run import Caller
from pyoco_server.core.states.priced import Status
from pyoco_server.errors import Conflict, DependencyUnavailable
from pyoco_server.ports.budget.port import AlreadyApplied, OpenReservation
from pyoco_server.ports.budget.redis import RedisBudget
from support.priced.faults import BEFORE, Trouble, with_trouble
from support.priced.redis_stock import damage_balance, damage_reservation, put_reservation, set_balance
from support.priced.stacks import ACME, QUICK_SPLIT, SQLITE, Killed, Stack, an_ask, open_stack

DOLLAR = 1_000_000


@pytest.fixture
async def split(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with open_stack(QUICK_SPLIT, request) as stack:
        await stack.credit(DOLLAR)
        yield stack


@pytest.fixture
def redis(split: Stack) -> RedisBudget:
    assert isinstance(split.priced.budget, RedisBudget)
    return split.priced.budget


async def test_a_redis_that_lost_everything_is_rebuilt(
    split: Stack, redis: RedisBudget, request: pytest.FixtureRequest
) -> None:
    """PRICED-61, PRICED-42: and the runs that live end as if nothing had been"""
    await split.submitted()
    await split.work()
    waiting = await split.submitted()
    working = await split.started(await split.submitted())
    stray = an_ask().run_id
    request.getfixturevalue("redis_server").empty()
    await redis.credit(ACME, 7_000, "somebody")
    await redis.reserve(ACME, stray, 6_000, 0)
    plan = await plan_rebuild(split.priced, redis, ACME)
    assert (plan.balance_before_usd_micros, plan.balance_after_usd_micros) == (1_000, 450_000)
    assert {each.run_id for each in plan.put} == {waiting.run_id, working.run_id}
    assert plan.drop == (stray,)
    assert await redis.balance(ACME) == 1_000, "a dry run changes nothing"
    await rebuild(split.priced, redis, plan)
    assert await redis.balance(ACME) == 450_000
    assert (await plan_rebuild(split.priced, redis, ACME)).is_needless
    await split.end(working)
    await split.drain()
    assert (await split.row(waiting.run_id)).status is Status.COMPLETED
    assert await redis.balance(ACME) == DOLLAR - 150_000
    await split.check_money()


async def test_nothing_is_rebuilt_while_money_is_on_its_way(split: Stack, redis: RedisBudget) -> None:
    """PRICED-61: no row in NONE, no open claim"""
    split.points.kill_at = "submit.after_insert"
    with pytest.raises(Killed):
        await split.submitted()
    with pytest.raises(Conflict):
        await plan_rebuild(split.priced, redis, ACME)
    split.skew.move(61)
    await split.keep()
    await split.submitted()
    split.points.kill_at = "finalize.after_claim"
    with pytest.raises(Killed):
        await split.work()
    with pytest.raises(Conflict):
        await plan_rebuild(split.priced, redis, ACME)


async def test_a_dry_run_that_is_not_true_any_more_is_not_followed(split: Stack, redis: RedisBudget) -> None:
    """PRICED-61: submits have to be stopped"""
    await set_balance(redis, ACME, 5)
    plan = await plan_rebuild(split.priced, redis, ACME)
    await set_balance(redis, ACME, 600_000)
    await split.submitted()
    with pytest.raises(Conflict):
        await rebuild(split.priced, redis, plan)
    assert len((await audit(split.priced)).differences) == 1


async def test_a_run_that_ends_meanwhile_refuses_the_rebuild_whole(split: Stack, redis: RedisBudget) -> None:
    """PRICED-61: a worker settles between the last look and the write; nothing is half done"""
    working = await split.started(await split.submitted())
    await set_balance(redis, ACME, 500)
    plan = await plan_rebuild(split.priced, redis, ACME)
    with pytest.raises(Conflict):
        await rebuild(split.priced, _Meanwhile(redis, lambda: split.end(working)), plan)
    assert await redis.balance(ACME) == 500 + 200_000
    await rebuild(split.priced, redis, await plan_rebuild(split.priced, redis, ACME))
    assert await redis.balance(ACME) == 950_000
    await split.check_money()


class _Meanwhile:
    """A budget to which something happens right before it is written."""

    def __init__(self, budget: RedisBudget, happening: Callable[[], Awaitable[object]]) -> None:
        self._budget, self._happening = budget, happening

    def __getattr__(self, name: str) -> Any:
        return getattr(self._budget, name)

    async def restore(self, *args: Any) -> bool:
        await self._happening()
        return await self._budget.restore(*args)


async def test_a_credit_that_a_refused_rebuild_had_noted_can_still_be_given(split: Stack, redis: RedisBudget) -> None:
    """PRICED-58, PRICED-61: a note without its money would lose it"""
    away = with_trouble(split.priced, Trouble({"budget.credit": [BEFORE]}))
    with pytest.raises(DependencyUnavailable):
        await credit(away, ACME, 500, "late")
    plan = await plan_rebuild(split.priced, redis, ACME)
    assert [each.op_key for each in plan.credits] == ["topup:late"]
    with pytest.raises(Conflict):
        await rebuild(split.priced, _Meanwhile(redis, split.submitted), plan)
    assert await credit(split.priced, ACME, 500, "late") == CreditResult(750_500, is_new=True)
    await split.check_money()


async def test_a_credit_that_a_rebuild_has_given_is_not_given_again(split: Stack, redis: RedisBudget) -> None:
    """PRICED-58, PRICED-61"""
    away = with_trouble(split.priced, Trouble({"budget.credit": [BEFORE]}))
    with pytest.raises(DependencyUnavailable):
        await credit(away, ACME, 500, "late")
    await rebuild(split.priced, redis, await plan_rebuild(split.priced, redis, ACME))
    assert await redis.balance(ACME) == DOLLAR + 500
    assert await credit(split.priced, ACME, 500, "late") == CreditResult(DOLLAR + 500, is_new=False)
    assert (await redis.credit(ACME, 500, "late")) == AlreadyApplied()
    await split.check_money()


async def test_a_rebuild_that_died_before_the_balance_leaves_too_little_and_can_be_done_again(
    split: Stack, redis: RedisBudget
) -> None:
    away = with_trouble(split.priced, Trouble({"budget.credit": [BEFORE]}))
    with pytest.raises(DependencyUnavailable):
        await credit(away, ACME, 500, "late")

    async def die() -> None:
        raise Killed

    plan = await plan_rebuild(split.priced, redis, ACME)
    with pytest.raises(Killed):
        await rebuild(split.priced, _Meanwhile(redis, die), plan)
    assert await credit(split.priced, ACME, 500, "late") == CreditResult(DOLLAR, is_new=False, off_usd_micros=-500)
    await rebuild(split.priced, redis, await plan_rebuild(split.priced, redis, ACME))
    assert await redis.balance(ACME) == DOLLAR + 500
    await split.check_money()


@pytest.mark.parametrize("word", ["7.5e5", "x", "", "007", "9" * 30])
async def test_a_damaged_balance_is_told_by_the_audit_and_rebuilt(split: Stack, redis: RedisBudget, word: str) -> None:
    """PRICED-60, PRICED-61: runs that wait are no hindrance"""
    run = await split.submitted()
    await damage_balance(redis, ACME, word)
    if word != "9" * 30:  # a number, if a large one
        [found] = (await audit(split.priced)).differences
        assert (found.check, found.tenant_id, found.detail) == (2, ACME, "the balance in the budget is damaged")
    plan = await plan_rebuild(split.priced, redis, ACME)
    await rebuild(split.priced, redis, plan)
    assert await redis.balance(ACME) == 750_000
    await split.work()
    assert (await split.row(run.run_id)).status is Status.COMPLETED
    await split.check_money()


async def test_a_damaged_balance_hides_nobody_elses(split: Stack, redis: RedisBudget) -> None:
    await split.credit(DOLLAR, "other")
    await damage_balance(redis, ACME)
    [shown] = await list_budgets(split.priced, Caller(tenant_id="other"), "")
    assert (shown.tenant_id, shown.balance_usd_micros) == ("other", DOLLAR)
    with pytest.raises(DependencyUnavailable, match="damaged"):
        await show_budget(split.priced, Caller(tenant_id=ACME), ACME)


async def test_a_damaged_or_stolen_reservation_of_a_waiting_run_is_written_anew(
    split: Stack, redis: RedisBudget
) -> None:
    """PRICED-61"""
    damaged, stolen = await split.submitted(), await split.submitted()
    await damage_reservation(redis, damaged.run_id)
    held = OpenReservation(run_id=stolen.run_id, tenant_id="eve", reserved_usd_micros=250_000, created_at_ms=1)
    await put_reservation(redis, held)
    await rebuild(split.priced, redis, await plan_rebuild(split.priced, redis, ACME))
    await split.drain()
    await split.check_money()


async def test_more_than_one_amount_can_be_rebuilt(split: Stack, redis: RedisBudget) -> None:
    """PRICED-40 bounds one amount, and not what a tenant has."""
    for ref in ("r1", "r2"):
        await credit(split.priced, ACME, MAX_AMOUNT_USD_MICROS, ref)
    await set_balance(redis, ACME, 0)
    await rebuild(split.priced, redis, await plan_rebuild(split.priced, redis, ACME))
    assert await redis.balance(ACME) == 2 * MAX_AMOUNT_USD_MICROS + DOLLAR
    await split.check_money()


async def test_in_joint_mode_there_is_nothing_to_rebuild(request: pytest.FixtureRequest, redis: RedisBudget) -> None:
    async with open_stack(SQLITE, request) as stack:
        with pytest.raises(Conflict):
            await plan_rebuild(stack.priced, redis, ACME)
