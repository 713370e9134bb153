"""End a run: claim the right to, move the money, commit. Every process that ends a run uses these functions
(contract 5.4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyoco_server.actions.priced import facts
from pyoco_server.actions.priced.patience import NO_PATIENCE, PATIENT, RetryLimit
from pyoco_server.actions.priced.settle_answer import AGAIN, Again, Charged, Contradiction, expected_charge, judge
from pyoco_server.core.priced import journal
from pyoco_server.core.priced.journal import Closing
from pyoco_server.core.priced.money import AmountError
from pyoco_server.core.priced.reasons import KEY_RELEASING, Reason
from pyoco_server.core.priced.run import Intent, MoneyOp, PricedRun
from pyoco_server.core.states.priced import Actor, Basis, Stage, Status
from pyoco_server.errors import Corrupt, DependencyUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.budget.port import BudgetDamaged, Closed, NoReserve, TenantMismatch
from pyoco_server.ports.ledger.port import LOST, Final, LedgerRefused, LedgerTx, Lost
from pyoco_server.ports.priced import Priced

__all__ = ["Disputed", "Ending", "Finished", "Unfinished", "claim_end", "decided", "finish"]

log = get_logger(__name__)


@dataclass(frozen=True)
class Finished:
    """The run has ended, exactly once, with this row."""

    run: PricedRun


@dataclass(frozen=True)
class Unfinished:
    """A store did not answer for too long. The claim stays, and reconcile completes it: acknowledge nothing."""


@dataclass(frozen=True)
class Disputed:
    """The money facts contradict each other. Only an operator can move the run on."""

    run: PricedRun


Ending = Finished | Lost | Unfinished | Disputed


class _Contradicts(Exception):
    """Rolls a joint commit back: the money operation did not return what the row requires."""


#: Errors that no retry cures, so that a claim would stay forever: an operator has to be notified. Each is raised before
#: the effect that it refuses. `BudgetDamaged` is caught here before the handler for outages, which it also counts as.
_CONTRADICTIONS = (_Contradicts, BudgetDamaged, TenantMismatch, AmountError, LedgerRefused)


async def claim_end(
    priced: Priced,
    run: PricedRun,
    basis: Basis,
    actor: Actor,
    intent: Intent,
    lease_token: str | None = None,
    patience: RetryLimit = NO_PATIENCE,
) -> PricedRun | Lost:
    """Claim the sole right to end the run, and record the intended outcome: one transaction (PRICED-17).

    Returns LOST if another process ends the run, or if the guard no longer holds. Stop then: no money, no pointer, no
    status (PRICED-18). Raises DependencyUnavailable: the claim may have been written, and reconcile then completes the
    intent.
    """
    token = priced.new_id()

    def work(tx: LedgerTx) -> PricedRun | Lost:
        return tx.ends.claim(run.run_id, run.version, basis, token, actor, intent, lease_token)

    claimed = await decided(priced, run.run_id, work, lambda row: row.finalize_token == token, patience)
    if isinstance(claimed, Lost):
        log.info(
            "could not claim the end of the run: another process ends it",
            **facts.about(run),
            step=basis.value,
            actor=actor.value,
        )
        return claimed
    log.info(
        "claimed the end of the run",
        **facts.step(claimed, run.version),
        **facts.failed(intent.reason_code),
        step=basis.value,
        actor=actor.value,
    )
    priced.show(claimed)
    return claimed


async def finish(priced: Priced, claimed: PricedRun, actor: Actor, patience: RetryLimit = PATIENT) -> Ending:
    """Apply the claim's intent to the money, then commit: the only way a run ends.

    Joint: both are one transaction, so that a lost commit moves no money. Split: the budget first, then the row with
    its journal entry; after a crash in between, reconcile completes it with the recorded charge (PRICED-221).

    A budget that does not answer is called again, and a commit with unknown outcome is read back and tried again, each
    within `patience`; the retries of the commit do not call the budget again (PRICED-22). Does not raise
    DependencyUnavailable. Errors that waiting cannot cure, such as a damaged budget or a refused statement, lead to a
    dispute.
    """
    assert claimed.intent is not None
    assert claimed.stage is Stage.CLAIMED
    try:
        if priced.budget.joins_ledger:
            done = await _end_joint(priced, claimed, actor, patience)
        else:
            done = await _end_split(priced, claimed, actor, patience)
    except _CONTRADICTIONS as contradiction:
        return await _dispute(priced, claimed, str(contradiction), patience)
    except DependencyUnavailable as error:
        log.error("could not end the run in time; reconcile completes it", **facts.about(claimed), cause=error)
        return Unfinished()
    if isinstance(done, Lost):
        log.info("another process ended the run", **facts.about(claimed), actor=actor.value)
        return done
    await _forget_key(priced, claimed, done)
    return Finished(done)


async def decided(
    priced: Priced,
    run_id: str,
    work: Callable[[LedgerTx], PricedRun | Lost],
    is_own: Callable[[PricedRun], bool],
    patience: RetryLimit,
) -> PricedRun | Lost:
    """Repeat a conditional write until its outcome is known. After an unknown outcome it is written again: its guard
    lets it take effect only once. LOST then counts only if the row does not carry our token. Raises
    DependencyUnavailable.

    Writing before reading is the safe order: the first write may still be in flight while its row is read.
    """
    waiting = patience.begin()
    is_unknown = False
    while True:
        try:
            answer = await priced.ledger.transact(work)
            if not isinstance(answer, Lost) or not is_unknown:
                return answer
            row = await priced.ledger.read(lambda tx: tx.runs.get(run_id))
            return row if row is not None and is_own(row) else LOST
        except DependencyUnavailable as error:
            is_unknown = True
            log.warning("ledger did not answer; the write may have succeeded", run_id=run_id, cause=error)
            if not await waiting.again():
                raise


async def _end_joint(priced: Priced, run: PricedRun, actor: Actor, patience: RetryLimit) -> PricedRun | Lost:
    """End the run in one transaction. Raises _Contradicts, DependencyUnavailable."""
    # Money and commit are one transaction: a crash between them equals a crash before it.
    assert run.intent is not None
    due = expected_charge(run, run.intent)
    charged = Charged(due, run.reserved_usd_micros - due)
    return await _commit(priced, run, charged, _joint(run, charged, actor), patience)


async def _end_split(priced: Priced, run: PricedRun, actor: Actor, patience: RetryLimit) -> PricedRun | Lost:
    """Close the reservation, then commit. Raises _Contradicts, DependencyUnavailable."""
    charged = await _move_money(priced, run, actor, patience)
    if isinstance(charged, Contradiction):
        raise _Contradicts(charged.why)
    return await _commit(priced, run, charged, _split(run, charged, actor), patience)


async def _move_money(priced: Priced, run: PricedRun, actor: Actor, patience: RetryLimit) -> Charged | Contradiction:
    """B1, split mode: call the budget until its answer is known. Raises DependencyUnavailable."""
    waiting = patience.begin()
    by = _closing(run, actor)
    while True:
        try:
            verdict = await _ask_to_close(priced, run, by)
            if not isinstance(verdict, Again):
                return verdict
        except BudgetDamaged:
            raise
        except DependencyUnavailable as error:
            log.warning("budget did not answer; trying again", **facts.about(run), cause=error)
            if not await waiting.again():
                raise


async def _ask_to_close(priced: Priced, run: PricedRun, by: Closing) -> Charged | Contradiction | Again:
    assert run.intent is not None
    answer: Closed | NoReserve
    if run.intent.money_op is MoneyOp.SETTLE:
        answer = await priced.budget.settle(run.tenant_id, run.run_id, run.intent.charge_usd_micros, by)
    else:
        answer = await priced.budget.refund_full(run.tenant_id, run.run_id, by)
    outcome = await priced.budget.outcome(run.run_id) if isinstance(answer, NoReserve) else None
    return judge(run, answer, outcome)


def _joint(run: PricedRun, due: Charged, actor: Actor) -> Callable[[LedgerTx], PricedRun | Lost]:
    """Write the row first: a process that has lost the row makes no money call, and rows are locked before budgets
    (PRICED-53)."""
    by = _closing(run, actor)
    intent = run.intent
    assert intent is not None

    def work(tx: LedgerTx) -> PricedRun | Lost:
        done = _write(tx, run, due)
        if isinstance(done, Lost):
            return done
        try:
            answer = _close_in(tx, run, intent, by)
        except Corrupt as error:
            raise _Contradicts(str(error)) from error
        verdict = judge(run, answer, tx.money.outcome(run.run_id) if isinstance(answer, NoReserve) else None)
        if isinstance(verdict, Contradiction):
            raise _Contradicts(verdict.why)
        assert verdict is not AGAIN, "nobody else can reserve within this transaction"
        if isinstance(verdict, Charged) and verdict.charge_usd_micros != due.charge_usd_micros:
            raise _Contradicts("the budget charged another amount than the run is ended with")
        return done

    return work


def _close_in(tx: LedgerTx, run: PricedRun, intent: Intent, by: Closing) -> Closed | NoReserve:
    if intent.money_op is MoneyOp.SETTLE:
        return tx.money.settle(run.tenant_id, run.run_id, intent.charge_usd_micros, by)
    return tx.money.refund_full(run.tenant_id, run.run_id, by)


def _split(run: PricedRun, charged: Charged, actor: Actor) -> Callable[[LedgerTx], PricedRun | Lost]:
    by = _closing(run, actor)
    assert run.intent is not None
    reserved, charge = run.reserved_usd_micros, charged.charge_usd_micros
    if run.intent.money_op is MoneyOp.SETTLE:
        fact = journal.settle(run.tenant_id, run.run_id, reserved, charge, by)
    else:
        fact = journal.refund(run.tenant_id, run.run_id, reserved, by)

    def work(tx: LedgerTx) -> PricedRun | Lost:
        done = _write(tx, run, charged)
        if isinstance(done, PricedRun) and charged.is_journalled and not tx.journal.post(fact):
            raise _ClosedBefore  # PRICED-57
        return done

    return work


class _ClosedBefore(Exception):
    """Rolls a commit back: the journal has closed this run already."""


def _write(tx: LedgerTx, run: PricedRun, charged: Charged) -> PricedRun | Lost:
    assert run.intent is not None
    assert run.finalize_token is not None
    final = Final(
        step=_commit_step(run.intent),
        intent=run.intent,
        charge_usd_micros=charged.charge_usd_micros,
        releases_key=run.intent.reason_code in KEY_RELEASING,
    )
    return tx.ends.commit(run.run_id, run.version, run.finalize_token, final)


def _commit_step(intent: Intent) -> str:
    if intent.money_op is MoneyOp.REFUND:
        return "T14"
    if intent.status is Status.COMPLETED:
        return "T7"
    return "T10" if intent.reason_code == Reason.WORKER_TIMEOUT else "T8"


async def _commit(
    priced: Priced,
    run: PricedRun,
    charged: Charged,
    work: Callable[[LedgerTx], PricedRun | Lost],
    patience: RetryLimit,
) -> PricedRun | Lost:
    """B2. Raises DependencyUnavailable."""

    def is_own(row: PricedRun) -> bool:
        return row.finalize_token == run.finalize_token and row.stage is Stage.COMMITTED

    try:
        done = await decided(priced, run.run_id, work, is_own, patience)
    except _ClosedBefore:
        log.error("the journal has closed this run already", **facts.about(run), alarm="closed_twice")
        return LOST
    if isinstance(done, PricedRun):
        log.info(
            "run ended",
            **facts.step(done, run.version),
            **facts.money(
                done, charge_usd_micros=charged.charge_usd_micros, refund_usd_micros=charged.refund_usd_micros
            ),
            **facts.failed(done.reason_code),
        )
        priced.show(done)
    return done


async def _dispute(priced: Priced, run: PricedRun, why: str, patience: RetryLimit) -> Ending:
    """T17. No further money effect."""
    token = run.finalize_token
    assert token is not None

    def is_own(row: PricedRun) -> bool:
        return row.finalize_token == token and row.version == run.version + 1

    def work(tx: LedgerTx) -> PricedRun | Lost:
        return tx.ends.dispute(run.run_id, run.version, token)

    try:
        disputed = await decided(priced, run.run_id, work, is_own, patience)
    except (DependencyUnavailable, LedgerRefused) as error:
        log.error("could not record a dispute; reconcile does it", **facts.about(run), cause=error)
        return Unfinished()
    if isinstance(disputed, Lost):
        return disputed
    log.error(
        "money facts of the run contradict each other: an operator has to decide",
        **facts.step(disputed, run.version),
        **facts.money(disputed),
        alarm="disputed",
        why=why,
    )
    priced.show(disputed)
    return Disputed(disputed)


def _closing(run: PricedRun, actor: Actor) -> Closing:
    return Closing(actor=actor, finalize_token=run.finalize_token, trace_id=run.trace_id)


async def _forget_key(priced: Priced, claimed: PricedRun, done: PricedRun) -> None:
    """Delete the mapping of a released key. The mapping is only a hint, so a failure is only logged."""
    if priced.idempotency_locks is None or claimed.idempotency_key is None or done.idempotency_key is not None:
        return
    try:
        await priced.idempotency_locks.forget(done.tenant_id, claimed.idempotency_key)
    except DependencyUnavailable as error:
        log.warning("mapping of a released key stays for a while", **facts.about(done), cause=error)
