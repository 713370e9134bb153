"""Close reservations that no run needs any more: their submit did not finish, or Redis lost their closing (17.2)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from pyoco_server.core.priced.constants import JANITOR_BATCH
from pyoco_server.core.priced.instants import SECOND_US
from pyoco_server.core.priced.journal import Closing
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Actor, Money
from pyoco_server.logs import get_logger
from pyoco_server.ports.budget.port import BudgetDamaged, Closed, NoReserve, OpenReservation
from pyoco_server.ports.priced import Priced

__all__ = ["refund_orphans"]

log = get_logger(__name__)


async def refund_orphans(priced: Priced) -> int:
    """Close every old open reservation whose run has ended or does not exist, and return how many were closed.

    Such a run can never start, so no other process will close it (PRICED-163). It is refunded, unless the run was
    charged: then Redis was restored without its latest writes, and a refund would return what the journal has charged.
    So it is settled with the run's own cost, and money is neither created nor lost.

    In joint mode there is nothing to do: row and reservation are created together. A reservation whose tenant's balance
    is damaged is skipped. O(open reservations). Raises DependencyUnavailable; reservations closed before it stay
    closed.
    """
    if priced.budget.joins_ledger:
        return 0
    now_us = await priced.ledger.read(lambda tx: tx.now_us())
    older_than_us = now_us - priced.config.priced_orphan_after_sec * SECOND_US
    refunded, batch = 0, list[OpenReservation]()
    async with aclosing(priced.budget.open_reservations(older_than_us)) as reservations:
        async for reservation in reservations:
            batch.append(reservation)
            if len(batch) == JANITOR_BATCH:
                refunded += await _refund(priced, batch)
                batch = []
    return refunded + await _refund(priced, batch)


async def _refund(priced: Priced, batch: Sequence[OpenReservation]) -> int:
    if not batch:
        return 0
    rows = await priced.ledger.read(lambda tx: [tx.runs.get(each.run_id) for each in batch])
    refunded = 0
    for each, row in zip(batch, rows, strict=True):
        if row is not None and not row.has_ended:
            continue
        try:
            closed = await _close(priced, each, row)
        except BudgetDamaged:  # one tenant's damage must not block other tenants; the audit raises the alarm
            continue
        if isinstance(closed, Closed):
            refunded += 1
            log.warning(
                "closed a reservation that no run needs",
                run_id=each.run_id,
                tenant_id=each.tenant_id,
                trace_id=None if row is None else row.trace_id,
                reserved_usd_micros=each.reserved_usd_micros,
                charge_usd_micros=closed.charge_usd_micros,
                refund_usd_micros=closed.refund_usd_micros,
                alarm="reconcile_action",
            )
    return refunded


async def _close(priced: Priced, orphan: OpenReservation, row: PricedRun | None) -> Closed | NoReserve:
    by = Closing(actor=Actor.RECONCILE, trace_id=None if row is None else row.trace_id)
    if row is not None and row.money is Money.SETTLED:
        return await priced.budget.settle(orphan.tenant_id, orphan.run_id, row.actual_cost_usd_micros or 0, by)
    return await priced.budget.refund_full(orphan.tenant_id, orphan.run_id, by)
