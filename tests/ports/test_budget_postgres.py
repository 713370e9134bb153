"""Budgets in a ledger in PostgreSQL: the contract, and what row locks have to do for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from contracts.budget import AT_US, BY, JoinedBudgetContract, a_run
from ledgers import migrated, open_ledger
from priced_servers import PostgresServer
from pyoco_server.ports.budget.port import AlreadyApplied, Budget, Closed, Credited, Reserved
from pyoco_server.ports.budget.sql import SqlBudget
from pyoco_server.ports.ledger.port import Ledger


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
