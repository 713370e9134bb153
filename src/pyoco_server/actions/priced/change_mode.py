"""Where a ledger keeps its budgets: all processes must agree, and only an operator changes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyoco_server.actions.priced.audit import audit
from pyoco_server.actions.priced.rebuild import refill
from pyoco_server.actions.priced.tenants import all_tenants
from pyoco_server.errors import Conflict, SettingError
from pyoco_server.logs import get_logger
from pyoco_server.ports.budget.repair import RepairableBudget
from pyoco_server.ports.ledger.port import BudgetMode, Difference, Ledger, LedgerTx
from pyoco_server.ports.priced import Priced

__all__ = ["ModeChange", "agree_on_mode", "change_mode", "plan_mode_change"]

log = get_logger(__name__)

_ROWS_AT_ONCE = 1000
_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class ModeChange:
    """The result of the dry run: what would change. Nothing, if `before` is `after`."""

    before: BudgetMode | None
    after: BudgetMode
    #: What each tenant will be able to spend, by tenant, according to the journal.
    available_usd_micros: dict[str, int]


async def agree_on_mode(ledger: Ledger, mode: BudgetMode) -> None:
    """Check at process start that the setting agrees with the ledger; the first process decides.

    Two processes that disagree would spend each tenant's money twice, once in each place. Raises SettingError,
    DependencyUnavailable.
    """
    stands = await ledger.read(lambda tx: tx.modes.get())
    if stands is None:
        stands = await ledger.transact(lambda tx: tx.modes.begin(mode))
    if stands is mode:
        return
    where = "in Redis: set PYOCO_BUDGET_URL" if stands is BudgetMode.SPLIT else "in the ledger: unset PYOCO_BUDGET_URL"
    raise SettingError(
        f"the settings say that budgets are {mode}, and those of this ledger are {stands}, {where}; "
        f"or change the ledger: pyoco-server-admin ledger mode --to {mode}"
    )


async def plan_mode_change(priced: Priced, to: BudgetMode) -> ModeChange:
    """Dry run: reads only. All processes must be stopped, which cannot be checked from here.

    O(journal). Raises Conflict while the money of any run is not closed, and if the journal has a negative balance.
    """
    before = await priced.ledger.read(lambda tx: tx.modes.get())
    tenants = [each.tenant.tenant_id for each in await all_tenants(priced)]
    available = await priced.ledger.read(lambda tx: _available(tx, tenants))
    return ModeChange(before=before, after=to, available_usd_micros=available)


async def change_mode(priced: Priced, stock: RepairableBudget | None, plan: ModeChange) -> tuple[Difference, ...]:
    """Fill the new place from the journal, then switch over in one transaction that verifies the plan again.

    Returns the differences found by an audit afterwards: none, if all is well. `priced` is in the new mode; `stock` is
    its budget if that is Redis. A crash leaves the old mode fully working, and the change may be repeated. Raises
    Conflict, DependencyUnavailable.
    """
    if stock is None:
        while await priced.ledger.transact(lambda tx: tx.modes.add_closed_reservations(_ROWS_AT_ONCE)):
            pass
    else:
        for tenant_id in plan.available_usd_micros:
            await refill(priced.ledger, stock, tenant_id)
    await priced.ledger.transact(lambda tx: _turn_over(tx, plan))
    log.warning("the ledger's budgets have moved", before=plan.before, after=plan.after.value)
    return (await audit(priced)).differences


def _available(tx: LedgerTx, tenants: Sequence[str]) -> dict[str, int]:
    running = tx.modes.running(_NAMED)
    if running:
        raise Conflict(f"runs have not ended yet, or are disputed: {', '.join(running)}")
    found = {each: tx.journal.balances(each).available_usd_micros for each in tenants}
    for tenant_id, available in found.items():
        if available < 0:
            raise Conflict(f"the journal has {available} micros for {tenant_id}: find out why, and correct it, first")
    return found


def _turn_over(tx: LedgerTx, plan: ModeChange) -> None:
    if (
        tx.modes.get() is not plan.before
        or _available(tx, list(plan.available_usd_micros)) != plan.available_usd_micros
    ):
        raise Conflict("something has changed since the dry run: is everything stopped? look again")
    if plan.after is BudgetMode.JOINT:
        for tenant_id, available in plan.available_usd_micros.items():
            tx.modes.set_balance(tenant_id, available)
    tx.modes.set(plan.after)
