"""Reservations below the price: refused before anything happens, unless the run was accepted before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from pyoco_server.actions.priced.submit import submit
from pyoco_server.config.packs import PackConfig
from pyoco_server.errors import BelowPrice, DependencyUnavailable, KeyBusy, Problem
from pyoco_server.ports.priced import Priced
from support.priced.faults import BEFORE, Trouble, with_trouble
from support.priced.stacks import ACME, BOTH_MODES, Stack, an_ask, open_stack

DOLLAR = 1_000_000
RETENTION_SECONDS = 30 * 86_400


@pytest.fixture(params=BOTH_MODES)
async def stack(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with open_stack(request.param, request) as stack:
        await stack.credit(DOLLAR)
        yield stack


async def nothing_happened(stack: Stack) -> None:
    assert await stack.rows() == []
    assert (await stack.priced.queue.depth())[0] == 0
    assert await stack.balance() == DOLLAR
    await stack.check_money()


async def test_a_reservation_below_the_price_is_refused_before_anything_is_written(stack: Stack) -> None:
    """SAFE-1: one read of the ledger, and no other call; the key is free afterwards"""
    trouble = Trouble()
    with pytest.raises(BelowPrice) as refused:
        await submit(with_trouble(stack.priced, trouble), an_ask("one-key-", 49_900))
    assert trouble.calls == ["ledger.read"]
    assert (refused.value.text.err_id, refused.value.price_usd) == ("ERR-PYOCO-0048", "0.0500")
    message = "must be at least 0.0500, the price of these inputs"
    assert refused.value.problems == (Problem(("reservation", "max_cost_usd"), message),)
    await nothing_happened(stack)
    assert not (await submit(stack.priced, an_ask("one-key-", 50_000))).replayed


async def test_a_tenant_without_money_is_told_the_price_first(stack: Stack) -> None:
    """SAFE-1: never 402 for a reservation that is too small"""
    with pytest.raises(BelowPrice):
        await submit(stack.priced, an_ask(usd_micros=49_900, tenant_id="stranger"))


def priced_at(stack: Stack, usd_micros: int) -> Priced:
    config = replace(stack.priced.config, pack=PackConfig(price_compliance_usd_micros=usd_micros))
    return replace(stack.priced, config=config)


async def test_the_settings_of_the_gateway_set_the_price_and_the_floor_rounds_up(stack: Stack) -> None:
    """SAFE-1"""
    at = priced_at(stack, 30_001)
    with pytest.raises(BelowPrice) as refused:
        await submit(at, an_ask(usd_micros=30_000, pack_type="compliance"))
    assert refused.value.price_usd == "0.0301"
    await nothing_happened(stack)
    await submit(at, an_ask(usd_micros=30_100, pack_type="compliance"))


async def test_a_pack_that_is_not_known_has_the_least_floor(stack: Stack) -> None:
    """SAFE-1"""
    with pytest.raises(BelowPrice) as refused:
        await submit(stack.priced, an_ask(usd_micros=4_900, pack_type="theirs"))
    assert refused.value.price_usd == "0.0050"
    await submit(stack.priced, an_ask(usd_micros=5_000, pack_type="theirs"))


async def test_a_run_that_was_stored_below_the_floor_is_replayed_and_ends(stack: Stack) -> None:
    """SAFE-1, PRICED-73: it was accepted by a version without the rule, or at a lower price"""
    stored = await stack.stored_without_floor(an_ask("one-key-", 100))
    trouble = Trouble()
    again = await submit(with_trouble(stack.priced, trouble), an_ask("one-key-", 100))
    assert (again.replayed, again.run.run_id, again.balance_usd_micros) == (True, stored.run_id, DOLLAR - 100)
    assert {"ledger.transact", "budget.reserve", "queue.send"}.isdisjoint(trouble.calls)
    await stack.drain()
    assert (await stack.row(stored.run_id)).actual_cost_usd_micros == 100
    assert (await submit(stack.priced, an_ask("one-key-", 100))).replayed
    assert await stack.balance() == DOLLAR - 100
    await stack.check_money()


async def test_another_submission_below_the_floor_under_a_used_key_is_told_the_price(stack: Stack) -> None:
    """SAFE-1, PRICED-65: validity comes before the key"""
    await submit(stack.priced, an_ask("one-key-", 50_000))
    with pytest.raises(BelowPrice):
        await submit(stack.priced, an_ask("one-key-", 100))
    assert len(await stack.rows()) == 1


async def test_a_run_below_the_floor_that_is_past_retention_is_not_replayed(stack: Stack) -> None:
    """SAFE-1, PRICED-88"""
    await stack.stored_without_floor(an_ask("one-key-", 100))
    await stack.drain()
    stack.skew.move(RETENTION_SECONDS + 1)
    with pytest.raises(BelowPrice):
        await submit(stack.priced, an_ask("one-key-", 100))


async def test_a_run_below_the_floor_that_is_not_decided_keeps_its_key(stack: Stack) -> None:
    """SAFE-1, PRICED-88"""
    await stack.priced.ledger.transact(lambda tx: tx.runs.create(an_ask("one-key-", 100)))
    with pytest.raises(KeyBusy):
        await submit(stack.priced, an_ask("one-key-", 100))


async def test_while_the_ledger_is_away_nobody_knows_whether_it_was_accepted(stack: Stack) -> None:
    """SAFE-1: a 422 could be untrue"""
    away = with_trouble(stack.priced, Trouble({"ledger.read": [BEFORE]}))
    with pytest.raises(DependencyUnavailable):
        await submit(away, an_ask(usd_micros=100, tenant_id=ACME))
