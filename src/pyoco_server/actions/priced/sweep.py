"""What becomes of runs that nobody starts: given up and refunded, or sent again (contract 16)."""

from __future__ import annotations

from pyoco_server.actions.priced import facts
from pyoco_server.actions.priced.finalize import Ending, claim_end, finish
from pyoco_server.actions.priced.intents import refund
from pyoco_server.actions.priced.patience import BRIEF, Patience
from pyoco_server.actions.priced.send import send
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.priced.states import Actor, Basis
from pyoco_server.logs import get_logger
from pyoco_server.ports.ledger.port import LedgerTx, Lost
from pyoco_server.ports.priced import Priced

__all__ = ["give_up_abandoned", "give_up_aged", "send_again"]

log = get_logger(__name__)


async def give_up_aged(priced: Priced, run: PricedRun, patience: Patience = BRIEF) -> Ending:
    """PRICED-156: queued for too long; everything goes back. No worker can start it any more: T4 has the same limit.

    Raises DependencyUnavailable when it could not be claimed, as `give_up_abandoned` does.
    """
    return await _give_up(priced, run, Basis.AGED, Reason.RESERVATION_EXPIRED, patience)


async def give_up_abandoned(priced: Priced, run: PricedRun, patience: Patience = BRIEF) -> Ending:
    """PRICED-157: its submit died before the row was reserved. What the budget may hold goes back; the key is free."""
    return await _give_up(priced, run, Basis.ABANDONED, Reason.SUBMIT_ABANDONED, patience)


async def send_again(priced: Priced, run: PricedRun) -> bool:
    """PRICED-158: accepted, and nobody knows that it was sent. A second message is harmless. False: it has moved on.

    Raises DependencyUnavailable: it may have been sent.
    """
    now_us = await priced.ledger.read(lambda tx: _now_if_waiting(tx, run))
    if now_us is None:
        return False
    await send(priced, run, now_us)
    await priced.ledger.transact_softly(lambda tx: tx.runs.mark_enqueued(run.run_id))
    log.warning("a run that was not known to be sent is sent again", **facts.about(run))
    return True


def _now_if_waiting(tx: LedgerTx, run: PricedRun) -> int | None:
    row = tx.runs.get(run.run_id)
    return tx.now_us() if row is not None and row.version == run.version and row.enqueued_at is None else None


async def _give_up(priced: Priced, run: PricedRun, basis: Basis, reason: Reason, patience: Patience) -> Ending:
    claimed = await claim_end(priced, run, basis, Actor.SWEEPER, refund(reason))
    return claimed if isinstance(claimed, Lost) else await finish(priced, claimed, Actor.SWEEPER, patience)
