"""The last safety net: ends that were begun and not made."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from sqlalchemy import create_engine, text

from pyoco_server.actions.priced import intents
from pyoco_server.actions.priced.finalize import Finished, Unfinished, claim_end, finish
from pyoco_server.actions.priced.orphans import refund_orphans
from pyoco_server.actions.priced.patience import NO_PATIENCE
from pyoco_server.actions.priced.reconcile import reconcile
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.core.priced.run import PricedRun, ResultPointer
from pyoco_server.core.states.priced import Actor, Basis, Money, Stage, Status
from pyoco_server.loops.priced.reconciler import Reconciler
from pyoco_server.ports.budget.port import OpenReservation, Settled
from pyoco_server.ports.budget.redis import RedisBudget
from pyoco_server.ports.ledger.port import LOST
from pyoco_server.ports.ledger.sql import SqlLedger
from support.backends import fields_of
from support.priced.faults import BEFORE, Trouble, with_trouble
from support.priced.redis_stock import damage_balance, drop_reservation, put_reservation, set_balance
from support.priced.stacks import ACME, BOTH_MODES, QUICK_SPLIT, SQLITE, Killed, Stack, an_ask, open_stack

DOLLAR = 1_000_000


@pytest.fixture(params=BOTH_MODES)
async def stack(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with open_stack(request.param, request) as stack:
        await stack.credit(DOLLAR)
        yield stack


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


async def stale(stack: Stack, pointer: ResultPointer | None = None) -> PricedRun:
    """A success that was claimed, and whose worker died."""
    run = await stack.started(await stack.submitted())
    intent = intents.success(run, 50_000, pointer or await stack.upload(run))
    claimed = await claim_end(stack.priced, run, Basis.LEASE, Actor.WORKER, intent, run.lease_token)
    assert isinstance(claimed, PricedRun)
    stack.skew.move(301)
    return claimed


def alarms(caplog: pytest.LogCaptureFixture) -> set[object]:
    return {fields_of(record).get("alarm") for record in caplog.records} - {None}


async def test_a_stale_claim_is_finished_as_it_was_intended(stack: Stack, caplog: pytest.LogCaptureFixture) -> None:
    """PRICED-159, PRICED-160, PRICED-162: T15, T7; told as an alarm"""
    claimed = await stale(stack)
    with caplog.at_level(logging.WARNING):
        await Reconciler(stack.priced).turn()
    row = await stack.row(claimed.run_id)
    assert (row.status, row.actual_cost_usd_micros, row.finalize_actor) == (Status.COMPLETED, 50_000, Actor.RECONCILE)
    assert row.version == claimed.version + 2
    assert row.finalize_token != claimed.finalize_token
    assert "reconcile_action" in alarms(caplog)
    await stack.check_money()


async def test_a_young_claim_is_left_alone(stack: Stack) -> None:
    """PRICED-159: strictly older"""
    claimed = await stale(stack)
    stack.skew.move(-10)
    assert await reconcile(stack.priced, claimed) is LOST
    await Reconciler(stack.priced).turn()
    assert await stack.row(claimed.run_id) == claimed


@pytest.mark.parametrize("what", ["missing", "different"])
async def test_a_success_without_its_result_fails(stack: Stack, what: str) -> None:
    """PRICED-161: T19, then the minimum fee"""
    run = await stack.submitted()
    real = await stack.upload(run)
    pointer = replace(real, key="dpp/nothing") if what == "missing" else replace(real, sha256="0" * 64)
    claimed = await stale(stack, pointer)
    ended = await reconcile(stack.priced, claimed)
    assert isinstance(ended, Finished)
    assert (ended.run.status, ended.run.reason_code) == (Status.FAILED, "RESULT_MISSING")
    assert (ended.run.actual_cost_usd_micros, ended.run.result) == (5_000, None)
    await stack.check_money()


async def test_a_settled_success_without_its_result_is_disputed(split: Stack) -> None:
    """PRICED-25, D-6: the settlement stands, and the intent is another by now"""
    claimed = await stale(split)
    split.points.kill_at = "finalize.after_money"
    with pytest.raises(Killed):
        await finish(split.priced, claimed, Actor.WORKER)
    gone = with_trouble(split.priced, Trouble())
    gone = replace(gone, results=_Empty(split.priced.results))  # type: ignore[arg-type]
    await reconcile(gone, claimed)
    row = await split.row(claimed.run_id)
    assert (row.money, row.stage, row.status) == (Money.DISPUTED, Stage.CLAIMED, Status.PROCESSING)
    assert await split.balance() == 950_000


class _Empty:
    """A store that has lost everything."""

    def __init__(self, results: object) -> None:
        self.bucket = results.bucket  # type: ignore[attr-defined]

    async def head(self, _: str) -> None:
        return None


async def test_a_store_of_results_that_is_away_leaves_the_claim(stack: Stack) -> None:
    """PRICED-161: it becomes stale again"""
    claimed = await stale(stack)
    away = with_trouble(stack.priced, Trouble({"results.head": [BEFORE]}))
    assert isinstance(await reconcile(away, claimed), Unfinished)
    row = await stack.row(claimed.run_id)
    assert (row.stage, row.intent) == (Stage.CLAIMED, claimed.intent)
    await Reconciler(stack.priced).turn()
    assert (await stack.row(claimed.run_id)).stage is Stage.CLAIMED
    stack.skew.move(301)
    await Reconciler(stack.priced).turn()
    assert (await stack.row(claimed.run_id)).status is Status.COMPLETED


async def test_a_result_in_another_store_is_not_called_missing(joint: Stack) -> None:
    """This keeper cannot know: NotFound is never said for what was not looked at (PRICED-211)."""
    run = await joint.submitted()
    claimed = await stale(joint, replace(await joint.upload(run), bucket="elsewhere"))
    assert isinstance(await reconcile(joint.priced, claimed), Unfinished)
    assert (await joint.row(claimed.run_id)).intent == claimed.intent


async def test_leases_that_nobody_reaps_are_seen_to(stack: Stack, caplog: pytest.LogCaptureFixture) -> None:
    """PRICED-159 (b), D-11"""
    run = await stack.started(await stack.submitted())
    stack.skew.move(121 + 295)
    await Reconciler(stack.priced).turn()
    assert (await stack.row(run.run_id)).stage is Stage.OPEN
    stack.skew.move(10)
    with caplog.at_level(logging.WARNING):
        await Reconciler(stack.priced).turn()
    row = await stack.row(run.run_id)
    assert (row.reason_code, row.finalize_actor) == ("WORKER_TIMEOUT", Actor.RECONCILE)
    assert "reconcile_action" in alarms(caplog)
    await stack.check_money()


async def test_money_that_no_run_holds_goes_back(split: Stack) -> None:
    """PRICED-163: a deleted row, and an ended one; never an open one"""
    now_us = await split.priced.ledger.read(lambda tx: tx.now_us())
    await split.priced.budget.reserve(ACME, "7f0c5a4e-0000-4000-8000-000000000000", 1_000, now_us)
    alive = await split.submitted()
    split.points.kill_at = "submit.after_insert"
    late = an_ask()
    with pytest.raises(Killed):
        await split.submitted(late)
    split.skew.move(61)
    await split.keep()
    await split.priced.budget.reserve(ACME, late.run_id, 250_000, now_us)
    assert await split.balance() == 499_000
    assert await refund_orphans(split.priced) == 0, "they may be on their way"
    split.skew.move(601)
    assert await refund_orphans(split.priced) == 2
    assert await refund_orphans(split.priced) == 0
    assert await split.balance() == 750_000
    await split.drain()
    assert (await split.row(alive.run_id)).status is Status.COMPLETED
    await split.check_money()


async def test_an_orphan_of_a_charged_run_is_charged(split: Stack) -> None:
    """PRICED-16, PRICED-163: Redis came back without the settlement; a refund would give back what was taken"""
    await split.submitted()
    ended = await split.work()
    assert isinstance(ended, Finished)
    budget, run = split.priced.budget, ended.run
    await set_balance(budget, ACME, 750_000)
    held = OpenReservation(run_id=run.run_id, tenant_id=ACME, reserved_usd_micros=250_000, created_at_ms=1)
    await put_reservation(budget, held)
    split.skew.move(700)
    assert await refund_orphans(split.priced) == 1
    assert await budget.outcome(run.run_id) == Settled(50_000, 200_000)
    assert await split.balance() == 950_000
    await split.check_money()


async def test_a_damaged_budget_keeps_no_other_orphans_money(split: Stack) -> None:
    """PRICED-163"""
    await split.credit(DOLLAR, "other")
    for tenant_id in (ACME, "other"):
        await split.priced.budget.reserve(tenant_id, an_ask().run_id, 1_000, 0)
    await damage_balance(split.priced.budget, ACME)
    assert await refund_orphans(split.priced) == 1
    assert await split.balance("other") == DOLLAR


async def test_in_joint_mode_there_are_no_orphans(joint: Stack) -> None:
    await joint.submitted()
    joint.skew.move(601)
    assert await refund_orphans(joint.priced) == 0


async def test_what_waits_for_a_human_is_told(split: Stack, caplog: pytest.LogCaptureFixture) -> None:
    """Section 20: DISPUTED, dead letter, stale claim"""
    claimed = await stale(split)
    assert isinstance(split.priced.budget, RedisBudget)
    await drop_reservation(split.priced.budget, claimed.run_id)
    await finish(split.priced, claimed, Actor.WORKER)
    other = await stale(split)
    reconciler = Reconciler(split.priced)
    away = Reconciler(with_trouble(split.priced, Trouble({"results.head": [BEFORE] * 9})))
    for _ in range(3):
        split.skew.move(301)
        await away.turn()
    with caplog.at_level(logging.WARNING):
        split.skew.move(301)
        await away.turn()
        assert {"disputed", "stale_claim"} <= alarms(caplog)
        split.skew.move(301)
        await reconciler.turn()
    assert (await split.row(other.run_id)).status is Status.COMPLETED


async def test_a_part_that_fails_keeps_nobody_from_the_rest(split: Stack) -> None:
    claimed = await stale(split)
    trouble = Trouble({"queue.depth": [BEFORE], "ledger.read": ["", "", "", BEFORE]})
    await Reconciler(with_trouble(split.priced, trouble)).turn()
    assert (await split.row(claimed.run_id)).status is Status.COMPLETED
    assert "queue.depth" in trouble.calls


async def test_a_refund_of_a_started_run_is_finished_as_it_was_intended(stack: Stack) -> None:
    """SAFE-3: its worker died between the claim and the commit"""
    run = await stack.started(await stack.submitted())
    intent = intents.unavailable("the model is away")
    claimed = await claim_end(stack.priced, run, Basis.LEASE, Actor.WORKER, intent, run.lease_token)
    assert isinstance(claimed, PricedRun)
    stack.skew.move(301)
    ended = await reconcile(stack.priced, claimed, NO_PATIENCE)
    assert isinstance(ended, Finished)
    assert (ended.run.status, ended.run.money, ended.run.actual_cost_usd_micros) == (Status.FAILED, Money.REFUNDED, 0)
    assert await stack.balance() == DOLLAR
    await stack.check_money()


async def test_a_claim_of_a_queued_run_is_finished_too(stack: Stack) -> None:
    """PRICED-159, D-36"""
    run = await stack.submitted()
    stack.skew.move(3601)
    intent = intents.refund(Reason.RESERVATION_EXPIRED)
    claimed = await claim_end(stack.priced, run, Basis.AGED, Actor.SWEEPER, intent)
    assert isinstance(claimed, PricedRun)
    stack.skew.move(301)
    ended = await reconcile(stack.priced, claimed, NO_PATIENCE)
    assert isinstance(ended, Finished)
    assert (ended.run.status, ended.run.money) == (Status.FAILED, Money.REFUNDED)
    assert await stack.balance() == DOLLAR
    await stack.check_money()


async def test_a_claim_that_cannot_be_read_does_not_keep_the_others_from_their_end(
    joint: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    """PRICED-159: and one whose text was written without care is ended like any other"""
    unreadable, odd, good = await stale(joint), await stale(joint), await stale(joint)
    assert isinstance(joint.bare.ledger, SqlLedger)
    engine = create_engine(joint.bare.ledger._url)
    with engine.begin() as connection:
        change = text("UPDATE runs SET finalize_intent = :intent WHERE run_id = :run")
        connection.execute(change, {"intent": "{}", "run": unreadable.run_id})
        intent = intents.failure(odd, Reason.PACK_FAILED).document() | {"error_detail": "X: \ud800\x00"}
        connection.execute(change, {"intent": json.dumps(intent), "run": odd.run_id})
    with caplog.at_level(logging.ERROR):
        await Reconciler(joint.priced).turn()
    assert "unreadable_row" in alarms(caplog)
    assert (await joint.row(good.run_id)).status is Status.COMPLETED
    row = await joint.row(odd.run_id)
    assert (row.status, row.error_detail) == (Status.FAILED, "X: \ufffd")
    with engine.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM runs WHERE finalize_stage = 'CLAIMED'")).scalar() == 1
    engine.dispose()
