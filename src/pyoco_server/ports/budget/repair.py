"""What rebuilding a budget outside the ledger needs, and nothing else may use: any number is taken for true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pyoco_server.ports.budget.port import OpenReservation
from pyoco_server.ports.ledger.port import CreditNote

__all__ = ["RepairableBudget", "Stock"]


@dataclass(frozen=True, kw_only=True)
class Stock:
    """What is stored of one tenant, word by word and perhaps damaged: what a change is bound to."""

    tenant_id: str
    balance: str
    #: By run. Nothing is stored of a run whose text is empty.
    reservations: tuple[tuple[str, str], ...]
    #: None: the balance is no whole number.
    balance_usd_micros: int | None


class RepairableBudget(Protocol):
    """An outage raises DependencyUnavailable."""

    async def reservations_of(self, tenant_id: str) -> list[OpenReservation]:
        """All that are open and can be read. O(every reservation there is)."""

    async def look(self, tenant_id: str, run_ids: Sequence[str]) -> Stock:
        """The tenant's balance and these reservations, whosever they are, at one moment."""

    async def restore(
        self, seen: Stock, balance_usd_micros: int, put: Sequence[OpenReservation], drop: Sequence[str]
    ) -> bool:
        """Set the balance, and put and drop reservations that were looked at. False: something is not as it was seen,
        and nothing changed. Raises AmountError."""

    async def note_credits(self, notes: Sequence[CreditNote]) -> list[str]:
        """From now on these credits were given; no balance changes. Which of them were not noted before."""

    async def forget_credits(self, op_keys: Sequence[str]) -> None:
        """Take such notes back."""
