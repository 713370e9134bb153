"""Budgets in the ledger's tables (joint mode). Each call is a separate transaction.

To write something else in the same transaction, use `LedgerTx.money` instead.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Final

from pyoco_server.core.priced.journal import Closing
from pyoco_server.ports.budget.port import (
    AlreadyApplied,
    AlreadyReserved,
    Closed,
    Credited,
    Insufficient,
    NoReserve,
    OpenReservation,
    Outcome,
    Reserved,
)
from pyoco_server.ports.ledger.port import Ledger, LedgerTx

__all__ = ["SqlBudget"]

_PAGE: Final = 1000


class SqlBudget:
    """`ports/budget` over a ledger. Timestamps come from the ledger: `at_us` of `reserve` is ignored."""

    joins_ledger = True

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def reserve(
        self, tenant_id: str, run_id: str, amount_usd_micros: int, at_us: int
    ) -> Reserved | Insufficient | AlreadyReserved:
        return await self._ledger.transact(lambda tx: tx.money.reserve(tenant_id, run_id, amount_usd_micros))

    async def settle(self, tenant_id: str, run_id: str, charge_usd_micros: int, by: Closing) -> Closed | NoReserve:
        return await self._ledger.transact(lambda tx: tx.money.settle(tenant_id, run_id, charge_usd_micros, by))

    async def refund_full(self, tenant_id: str, run_id: str, by: Closing) -> Closed | NoReserve:
        return await self._ledger.transact(lambda tx: tx.money.refund_full(tenant_id, run_id, by))

    async def outcome(self, run_id: str) -> Outcome:
        return await self._ledger.read(lambda tx: tx.money.outcome(run_id))

    async def balance(self, tenant_id: str) -> int:
        return await self._ledger.read(lambda tx: tx.money.balance(tenant_id))

    async def credit(self, tenant_id: str, amount_usd_micros: int, ref: str) -> Credited | AlreadyApplied:
        return await self._ledger.transact(lambda tx: tx.money.credit(tenant_id, amount_usd_micros, ref))

    async def open_reservations(self, older_than_us: int) -> AsyncGenerator[OpenReservation, None]:
        """Read from the oldest on, doubling the page each time. O(n) in total, with n ids in memory."""
        yielded: set[str] = set()
        limit = _PAGE
        while True:
            page = await self._ledger.read(partial(_oldest, older_than_us, limit))
            for each in page:
                if each.run_id not in yielded:
                    yielded.add(each.run_id)
                    yield each
            if len(page) < limit:
                return
            limit *= 2

    async def ping(self) -> None:
        await self._ledger.ping()


def _oldest(older_than_us: int, limit: int, tx: LedgerTx) -> list[OpenReservation]:
    return tx.money.open_reservations(older_than_us, limit)
