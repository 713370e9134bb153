"""Budgets in a ledger in SQLite: the contract, and one writer after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contracts.budget import JoinedBudgetContract
from pyoco_server.ports.budget.port import Budget
from pyoco_server.ports.budget.sql import SqlBudget
from pyoco_server.ports.ledger.port import Ledger
from support.priced.ledgers import open_ledger, sqlite_url


class TestBudgetInSqlite(JoinedBudgetContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return sqlite_url(tmp_path)

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
