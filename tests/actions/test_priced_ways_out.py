"""Ends that no second try can make: each becomes a dispute, an operator decides, and the money adds up again."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from pyoco_server.actions.priced import intents
from pyoco_server.actions.priced.finalize import Disputed, claim_end, finish
from pyoco_server.actions.priced.patience import NO_PATIENCE
from pyoco_server.actions.priced.rebuild import plan_rebuild, rebuild
from pyoco_server.actions.priced.resolve import Refund, Settle, resolve
from pyoco_server.core.priced.constants import MAX_AMOUNT_USD_MICROS
from pyoco_server.core.priced.money import AmountError
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Actor, Basis, Money, Stage
from pyoco_server.ports.budget.port import OpenReservation
from pyoco_server.ports.budget.redis import RedisBudget
from pyoco_server.ports.ledger.port import LedgerRefused, LedgerTx
from pyoco_server.ports.ledger.sql import SqlLedger
from support.backends import fields_of
from support.priced.redis_stock import damage_balance, damage_reservation, put_reservation, set_balance
from support.priced.stacks import ACME, BOTH_MODES, POSTGRES, QUICK_SPLIT, SQLITE, Stack, open_stack

DOLLAR = 1_000_000


@pytest.fixture
async def split(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with open_stack(QUICK_SPLIT, request) as stack:
        await stack.credit(DOLLAR)
        yield stack


@pytest.fixture(params=BOTH_MODES)
async def stack(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with open_stack(request.param, request) as stack:
        await stack.credit(DOLLAR)
        yield stack


async def claimed(stack: Stack, charge_usd_micros: int = 50_000) -> PricedRun:
    run = await stack.started(await stack.submitted())
    intent = replace(intents.success(run, 50_000, await stack.upload(run)), charge_usd_micros=charge_usd_micros)
    got = await claim_end(stack.priced, run, Basis.LEASE, Actor.WORKER, intent, run.lease_token)
    assert isinstance(got, PricedRun)
    return got


async def mend(stack: Stack, run: PricedRun, charge_usd_micros: int = 50_000) -> None:
    """As an operator does it: decide, and in split mode rebuild."""
    await resolve(stack.priced, run.run_id, Settle(charge_usd_micros) if charge_usd_micros else Refund(), "seen to")
    if isinstance(budget := stack.priced.budget, RedisBudget):
        await rebuild(stack.priced, budget, await plan_rebuild(stack.priced, budget, ACME))
    assert await stack.balance() == DOLLAR - charge_usd_micros
    await stack.check_money()


@pytest.mark.parametrize("how", ["of another tenant", "damaged", "of another kind", "a damaged balance"])
async def test_a_budget_in_redis_that_nobody_can_close_is_disputed(
    split: Stack, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """PRICED-24, PRICED-46, D-7: T17 at once, with its alarm; T18 and PRICED-61 repair it"""
    budget = split.priced.budget
    run = await claimed(split)
    match how:
        case "of another tenant":
            held = OpenReservation(
                run_id=run.run_id, tenant_id="eve", reserved_usd_micros=250_000, created_at_ms=run.created_at // 1000
            )
            await put_reservation(budget, held)
        case "damaged":
            await damage_reservation(budget, run.run_id)
        case "of another kind":
            await budget._link._client.delete(f"reserve:{run.run_id}")  # type: ignore[attr-defined]
            await budget._link._client.lpush(f"reserve:{run.run_id}", "x")  # type: ignore[attr-defined]
        case _:
            await damage_balance(budget, ACME)
    with caplog.at_level(logging.ERROR):
        ended = await finish(split.priced, run, Actor.WORKER)
    assert isinstance(ended, Disputed)
    assert (ended.run.money, ended.run.stage) == (Money.DISPUTED, Stage.CLAIMED)
    assert "disputed" in {fields_of(record).get("alarm") for record in caplog.records}
    await mend(split, run)


async def test_a_keeper_disputes_what_it_cannot_close(split: Stack) -> None:
    """PRICED-159: a claim does not go from hand to hand for ever"""
    run = await split.started(await split.submitted())
    await damage_reservation(split.priced.budget, run.run_id)
    split.skew.move(1000)
    await split.keep()
    assert (await split.row(run.run_id)).money is Money.DISPUTED
    await mend(split, run, 0)


@pytest.mark.parametrize("kind", [SQLITE, POSTGRES])
async def test_a_reservation_of_another_tenant_in_the_ledger_is_disputed(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """PRICED-46, PRICED-52"""
    async with open_stack(kind, request) as stack:
        await stack.credit(DOLLAR)
        run = await claimed(stack)
        assert isinstance(stack.bare.ledger, SqlLedger)
        engine = create_engine(stack.bare.ledger._where)
        with engine.begin() as connection:
            connection.execute(text("UPDATE reservations SET tenant_id = 'eve'"))
        engine.dispose()
        assert isinstance(await finish(stack.priced, run, Actor.WORKER), Disputed)
        assert await stack.balance() == 750_000
        await mend(stack, run)


async def test_a_charge_that_is_no_amount_is_disputed(stack: Stack) -> None:
    """PRICED-40: a defect of ours in an intent"""
    run = await claimed(stack, charge_usd_micros=MAX_AMOUNT_USD_MICROS + 1)
    assert isinstance(await finish(stack.priced, run, Actor.WORKER), Disputed)
    await mend(stack, run)


@pytest.mark.parametrize("refusal", [LedgerRefused("a rule of the tables"), AmountError("too much")], ids=repr)
async def test_a_commit_that_the_ledger_refuses_is_disputed(stack: Stack, refusal: Exception) -> None:
    """PRICED-20: no second try heals it"""
    run = await claimed(stack)
    refusing = replace(stack.priced, ledger=_Refusing(stack.priced.ledger, refusal))
    ended = await finish(refusing, run, Actor.WORKER, NO_PATIENCE)
    assert isinstance(ended, Disputed)
    await mend(stack, run)


class _Refusing:
    """A ledger that refuses the first transaction after its work was done, and so undoes it."""

    def __init__(self, ledger: Any, refusal: Exception) -> None:
        self._ledger, self._refusals = ledger, [refusal]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def transact(self, work: Any) -> Any:
        def undone(tx: LedgerTx) -> Any:
            done = work(tx)
            if self._refusals:
                raise self._refusals.pop()
            return done

        return await self._ledger.transact(undone)


@pytest.mark.parametrize("mode", [SQLITE, QUICK_SPLIT])
async def test_money_that_no_balance_can_take_back_is_disputed(mode: str, request: pytest.FixtureRequest) -> None:
    """PRICED-198"""
    async with open_stack(mode, request) as stack:
        await stack.credit(DOLLAR)
        run = await claimed(stack)
        most = 2**63 - 1
        if isinstance(stack.priced.budget, RedisBudget):
            await set_balance(stack.priced.budget, ACME, most)
        else:
            await stack.priced.ledger.transact(lambda tx: tx.modes.set_balance(ACME, most))
        assert isinstance(await finish(stack.priced, run, Actor.WORKER), Disputed)
        assert await stack.balance() == most
