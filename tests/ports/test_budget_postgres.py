"""Budgets in a ledger in PostgreSQL: the contract, and what row locks have to do for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from contracts.budget import AT_US, BY, JoinedBudgetContract, a_run
from pyoco_server.ports.budget.port import AlreadyApplied, Budget, Closed, Credited, Reserved
from pyoco_server.ports.budget.sql import SqlBudget
from pyoco_server.ports.ledger.port import Ledger
from support.priced.ledgers import migrated, open_ledger
from support.priced.servers import PostgresServer


@pytest.fixture
def url(postgres_server: PostgresServer) -> Iterator[str]:
    url = postgres_server.new_database(migrated)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
async def ledger(url: str) -> AsyncIterator[Ledger]:
    async with open_ledger(url) as ledger:
        yield ledger


@pytest.fixture
def budget(ledger: Ledger) -> Budget:
    return SqlBudget(ledger)


@pytest.fixture
async def other(url: str) -> AsyncIterator[Budget]:
    async with open_ledger(url) as ledger:
        yield SqlBudget(ledger)


class TestBudgetInPostgres(JoinedBudgetContract):
    pass


class TestWhatPostgresItselfDoes:
    """The part of the contract that its locks, its numbers and its transactions have to keep."""

    test_one_of_many_credits_with_one_reference_counts = (
        JoinedBudgetContract.test_one_of_many_credits_with_one_reference_counts
    )
    test_of_many_closings_one_counts = JoinedBudgetContract.test_of_many_closings_one_counts
    test_an_almost_empty_budget_is_never_overdrawn = JoinedBudgetContract.test_an_almost_empty_budget_is_never_overdrawn
    test_what_was_broken_off_can_be_repeated = JoinedBudgetContract.test_what_was_broken_off_can_be_repeated
    test_a_transaction_that_is_undone_leaves_no_trace = (
        JoinedBudgetContract.test_a_transaction_that_is_undone_leaves_no_trace
    )
    test_a_refusal_inside_a_transaction_leaves_the_rest_of_it_alone = (
        JoinedBudgetContract.test_a_refusal_inside_a_transaction_leaves_the_rest_of_it_alone
    )
    test_a_balance_has_room_for_64_bits_and_no_more = (
        JoinedBudgetContract.test_a_balance_has_room_for_64_bits_and_no_more
    )


async def test_writers_of_one_budget_queue_up_and_none_is_lost(budget: Budget, other: Budget) -> None:
    """PRICED-53, PRICED-189: reserves, closings and credits of one tenant at once"""
    await budget.credit("t", 100_000, "r")
    runs = [a_run() for _ in range(40)]

    async def life(number: int, run: str) -> None:
        mine, theirs = (budget, other) if number % 2 else (other, budget)
        assert isinstance(await mine.reserve("t", run, 1000, AT_US), Reserved)
        assert isinstance(await theirs.settle("t", run, number, BY), Closed)
        assert isinstance(await mine.credit("t", 1, f"r{number}"), Credited)

    await asyncio.gather(*(life(number, run) for number, run in enumerate(runs)))
    assert await budget.balance("t") == 100_000 - sum(range(40)) + 40


async def test_one_reference_for_two_tenants_counts_once(budget: Budget, other: Budget) -> None:
    """PRICED-57: they hold different budgets, so the journal alone decides"""
    for n in range(20):
        answers = await asyncio.gather(budget.credit(f"t{n}", 5, f"r{n}"), other.credit(f"u{n}", 5, f"r{n}"))
        assert sorted(map(str, answers)) == sorted(map(str, (AlreadyApplied(), Credited(5))))
