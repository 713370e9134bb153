"""Runs that no worker starts: given up and refunded, or sent again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyoco_server.actions.priced.sweep import give_up_aged, send_again
from pyoco_server.core.priced.message import decode
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Actor, Money, Status
from pyoco_server.loops.priced.sweeper import Sweeper
from pyoco_server.ports.ledger.port import LOST
from pyoco_server.ports.nats.link import Link
from support.priced.faults import BEFORE, Trouble, with_trouble
from support.priced.stacks import BOTH_MODES, QUICK_SPLIT, SQLITE, Killed, Stack, an_ask, open_stack

DOLLAR = 1_000_000


@pytest.fixture(params=BOTH_MODES)
async def stack(request: pytest.FixtureRequest, nats_url: str) -> AsyncIterator[Stack]:
    async with open_stack(request.param, request, nats_url) as stack:
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


async def unsent(stack: Stack) -> PricedRun:
    ask = an_ask()
    stack.points.kill_at = "submit.after_mark_reserved"
    with pytest.raises(Killed):
        await stack.submitted(ask)
    return await stack.row(ask.run_id)


async def test_a_run_that_was_queued_for_too_long_is_refunded(stack: Stack) -> None:
    """PRICED-11, PRICED-156: T11, T14; its key stays used"""
    run = await stack.submitted()
    stack.skew.move(3590)
    await Sweeper(stack.priced).turn()
    assert (await stack.row(run.run_id)).status is Status.QUEUED
    stack.skew.move(10)
    await Sweeper(stack.priced).turn()
    row = await stack.row(run.run_id)
    assert (row.status, row.money, row.reason_code) == (Status.FAILED, Money.REFUNDED, "RESERVATION_EXPIRED")
    assert (row.actual_cost_usd_micros, row.started_at, row.finalize_actor) == (0, None, Actor.SWEEPER)
    assert row.idempotency_key == run.idempotency_key
    assert await stack.balance() == DOLLAR
    await stack.drain()
    assert await stack.row(run.run_id) == row, "its message, when it comes, is skipped"
    await stack.check_money()


async def test_a_run_that_was_started_meanwhile_is_left_alone(stack: Stack) -> None:
    """PRICED-18"""
    run = await stack.submitted()
    await stack.started(run)
    stack.skew.move(3600)
    trouble = Trouble()
    assert await give_up_aged(with_trouble(stack.priced, trouble), run) is LOST
    assert trouble.calls == ["ledger.transact"]


@pytest.mark.parametrize("point", ["submit.after_insert", "submit.after_reserve"])
async def test_a_submit_that_died_half_way_gives_everything_back(split: Stack, point: str) -> None:
    """PRICED-58, PRICED-157: T12; the journal has no entry of it, and the key is free"""
    ask = an_ask()
    split.points.kill_at = point
    with pytest.raises(Killed):
        await split.submitted(ask)
    split.skew.move(59)
    await Sweeper(split.priced).turn()
    assert (await split.row(ask.run_id)).status is Status.QUEUED
    split.skew.move(2)
    await Sweeper(split.priced).turn()
    row = await split.row(ask.run_id)
    assert (row.status, row.money, row.reason_code) == (Status.FAILED, Money.REFUNDED, "SUBMIT_ABANDONED")
    assert row.idempotency_key is None
    assert await split.balance() == DOLLAR
    lines = await split.priced.ledger.read(lambda tx: tx.journal.lines(None, None, 10))
    assert [line.kind for line in lines] == ["TOPUP"]
    await split.check_money()


async def test_a_run_that_was_never_known_to_be_sent_is_sent_again(stack: Stack) -> None:
    """PRICED-158"""
    run = await unsent(stack)
    sweeper = Sweeper(stack.priced)
    await sweeper.turn()
    assert (await stack.row(run.run_id)).enqueued_at is None
    stack.skew.move(61)
    for _ in range(2):
        await sweeper.turn()
    row = await stack.row(run.run_id)
    assert (row.enqueued_at is not None, row.version) == (True, run.version)
    [delivery] = await stack.deliveries(10)
    assert decode(delivery.body).run_id == run.run_id


async def test_a_second_sending_is_no_repeat_of_the_first(joint: Stack) -> None:
    """PRICED-158, 12.2: it has an id of its own, so the queue keeps it"""
    joint.points.kill_at = "submit.after_send"
    with pytest.raises(Killed):
        await joint.submitted()
    joint.skew.move(61)
    await Sweeper(joint.priced).turn()
    assert len(await joint.deliveries(10)) == 2


async def test_a_queue_that_is_away_is_tried_at_the_next_turn(stack: Stack) -> None:
    run = await unsent(stack)
    stack.skew.move(61)
    trouble = Trouble({"queue.send": [BEFORE]})
    sweeper = Sweeper(with_trouble(stack.priced, trouble))
    await sweeper.turn()
    assert (await stack.row(run.run_id)).enqueued_at is None
    await sweeper.turn()
    assert (await stack.row(run.run_id)).enqueued_at is not None


async def test_a_run_that_has_moved_on_is_not_sent_again(joint: Stack) -> None:
    run = await unsent(joint)
    await joint.started(run)
    trouble = Trouble()
    assert not await send_again(with_trouble(joint.priced, trouble), run)
    assert trouble.calls == ["ledger.read"]


async def test_what_is_too_old_is_refunded_and_not_sent(joint: Stack) -> None:
    run = await unsent(joint)
    joint.skew.move(3601)
    await Sweeper(joint.priced).turn()
    assert (await joint.row(run.run_id)).money is Money.REFUNDED
    assert await joint.priced.queue.depth() == (0, 0)


async def test_runs_whose_queue_was_lost_are_sent_again(stack: Stack, link: Link) -> None:
    """PRICED-158, PRICED-108: by whichever keeper notices first, and once by each; a repeat has no effect"""
    sweepers = [Sweeper(stack.priced) for _ in range(2)]
    ended = await stack.submitted()
    await stack.drain()
    run = await stack.submitted()
    for sweeper in sweepers:
        await sweeper.turn()
    await link.api(f"STREAM.DELETE.{stack.priced.config.pack_stream}", {}, dict[str, Any])
    await stack.priced.queue.start()
    stack.skew.move(61)
    for sweeper in sweepers * 2:
        await sweeper.turn()
    deliveries = await stack.deliveries(10)
    assert [decode(delivery.body).run_id for delivery in deliveries] == [run.run_id] * len(sweepers)
    assert (await stack.row(run.run_id)).version == run.version
    assert (await stack.row(ended.run_id)).status is Status.COMPLETED
    await stack.check_money()


async def test_clocks_that_differ_and_late_notes_do_not_hide_what_was_lost(stack: Stack, link: Link) -> None:
    """PRICED-158: what is noted as sent a little after the queue's beginning is looked for twice, and then no more"""
    stack.skew.move(200)  # the ledger's clock is ahead of the queue's
    run = await stack.submitted()
    stack.skew.move(61)
    sweeper = Sweeper(stack.priced)
    await sweeper.turn()
    assert len(await stack.deliveries(10)) == 2, "the first message, and a repeat"
    await stack.priced.ledger.transact(lambda tx: tx.runs.mark_enqueued(run.run_id))
    await sweeper.turn()
    assert await stack.priced.queue.receive(10, 1) == []
    stack.skew.move(40)
    for _ in range(2):
        await sweeper.turn()
    assert len(await stack.deliveries(10)) == 1
    await stack.check_money()


async def test_a_queue_that_cannot_be_looked_at_is_sent_to_all_the_same(joint: Stack) -> None:
    """PRICED-158"""
    run = await unsent(joint)
    joint.skew.move(61)
    trouble = Trouble({"queue.begun_at": [BEFORE]})
    await Sweeper(with_trouble(joint.priced, trouble)).turn()
    assert (await joint.row(run.run_id)).enqueued_at is not None
