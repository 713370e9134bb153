"""Runs past their retention: content goes, money facts stay."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pyoco_server.actions.priced.retain import expire_all
from pyoco_server.core.priced.constants import JANITOR_BATCH
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Money, Status
from pyoco_server.loops.priced.retainer import Retainer
from pyoco_server.ports.ledger.port import LedgerTx
from support.priced.stacks import SQLITE, Stack, an_ask, open_stack


@pytest.fixture
async def stack(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with open_stack(SQLITE, request) as stack:
        await stack.credit(10_000_000)
        yield stack


async def test_an_ended_run_is_expired_and_its_money_facts_stay(stack: Stack) -> None:
    """PRICED-31, PRICED-32, PRICED-164: T16"""
    done = await stack.submitted()
    await stack.work()
    failed = await stack.submitted()
    await stack.work(fails=True)
    waiting = await stack.submitted()
    before = await stack.row(done.run_id)
    await Retainer(stack.priced).turn()
    assert await stack.row(done.run_id) == before
    stack.skew.move(stack.priced.config.priced_retention_sec)
    await Retainer(stack.priced).turn()
    row = await stack.row(done.run_id)
    assert (row.status, row.money, row.actual_cost_usd_micros) == (Status.EXPIRED, Money.SETTLED, 50_000)
    assert (row.idempotency_key, row.result, row.error_detail, row.version) == (None, None, None, before.version + 1)
    assert (await stack.row(failed.run_id)).status is Status.EXPIRED
    assert (await stack.row(waiting.run_id)).status is Status.QUEUED, "nothing expires that has not ended"
    assert await stack.priced.ledger.read(lambda tx: tx.runs.inputs(done.run_id)) is None
    assert stack.shown[-1].status is Status.EXPIRED
    await stack.check_money()


async def test_who_comes_second_expires_nothing(stack: Stack) -> None:
    run = await stack.submitted()
    await stack.work()
    row = await stack.row(run.run_id)
    stack.skew.move(stack.priced.config.priced_retention_sec)
    assert len(await expire_all(stack.priced, [row])) == 1
    assert await expire_all(stack.priced, [row]) == []


async def test_one_turn_expires_more_than_one_batch(stack: Stack) -> None:
    def make(tx: LedgerTx) -> None:
        for _ in range(JANITOR_BATCH + 20):
            row = tx.runs.create(an_ask(usd_micros=10_000))
            assert isinstance(row, PricedRun)
            tx.money.reserve(row.tenant_id, row.run_id, 10_000)
            tx.runs.mark_reserved(row.run_id, row.version)

    await stack.priced.ledger.transact(make)
    stack.skew.move(stack.priced.config.priced_retention_sec)
    await stack.keep()
    await Retainer(stack.priced).turn()
    assert {row.status for row in await stack.rows()} == {Status.EXPIRED}
    await stack.check_money()
