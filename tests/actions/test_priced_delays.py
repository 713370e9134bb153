"""Delayed priced runs: their money is reserved at once, and comes back if they are cancelled (DELAY-7)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from pyoco_server.actions.priced.finalize import Finished
from pyoco_server.actions.priced.start import PutBack, Started, start_run
from pyoco_server.actions.priced.sweep import cancel_delayed, send_due, start_early
from pyoco_server.core.priced.message import decode
from pyoco_server.core.priced.projection import project
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Money, Status
from pyoco_server.loops.priced.sweeper import Sweeper
from pyoco_server.ports.ledger.port import Lost
from support.priced.stacks import BOTH_MODES, Stack, an_ask, open_stack

DOLLAR = 1_000_000
HOUR_US = 3_600_000_000


@pytest.fixture(params=BOTH_MODES)
async def stack(request: pytest.FixtureRequest, nats_url: str) -> AsyncIterator[Stack]:
    async with open_stack(request.param, request, nats_url) as stack:
        await stack.credit(DOLLAR)
        yield stack


async def delayed(stack: Stack, us: int = HOUR_US) -> PricedRun:
    return await stack.submitted(an_ask(not_before=time.time_ns() // 1_000 + us))


async def test_the_money_is_reserved_and_no_message_is_sent(stack: Stack) -> None:
    run = await delayed(stack)
    shown = project(await stack.row(run.run_id))
    assert shown is not None
    assert (shown.waits_for, shown.not_before) == ("scheduled", (run.not_before or 0) / 1e6)
    assert run.money is Money.RESERVED
    await Sweeper(stack.priced).turn()
    assert await stack.priced.queue.receive(1, 1) == []
    assert 0 < await send_due(stack.priced, run.run_id) <= HOUR_US


async def test_a_run_whose_time_has_come_is_sent_once_and_starts(stack: Stack) -> None:
    run = await delayed(stack)
    stack.skew.move(3_601)
    assert await send_due(stack.priced, run.run_id) == 0
    assert await send_due(stack.priced, run.run_id) == 0
    deliveries = await stack.priced.queue.receive(10, 1)
    assert len(deliveries) == 1
    shown = project(await stack.row(run.run_id))
    assert shown is not None
    assert shown.waits_for is None
    started = await start_run(stack.priced, decode(deliveries[0].body), deliveries[0])
    assert isinstance(started, Started)


async def test_a_message_that_is_early_is_put_back(stack: Stack) -> None:
    """An earlier version may have sent it."""
    from pyoco_server.actions.priced.send import send

    run = await delayed(stack)
    await send(stack.priced, run, run.updated_at)
    [delivery] = await stack.priced.queue.receive(1, 1)
    answer = await start_run(stack.priced, decode(delivery.body), delivery)
    assert isinstance(answer, PutBack)
    assert 3_500 < answer.delay_seconds <= 3_601
    assert (await stack.row(run.run_id)).status is Status.QUEUED


async def test_a_cancel_before_its_time_refunds_everything_and_one_after_it_does_nothing(stack: Stack) -> None:
    run, late = await delayed(stack), await delayed(stack, us=1)
    ended = await cancel_delayed(stack.priced, run)
    assert isinstance(ended, Finished)
    assert (ended.run.status, ended.run.money) == (Status.FAILED, Money.REFUNDED)
    assert ended.run.reason_code == "CANCELLED_BEFORE_START"
    assert isinstance(await cancel_delayed(stack.priced, late), Lost)
    assert (await stack.row(late.run_id)).status is Status.QUEUED


async def test_a_reservation_ages_from_the_time_of_the_run(stack: Stack) -> None:
    run = await delayed(stack)
    stack.skew.move(3_600 + 3_590)
    await Sweeper(stack.priced).turn()
    assert (await stack.row(run.run_id)).status is Status.QUEUED
    stack.skew.move(20)
    await Sweeper(stack.priced).turn()
    row = await stack.row(run.run_id)
    assert (row.status, row.reason_code) == (Status.FAILED, "RESERVATION_EXPIRED")


async def test_a_run_is_started_before_its_time_on_request_once(stack: Stack) -> None:
    """DELAY-6"""
    run = await delayed(stack)
    assert isinstance(await start_early(stack.priced, run.run_id), PricedRun)
    assert isinstance(await start_early(stack.priced, run.run_id), Lost)
    [delivery] = await stack.priced.queue.receive(10, 1)
    assert isinstance(await start_run(stack.priced, decode(delivery.body), delivery), Started)


async def test_the_sweeper_sends_what_an_alarm_has_missed(stack: Stack) -> None:
    run = await delayed(stack)
    stack.skew.move(3_600 + 61)
    await Sweeper(stack.priced).turn()
    assert [decode(each.body).run_id for each in await stack.priced.queue.receive(10, 1)] == [run.run_id]
