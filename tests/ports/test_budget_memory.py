"""Budgets in memory: the contract, expiry by the clock, repair, and a simulated network."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from contracts.budget import AT_US, BY, BudgetContract, JoinedBudgetContract, a_run
from pyoco_server.core.priced.constants import OUTCOME_TTL_SECONDS, RESERVE_KEY_TTL_SECONDS
from pyoco_server.core.priced.money import AmountError
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.ports.budget.memory import BUDGETS, MemoryBudget, MemoryBudgets
from pyoco_server.ports.budget.port import (
    AlreadyApplied,
    AlreadyReserved,
    Budget,
    Closed,
    Credited,
    NoReserve,
    NotReserved,
    OpenReservation,
    Reserved,
)
from pyoco_server.ports.budget.repair import RepairableBudget
from pyoco_server.ports.budget.sql import SqlBudget
from pyoco_server.ports.ledger.port import CreditNote, Ledger
from support.priced.ledgers import memory_url, open_ledger


class Clock:
    def __init__(self) -> None:
        self.ms = AT_US // 1000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> MemoryBudgets:
    return MemoryBudgets()


@pytest.fixture
def budget(store: MemoryBudgets, clock: Clock) -> MemoryBudget:
    return MemoryBudget(store, clock)


class TestMemoryBudget(BudgetContract):
    @pytest.fixture
    def other(self, store: MemoryBudgets) -> Budget:
        return MemoryBudget(store)


class TestBudgetInMemoryLedger(JoinedBudgetContract):
    @pytest.fixture
    def url(self) -> Iterator[str]:
        with memory_url() as url:
            yield url

    @pytest.fixture
    async def ledger(self, url: str) -> AsyncIterator[Ledger]:
        async with open_ledger(url) as ledger:
            yield ledger

    @pytest.fixture
    def budget(self, ledger: Ledger) -> Budget:
        return SqlBudget(ledger)

    @pytest.fixture
    async def other(self, url: str) -> AsyncIterator[Budget]:
        async with open_ledger(url) as ledger:
            yield SqlBudget(ledger)


def test_it_is_separate_from_the_ledger_and_can_be_repaired(budget: MemoryBudget) -> None:
    plain: Budget = budget
    assert not plain.joins_ledger
    _: RepairableBudget = budget  # checked by mypy


def test_a_name_finds_the_same_store_until_it_is_forgotten() -> None:
    first = BUDGETS.of("a-test")
    assert BUDGETS.of("a-test") is first
    assert BUDGETS.of("another-test") is not first
    BUDGETS.forget("a-test")
    assert BUDGETS.of("a-test") is not first
    for name in ("a-test", "another-test"):
        BUDGETS.forget(name)


async def test_reservations_and_outcomes_expire(budget: MemoryBudget, clock: Clock) -> None:
    """PRICED-50"""
    await budget.credit("t", 1000, "r")
    closed, left = a_run(), a_run()
    for run in (closed, left):
        await budget.reserve("t", run, 100, AT_US)
    await budget.settle("t", closed, 30, BY)
    assert OUTCOME_TTL_SECONDS == RESERVE_KEY_TTL_SECONDS
    clock.ms += RESERVE_KEY_TTL_SECONDS * 1000 - 1
    assert await budget.reserve("t", closed, 1, AT_US) == AlreadyReserved()
    assert len(await budget.reservations_of("t")) == 1
    clock.ms += 1
    assert await budget.outcome(closed) == await budget.outcome(left) == NotReserved()
    assert await budget.settle("t", left, 1, BY) == NoReserve()
    assert await budget.reservations_of("t") == []
    assert await budget.balance("t") == 870  # what an expired reservation held is lost, as in Redis
    assert await budget.reserve("t", closed, 1, AT_US) == Reserved(869)


async def test_a_balance_has_room_for_64_bits_and_no_more(budget: MemoryBudget, store: MemoryBudgets) -> None:
    """PRICED-198"""
    run = a_run()
    await budget.credit("t", 1000, "r")
    await budget.reserve("t", run, 100, AT_US)
    store.balances["t"] = 2**63 - 50
    with pytest.raises(AmountError):
        await budget.credit("t", 50, "r2")
    with pytest.raises(AmountError):
        await budget.settle("t", run, 1, BY)
    assert await budget.settle("t", run, 60, BY) == Closed(60, 40, 2**63 - 10)
    assert await budget.credit("t", 9, "r2") == Credited(2**63 - 1)


async def test_a_rebuild_replaces_what_was_seen_and_nothing_else(budget: MemoryBudget) -> None:
    """PRICED-61"""
    await budget.credit("t", 1000, "r")
    stray, kept, elsewhere = a_run(), a_run(), a_run()
    await budget.credit("u", 1000, "r2")
    for tenant, run in (("t", stray), ("u", elsewhere)):
        await budget.reserve(tenant, run, 100, AT_US)
    held = OpenReservation(run_id=kept, tenant_id="t", reserved_usd_micros=250, created_at_ms=5)
    seen = await budget.look("t", [stray, kept])
    assert (seen.balance_usd_micros, seen.balance, dict(seen.reservations)[kept]) == (900, "=900", "")
    assert await budget.restore(seen, 750, [held], [stray])
    assert not await budget.restore(seen, 1, [], []), "the store has changed since `look`"
    assert await budget.reservations_of("t") == [held]
    assert await budget.balance("t") == 750
    assert await budget.settle("t", kept, 50, BY) == Closed(50, 200, 950)
    assert [each.run_id for each in await budget.reservations_of("u")] == [elsewhere]
    with pytest.raises(AmountError):
        await budget.restore(await budget.look("t", []), -1, [], [])


async def test_credits_are_noted_without_money(budget: MemoryBudget) -> None:
    """PRICED-58"""
    await budget.credit("t", 1000, "r0")
    notes = [CreditNote(f"topup:r{number}", 5) for number in range(3)]
    assert await budget.note_credits(notes) == ["topup:r1", "topup:r2"]
    assert await budget.balance("t") == 1000
    assert await budget.credit("t", 5, "r2") == AlreadyApplied()
    await budget.forget_credits(["topup:r1", "topup:r2"])
    assert await budget.credit("t", 5, "r2") == Credited(1005)


class Dead(BaseException):
    """The simulated process has ended."""


@pytest.mark.parametrize("failure", [Dead, DependencyUnavailable])
async def test_a_network_may_fail_before_or_after_the_change(
    budget: MemoryBudget, store: MemoryBudgets, failure: type[BaseException]
) -> None:
    other = MemoryBudget(store)
    await budget.credit("t", 1000, "r")

    async def fail(_: str) -> None:
        raise failure("for this test")

    plain = store.network.on_request
    store.network.on_request = fail
    with pytest.raises(failure):
        await budget.credit("t", 1, "lost request")
    store.network.on_request, store.network.on_reply = plain, fail
    with pytest.raises(failure):
        await budget.credit("t", 1, "lost reply")
    store.network.on_reply = plain
    assert await other.balance("t") == 1001
    assert await other.credit("t", 1, "lost reply") == AlreadyApplied()
    assert await other.credit("t", 1, "lost request") == Credited(1002)


async def test_entries_expire_by_the_clock_of_the_store(store: MemoryBudgets, clock: Clock) -> None:
    store.now_ms = clock
    budget = MemoryBudget(store)
    run_id = a_run()
    await budget.credit("anna", 100, "first")
    assert await budget.reserve("anna", run_id, 60, AT_US) == Reserved(40)
    clock.ms += RESERVE_KEY_TTL_SECONDS * 1000
    assert await budget.outcome(run_id) == NotReserved()
