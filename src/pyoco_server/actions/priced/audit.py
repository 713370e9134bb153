"""Check that all money adds up. Repairs nothing (contract 17.4)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta

from pyoco_server.core.priced.instants import SECOND_US
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Money
from pyoco_server.ports.budget.port import BudgetDamaged, NotReserved, Open, OpenReservation, Outcome, Refunded, Settled
from pyoco_server.ports.ledger.port import AuditReport, Difference
from pyoco_server.ports.priced import Priced

__all__ = ["audit"]

#: PRICED-60, second check: the balance.
_BALANCE = 2
_READS = 3
_PAUSE = timedelta(milliseconds=300)
_TENANTS_AT_ONCE = 16
#: A budget outside the ledger has two seconds to answer: of twenty thousand concurrent requests most would time out.
_RUNS_AT_ONCE = 64


async def audit(priced: Priced, pause: timedelta = _PAUSE) -> AuditReport:
    """Return all differences (PRICED-60). O(journal); in split mode also one read of each tenant's balance.

    A balance outside the ledger may rightly differ from the journal while money is in transit: between a reservation
    and its T2, between a closing and its commit, or as an orphan. So each tenant's balance is compared with the journal
    plus what its unsettled runs and open reservations explain; and since the two are not read atomically, a difference
    counts only if three reads, with pauses between them, find exactly the same one.

    Raises DependencyUnavailable.
    """
    report = await priced.ledger.read_long(lambda tx: tx.journal.audit(priced.budget.joins_ledger))
    if priced.budget.joins_ledger:
        return report
    damaged = await _damaged(priced, list(report.available))
    sound = dict.fromkeys((tenant_id for tenant_id in report.available if tenant_id not in damaged), 0)
    suspects = await _differing(priced, sound, is_first=True)
    for _ in range(_READS - 1):
        if not suspects:
            break
        await asyncio.sleep(pause.total_seconds())
        suspects = await _differing(priced, suspects, is_first=False)
    found = [Difference(_BALANCE, tenant_id, None, "the balance in the budget is damaged") for tenant_id in damaged]
    found += [
        Difference(_BALANCE, tenant_id, None, f"the budget has {off:+d} micros beside the journal")
        for tenant_id, off in sorted(suspects.items())
    ]
    return replace(report, differences=(*report.differences, *found))


async def _damaged(priced: Priced, tenants: list[str]) -> list[str]:
    """Return the tenants whose balance is not a number: it cannot be compared, and the other tenants are compared
    all the same."""

    async def is_damaged(tenant_id: str) -> bool:
        try:
            await priced.budget.balance(tenant_id)
        except BudgetDamaged:
            return True
        return False

    found: list[str] = []
    for start in range(0, len(tenants), _TENANTS_AT_ONCE):
        some = tenants[start : start + _TENANTS_AT_ONCE]
        answers = await asyncio.gather(*map(is_damaged, some))
        found += [tenant_id for tenant_id, answer in zip(some, answers, strict=True) if answer]
    return sorted(found)


async def _differing(priced: Priced, before: dict[str, int], *, is_first: bool) -> dict[str, int]:
    """Return the tenants whose balance differs, and by how much; after the first read only those with the same
    difference as before."""
    tenants = list(before)
    found: dict[str, int] = {}
    for start in range(0, len(tenants), _TENANTS_AT_ONCE):
        some = tenants[start : start + _TENANTS_AT_ONCE]
        offs = await asyncio.gather(*(_difference(priced, tenant_id) for tenant_id in some))
        found |= {tenant_id: off for tenant_id, off in zip(some, offs, strict=True) if off}
    if is_first:
        return await _explained(priced, found)
    return {tenant_id: off for tenant_id, off in (await _explained(priced, found)).items() if off == before[tenant_id]}


async def _difference(priced: Priced, tenant_id: str) -> int:
    """Return the plain difference. A cheap check, sufficient if no money is in transit."""
    balances, has = await asyncio.gather(
        priced.ledger.read(lambda tx: tx.journal.balances(tenant_id)), priced.budget.balance(tenant_id)
    )
    return has - balances.available_usd_micros


async def _explained(priced: Priced, off: dict[str, int]) -> dict[str, int]:
    """Return what remains of these differences after money in transit is accounted for."""
    if not off:
        return {}
    open_now = await _open_reservations(priced)
    left: dict[str, int] = {}
    for tenant_id in off:
        runs = await priced.ledger.read(lambda tx, tenant_id=tenant_id: tx.runs.unsettled(tenant_id))  # type: ignore[misc]
        outcomes = await _outcomes(priced, runs)
        known = {run.run_id for run in runs}
        orphaned = sum(
            each.reserved_usd_micros for each in open_now if each.tenant_id == tenant_id and each.run_id not in known
        )
        in_transit = sum(_in_transit(run, outcome) for run, outcome in zip(runs, outcomes, strict=True)) - orphaned
        if rest := await _difference(priced, tenant_id) - in_transit:
            left[tenant_id] = rest
    return left


async def _outcomes(priced: Priced, runs: Sequence[PricedRun]) -> list[Outcome]:
    found: list[Outcome] = []
    for start in range(0, len(runs), _RUNS_AT_ONCE):
        some = runs[start : start + _RUNS_AT_ONCE]
        found += await asyncio.gather(*(_outcome(priced, run.run_id) for run in some))
    return found


async def _outcome(priced: Priced, run_id: str) -> Outcome:
    """Return how the reservation ended. A damaged one counts as not reserved."""
    try:
        return await priced.budget.outcome(run_id)
    except BudgetDamaged:
        return NotReserved()


def _in_transit(run: PricedRun, outcome: Outcome) -> int:
    """Return by how much the external balance is ahead of the journal for this run."""
    match outcome:
        case Open(reserved):
            return -reserved if run.money is Money.NONE else 0
        case Settled(_, back) | Refunded(back):
            return 0 if run.money is Money.NONE else back
        case NotReserved():
            return 0


async def _open_reservations(priced: Priced) -> list[OpenReservation]:
    now_us = await priced.ledger.read(lambda tx: tx.now_us())
    async with aclosing(priced.budget.open_reservations(now_us + SECOND_US)) as reservations:
        return [each async for each in reservations]
