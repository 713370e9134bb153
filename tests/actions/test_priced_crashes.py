"""The crash matrix (contract 23.4): a process dies at each point; keepers alone bring everything to its one end."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from pyoco_server.actions.priced.reap import reap
from pyoco_server.actions.priced.submit import submit
from pyoco_server.actions.priced.sweep import give_up_aged
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Money, Stage, Status
from pyoco_server.ports.ledger.port import Scan
from support.backends import fields_of
from support.priced.faults import BEFORE, Trouble, with_trouble
from support.priced.stacks import EACH_STACK, Killed, Stack, an_ask, open_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

DOLLAR = 1_000_000


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=EACH_STACK)
async def stack(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with open_stack(request.param, request) as stack:
        yield stack


async def recover(stack: Stack) -> None:
    """Let time pass: only the live keepers and workers act."""
    for seconds in (61, 121, 301, 301, 601):
        stack.skew.move(seconds)
        await stack.keep()
        await stack.give_back()
        await stack.drain()


async def killed_in_submit(stack: Stack, point: str) -> tuple[str, str]:
    """The tenant, and the run that was being submitted."""
    tenant_id = await stack.tenant()
    ask = an_ask("one-key-", tenant_id=tenant_id)
    stack.points.kill_at = point
    with pytest.raises(Killed):
        await submit(stack.priced, ask)
    return tenant_id, ask.run_id


async def killed_in_worker(stack: Stack, point: str) -> tuple[str, str]:
    tenant_id = await stack.tenant()
    run = await stack.submitted(an_ask(tenant_id=tenant_id))
    stack.points.kill_at = point
    with pytest.raises(Killed):
        await stack.work()
    return tenant_id, run.run_id


@pytest.mark.parametrize("point", ["submit.after_insert", "submit.after_reserve"])
async def test_a_submit_that_dies_before_it_is_reserved_is_undone(stack: Stack, point: str) -> None:
    """PRICED-229, first and second line; PRICED-52"""
    tenant_id, run_id = await killed_in_submit(stack, point)
    await recover(stack)
    row = await stack.priced.ledger.read(lambda tx: tx.runs.get(run_id))
    if stack.is_split:
        assert row is not None
        assert (row.status, row.money, row.reason_code) == (Status.FAILED, Money.REFUNDED, "SUBMIT_ABANDONED")
    else:
        assert row is None
    assert await stack.balance(tenant_id) == DOLLAR
    assert not (await submit(stack.priced, an_ask("one-key-", tenant_id=tenant_id))).replayed
    await stack.drain()
    await stack.check_money(tenant_id)


@pytest.mark.parametrize("point", ["submit.after_mark_reserved", "submit.after_send"])
async def test_a_submit_that_dies_after_it_is_reserved_runs_once(stack: Stack, point: str) -> None:
    """PRICED-229, third and fourth line; PRICED-158: a replay in between gets its receipt; sent twice, runs once"""
    tenant_id, run_id = await killed_in_submit(stack, point)
    again = await submit(stack.priced, an_ask("one-key-", tenant_id=tenant_id))
    assert (again.replayed, again.run.run_id) == (True, run_id)
    stack.points.reached.clear()
    await recover(stack)
    row = await stack.row(run_id)
    assert (row.status, row.actual_cost_usd_micros) == (Status.COMPLETED, 50_000)
    assert stack.points.reached.count("worker.after_start") == 1
    assert await stack.balance(tenant_id) == DOLLAR - 50_000
    await stack.check_money(tenant_id)


async def test_a_message_that_kills_its_workers_becomes_a_dead_letter_and_is_refunded(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    """PRICED-229, fifth line; PRICED-107, PRICED-109"""
    tenant_id = await stack.tenant()
    run = await stack.submitted(an_ask(tenant_id=tenant_id))
    for _ in range(3):
        [delivery] = await stack.deliveries()
        await stack.priced.queue.nack(delivery, 0)
    assert await stack.priced.queue.receive(1, 1) == []
    assert (await stack.priced.queue.depth())[1] == 1
    with caplog.at_level(logging.ERROR):
        await recover(stack)
    assert (await stack.row(run.run_id)).status is Status.QUEUED
    assert "dead_letter" in [fields_of(record).get("alarm") for record in caplog.records]
    stack.skew.move(3600)
    await stack.keep()
    row = await stack.row(run.run_id)
    assert (row.status, row.money, row.reason_code) == (Status.FAILED, Money.REFUNDED, "RESERVATION_EXPIRED")
    assert await stack.balance(tenant_id) == DOLLAR
    for letter in await stack.priced.queue.dead_letters(10):
        await stack.priced.queue.redrive(letter)
    await stack.drain()
    assert await stack.row(run.run_id) == row
    await stack.check_money(tenant_id)


@pytest.mark.parametrize("point", ["worker.after_start", "worker.after_upload"])
async def test_a_worker_that_dies_before_its_claim_costs_the_minimum_fee(stack: Stack, point: str) -> None:
    """PRICED-229, sixth line; PRICED-154, PRICED-155"""
    tenant_id, run_id = await killed_in_worker(stack, point)
    await recover(stack)
    row = await stack.row(run_id)
    assert (row.status, row.money, row.reason_code) == (Status.FAILED, Money.SETTLED, "WORKER_TIMEOUT")
    assert (row.actual_cost_usd_micros, row.result) == (5_000, None)
    assert await stack.balance(tenant_id) == DOLLAR - 5_000
    await stack.check_money(tenant_id)


@pytest.mark.parametrize(
    "point", ["finalize.after_claim", "finalize.after_money", "finalize.after_commit", "worker.before_ack"]
)
async def test_a_worker_that_dies_after_its_claim_has_decided(stack: Stack, point: str) -> None:
    """PRICED-229, seventh to ninth line; PRICED-162, PRICED-221"""
    tenant_id, run_id = await killed_in_worker(stack, point)
    stack.points.reached.clear()
    await recover(stack)
    row = await stack.row(run_id)
    assert (row.status, row.money, row.actual_cost_usd_micros) == (Status.COMPLETED, Money.SETTLED, 50_000)
    assert row.result is not None
    assert "worker.after_start" not in stack.points.reached
    assert await stack.balance(tenant_id) == DOLLAR - 50_000
    await stack.check_money(tenant_id)


async def oldest(stack: Stack, kind: Scan, run_id: str) -> PricedRun:
    rows = await stack.priced.ledger.read(lambda tx: tx.runs.scan(kind, 100))
    return next(row for row in rows if row.run_id == run_id)


@pytest.mark.parametrize("point", ["finalize.after_claim", "finalize.after_money", "finalize.after_commit"])
async def test_a_keeper_or_gateway_that_dies_between_claim_and_commit_has_decided(stack: Stack, point: str) -> None:
    """PRICED-229, last line; PRICED-159, D-36: reaper, sweeper and API"""
    tenant_id = await stack.tenant()
    silent = await stack.submitted(an_ask(tenant_id=tenant_id))
    [delivery] = await stack.deliveries()
    await stack.started(silent)
    await stack.priced.queue.ack(delivery)
    stack.skew.move(121)
    stack.points.kill_at = point
    with pytest.raises(Killed):
        await reap(stack.priced, await oldest(stack, Scan.EXPIRED_LEASES, silent.run_id))

    waiting = await stack.submitted(an_ask(tenant_id=tenant_id))
    stack.skew.move(3601)
    stack.points.kill_at = point
    with pytest.raises(Killed):
        await give_up_aged(stack.priced, await oldest(stack, Scan.AGED, waiting.run_id))

    unsent = an_ask("one-key-", tenant_id=tenant_id)
    stack.points.kill_at = point
    with pytest.raises(Killed):
        await submit(with_trouble(stack.priced, Trouble({"queue.send": [BEFORE]})), unsent)

    await recover(stack)
    ends = [await stack.row(run_id) for run_id in (silent.run_id, waiting.run_id, unsent.run_id)]
    assert [(row.status, row.money, row.stage) for row in ends] == [
        (Status.FAILED, Money.SETTLED, Stage.COMMITTED),
        (Status.FAILED, Money.REFUNDED, Stage.COMMITTED),
        (Status.FAILED, Money.REFUNDED, Stage.COMMITTED),
    ]
    assert [row.reason_code for row in ends] == ["WORKER_TIMEOUT", "RESERVATION_EXPIRED", "QUEUE_ENQUEUE_FAILED"]
    assert (ends[2].idempotency_key, ends[1].idempotency_key) == (None, waiting.idempotency_key)
    assert await stack.balance(tenant_id) == DOLLAR - 5_000
    await stack.check_money(tenant_id)


async def test_a_reconcile_that_dies_is_completed_by_the_next(stack: Stack) -> None:
    """PRICED-159, PRICED-160: a take-over becomes stale like any claim"""
    tenant_id, run_id = await killed_in_worker(stack, "finalize.after_claim")
    for point in ("finalize.after_claim", "finalize.after_money"):
        stack.skew.move(301)
        stack.points.kill_at = point
        with pytest.raises(Killed):
            await stack.keep()
    await recover(stack)
    row = await stack.row(run_id)
    assert (row.status, row.actual_cost_usd_micros) == (Status.COMPLETED, 50_000)
    await stack.check_money(tenant_id)
