"""Show a tenant's money: available, set aside, spent, and every money fact behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyoco_server.core.names import is_tag
from pyoco_server.core.priced.instants import SECOND_US
from pyoco_server.core.priced.run import Tenant, TenantStatus
from pyoco_server.core.run import Caller
from pyoco_server.errors import NotFound
from pyoco_server.ports.ledger.port import Balances, JournalLine, LedgerTx, Spend
from pyoco_server.ports.priced import Priced

__all__ = ["BudgetView", "SpendView", "list_budgets", "show_budget", "show_journal", "show_spend"]


@dataclass(frozen=True, kw_only=True)
class BudgetView:
    tenant_id: str
    display_name: str
    status: TenantStatus
    #: What can be spent now, according to the budget itself; the other sums come from the journal.
    balance_usd_micros: int
    held_usd_micros: int
    charged_usd_micros: int
    credited_usd_micros: int


@dataclass(frozen=True)
class SpendView:
    now_us: int
    since_us: int
    steps: Sequence[Spend]


async def list_budgets(priced: Priced, caller: Caller, after: str) -> list[BudgetView]:
    """Return the caller's own budget, if its id comes after `after`; nothing for a caller without a key (SAFE-5).

    O(journal entries of the tenant). Raises DependencyUnavailable.
    """
    own = caller.tenant_id
    return [await show_budget(priced, caller, own)] if own is not None and own > after else []


async def show_budget(priced: Priced, caller: Caller, tenant_id: str) -> BudgetView:
    """Return one tenant's budget. O(journal entries of the tenant).

    Raises NotFound for another tenant as for one that does not exist (the caller's own always exists, perhaps with
    nothing in it), DependencyUnavailable (also if its balance is damaged).
    """
    view = await priced.ledger.read(lambda tx: _view(tx, priced, _own_tenant(tx, caller, tenant_id)))
    if priced.budget.joins_ledger:
        return view
    return replace(view, balance_usd_micros=await priced.budget.balance(tenant_id))


async def show_journal(
    priced: Priced, caller: Caller, tenant_id: str, before: int | None, limit: int
) -> list[JournalLine]:
    """Return the newest journal entries first. O(limit). Raises NotFound, DependencyUnavailable."""

    def query(tx: LedgerTx) -> list[JournalLine]:
        return tx.journal.lines(_own_tenant(tx, caller, tenant_id).tenant_id, before, limit)

    return await priced.ledger.read(query)


async def show_spend(priced: Priced, caller: Caller, tenant_id: str, span_seconds: int, step_seconds: int) -> SpendView:
    """Return the charges of the last `span_seconds`, in full steps of unix time: the first step may begin earlier.

    O(charges in that time). Raises NotFound, DependencyUnavailable.
    """

    def query(tx: LedgerTx) -> SpendView:
        tenant = _own_tenant(tx, caller, tenant_id)
        now_us, step_us = tx.now_us(), step_seconds * SECOND_US
        since_us = (now_us - span_seconds * SECOND_US) // step_us * step_us
        return SpendView(now_us, since_us, tx.journal.spend(tenant.tenant_id, since_us, step_us))

    return await priced.ledger.read(query)


def _own_tenant(tx: LedgerTx, caller: Caller, tenant_id: str) -> Tenant:
    """Return the tenant if the caller has one of its keys, in every authentication mode (SAFE-5).

    Invalid ids are not looked up: some databases fail on them.
    """
    own = caller.tenant_id
    if own is None or own != tenant_id:
        raise NotFound("there is no such tenant")
    tenant = tx.tenants.get(tenant_id) if is_tag(tenant_id) else None
    return tenant or Tenant(tenant_id=tenant_id, display_name=tenant_id)


def _view(tx: LedgerTx, priced: Priced, tenant: Tenant) -> BudgetView:
    sums: Balances = tx.journal.balances(tenant.tenant_id)
    joint = priced.budget.joins_ledger
    return BudgetView(
        tenant_id=tenant.tenant_id,
        display_name=tenant.display_name,
        status=tenant.status,
        balance_usd_micros=tx.money.balance(tenant.tenant_id) if joint else sums.available_usd_micros,
        held_usd_micros=sums.held_usd_micros,
        charged_usd_micros=sums.charged_usd_micros,
        credited_usd_micros=sums.credited_usd_micros,
    )
