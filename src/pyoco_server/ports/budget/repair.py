"""What rebuilding a budget outside the ledger needs.

For nothing else: these calls trust every number they are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pyoco_server.ports.budget.port import OpenReservation
from pyoco_server.ports.ledger.port import CreditNote

__all__ = ["BudgetStock", "RepairableBudget"]


@dataclass(frozen=True, kw_only=True)
class BudgetStock:
    """A tenant's stored values verbatim, possibly damaged. A change applies only if they are still the same."""

    tenant_id: str
    balance: str
    #: Pairs of run id and stored text. Empty text: no reservation is stored.
    reservations: tuple[tuple[str, str], ...]
    #: None: the stored balance is not an integer.
    balance_usd_micros: int | None


class RepairableBudget(Protocol):
    """Budget operations for repair. An outage raises DependencyUnavailable."""

    async def reservations_of(self, tenant_id: str) -> list[OpenReservation]:
        """Return all open reservations that can be read. O(all reservations of all tenants)."""

    async def look(self, tenant_id: str, run_ids: Sequence[str]) -> BudgetStock:
        """Read the tenant's balance and these reservations, whatever tenant they belong to, in one snapshot."""

    async def restore(
        self, seen: BudgetStock, balance_usd_micros: int, put: Sequence[OpenReservation], drop: Sequence[str]
    ) -> bool:
        """Set the balance, and put and drop reservations that are part of `seen`.

        False: a stored value differs from `seen`, and nothing changed. Raises AmountError.
        """

    async def note_credits(self, notes: Sequence[CreditNote]) -> list[str]:
        """Record these credits as applied, without changing a balance.

        Return the keys that were not recorded before.
        """

    async def forget_credits(self, op_keys: Sequence[str]) -> None:
        """Delete such records."""
