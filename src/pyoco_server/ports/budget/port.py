"""Each tenant's money: the available balance, what is reserved, and how each reservation was closed.

Answers are values: each stands for one of the contract's return codes, and is the same in every adapter.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from pyoco_server.core.priced.journal import Closing
from pyoco_server.errors import DependencyUnavailable

__all__ = [
    "AlreadyApplied",
    "AlreadyReserved",
    "Budget",
    "BudgetDamaged",
    "Closed",
    "Credited",
    "Insufficient",
    "NoReserve",
    "NotReserved",
    "Open",
    "OpenReservation",
    "Outcome",
    "Refunded",
    "Reserved",
    "Settled",
    "TenantMismatch",
]


class BudgetDamaged(DependencyUnavailable):
    """The stored value is not an amount. Nothing changed; an operator has to repair it, waiting does not help.

    Callers that only check the balance treat it as an outage; a caller that ends a run must not wait for it.
    """


class TenantMismatch(Exception):
    """The reservation belongs to another tenant than the one given. A defect of ours; nothing changed."""


@dataclass(frozen=True)
class Reserved:
    """OK: the amount is reserved."""

    balance_usd_micros: int


@dataclass(frozen=True)
class Insufficient:
    """ERR_INSUFFICIENT: nothing changed."""

    balance_usd_micros: int


@dataclass(frozen=True)
class AlreadyReserved:
    """ERR_ALREADY_RESERVED: this run has, or once had, a reservation; nothing changed."""


@dataclass(frozen=True)
class Closed:
    """OK: closed by this call. A refund has no charge."""

    charge_usd_micros: int
    refund_usd_micros: int
    balance_usd_micros: int


@dataclass(frozen=True)
class NoReserve:
    """ERR_NO_RESERVE: this run has no open reservation; nothing changed."""


@dataclass(frozen=True)
class Credited:
    balance_usd_micros: int


@dataclass(frozen=True)
class AlreadyApplied:
    """ERR_ALREADY_APPLIED: this credit was applied before."""


@dataclass(frozen=True)
class NotReserved:
    """NONE: there never was a reservation, or its record has expired."""


@dataclass(frozen=True)
class Open:
    reserved_usd_micros: int


@dataclass(frozen=True)
class Settled:
    charge_usd_micros: int
    refund_usd_micros: int


@dataclass(frozen=True)
class Refunded:
    refund_usd_micros: int


Outcome = NotReserved | Open | Settled | Refunded


@dataclass(frozen=True, kw_only=True)
class OpenReservation:
    run_id: str
    tenant_id: str
    reserved_usd_micros: int
    created_at_ms: int


class Budget(Protocol):
    """Budgets of all tenants. Every call is atomic: a caller that is killed leaves all of it or nothing.

    Repeating a call with an unknown outcome has no second effect. An outage raises DependencyUnavailable; an invalid
    amount raises AmountError, and nothing changed. Malformed stored amounts raise BudgetDamaged.

    Of all attempts to close one run at most one ever returns `Closed`; after that, `reserve` never returns `Reserved`
    again.
    """

    #: Joint mode: `LedgerTx.money` does the same inside the ledger's own transaction; use that instead. These calls are
    #: then separate transactions.
    joins_ledger: bool

    async def reserve(
        self, tenant_id: str, run_id: str, amount_usd_micros: int, at_us: int
    ) -> Reserved | Insufficient | AlreadyReserved: ...

    async def settle(self, tenant_id: str, run_id: str, charge_usd_micros: int, by: Closing) -> Closed | NoReserve:
        """Take the charge, capped at the reserved amount, and return the rest. Raises TenantMismatch."""

    async def refund_full(self, tenant_id: str, run_id: str, by: Closing) -> Closed | NoReserve: ...

    async def outcome(self, run_id: str) -> Outcome: ...

    async def balance(self, tenant_id: str) -> int: ...

    async def credit(self, tenant_id: str, amount_usd_micros: int, ref: str) -> Credited | AlreadyApplied:
        """Add money, once per `ref`, even if the amount differs."""

    def open_reservations(self, older_than_us: int) -> AsyncGenerator[OpenReservation, None]:
        """Yield reservations made before that time. May miss some that change meanwhile."""

    async def ping(self) -> None: ...
