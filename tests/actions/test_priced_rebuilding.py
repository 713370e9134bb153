"""A budget outside the ledger is made what the journal says."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from priced_stacks import ACME, QUICK_SPLIT, SQLITE, Killed, Stack, an_ask, open_stack
from pyoco_server.actions.priced.audit import audit
from pyoco_server.actions.priced.rebuild import plan_rebuild, rebuild
from pyoco_server.core.priced.states import Status
from pyoco_server.errors import Conflict
from pyoco_server.ports.budget.redis import RedisBudget

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
    await redis.set_balance(ACME, 5)
    plan = await plan_rebuild(split.priced, redis, ACME)
    await redis.set_balance(ACME, 600_000)
    await split.submitted()
    with pytest.raises(Conflict):
        await rebuild(split.priced, redis, plan)
    assert len((await audit(split.priced)).differences) == 1


async def test_in_joint_mode_there_is_nothing_to_rebuild(request: pytest.FixtureRequest, redis: RedisBudget) -> None:
    async with open_stack(SQLITE, request) as stack:
        with pytest.raises(Conflict):
            await plan_rebuild(stack.priced, redis, ACME)
