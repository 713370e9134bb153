"""Make a budget outside the ledger what the journal says it is (split mode, PRICED-61)."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.priced.states import Money, Stage
from pyoco_server.errors import Conflict
from pyoco_server.logs import get_logger
from pyoco_server.ports.budget.port import OpenReservation
from pyoco_server.ports.budget.repair import RepairableBudget
from pyoco_server.ports.priced import Priced

__all__ = ["Rebuild", "plan_rebuild", "rebuild"]

log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Rebuild:
    """What would change: the dry run. Nothing, when `is_needless`."""

    tenant_id: str
    balance_before_usd_micros: int
    balance_after_usd_micros: int
    #: Reservations that are missing or of another amount.
    put: tuple[OpenReservation, ...]
    #: Reservations that no run has any more.
    drop: tuple[str, ...]

    @property
    def is_needless(self) -> bool:
        return self.balance_before_usd_micros == self.balance_after_usd_micros and not self.put and not self.drop


async def plan_rebuild(priced: Priced, stock: RepairableBudget, tenant_id: str) -> Rebuild:
    """The dry run: reads alone. Submits have to be stopped, which nobody can see from here.

    Raises Conflict while the tenant has a run that is being submitted or ended: its money is between two places.
    """
    if priced.budget.joins_ledger:
        raise Conflict("the budget is in the ledger itself: there is nothing to rebuild")
    runs, balances = await priced.ledger.read(lambda tx: (tx.runs.unsettled(tenant_id), tx.journal.balances(tenant_id)))
    moving = [run.run_id for run in runs if run.money is not Money.RESERVED or run.stage is not Stage.OPEN]
    if moving:
        raise Conflict(
            f"{len(moving)} runs of the tenant are being submitted or ended, or are disputed: {', '.join(moving[:5])}"
        )
    there = {each.run_id: each for each in await stock.reservations_of(tenant_id)}
    wanted = {run.run_id: _reservation(run) for run in runs}
    return Rebuild(
        tenant_id=tenant_id,
        balance_before_usd_micros=await priced.budget.balance(tenant_id),
        balance_after_usd_micros=balances.available_usd_micros,
        put=tuple(each for run_id, each in wanted.items() if there.get(run_id) != each),
        drop=tuple(run_id for run_id in there if run_id not in wanted),
    )


async def rebuild(priced: Priced, stock: RepairableBudget, plan: Rebuild) -> Rebuild:
    """Do what the dry run said. Reservations first, the balance last: a crash between leaves too little to spend, never
    too much, and it can be done again.

    Raises Conflict when the dry run is not true any more, DependencyUnavailable (do it again, from the dry run on).
    """
    if await plan_rebuild(priced, stock, plan.tenant_id) != plan:
        raise Conflict("something has changed since the dry run: are submits stopped? look again")
    if plan.balance_after_usd_micros < plan.balance_before_usd_micros:
        await stock.set_balance(plan.tenant_id, plan.balance_after_usd_micros)
    for run_id in plan.drop:
        await stock.drop_reservation(run_id)
    for each in plan.put:
        await stock.put_reservation(each)
    await stock.set_balance(plan.tenant_id, plan.balance_after_usd_micros)
    log.warning(
        "a budget was rebuilt from the journal",
        tenant_id=plan.tenant_id,
        balance_before_usd_micros=plan.balance_before_usd_micros,
        balance_after_usd_micros=plan.balance_after_usd_micros,
        put=len(plan.put),
        dropped=len(plan.drop),
    )
    return plan


def _reservation(run: PricedRun) -> OpenReservation:
    return OpenReservation(
        run_id=run.run_id,
        tenant_id=run.tenant_id,
        reserved_usd_micros=run.reserved_usd_micros,
        created_at_ms=run.created_at // 1000,
    )
