"""Resolve a disputed run: record an operator's decision as money facts (T18)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyoco_server.actions.priced import facts
from pyoco_server.core.priced import journal
from pyoco_server.core.priced.journal import Closing
from pyoco_server.core.priced.reasons import KEY_RELEASING, Reason
from pyoco_server.core.priced.run import Intent, MoneyOp, PricedRun
from pyoco_server.core.states.priced import Actor, Money, Status
from pyoco_server.errors import Conflict, RunNotFound
from pyoco_server.logs import get_logger
from pyoco_server.ports.budget.port import Open, Outcome, Refunded, Settled, TenantMismatch
from pyoco_server.ports.ledger.port import Final, LedgerTx, Lost
from pyoco_server.ports.priced import Priced

__all__ = ["Decision", "Refund", "Settle", "resolve"]

log = get_logger(__name__)


@dataclass(frozen=True)
class Settle:
    """Charge this much; a result that was to be published is published."""

    charge_usd_micros: int


@dataclass(frozen=True)
class Refund:
    """Refund everything; publish nothing."""


Decision = Settle | Refund


async def resolve(priced: Priced, run_id: str, decision: Decision, memo: str) -> PricedRun:
    """Do T18 with its journal entries in one transaction. Afterwards the journal is consistent again (PRICED-16).

    Split: the journal is right then, and the budget is not: rebuild the tenant's budget (PRICED-61). Joint: balance and
    reservation are corrected in the same transaction. If the journal had closed the run already, that kind and charge
    stand, and the difference to the decision is written as a correction of the tenant's money, with `memo` as its
    reason.

    Raises RunNotFound, Conflict (not disputed; more than the reservation; the journal has the other kind; changed
    meanwhile), AmountError (the tenant's balance is too low), DependencyUnavailable (unknown; read the run).
    """
    before, done = await priced.ledger.transact(
        lambda tx: _resolve(tx, run_id, decision, memo, priced.budget.joins_ledger)
    )
    charge = done.actual_cost_usd_micros or 0
    log.warning(
        "an operator resolved a disputed run",
        **facts.step(done, before.version),
        **facts.money(done, charge_usd_micros=charge, refund_usd_micros=done.reserved_usd_micros - charge),
        **facts.failed(done.reason_code),
    )
    priced.show(done)
    return done


def _resolve(
    tx: LedgerTx, run_id: str, decision: Decision, memo: str, joins_ledger: bool
) -> tuple[PricedRun, PricedRun]:
    run = tx.runs.get(run_id)
    if run is None:
        raise RunNotFound
    if run.money is not Money.DISPUTED:
        raise Conflict(f"the run is not disputed: it is at {run.at}")
    charge = decision.charge_usd_micros if isinstance(decision, Settle) else 0
    if not 0 <= charge <= run.reserved_usd_micros:
        raise Conflict("a charge is at most what the run had reserved")
    outcome = tx.money.outcome(run_id) if joins_ledger else None
    stands = _standing_charge(outcome, decision, charge)
    intent = _intent(run, decision, stands)
    releases_key = intent.reason_code in KEY_RELEASING
    final = Final(step="T18", intent=intent, charge_usd_micros=stands, releases_key=releases_key)
    done = tx.ends.resolve(run_id, run.version, final)  # the row first: PRICED-53
    if isinstance(done, Lost):
        raise Conflict("the run has changed meanwhile")
    if isinstance(outcome, Settled | Refunded):
        _correct(tx, run, stands - charge, memo)
    else:
        _close(tx, run, decision, charge, outcome)
    return run, done


def _standing_charge(outcome: Outcome | None, decision: Decision, charge: int) -> int:
    """Return the charge that stands. Joint mode writes the journal with each closing, and those entries stay."""
    match outcome, decision:
        case Settled(charged, _), Settle():
            return charged
        case Settled(), Refund():
            raise Conflict("the journal has settled this run: settle it with a charge of nothing instead")
        case Refunded(), Settle():
            raise Conflict("the journal has refunded this run: it can only be refunded")
        case _:
            return charge


def _close(tx: LedgerTx, run: PricedRun, decision: Decision, charge: int, outcome: Outcome | None) -> None:
    """Write those of the run's two money facts that are missing. With `outcome` (joint mode) the balance follows
    each of them."""
    by = Closing(actor=Actor.OPERATOR, finalize_token=run.finalize_token, trace_id=run.trace_id)
    reserved = run.reserved_usd_micros
    if outcome == Open(reserved) and _close_as_usual(tx, run, decision, charge, by):
        return
    if isinstance(outcome, Open):
        tx.money.force_close(run.run_id, min(charge, outcome.reserved_usd_micros))
    opened = journal.reserve(run.tenant_id, run.run_id, reserved, Actor.OPERATOR, run.trace_id)
    if tx.journal.post(opened) and outcome is not None:
        tx.money.adjust(run.tenant_id, -reserved)
    if isinstance(decision, Settle):
        closed = journal.settle(run.tenant_id, run.run_id, reserved, charge, by)
    else:
        closed = journal.refund(run.tenant_id, run.run_id, reserved, by)
    if not tx.journal.post(closed):
        raise Conflict("the journal has closed this run already, and the budget knows nothing of it")
    if outcome is not None and reserved != charge:
        tx.money.adjust(run.tenant_id, reserved - charge)


def _close_as_usual(tx: LedgerTx, run: PricedRun, decision: Decision, charge: int, by: Closing) -> bool:
    """Close the reservation. Returns False if it belongs to another tenant, which was the dispute; nothing changed."""
    try:
        if isinstance(decision, Settle):
            tx.money.settle(run.tenant_id, run.run_id, charge, by)
        else:
            tx.money.refund_full(run.tenant_id, run.run_id, by)
    except TenantMismatch:
        return False
    return True


def _correct(tx: LedgerTx, run: PricedRun, amount_usd_micros: int, memo: str) -> None:
    if amount_usd_micros == 0:
        return
    account = journal.available(run.tenant_id)
    tx.journal.post(journal.correction(run.tenant_id, f"resolve:{run.run_id}", account, amount_usd_micros, memo))
    tx.money.adjust(run.tenant_id, amount_usd_micros)


def _intent(run: PricedRun, decision: Decision, charge: int) -> Intent:
    intent = run.intent
    assert intent is not None, "a disputed run is claimed"
    if isinstance(decision, Settle):
        return replace(intent, money_op=MoneyOp.SETTLE, charge_usd_micros=charge)
    return replace(
        intent,
        status=Status.FAILED,
        money_op=MoneyOp.REFUND,
        charge_usd_micros=0,
        reason_code=intent.reason_code or Reason.PACK_FAILED.value,
        error_detail=intent.error_detail or "resolved by an operator",
        result=None,
    )
