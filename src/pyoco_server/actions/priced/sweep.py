"""Handle runs that no worker starts: give them up and refund them, or send them again (contract 16)."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.actions.priced import facts
from pyoco_server.actions.priced.finalize import Ending, claim_end, finish
from pyoco_server.actions.priced.intents import refund
from pyoco_server.actions.priced.patience import BRIEF, RetryLimit
from pyoco_server.actions.priced.send import send
from pyoco_server.core.priced.projection import is_delayed
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Actor, Basis
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.ledger.port import LedgerTx, Lost
from pyoco_server.ports.priced import Priced

__all__ = [
    "MARGIN_US",
    "Beginning",
    "cancel_delayed",
    "forget_lost_messages",
    "give_up_abandoned",
    "give_up_aged",
    "send_again",
    "send_due",
    "start_early",
]

log = get_logger(__name__)

#: Maximum difference between the clocks of the queue, the ledger and the machine of a restore.
MARGIN_US = 300_000_000


async def give_up_aged(priced: Priced, run: PricedRun, patience: RetryLimit = BRIEF) -> Ending:
    """PRICED-156: refund a run that was queued for too long. No worker can start it any more: T4 has the same limit.

    Raises DependencyUnavailable if its end could not be claimed, as `give_up_abandoned` does.
    """
    return await _give_up(priced, run, Basis.AGED, Reason.RESERVATION_EXPIRED, patience)


async def give_up_abandoned(priced: Priced, run: PricedRun, patience: RetryLimit = BRIEF) -> Ending:
    """PRICED-157: its submit stopped before the row was reserved. Any reservation in the budget is refunded; the key
    is free."""
    return await _give_up(priced, run, Basis.ABANDONED, Reason.SUBMIT_ABANDONED, patience)


@dataclass(frozen=True)
class Beginning:
    """When a queue was created or restored, as last read."""

    at_us: int
    #: The final pass over messages sent before that time is done.
    is_settled: bool


async def forget_lost_messages(priced: Priced, known: Beginning | None) -> Beginning | None:
    """Mark the messages of a recreated queue as not sent, so that they are sent again.

    A queue that was created anew, or restored, may lack messages sent before: runs that still wait count as not sent,
    and are sent again with the others. If a message is in the queue after all, the new one is a repeat: T4 makes it
    harmless (PRICED-108).

    Queue and ledger have different clocks, and a submit may still record a message as sent that it sent to the old
    queue: so a message sent within MARGIN_US after the creation counts as older, too, and there are two passes: one
    immediately, and one when that time is over. At most two repeats of a run from each keeper. If the clocks differ by
    more than that, a run is left to its refund (PRICED-156).

    Returns the queue's creation, for the next call: one round trip, and a second one until it is settled; two writes
    for each creation. If the queue or the ledger does not answer, the next call tries again.
    """
    try:
        begun_at = await priced.queue.begun_at()
        if begun_at is None:
            return None
        is_known = known is not None and known.at_us == begun_at
        if known is not None and is_known and known.is_settled:
            return known
        until = begun_at + MARGIN_US
        is_over = await priced.ledger.read(lambda tx: tx.now_us()) >= until
        if is_known and not is_over:
            return known
        lost = await priced.ledger.transact(lambda tx: tx.runs.forget_sent(until))
    except DependencyUnavailable as error:
        log.warning("could not check the queue of priced runs", cause=error)
        return known
    if lost:
        log.warning("queue was recreated; sending the messages of waiting runs again", count=lost)
    return Beginning(begun_at, is_settled=is_over)


async def send_again(priced: Priced, run: PricedRun) -> bool:
    """PRICED-158: send an accepted run that is not recorded as sent. A second message is harmless.

    Returns False if the run has changed. Raises DependencyUnavailable: it may have been sent.
    """
    now_us = await priced.ledger.read(lambda tx: _now_if_waiting(tx, run))
    if now_us is None:
        return False
    await send(priced, run, now_us)
    await priced.ledger.transact_softly(lambda tx: tx.runs.mark_enqueued(run.run_id))
    log.warning("sent a run again that was not recorded as sent", **facts.about(run))
    return True


async def send_due(priced: Priced, run_id: str) -> int:
    """Send a delayed run whose time has come. Returns the microseconds until then; 0: nothing is left to do.

    A crash after the send leaves a run that is sent again; it is started once. Raises DependencyUnavailable.
    """
    row, now_us = await priced.ledger.read(lambda tx: (tx.runs.get(run_id), tx.now_us()))
    if row is None or not is_delayed(row) or row.not_before is None:
        if row is not None:  # the record is older than the row
            priced.show(row)
        return 0
    if row.not_before > now_us:
        return row.not_before - now_us
    await send(priced, row, now_us)
    sent = await priced.ledger.transact_softly(lambda tx: tx.runs.mark_sent(run_id))
    if isinstance(sent, PricedRun):
        priced.show(sent)
    return 0


async def start_early(priced: Priced, run_id: str) -> PricedRun | Lost:
    """Make a delayed run due now, and send it. LOST: it does not wait for its time. Raises DependencyUnavailable."""
    released = await priced.ledger.transact(lambda tx: tx.runs.release(run_id))
    if isinstance(released, PricedRun):
        await send_due(priced, run_id)
    return released


async def cancel_delayed(priced: Priced, run: PricedRun) -> Ending:
    """Refund a delayed run before its time (DELAY-7). LOST: its time has come. Raises DependencyUnavailable."""
    claimed = await claim_end(
        priced, run, Basis.NOT_DUE, Actor.API, refund(Reason.CANCELLED_BEFORE_START), patience=BRIEF
    )
    return claimed if isinstance(claimed, Lost) else await finish(priced, claimed, Actor.API, BRIEF)


def _now_if_waiting(tx: LedgerTx, run: PricedRun) -> int | None:
    row = tx.runs.get(run.run_id)
    return tx.now_us() if row is not None and row.version == run.version and row.enqueued_at is None else None


async def _give_up(priced: Priced, run: PricedRun, basis: Basis, reason: Reason, patience: RetryLimit) -> Ending:
    claimed = await claim_end(priced, run, basis, Actor.SWEEPER, refund(reason))
    return claimed if isinstance(claimed, Lost) else await finish(priced, claimed, Actor.SWEEPER, patience)
