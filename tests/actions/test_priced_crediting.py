"""Giving tenants money."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pyoco_server.actions.priced.audit import audit
from pyoco_server.actions.priced.credit import CreditResult, credit
from pyoco_server.actions.priced.rebuild import refill
from pyoco_server.core.priced.constants import MAX_AMOUNT_USD_MICROS
from pyoco_server.core.priced.journal import topup_key
from pyoco_server.core.priced.money import AmountError
from pyoco_server.errors import Conflict, DependencyUnavailable, Refused
from pyoco_server.ports.budget.redis import RedisBudget
from pyoco_server.ports.ledger.port import CreditNote
from support.priced.faults import AFTER, BEFORE, Trouble, with_trouble
from support.priced.stacks import ACME, BOTH_MODES, QUICK_SPLIT, Stack, an_ask, open_stack


@pytest.fixture(params=BOTH_MODES)
async def stack(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with open_stack(request.param, request) as stack:
        yield stack


@pytest.fixture
async def split(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with open_stack(QUICK_SPLIT, request) as stack:
        yield stack


async def test_a_credit_counts_once_per_ref(stack: Stack) -> None:
    """PRICED-58"""
    assert await credit(stack.priced, "anna", 1_000, "r1") == CreditResult(1_000, is_new=True)
    assert await credit(stack.priced, "anna", 1_000, "r1") == CreditResult(1_000, is_new=False)
    assert await credit(stack.priced, "anna", 500, "r2") == CreditResult(1_500, is_new=True)
    tenant = await stack.priced.ledger.read(lambda tx: tx.tenants.get("anna"))
    assert tenant is not None
    sums = await stack.balances("anna")
    assert (sums.credited_usd_micros, sums.available_usd_micros) == (1_500, 1_500)
    await stack.check_money("anna")


async def test_a_ref_that_stands_for_another_credit_is_refused(stack: Stack) -> None:
    """Else the budget could be credited with what the journal never said."""
    await credit(stack.priced, "anna", 1_000, "r1")
    for tenant_id, amount in (("anna", 2_000), ("bert", 1_000)):
        with pytest.raises(Conflict):
            await credit(stack.priced, tenant_id, amount, "r1")
    assert (await stack.balance("anna"), await stack.balance("bert")) == (1_000, 0)
    await stack.check_money("anna")


async def test_a_ref_is_not_granted_again_by_a_redis_that_lost_everything(
    split: Stack, request: pytest.FixtureRequest
) -> None:
    """PRICED-42, PRICED-58: lost data blocks spending and never grants it"""
    await credit(split.priced, ACME, 250_000, "seed")
    await split.submitted()
    await split.work()
    request.getfixturevalue("redis_server").empty()
    assert await credit(split.priced, ACME, 250_000, "seed") == CreditResult(0, is_new=False, off_usd_micros=-200_000)
    assert await split.balance() == 0


async def test_not_even_one_whose_arrival_was_never_noted(split: Stack, request: pytest.FixtureRequest) -> None:
    """PRICED-42: killed between the budget and the note; the money is spent; then Redis loses everything"""
    with pytest.raises(DependencyUnavailable):
        await credit(with_trouble(split.priced, Trouble({"budget.credit": [AFTER]})), ACME, 250_000, "seed")
    await split.submitted()
    await split.work()
    request.getfixturevalue("redis_server").empty()
    assert await credit(split.priced, ACME, 250_000, "seed") == CreditResult(0, is_new=False, off_usd_micros=-200_000)
    assert await split.balance() == 0


async def test_a_credit_that_redis_knows_and_the_ledger_had_lost_is_told_to_be_missing(split: Stack) -> None:
    """PRICED-61: a ledger restored from an older copy, a budget rebuilt from it, and then the same credit again"""
    assert isinstance(split.priced.budget, RedisBudget)
    await split.priced.budget.note_credits([CreditNote(topup_key("r1"), 1_000)])
    assert await credit(split.priced, "anna", 1_000, "r1") == CreditResult(0, is_new=True, off_usd_micros=-1_000)
    await refill(split.priced.ledger, split.priced.budget, "anna")
    assert await credit(split.priced, "anna", 1_000, "r1") == CreditResult(1_000, is_new=False)


@pytest.mark.parametrize("tenant_id", ["x" * 65, "", "a b", "a/b", "ä"])
async def test_what_cannot_be_a_tenant_gets_no_money(stack: Stack, tenant_id: str) -> None:
    """Nor a run: its id becomes part of keys."""
    with pytest.raises(Refused):
        await credit(stack.priced, tenant_id, 1_000, "r1")
    with pytest.raises(Refused):
        await stack.submitted(an_ask(tenant_id=tenant_id))
    assert (await audit(stack.priced)).available == {}


@pytest.mark.parametrize("amount", [0, -1, MAX_AMOUNT_USD_MICROS + 1, True, "1", 1.0])
async def test_a_bad_amount_changes_nothing(stack: Stack, amount: int) -> None:
    """PRICED-40"""
    with pytest.raises(AmountError):
        await credit(stack.priced, "anna", amount, "r1")
    assert await stack.balance("anna") == 0
    assert (await audit(stack.priced)).available == {}


@pytest.mark.parametrize("fate", [BEFORE, AFTER])
async def test_a_crash_between_journal_and_budget_is_repaired_by_repeating(split: Stack, fate: str) -> None:
    """PRICED-58"""
    trouble = Trouble({"budget.credit": [fate]})
    with pytest.raises(DependencyUnavailable):
        await credit(with_trouble(split.priced, trouble), "anna", 1_000, "r1")
    report = await audit(split.priced)
    assert [each.tenant_id for each in report.differences] == (["anna"] if fate == BEFORE else [])
    given = await credit(split.priced, "anna", 1_000, "r1")
    assert given == CreditResult(1_000, is_new=fate == BEFORE)
    await split.check_money("anna")
