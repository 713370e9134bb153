"""Make a budget outside the ledger what the journal says it is (split mode, PRICED-61)."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Money, Stage
from pyoco_server.errors import Conflict
from pyoco_server.logs import get_logger
from pyoco_server.ports.budget.port import OpenReservation
from pyoco_server.ports.budget.repair import RepairableBudget, Stock
from pyoco_server.ports.ledger.port import CreditNote, Ledger, LedgerTx
from pyoco_server.ports.priced import Priced

__all__ = ["Rebuild", "plan_rebuild", "rebuild", "refill"]

log = get_logger(__name__)

_CONFIRMED_AT_ONCE = 500


@dataclass(frozen=True, kw_only=True)
class Rebuild:
    """What would change: the dry run. Nothing, when `is_needless`."""

    tenant_id: str
    balance_after_usd_micros: int
    #: Reservations that are missing or of another amount.
    put: tuple[OpenReservation, ...]
    #: Reservations that no run has any more.
    drop: tuple[str, ...]
    #: Credits that nobody knows the budget to have. They are in the new balance.
    credits: tuple[CreditNote, ...]
    #: What all this was decided on.
    seen: Stock

    @property
    def balance_before_usd_micros(self) -> int | None:
        """None: it is damaged."""
        return self.seen.balance_usd_micros

    @property
    def is_needless(self) -> bool:
        return self.balance_before_usd_micros == self.balance_after_usd_micros and not self.put and not self.drop


async def plan_rebuild(priced: Priced, stock: RepairableBudget, tenant_id: str) -> Rebuild:
    """The dry run: reads alone. Submits have to be stopped, which nobody can see from here. A damaged balance or
    reservation is no hindrance.

    Raises Conflict while the tenant has a run that is being submitted or ended: its money is between two places; and
    when the journal itself says that it has less than nothing.
    """
    if priced.budget.joins_ledger:
        raise Conflict("the budget is in the ledger itself: there is nothing to rebuild")
    return await _plan(priced.ledger, stock, tenant_id)


async def rebuild(priced: Priced, stock: RepairableBudget, plan: Rebuild) -> Rebuild:
    """Do what the dry run said, in one step that happens only if all is still as it was seen: a run that ends or a
    credit that comes meanwhile refuses it, and nothing is half done. May be done again.

    A crash may leave credits noted that the balance does not have yet: too little to spend, never too much, and the
    next rebuild mends it.

    Raises Conflict when the dry run is not true any more, DependencyUnavailable (do it again, from the dry run on).
    """
    if await plan_rebuild(priced, stock, plan.tenant_id) != plan:
        raise _changed()
    await _write(priced.ledger, stock, plan)
    return plan


async def refill(ledger: Ledger, stock: RepairableBudget, tenant_id: str) -> Rebuild:
    """Dry run and rebuild at once, for a ledger whose mode is being changed: nobody uses this budget yet."""
    plan = await _plan(ledger, stock, tenant_id)
    await _write(ledger, stock, plan)
    return plan


async def _plan(ledger: Ledger, stock: RepairableBudget, tenant_id: str) -> Rebuild:
    runs, available, unconfirmed = await ledger.read(lambda tx: _facts(tx, tenant_id))
    moving = [run.run_id for run in runs if run.money is not Money.RESERVED or run.stage is not Stage.OPEN]
    if moving:
        raise Conflict(
            f"{len(moving)} runs of the tenant are being submitted or ended, or are disputed (`budget resolve`): "
            f"{', '.join(moving[:5])}"
        )
    if available < 0:
        raise Conflict(f"the journal has {available} micros for the tenant: find out why, and correct it, first")
    wanted = {run.run_id: _reservation(run) for run in runs}
    there = {each.run_id: each for each in await stock.reservations_of(tenant_id)}
    seen = await stock.look(tenant_id, sorted(wanted.keys() | there.keys()))
    return Rebuild(
        tenant_id=tenant_id,
        balance_after_usd_micros=available,
        put=tuple(each for run_id, each in wanted.items() if there.get(run_id) != each),
        drop=tuple(run_id for run_id in there if run_id not in wanted),
        credits=unconfirmed,
        seen=seen,
    )


def _facts(tx: LedgerTx, tenant_id: str) -> tuple[list[PricedRun], int, tuple[CreditNote, ...]]:
    """All from one moment: a credit that comes later is in neither the sum nor the notes."""
    available = tx.journal.balances(tenant_id).available_usd_micros
    return tx.runs.unsettled(tenant_id), available, tuple(tx.journal.unconfirmed_credits(tenant_id))


async def _write(ledger: Ledger, stock: RepairableBudget, plan: Rebuild) -> None:
    """Notes of credits first: after the balance, a credit that is repeated just then would be given twice."""
    noted = await stock.note_credits(plan.credits)
    if not await stock.restore(plan.seen, plan.balance_after_usd_micros, plan.put, plan.drop):
        await stock.forget_credits(noted)
        raise _changed()
    for start in range(0, len(plan.credits), _CONFIRMED_AT_ONCE):
        given = [each.op_key for each in plan.credits[start : start + _CONFIRMED_AT_ONCE]]
        await ledger.transact(lambda tx, given=given: tx.journal.confirm(given))  # type: ignore[misc]
    log.warning(
        "a budget was rebuilt from the journal",
        tenant_id=plan.tenant_id,
        balance_before_usd_micros=plan.balance_before_usd_micros,
        balance_after_usd_micros=plan.balance_after_usd_micros,
        put=len(plan.put),
        dropped=len(plan.drop),
    )


def _changed() -> Conflict:
    return Conflict("something has changed since the dry run: are submits stopped? look again")


def _reservation(run: PricedRun) -> OpenReservation:
    return OpenReservation(
        run_id=run.run_id,
        tenant_id=run.tenant_id,
        reserved_usd_micros=run.reserved_usd_micros,
        created_at_ms=run.created_at // 1000,
    )
