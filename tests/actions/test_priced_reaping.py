"""Runs whose worker has gone silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from pyoco_server.actions.priced.beat import beat
from pyoco_server.actions.priced.finalize import Finished
from pyoco_server.actions.priced.patience import NO_PATIENCE
from pyoco_server.actions.priced.reap import reap
from pyoco_server.core.priced.constants import JANITOR_BATCH
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Actor, Money, Stage, Status
from pyoco_server.loops.priced.duty import Duty
from pyoco_server.loops.priced.reaper import Reaper
from pyoco_server.ports.ledger.port import LOST, LedgerTx, Scan
from support.priced.faults import BEFORE, Trouble, with_trouble
from support.priced.stacks import ACME, BOTH_MODES, QUICK_SPLIT, SQLITE, Stack, an_ask, open_stack

DOLLAR = 1_000_000


@pytest.fixture(params=BOTH_MODES)
async def stack(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with open_stack(request.param, request) as stack:
        await stack.credit(DOLLAR)
        yield stack


@pytest.fixture
async def joint(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with open_stack(SQLITE, request, priced_reaper_interval_sec=1) as stack:
        await stack.credit(10 * DOLLAR)
        yield stack


@pytest.fixture
async def split(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with open_stack(QUICK_SPLIT, request) as stack:
        await stack.credit(10 * DOLLAR)
        yield stack


async def many_started(stack: Stack, count: int) -> list[PricedRun]:
    """In joint mode, in one transaction."""

    def make(tx: LedgerTx) -> PricedRun:
        ask = an_ask(usd_micros=10_000)
        row = tx.runs.create(ask)
        assert isinstance(row, PricedRun)
        tx.money.reserve(ACME, ask.run_id, 10_000)
        run = tx.runs.mark_reserved(row.run_id, row.version)
        assert isinstance(run, PricedRun)
        run = tx.leases.start(run.run_id, run.version, ask.run_id)
        assert isinstance(run, PricedRun)
        return run

    return await stack.priced.ledger.transact(lambda tx: [make(tx) for _ in range(count)])


async def test_a_silent_worker_costs_the_minimum_fee(stack: Stack) -> None:
    """PRICED-152, PRICED-154, PRICED-155: also when its result is uploaded; T9, T10"""
    run = await stack.started(await stack.submitted())
    await stack.upload(run)
    await Reaper(stack.priced).turn()
    assert (await stack.row(run.run_id)).stage is Stage.OPEN
    stack.skew.move(121)
    await Reaper(stack.priced).turn()
    row = await stack.row(run.run_id)
    assert (row.status, row.money, row.reason_code) == (Status.FAILED, Money.SETTLED, "WORKER_TIMEOUT")
    assert (row.actual_cost_usd_micros, row.finalize_actor, row.result) == (5_000, Actor.REAPER, None)
    assert await stack.balance() == DOLLAR - 5_000
    await stack.check_money()


async def test_a_heartbeat_after_the_look_defeats_the_claim(stack: Stack) -> None:
    """PRICED-153, D-33"""
    run = await stack.started(await stack.submitted())
    stack.skew.move(119)
    assert await beat(stack.priced, run, run.lease_token or "")
    stack.skew.move(10)
    trouble = Trouble()
    assert await reap(with_trouble(stack.priced, trouble), run) is LOST
    assert trouble.calls == ["ledger.transact"]
    assert (await stack.row(run.run_id)).stage is Stage.OPEN


async def test_the_minimum_fee_is_at_most_what_is_reserved(stack: Stack) -> None:
    """PRICED-38, PRICED-39: of a run that was stored before SAFE-1; since then no reservation is below the fee"""
    run = await stack.started(await stack.stored_without_floor(an_ask(usd_micros=1_000)))
    stack.skew.move(121)
    ended = await reap(stack.priced, run)
    assert isinstance(ended, Finished)
    assert ended.run.actual_cost_usd_micros == 1_000
    await stack.check_money()


async def test_one_turn_ends_more_than_one_batch(joint: Stack) -> None:
    await many_started(joint, JANITOR_BATCH + 30)
    joint.skew.move(121)
    await Reaper(joint.priced).turn()
    assert {row.status for row in await joint.rows()} == {Status.FAILED}
    await joint.check_money()


async def test_one_row_that_fails_does_not_keep_the_others(joint: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect in one row, and a whole batch that must not wait for it"""
    runs = await many_started(joint, 20)
    joint.skew.move(121)
    real = joint.priced.new_id
    calls = iter(range(1000))

    def new_id() -> str:
        if next(calls) == 3:
            raise RuntimeError("a defect")
        return real()

    await Reaper(replace(joint.priced, new_id=new_id)).turn()
    rows = [await joint.row(run.run_id) for run in runs]
    assert sorted(row.status for row in rows) == [Status.FAILED] * 19 + [Status.PROCESSING]
    await Reaper(joint.priced).turn()
    assert {row.status for row in await joint.rows()} == {Status.FAILED}


async def test_with_the_budget_away_few_runs_are_claimed(split: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims that cannot be finished would only wait for reconcile."""
    runs = [await split.started(await split.submitted(an_ask(usd_micros=10_000, pack_type="ocr"))) for _ in range(20)]
    split.skew.move(121)
    away = with_trouble(split.priced, Trouble({"budget.settle": [BEFORE] * 999}))

    class Impatient(Duty):
        async def turn(self) -> None:
            await self.each(Scan.EXPIRED_LEASES, lambda run: reap(away, run, patience=NO_PATIENCE))

    await Impatient(away, every_seconds=1).turn()
    stages = [(await split.row(run.run_id)).stage for run in runs]
    assert stages.count(Stage.CLAIMED) == 8
    await Reaper(split.priced).turn()
    split.skew.move(301)
    await split.keep()
    assert {row.status for row in await split.rows()} == {Status.FAILED}
    assert await split.balance() == 10 * DOLLAR - 20 * 5_000
    await split.check_money()


async def test_with_the_ledger_away_a_turn_ends_and_the_next_one_works(joint: Stack) -> None:
    [run] = await many_started(joint, 1)
    joint.skew.move(121)
    trouble = Trouble({"ledger.transact": [BEFORE]})
    reaper = Reaper(with_trouble(joint.priced, trouble))
    await reaper.turn()
    assert (await joint.row(run.run_id)).stage is Stage.OPEN
    await reaper.turn()
    assert (await joint.row(run.run_id)).status is Status.FAILED


async def test_the_loop_starts_and_stops(joint: Stack) -> None:
    [run] = await many_started(joint, 1)
    joint.skew.move(121)
    reaper = Reaper(joint.priced)
    await asyncio.gather(reaper.start(), reaper.start())
    async with asyncio.timeout(200):
        while (await joint.row(run.run_id)).status is not Status.FAILED:
            await asyncio.sleep(0.005)
    await asyncio.gather(reaper.stop(), reaper.stop())
