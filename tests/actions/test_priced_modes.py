"""One ledger, one place for its budgets: processes that disagree do not start, and an operator moves the money."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.actions.priced.audit import audit
from pyoco_server.actions.priced.change_mode import agree_on_mode, change_mode, plan_mode_change
from pyoco_server.actions.priced.credit import CreditResult, credit
from pyoco_server.errors import Conflict, SettingError
from pyoco_server.ports.budget.redis import RedisBudget
from pyoco_server.ports.budget.sql import SqlBudget
from pyoco_server.ports.ledger.port import BudgetMode
from pyoco_server.ports.ledger.sql import SqlLedger
from support.priced.ledgers import postgres_ledger, sqlite_ledger
from support.priced.stacks import ACME, QUICK_SPLIT, Killed, Stack, an_ask, open_stack

DOLLAR = 1_000_000
JOINT, SPLIT = BudgetMode.JOINT, BudgetMode.SPLIT


@pytest.fixture(params=["sqlite", "postgres"])
async def ledger(request: pytest.FixtureRequest) -> AsyncIterator[SqlLedger]:
    if request.param == "sqlite":
        async with sqlite_ledger(request.getfixturevalue("tmp_path")) as ledger:
            yield ledger
    else:
        async with postgres_ledger(request.getfixturevalue("postgres_server")) as ledger:
            yield ledger


@pytest.fixture
async def split(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with open_stack(QUICK_SPLIT, request) as stack:
        await agree_on_mode(stack.priced.ledger, SPLIT)
        yield stack


@pytest.fixture
def joint(split: Stack) -> Stack:
    """The same ledger, by a process whose budgets are in it."""
    ledger = split.priced.ledger
    return replace(split, priced=replace(split.priced, budget=SqlBudget(ledger), idempotency_locks=None))


def redis_of(split: Stack) -> RedisBudget:
    assert isinstance(split.priced.budget, RedisBudget)
    return split.priced.budget


async def mode_of(stack: Stack) -> BudgetMode | None:
    return await stack.priced.ledger.read(lambda tx: tx.modes.get())


@pytest.mark.parametrize(("first", "second"), [(JOINT, SPLIT), (SPLIT, JOINT)])
async def test_who_comes_first_decides_and_others_are_told(
    ledger: SqlLedger, first: BudgetMode, second: BudgetMode
) -> None:
    for _ in range(2):
        await agree_on_mode(ledger, first)
    with pytest.raises(SettingError) as refused:
        await agree_on_mode(ledger, second)
    for word in (f"are {second},", f"are {first},", "PYOCO_BUDGET_URL", f"ledger mode --to {second}"):
        assert word in str(refused.value)
    assert await ledger.transact(lambda tx: tx.modes.begin(second)) is first


async def ended_runs(stack: Stack) -> None:
    """One of each end."""
    await credit(stack.priced, ACME, DOLLAR, f"seed-{stack.is_split}")
    await stack.submitted()
    await stack.work()
    await stack.submitted()
    await stack.work(fails=True)
    await stack.submitted()
    stack.skew.move(3601)
    await stack.keep()
    await stack.drain()


async def test_money_goes_there_and_back_and_adds_up(split: Stack, joint: Stack) -> None:
    """PRICED-16, PRICED-49, PRICED-61: what ended in one mode has ended in the other"""
    await ended_runs(split)
    plan = await plan_mode_change(joint.priced, JOINT)
    assert (plan.before, plan.after, plan.available_usd_micros) == (SPLIT, JOINT, {ACME: 945_000})
    assert await mode_of(split) is SPLIT, "a dry run changes nothing"
    assert await change_mode(joint.priced, None, plan) == ()
    assert await mode_of(joint) is JOINT
    assert await joint.balance() == 945_000
    await ended_runs(joint)
    await joint.check_money()
    plan = await plan_mode_change(split.priced, SPLIT)
    assert await change_mode(split.priced, redis_of(split), plan) == ()
    assert await split.balance() == 2 * 945_000
    await split.submitted()
    await split.work()
    await split.check_money()


async def test_a_credit_of_the_one_mode_is_not_given_again_in_the_other(split: Stack, joint: Stack) -> None:
    """PRICED-58"""
    await credit(split.priced, ACME, 1_000, "first")
    await change_mode(joint.priced, None, await plan_mode_change(joint.priced, JOINT))
    assert await credit(joint.priced, ACME, 1_000, "first") == CreditResult(1_000, is_new=False)
    await credit(joint.priced, ACME, 500, "second")
    await change_mode(split.priced, redis_of(split), await plan_mode_change(split.priced, SPLIT))
    for ref, amount in (("first", 1_000), ("second", 500)):
        assert await credit(split.priced, ACME, amount, ref) == CreditResult(1_500, is_new=False)
    assert (await audit(split.priced)).differences == ()


async def test_no_mode_is_changed_while_a_run_has_not_ended(split: Stack, joint: Stack) -> None:
    """PRICED-61: QUEUED with and without money, PROCESSING"""
    await split.credit(DOLLAR)
    split.points.kill_at = "submit.after_insert"
    with pytest.raises(Killed):
        await split.submitted()
    with pytest.raises(Conflict, match="have not ended"):
        await plan_mode_change(joint.priced, JOINT)
    split.skew.move(61)
    await split.keep()
    await plan_mode_change(joint.priced, JOINT)
    run = await split.submitted()
    with pytest.raises(Conflict, match=run.run_id):
        await plan_mode_change(joint.priced, JOINT)
    await split.started(run)
    with pytest.raises(Conflict, match=run.run_id):
        await plan_mode_change(joint.priced, JOINT)


@pytest.mark.parametrize("what", ["a run", "a credit", "the mode"])
async def test_what_happens_after_the_dry_run_refuses_the_change(split: Stack, joint: Stack, what: str) -> None:
    await split.credit(DOLLAR)
    plan = await plan_mode_change(joint.priced, JOINT)
    if what == "a run":
        await split.submitted(an_ask())
    elif what == "a credit":
        await split.credit(1)
    else:
        await split.priced.ledger.transact(lambda tx: tx.modes.set(JOINT))
    with pytest.raises(Conflict):
        await change_mode(joint.priced, None, plan)
    assert await joint.balance() == 0


async def test_a_change_that_died_is_done_again(split: Stack, joint: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash leaves the old mode, with all it needs."""
    await ended_runs(split)
    plan = await plan_mode_change(joint.priced, JOINT)

    async def die(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("pyoco_server.actions.priced.change_mode.audit", die)
        with pytest.raises(Killed):
            await change_mode(joint.priced, None, plan)
    await change_mode(split.priced, redis_of(split), await plan_mode_change(split.priced, SPLIT))
    await split.check_money()
    await change_mode(joint.priced, None, await plan_mode_change(joint.priced, JOINT))
    await joint.check_money()
