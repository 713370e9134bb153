"""Disputed runs: an operator's word becomes money facts, and the books are whole again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from pyoco_server.actions.priced import intents
from pyoco_server.actions.priced.finalize import Disputed, claim_end, finish
from pyoco_server.actions.priced.rebuild import plan_rebuild, rebuild
from pyoco_server.actions.priced.resolve import Decision, Refund, Settle, resolve
from pyoco_server.core.priced.journal import Closing
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Actor, Basis, Money, Stage, Status
from pyoco_server.errors import Conflict, RunNotFound
from pyoco_server.ports.budget.redis import RedisBudget
from pyoco_server.ports.ledger.sql import SqlLedger
from support.priced.ledgers import an_id
from support.priced.redis_stock import drop_reservation
from support.priced.stacks import ACME, QUICK_SPLIT, SQLITE, Stack, an_ask, open_stack

DOLLAR = 1_000_000
BY = Closing(actor=Actor.OPERATOR)


@pytest.fixture
async def joint(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with open_stack(SQLITE, request) as stack:
        await stack.credit(DOLLAR)
        yield stack


@pytest.fixture
async def split(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with open_stack(QUICK_SPLIT, request) as stack:
        await stack.credit(DOLLAR)
        yield stack


async def disputed(stack: Stack, tamper: Callable[[PricedRun], Any]) -> PricedRun:
    run = await stack.started(await stack.submitted())
    intent = intents.success(run, 50_000, await stack.upload(run))
    claimed = await claim_end(stack.priced, run, Basis.LEASE, Actor.WORKER, intent, run.lease_token)
    assert isinstance(claimed, PricedRun)
    await tamper(claimed)
    ended = await finish(stack.priced, claimed, Actor.WORKER)
    assert isinstance(ended, Disputed)
    return ended.run


async def delete_reservation(stack: Stack, run: PricedRun) -> None:
    assert isinstance(stack.bare.ledger, SqlLedger)
    engine = create_engine(stack.bare.ledger._url)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM reservations WHERE run_id = :run"), {"run": run.run_id})
    engine.dispose()


@pytest.mark.parametrize(
    ("decision", "status", "money", "charge"),
    [
        (Settle(50_000), Status.COMPLETED, Money.SETTLED, 50_000),
        (Settle(0), Status.COMPLETED, Money.SETTLED, 0),
        (Settle(250_000), Status.COMPLETED, Money.SETTLED, 250_000),
        (Refund(), Status.FAILED, Money.REFUNDED, 0),
    ],
    ids=["settle", "for nothing", "all of it", "refund"],
)
@pytest.mark.parametrize("mode", [SQLITE, QUICK_SPLIT])
async def test_what_the_operator_decides_becomes_true(
    request: pytest.FixtureRequest, mode: str, decision: Decision, status: Status, money: Money, charge: int
) -> None:
    """PRICED-16, PRICED-52: T18, after a reservation had vanished; in split mode with PRICED-61 after it"""
    async with open_stack(mode, request) as stack:
        await stack.credit(DOLLAR)
        budget = stack.priced.budget

        async def lose(run: PricedRun) -> None:
            if isinstance(budget, RedisBudget):
                await drop_reservation(budget, run.run_id)
            else:
                await delete_reservation(stack, run)

        run = await disputed(stack, lose)
        done = await resolve(stack.priced, run.run_id, decision, "Redis lost it")
        assert (done.status, done.money, done.stage) == (status, money, Stage.COMMITTED)
        assert (done.actual_cost_usd_micros, done.finalize_actor) == (charge, Actor.OPERATOR)
        assert (done.result is None) == (status is Status.FAILED)
        if isinstance(budget, RedisBudget):
            await rebuild(stack.priced, budget, await plan_rebuild(stack.priced, budget, ACME))
        assert await stack.balance() == DOLLAR - charge
        await stack.check_money()


async def test_what_the_journal_has_settled_stands_and_the_rest_is_a_correction(joint: Stack) -> None:
    """PRICED-57, PRICED-60: one closing; the difference with its reason"""
    run = await disputed(joint, lambda run: joint.priced.budget.settle(ACME, run.run_id, 70_000, BY))
    with pytest.raises(Conflict):
        await resolve(joint.priced, run.run_id, Refund(), "why")
    done = await resolve(joint.priced, run.run_id, Settle(50_000), "charged too much")
    assert done.actual_cost_usd_micros == 70_000
    assert await joint.balance() == DOLLAR - 50_000
    sums = await joint.balances()
    assert (sums.charged_usd_micros, sums.corrected_usd_micros) == (70_000, 20_000)
    [line] = [line for line in await joint.priced.ledger.read(lambda tx: tx.journal.lines(ACME, None, 9)) if line.memo]
    assert (line.kind, line.memo) == ("CORRECTION", "charged too much")
    await joint.check_money()


async def test_what_the_journal_has_refunded_is_refunded(joint: Stack) -> None:
    run = await disputed(joint, lambda run: joint.priced.budget.refund_full(ACME, run.run_id, BY))
    with pytest.raises(Conflict):
        await resolve(joint.priced, run.run_id, Settle(50_000), "why")
    done = await resolve(joint.priced, run.run_id, Refund(), "it was")
    assert (done.money, done.actual_cost_usd_micros, done.reason_code) == (Money.REFUNDED, 0, "PACK_FAILED")
    assert await joint.balance() == DOLLAR
    await joint.check_money()


async def test_a_settlement_that_redis_made_otherwise_is_overruled(split: Stack) -> None:
    """D-6"""
    run = await disputed(split, lambda run: split.priced.budget.settle(ACME, run.run_id, 70_000, BY))
    await resolve(split.priced, run.run_id, Settle(50_000), "as intended")
    assert isinstance(split.priced.budget, RedisBudget)
    plan = await plan_rebuild(split.priced, split.priced.budget, ACME)
    assert (plan.balance_before_usd_micros, plan.balance_after_usd_micros) == (930_000, 950_000)
    await rebuild(split.priced, split.priced.budget, plan)
    await split.check_money()


async def test_only_a_disputed_run_can_be_resolved(joint: Stack) -> None:
    run = await joint.submitted()
    with pytest.raises(Conflict):
        await resolve(joint.priced, run.run_id, Refund(), "why")
    with pytest.raises(RunNotFound):
        await resolve(joint.priced, an_id(), Refund(), "why")


async def test_a_charge_above_the_reservation_is_refused(joint: Stack) -> None:
    """PRICED-8"""
    run = await disputed(joint, lambda run: delete_reservation(joint, run))
    for charge in (250_001, -1):
        with pytest.raises(Conflict):
            await resolve(joint.priced, run.run_id, Settle(charge), "why")
    assert await joint.row(run.run_id) == run


async def test_two_operators_resolve_it_once(joint: Stack) -> None:
    """PRICED-7"""
    run = await disputed(joint, lambda run: delete_reservation(joint, run))
    await resolve(joint.priced, run.run_id, Settle(1), "first")
    with pytest.raises(Conflict):
        await resolve(joint.priced, run.run_id, Refund(), "second")
    await joint.check_money()
    assert await joint.balance() == DOLLAR - 1
    await joint.submitted(an_ask(usd_micros=50_000))
