"""Accepting priced runs: one run, one reservation and one message per key, whatever happens on the way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import pytest

from pyoco_server.actions.priced import submit as submitting
from pyoco_server.actions.priced.enter import enter
from pyoco_server.actions.priced.patience import NO_PATIENCE
from pyoco_server.actions.priced.submit import submit
from pyoco_server.core.priced.message import decode
from pyoco_server.core.priced.run import TenantStatus
from pyoco_server.core.states.priced import Money, Stage, Status
from pyoco_server.errors import DependencyUnavailable, KeyBusy, KeyReused, OverBudget, SendFailed
from pyoco_server.ports.idempotency_locks.port import Mapped
from support.backends import fields_of
from support.priced.faults import AFTER, BEFORE, Trouble, with_trouble
from support.priced.stacks import ACME, BOTH_MODES, QUICK_SPLIT, SQLITE, Killed, Stack, an_ask, open_stack

DOLLAR = 1_000_000


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for a ledger that does not come back."""
    monkeypatch.setattr(submitting, "BRIEF", NO_PATIENCE)


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


async def test_a_run_is_recorded_reserved_and_queued(stack: Stack) -> None:
    """PRICED-90, PRICED-98, PRICED-100, PRICED-103, PRICED-105"""
    ask = an_ask()
    accepted = await submit(stack.priced, ask)
    assert (accepted.replayed, accepted.balance_usd_micros) == (False, 750_000)
    row = await stack.row(ask.run_id)
    assert (row.status, row.money, row.stage) == (Status.QUEUED, Money.RESERVED, Stage.OPEN)
    assert row.enqueued_at is not None
    [delivery] = await stack.deliveries()
    message = decode(delivery.body)
    assert (message.run_id, message.tenant_id, message.pack_type) == (ask.run_id, ACME, "decision")
    assert b"Friday" not in delivery.body
    assert stack.shown[-1].run_id == ask.run_id
    await stack.check_money()


async def test_a_replay_gives_the_same_run_and_changes_nothing(stack: Stack) -> None:
    """PRICED-73, PRICED-88, PRICED-104"""
    first = await submit(stack.priced, an_ask("one-key-"))
    again = await submit(stack.priced, an_ask("one-key-"))
    assert (again.replayed, again.run.run_id, again.balance_usd_micros) == (True, first.run.run_id, 750_000)
    with pytest.raises(KeyReused):
        await submit(stack.priced, an_ask("one-key-", payload_hash="0" * 64))
    assert len(await stack.rows()) == 1
    assert len(await stack.deliveries(10)) == 1
    assert (await stack.balances()).held_usd_micros == 250_000


async def test_the_replay_of_a_finished_run_is_still_a_replay(joint: Stack) -> None:
    """PRICED-73"""
    first = await joint.submitted(an_ask("one-key-"))
    await joint.work()
    again = await submit(joint.priced, an_ask("one-key-"))
    assert (again.replayed, again.run.run_id, again.run.status) == (True, first.run_id, Status.COMPLETED)


async def test_a_budget_that_does_not_cover_it_leaves_no_trace(stack: Stack) -> None:
    """PRICED-89, PRICED-95, PRICED-103: T3"""
    with pytest.raises(OverBudget) as refused:
        await submit(stack.priced, an_ask("one-key-", DOLLAR + 100))
    assert refused.value.balance_usd_micros == DOLLAR
    assert await stack.rows() == []
    assert not (await submit(stack.priced, an_ask("one-key-"))).replayed
    await stack.check_money()


async def test_a_tenant_nobody_has_heard_of_has_nothing(stack: Stack) -> None:
    with pytest.raises(OverBudget) as refused:
        await submit(stack.priced, an_ask(tenant_id="stranger"))
    assert refused.value.balance_usd_micros == 0


async def test_one_key_of_two_tenants_makes_two_runs(joint: Stack) -> None:
    """PRICED-68: a key is its tenant's"""
    await joint.credit(DOLLAR, "other")
    await joint.submitted(an_ask("one-key-"))
    await joint.submitted(an_ask("one-key-", tenant_id="other"))
    assert len(await joint.rows()) == 2


async def test_a_key_is_free_once_its_run_is_past_retention(stack: Stack) -> None:
    """PRICED-88, PRICED-89: T16 by the submit"""
    first = await stack.submitted(an_ask("one-key-"))
    await stack.work()
    stack.skew.move(stack.priced.config.priced_retention_sec + 1)
    again = await submit(stack.priced, an_ask("one-key-"))
    assert (again.replayed, again.run.run_id != first.run_id) == (False, True)
    old = await stack.row(first.run_id)
    assert (old.status, old.idempotency_key, old.result) == (Status.EXPIRED, None, None)
    await stack.check_money()


async def test_a_run_past_retention_that_has_not_ended_keeps_its_key(stack: Stack) -> None:
    """PRICED-88"""
    await stack.submitted(an_ask("one-key-"))
    stack.skew.move(stack.priced.config.priced_retention_sec + 1)
    with pytest.raises(KeyBusy):
        await submit(stack.priced, an_ask("one-key-"))


async def test_a_failed_send_refunds_and_frees_the_key(stack: Stack) -> None:
    """PRICED-99, PRICED-89, D-24: T13, T14"""
    trouble = Trouble({"queue.send": [BEFORE]})
    ask = an_ask("one-key-")
    with pytest.raises(SendFailed) as failed:
        await submit(with_trouble(stack.priced, trouble), ask)
    assert failed.value.run_id == ask.run_id
    row = await stack.row(ask.run_id)
    assert (row.status, row.money, row.reason_code) == (Status.FAILED, Money.REFUNDED, "QUEUE_ENQUEUE_FAILED")
    assert (row.idempotency_key, row.actual_cost_usd_micros) == (None, 0)
    assert await stack.balance() == DOLLAR
    if stack.priced.idempotency_locks is not None:
        assert await stack.priced.idempotency_locks.mapped(ACME, "one-key-") is None
    assert not (await submit(stack.priced, an_ask("one-key-"))).replayed
    await stack.check_money()


async def test_a_send_that_worked_without_an_answer_is_accepted(stack: Stack) -> None:
    """PRICED-99, PRICED-225: a worker has it, so the claim is lost"""
    started: list[object] = []

    async def start() -> None:
        started.append(await stack.work())

    trouble = Trouble({"queue.send": [AFTER]}, {"queue.send": start})
    accepted = await submit(with_trouble(stack.priced, trouble), an_ask())
    assert not accepted.replayed
    assert len(started) == 1
    assert (await stack.row(accepted.run.run_id)).status is Status.COMPLETED
    await stack.check_money()


async def test_a_failed_send_with_the_ledger_away_leaves_the_run_to_the_sweeper(stack: Stack) -> None:
    """PRICED-99"""
    ask = an_ask("one-key-")
    placing = ["", ""] if stack.is_split else [""]
    trouble = Trouble({"queue.send": [BEFORE], "ledger.transact": [*placing, *[BEFORE] * 9]})
    with pytest.raises(DependencyUnavailable):
        await submit(with_trouble(stack.priced, trouble), ask)
    assert (await submit(stack.priced, an_ask("one-key-"))).replayed
    stack.skew.move(61)
    await stack.keep()
    assert (await stack.row(ask.run_id)).enqueued_at is not None
    await stack.work()
    assert (await stack.row(ask.run_id)).status is Status.COMPLETED
    await stack.check_money()


async def test_a_run_that_is_dying_makes_its_key_wait(stack: Stack) -> None:
    """PRICED-88: its key is about to be released"""
    stack.points.kill_at = "finalize.after_claim"
    trouble = Trouble({"queue.send": [BEFORE]})
    with pytest.raises(Killed):
        await submit(with_trouble(stack.priced, trouble), an_ask("one-key-"))
    with pytest.raises(KeyBusy):
        await submit(stack.priced, an_ask("one-key-"))
    with pytest.raises(KeyReused):
        await submit(stack.priced, an_ask("one-key-", payload_hash="0" * 64))
    stack.skew.move(301)
    await stack.keep()
    assert not (await submit(stack.priced, an_ask("one-key-"))).replayed
    await stack.check_money()


async def test_a_caller_that_goes_away_harms_nobody(stack: Stack) -> None:
    """PRICED-104: cancelled at each point, then asked again under the same key"""
    points = ("submit.after_insert", "submit.after_reserve", "submit.after_mark_reserved", "submit.after_send")
    for point in points:
        key = f"key-{point}"
        here = asyncio.Event()

        async def hold(here: asyncio.Event = here) -> None:
            here.set()
            await asyncio.Event().wait()

        stack.points.meanwhile[point] = hold
        task = asyncio.create_task(submit(stack.priced, an_ask(key, 100_000)))
        await asyncio.wait_for(here.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    stack.skew.move(61)
    await stack.keep()
    for point in points:
        await submit(stack.priced, an_ask(f"key-{point}", 100_000))
    await stack.drain()
    rows = [row for row in await stack.rows() if row.status is Status.COMPLETED]
    assert len({row.idempotency_key for row in rows}) == len(rows) == len(points)
    await stack.check_money()
    if stack.priced.idempotency_locks is not None:
        assert await stack.priced.idempotency_locks.lock(ACME, f"key-{points[0]}", "mine")


async def test_what_cannot_be_noted_as_sent_is_accepted_all_the_same(joint: Stack) -> None:
    """PRICED-100: it is sent again, and started once"""
    trouble = Trouble({"ledger.transact_softly": [BEFORE]})
    accepted = await submit(with_trouble(joint.priced, trouble), an_ask())
    assert (await joint.row(accepted.run.run_id)).enqueued_at is None


async def test_the_lock_on_a_key_makes_others_wait(split: Stack) -> None:
    """PRICED-91, PRICED-92"""
    idempotency_locks = split.priced.idempotency_locks
    assert idempotency_locks is not None
    await idempotency_locks.lock(ACME, "one-key-", "somebody")
    with pytest.raises(KeyBusy):
        await submit(split.priced, an_ask("one-key-"))
    await idempotency_locks.unlock(ACME, "one-key-", "somebody")
    first = await split.submitted(an_ask("one-key-"))
    await idempotency_locks.lock(ACME, "one-key-", "somebody")
    again = await submit(split.priced, an_ask("one-key-"))
    assert (again.replayed, again.run.run_id) == (True, first.run_id)
    with pytest.raises(KeyReused):
        await submit(split.priced, an_ask("one-key-", payload_hash="0" * 64))
    assert not await idempotency_locks.lock(ACME, "one-key-", "another"), "only its owner releases it (PRICED-101)"


async def test_a_mapping_without_a_row_is_dropped(split: Stack) -> None:
    """PRICED-93, PRICED-97, D-21"""
    idempotency_locks = split.priced.idempotency_locks
    assert idempotency_locks is not None
    await idempotency_locks.remember(ACME, "one-key-", Mapped("somebody", "0" * 64), 0)
    with pytest.raises(OverBudget):
        await submit(split.priced, an_ask("one-key-", 2 * DOLLAR))
    assert await idempotency_locks.mapped(ACME, "one-key-") is None
    run = await split.submitted(an_ask("one-key-"))
    assert await idempotency_locks.mapped(ACME, "one-key-") == Mapped(run.run_id, run.payload_hash)


async def test_hints_that_are_away_keep_nobody_from_submitting(split: Stack) -> None:
    """PRICED-97, PRICED-101: only the lock is needed"""
    trouble = Trouble({f"idempotency_locks.{name}": [BEFORE] for name in ("mapped", "remember", "unlock", "forget")})
    accepted = await submit(with_trouble(split.priced, trouble), an_ask())
    assert not accepted.replayed


async def test_a_lost_answer_to_a_reservation_is_asked_for_again(split: Stack) -> None:
    """PRICED-48, PRICED-95, D-13"""
    trouble = Trouble({"budget.reserve": [AFTER, BEFORE]})
    accepted = await submit(with_trouble(split.priced, trouble), an_ask())
    assert accepted.balance_usd_micros == 750_000
    assert trouble.calls.count("budget.reserve") == 3
    await split.check_money()


async def test_without_a_clear_answer_the_sweeper_gives_the_row_up(split: Stack) -> None:
    """PRICED-94, PRICED-95, PRICED-102, PRICED-157"""
    trouble = Trouble({"budget.reserve": [AFTER, BEFORE, BEFORE]})
    with pytest.raises(DependencyUnavailable):
        await submit(with_trouble(split.priced, trouble), an_ask("one-key-"))
    with pytest.raises(KeyBusy):
        await submit(split.priced, an_ask("one-key-"))
    assert await split.balance() == 750_000
    split.skew.move(61)
    await split.keep()
    assert await split.balance() == DOLLAR
    assert not (await submit(split.priced, an_ask("one-key-"))).replayed
    await split.check_money()


@pytest.mark.parametrize("point", ["submit.after_insert", "submit.after_reserve"])
async def test_a_submit_that_was_given_up_returns_what_it_reserved(split: Stack, point: str) -> None:
    """PRICED-96: the sweeper was faster than the reservation, or than T2"""

    async def give_up() -> None:
        split.skew.move(61)
        await split.keep()

    split.points.meanwhile[point] = give_up
    with pytest.raises(DependencyUnavailable):
        await submit(split.priced, an_ask("one-key-"))
    assert await split.balance() == DOLLAR
    [row] = await split.rows()
    assert (row.status, row.reason_code) == (Status.FAILED, "SUBMIT_ABANDONED")
    await split.check_money()


async def test_every_change_is_told_once_and_without_inputs(joint: Stack, caplog: pytest.LogCaptureFixture) -> None:
    """PRICED-171, PRICED-176"""
    with caplog.at_level(logging.INFO):
        run = await joint.submitted(an_ask(inputs={"question": "a secret marker"}))
        await joint.work(fails=True)
    told = [fields_of(record) | {"message": record.message} for record in caplog.records]
    steps = [line for line in told if "version_after" in line and line.get("run_id") == run.run_id]
    assert [(line["version_before"], line["version_after"]) for line in steps] == [(None, 1), (1, 2), (2, 3), (3, 4)]
    assert {line["trace_id"] for line in steps} == {"t_1"}
    assert [line["money_state"] for line in steps] == ["RESERVED"] * 3 + ["SETTLED"]
    assert [line["finalize_stage"] for line in steps] == [None, None, "CLAIMED", "COMMITTED"]
    last = steps[-1]
    assert (last["reserved_usd_micros"], last["charge_usd_micros"], last["refund_usd_micros"]) == (
        250_000,
        5_000,
        245_000,
    )
    assert last["error.reason_code"] == "PACK_FAILED"
    assert "marker" not in caplog.text + str(told)


async def test_entering_tells_the_balance_and_takes_a_token(stack: Stack) -> None:
    """PRICED-172, PRICED-174, PRICED-175"""
    entry = await enter(stack.priced, ACME, "post")
    assert entry.tenant is not None
    assert (entry.balance_usd_micros, entry.rate.allowed, entry.rate.limit) == (DOLLAR, True, 60)
    assert (await enter(stack.priced, ACME, "post")).rate.remaining < entry.rate.remaining
    assert (await enter(stack.priced, ACME, "get")).rate.remaining >= entry.rate.remaining
    await stack.priced.ledger.transact(lambda tx: tx.tenants.set_rate_limit(ACME, 1))
    assert (await enter(stack.priced, ACME, "post")).rate.limit == 1
    await stack.priced.ledger.transact(lambda tx: tx.tenants.set_status(ACME, TenantStatus.SUSPENDED))
    refused = await enter(stack.priced, ACME, "get")
    assert refused.tenant is not None
    assert (refused.tenant.status, refused.rate.allowed) == (TenantStatus.SUSPENDED, False)


async def test_a_stranger_may_enter_and_has_nothing(stack: Stack) -> None:
    """A tenant is created in the ledger when it first submits or is credited."""
    entry = await enter(stack.priced, "stranger", "get")
    assert (entry.tenant, entry.balance_usd_micros, entry.rate.allowed) == (None, 0, True)


async def test_a_rate_limit_that_cannot_be_asked_lets_pass(split: Stack) -> None:
    trouble = Trouble({"idempotency_locks.take": [BEFORE]})
    assert (await enter(with_trouble(split.priced, trouble), ACME, "get")).rate.allowed


@pytest.mark.parametrize("fate", [BEFORE, AFTER])
async def test_every_call_of_a_submit_may_fail(stack: Stack, fate: str) -> None:
    """PRICED-104, PRICED-193: each call in turn, before or after it took effect; keepers and a repeat repair it"""
    watch = Trouble()
    await submit(with_trouble(stack.priced, watch), an_ask(usd_micros=10_000, pack_type="ocr"))
    await stack.work()
    for number, name in enumerate(watch.calls):
        ask = an_ask(f"key-{number:04d}", 10_000, pack_type="ocr")
        trouble = Trouble(at=number, fate=fate)
        with contextlib.suppress(DependencyUnavailable, SendFailed):
            await submit(with_trouble(stack.priced, trouble), ask)
        assert trouble.calls[number] == name
    for _ in range(2):
        stack.skew.move(301)
        await stack.keep()
        await stack.drain()
    if stack.is_split:  # a reservation whose row was deleted
        stack.skew.move(601)
        await stack.keep()
    for number in range(len(watch.calls)):
        await submit(stack.priced, an_ask(f"key-{number:04d}", 10_000, pack_type="ocr"))
    await stack.drain()
    rows = await stack.rows()
    assert all(row.has_ended for row in rows)
    done = [row.idempotency_key for row in rows if row.status is Status.COMPLETED]
    assert len(done) == len(set(done)) == len(watch.calls) + 1
    assert await stack.balance() == DOLLAR - 10_000 * len(done)
    await stack.check_money()
