"""Rebuild a budget outside the ledger from the journal (split mode, PRICED-61)."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Money, Stage
from pyoco_server.errors import Conflict
from pyoco_server.logs import get_logger
from pyoco_server.ports.budget.port import OpenReservation
from pyoco_server.ports.budget.repair import BudgetStock, RepairableBudget
from pyoco_server.ports.ledger.port import CreditNote, Ledger, LedgerTx
from pyoco_server.ports.priced import Priced

__all__ = ["Rebuild", "plan_rebuild", "rebuild", "refill"]

log = get_logger(__name__)

_CONFIRMED_AT_ONCE = 500


@dataclass(frozen=True, kw_only=True)
class Rebuild:
    """The result of the dry run: what would change. Nothing, if `is_needless`."""

    tenant_id: str
    balance_after_usd_micros: int
    #: Reservations that are missing or have another amount.
    put: tuple[OpenReservation, ...]
    #: Reservations whose run does not need them any more.
    drop: tuple[str, ...]
    #: Credits that the budget is not known to contain. They are in the new balance.
    credits: tuple[CreditNote, ...]
    #: The state of the budget on which this plan is based.
    seen: BudgetStock

    @property
    def balance_before_usd_micros(self) -> int | None:
        """None: the balance is damaged."""
        return self.seen.balance_usd_micros

    @property
    def is_needless(self) -> bool:
        return self.balance_before_usd_micros == self.balance_after_usd_micros and not self.put and not self.drop


async def plan_rebuild(priced: Priced, stock: RepairableBudget, tenant_id: str) -> Rebuild:
    """Dry run: reads only. Submits must be stopped, which cannot be checked from here.

    Works with a damaged balance or reservation, too. Raises Conflict while a run of the tenant is being submitted or
    ended, because its money is in transit; and if the journal itself has a negative balance.
    """
    if priced.budget.joins_ledger:
        raise Conflict("the budget is in the ledger itself: there is nothing to rebuild")
    return await _plan(priced.ledger, stock, tenant_id)


async def rebuild(priced: Priced, stock: RepairableBudget, plan: Rebuild) -> Rebuild:
    """Carry out the plan in one step that takes effect only if everything is still as planned.

    A run that ends or a credit that is given meanwhile makes it fail, and nothing is half done. May be repeated. A
    crash may leave credits noted that the balance does not contain yet: too little to spend, never too much, and the
    next rebuild corrects it.

    Raises Conflict if the plan is outdated, DependencyUnavailable (repeat, starting with the dry run).
    """
    if await plan_rebuild(priced, stock, plan.tenant_id) != plan:
        raise _changed()
    await _write(priced.ledger, stock, plan)
    return plan


async def refill(ledger: Ledger, stock: RepairableBudget, tenant_id: str) -> Rebuild:
    """Plan and rebuild in one call, for a ledger whose mode is being changed: no process uses this budget yet."""
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
    existing = {each.run_id: each for each in await stock.reservations_of(tenant_id)}
    seen = await stock.look(tenant_id, sorted(wanted.keys() | existing.keys()))
    return Rebuild(
        tenant_id=tenant_id,
        balance_after_usd_micros=available,
        put=tuple(each for run_id, each in wanted.items() if existing.get(run_id) != each),
        drop=tuple(run_id for run_id in existing if run_id not in wanted),
        credits=unconfirmed,
        seen=seen,
    )


def _facts(tx: LedgerTx, tenant_id: str) -> tuple[list[PricedRun], int, tuple[CreditNote, ...]]:
    """Read all facts in one transaction: a credit that is given later is in neither the sum nor the notes."""
    available = tx.journal.balances(tenant_id).available_usd_micros
    return tx.runs.unsettled(tenant_id), available, tuple(tx.journal.unconfirmed_credits(tenant_id))


async def _write(ledger: Ledger, stock: RepairableBudget, plan: Rebuild) -> None:
    """Note the credits before the balance is written: otherwise a credit that is repeated in between would be given
    twice."""
    noted = await stock.note_credits(plan.credits)
    if not await stock.restore(plan.seen, plan.balance_after_usd_micros, plan.put, plan.drop):
        await stock.forget_credits(noted)
        raise _changed()
    for start in range(0, len(plan.credits), _CONFIRMED_AT_ONCE):
        given = [each.op_key for each in plan.credits[start : start + _CONFIRMED_AT_ONCE]]
        await ledger.transact(lambda tx, given=given: tx.journal.confirm(given))  # type: ignore[misc]
    log.warning(
        "rebuilt a budget from the journal",
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
