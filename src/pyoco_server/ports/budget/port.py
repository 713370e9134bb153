"""Each tenant's money: what may be spent, what is set aside, and how each reservation was closed.

Answers are values: each is one line of the contract's return codes, the same in every adapter.
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
    """What the budget has stored is no amount. Nothing changed, and waiting does not heal it: an operator has to.

    To who only asks whether money is to be had, it is as an outage; who ends a run must not wait for it.
    """


class TenantMismatch(Exception):
    """A reservation was named together with another tenant than its own. A defect of ours; nothing changed."""


@dataclass(frozen=True)
class Reserved:
    """OK: the amount is set aside."""

    balance_usd_micros: int


@dataclass(frozen=True)
class Insufficient:
    """ERR_INSUFFICIENT: nothing changed."""

    balance_usd_micros: int


@dataclass(frozen=True)
class AlreadyReserved:
    """ERR_ALREADY_RESERVED: this run is, or once was, reserved; nothing changed."""


@dataclass(frozen=True)
class Closed:
    """OK: closed now. A refund has no charge."""

    charge_usd_micros: int
    refund_usd_micros: int
    balance_usd_micros: int


@dataclass(frozen=True)
class NoReserve:
    """ERR_NO_RESERVE: nothing is open under this run; nothing changed."""


@dataclass(frozen=True)
class Credited:
    balance_usd_micros: int


@dataclass(frozen=True)
class AlreadyApplied:
    """ERR_ALREADY_APPLIED: this credit was given before."""


@dataclass(frozen=True)
class NotReserved:
    """NONE: there never was a reservation, or its record is forgotten."""


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
    """Every call is atomic: a caller that is killed leaves all of it or nothing. Repeating one after an unknown end
    has no second effect. An outage raises DependencyUnavailable; a bad amount AmountError, and nothing changed.
    Stored amounts that are none raise BudgetDamaged.

    Of any number of closings of one run at most one is `Closed`, ever; after it, reserve is never `Reserved` again.
    """

    #: Joint mode: the same is done by `LedgerTx.money` inside the ledger's own transaction, and that is the way to
    #: use it. These calls then are transactions of their own.
    joins_ledger: bool

    async def reserve(
        self, tenant_id: str, run_id: str, amount_usd_micros: int, at_us: int
    ) -> Reserved | Insufficient | AlreadyReserved: ...

    async def settle(self, tenant_id: str, run_id: str, charge_usd_micros: int, by: Closing) -> Closed | NoReserve:
        """Take the charge, at most what is reserved, and give the rest back. Raises TenantMismatch."""

    async def refund_full(self, tenant_id: str, run_id: str, by: Closing) -> Closed | NoReserve: ...

    async def outcome(self, run_id: str) -> Outcome: ...

    async def balance(self, tenant_id: str) -> int: ...

    async def credit(self, tenant_id: str, amount_usd_micros: int, ref: str) -> Credited | AlreadyApplied:
        """Once per `ref`, whatever the amount."""

    def open_reservations(self, older_than_us: int) -> AsyncGenerator[OpenReservation, None]:
        """Made before that instant. May miss some that change meanwhile."""

    async def ping(self) -> None: ...
