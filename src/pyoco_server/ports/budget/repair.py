"""What rebuilding a budget outside the ledger needs, and nothing else may use: these calls take any number for true."""

from __future__ import annotations

from typing import Protocol

from pyoco_server.ports.budget.port import OpenReservation

__all__ = ["RepairableBudget"]


class RepairableBudget(Protocol):
    """Safe only while nobody submits and nobody ends a run (PRICED-61). An outage raises DependencyUnavailable."""

    async def reservations_of(self, tenant_id: str) -> list[OpenReservation]:
        """All that are open. O(every reservation there is)."""

    async def set_balance(self, tenant_id: str, balance_usd_micros: int) -> None: ...

    async def put_reservation(self, reservation: OpenReservation) -> None:
        """Set nothing aside: the balance stays as it is."""

    async def drop_reservation(self, run_id: str) -> None:
        """Give nothing back: the balance stays as it is."""
