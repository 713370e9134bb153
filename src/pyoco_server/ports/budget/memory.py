"""Budgets in this process's memory (split mode), for tests: nothing survives the process.

Same rules as the Redis scripts: the same answers, the same lifetimes, amounts of at most 64 bits. Stored amounts are
always integers, so BudgetDamaged is never raised.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyoco_server.core.priced.constants import OUTCOME_TTL_SECONDS, RESERVE_KEY_TTL_SECONDS
from pyoco_server.core.priced.journal import Closing, topup_key
from pyoco_server.core.priced.money import AmountError, check_amount
from pyoco_server.ports.budget.port import (
    AlreadyApplied,
    AlreadyReserved,
    Closed,
    Credited,
    Insufficient,
    NoReserve,
    NotReserved,
    Open,
    OpenReservation,
    Outcome,
    Refunded,
    Reserved,
    Settled,
    TenantMismatch,
)
from pyoco_server.ports.budget.repair import BudgetStock
from pyoco_server.ports.ledger.port import CreditNote
from pyoco_server.ports.memory.expiring import Expiring
from pyoco_server.ports.memory.named import Named
from pyoco_server.ports.memory.network import Network

__all__ = ["BUDGETS", "MemoryBudget", "MemoryBudgets"]

_BALANCE_MAX: Final = 2**63 - 1
_SECOND_MS: Final = 1000


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class MemoryBudgets:
    """The data that a Redis server would hold. Shared by the adapters of all simulated processes."""

    balances: dict[str, int] = field(default_factory=dict)
    reservations: Expiring[str, OpenReservation] = field(default_factory=Expiring)
    outcomes: Expiring[str, Settled | Refunded] = field(default_factory=Expiring)
    #: Amounts by the credit's key in the journal.
    credits: dict[str, int] = field(default_factory=dict)
    network: Network = field(default_factory=Network)
    #: The server's clock, which may differ from those of its clients.
    now_ms: Callable[[], int] = _wall_ms


#: The stores of `memory://name`.
BUDGETS: Final = Named(lambda _: MemoryBudgets())


class MemoryBudget:
    """`ports/budget` and `ports/budget/repair` over a shared store. O(1) per call, except for the lists."""

    joins_ledger = False

    def __init__(self, store: MemoryBudgets, now_ms: Callable[[], int] | None = None) -> None:
        """`now_ms`: overrides the clock of the store."""
        self._store, self._now_ms = store, now_ms or store.now_ms

    async def reserve(
        self, tenant_id: str, run_id: str, amount_usd_micros: int, at_us: int
    ) -> Reserved | Insufficient | AlreadyReserved:
        amount = check_amount(amount_usd_micros, at_least=1)
        async with self._store.network.call("budget.reserve"):
            return self._reserve(
                OpenReservation(
                    run_id=run_id,
                    tenant_id=tenant_id,
                    reserved_usd_micros=amount,
                    created_at_ms=at_us // 1000,
                )
            )

    async def settle(self, tenant_id: str, run_id: str, charge_usd_micros: int, by: Closing) -> Closed | NoReserve:
        charge = check_amount(charge_usd_micros, at_least=0)
        async with self._store.network.call("budget.settle"):
            return self._close(tenant_id, run_id, charge)

    async def refund_full(self, tenant_id: str, run_id: str, by: Closing) -> Closed | NoReserve:
        async with self._store.network.call("budget.refund_full"):
            return self._close(tenant_id, run_id, None)

    async def outcome(self, run_id: str) -> Outcome:
        async with self._store.network.call("budget.outcome"):
            now = self._now_ms()
            if (reservation := self._store.reservations.get(run_id, now)) is not None:
                return Open(reservation.reserved_usd_micros)
            return self._store.outcomes.get(run_id, now) or NotReserved()

    async def balance(self, tenant_id: str) -> int:
        async with self._store.network.call("budget.balance"):
            return self._store.balances.get(tenant_id, 0)

    async def credit(self, tenant_id: str, amount_usd_micros: int, ref: str) -> Credited | AlreadyApplied:
        amount, key = check_amount(amount_usd_micros, at_least=1), topup_key(ref)
        async with self._store.network.call("budget.credit"):
            if key in self._store.credits:
                return AlreadyApplied()
            balance = self._add(tenant_id, amount)
            self._store.credits[key] = amount
            return Credited(balance)

    async def open_reservations(self, older_than_us: int) -> AsyncGenerator[OpenReservation, None]:
        for each in await self._all_reservations():
            if each.created_at_ms * 1000 < older_than_us:
                yield each

    async def ping(self) -> None:
        async with self._store.network.call("budget.ping"):
            pass

    async def reservations_of(self, tenant_id: str) -> list[OpenReservation]:
        return [each for each in await self._all_reservations() if each.tenant_id == tenant_id]

    async def look(self, tenant_id: str, run_ids: Sequence[str]) -> BudgetStock:
        async with self._store.network.call("budget.look"):
            return BudgetStock(
                tenant_id=tenant_id,
                balance=self._balance_text(tenant_id),
                reservations=tuple((run_id, self._reservation_text(run_id)) for run_id in run_ids),
                balance_usd_micros=self._store.balances.get(tenant_id, 0),
            )

    async def restore(
        self, seen: BudgetStock, balance_usd_micros: int, put: Sequence[OpenReservation], drop: Sequence[str]
    ) -> bool:
        if not 0 <= balance_usd_micros <= _BALANCE_MAX:
            raise AmountError("a balance has at most 64 bits")
        for each in put:
            check_amount(each.reserved_usd_micros, at_least=1)
        changed = {*drop, *(each.run_id for each in put)}
        assert changed <= {run_id for run_id, _ in seen.reservations}, "only reservations that were looked at"
        async with self._store.network.call("budget.restore"):
            if self._has_changed(seen):
                return False
            for run_id in drop:
                self._store.reservations.drop(run_id)
            for each in put:
                self._put(each)
            self._store.balances[seen.tenant_id] = balance_usd_micros
            return True

    async def note_credits(self, notes: Sequence[CreditNote]) -> list[str]:
        async with self._store.network.call("budget.note_credits"):
            new = [each for each in notes if each.op_key not in self._store.credits]
            self._store.credits.update((each.op_key, each.amount_usd_micros) for each in new)
            return [each.op_key for each in new]

    async def forget_credits(self, op_keys: Sequence[str]) -> None:
        async with self._store.network.call("budget.forget_credits"):
            for key in op_keys:
                self._store.credits.pop(key, None)

    # --- Below: no await, so each function is atomic. ---

    def _reserve(self, wanted: OpenReservation) -> Reserved | Insufficient | AlreadyReserved:
        store, now, amount = self._store, self._now_ms(), wanted.reserved_usd_micros
        is_known = store.reservations.get(wanted.run_id, now) or store.outcomes.get(wanted.run_id, now)
        if is_known is not None:
            return AlreadyReserved()
        balance = store.balances.get(wanted.tenant_id, 0)
        if balance < amount:
            return Insufficient(balance)
        store.balances[wanted.tenant_id] = balance - amount
        self._put(wanted)
        return Reserved(balance - amount)

    def _close(self, tenant_id: str, run_id: str, charge_usd_micros: int | None) -> Closed | NoReserve:
        """Close a reservation. No charge means a refund."""
        store, now = self._store, self._now_ms()
        found = store.reservations.get(run_id, now)
        if found is None:
            return NoReserve()
        if found.tenant_id != tenant_id:
            raise TenantMismatch("the reservation belongs to another tenant")
        reserved = found.reserved_usd_micros
        charge = min(charge_usd_micros or 0, reserved)
        balance = self._add(tenant_id, reserved - charge)
        store.reservations.drop(run_id)
        outcome = Refunded(reserved) if charge_usd_micros is None else Settled(charge, reserved - charge)
        store.outcomes.put(run_id, outcome, now + OUTCOME_TTL_SECONDS * _SECOND_MS)
        return Closed(charge, reserved - charge, balance)

    def _add(self, tenant_id: str, amount: int) -> int:
        """Return the new balance. Raises AmountError, and then changes nothing."""
        balance = self._store.balances.get(tenant_id, 0) + amount
        if balance > _BALANCE_MAX:
            raise AmountError("a balance has at most 64 bits")
        self._store.balances[tenant_id] = balance
        return balance

    def _put(self, reservation: OpenReservation) -> None:
        until_ms = self._now_ms() + RESERVE_KEY_TTL_SECONDS * _SECOND_MS
        self._store.reservations.put(reservation.run_id, reservation, until_ms)

    async def _all_reservations(self) -> list[OpenReservation]:
        async with self._store.network.call("budget.open_reservations"):
            return [each for _, each in self._store.reservations.items(self._now_ms())]

    def _has_changed(self, seen: BudgetStock) -> bool:
        return self._balance_text(seen.tenant_id) != seen.balance or any(
            self._reservation_text(run_id) != text for run_id, text in seen.reservations
        )

    def _balance_text(self, tenant_id: str) -> str:
        balance = self._store.balances.get(tenant_id)
        return "" if balance is None else f"={balance}"

    def _reservation_text(self, run_id: str) -> str:
        found = self._store.reservations.get(run_id, self._now_ms())
        return "" if found is None else f"{found.reserved_usd_micros}|{found.tenant_id}|{found.created_at_ms}"
