"""Accept a priced run: reserve its money, record it, put it on the queue, return."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.actions.priced import facts
from pyoco_server.actions.priced.below_price import accepted_before, below_price
from pyoco_server.actions.priced.finalize import Finished, claim_end, finish
from pyoco_server.actions.priced.intents import refund
from pyoco_server.actions.priced.patience import BRIEF
from pyoco_server.actions.priced.place_joint import place_joint
from pyoco_server.actions.priced.place_split import place_split
from pyoco_server.actions.priced.send import send
from pyoco_server.actions.priced.unserved import unserved
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.core.priced.run import NewRun, PricedRun
from pyoco_server.core.states.priced import Actor, Basis
from pyoco_server.errors import DependencyUnavailable, SendFailed
from pyoco_server.logs import get_logger
from pyoco_server.ports.ledger.port import Lost
from pyoco_server.ports.priced import Priced

__all__ = ["Accepted", "submit"]

log = get_logger(__name__)


@dataclass(frozen=True)
class Accepted:
    run: PricedRun
    #: The tenant's available money, after this run's reservation.
    balance_usd_micros: int
    #: An earlier submission under the same key had created it; nothing changed.
    replayed: bool


async def submit(priced: Priced, ask: NewRun) -> Accepted:
    """Create row and reservation, send the message, then return. One key leads to at most one run, one reservation and
    one charge, however often and however concurrently it is submitted (PRICED-104).

    Joint: one transaction, one send, one write that need not be on disk. Split: see `place_split`.

    What a crash leaves behind, and how it is repaired:

    - before the row is reserved: joint: nothing; split: a row that the sweeper gives up, with its money returned and
      its key free;
    - between that and the send: an accepted run. The sweeper sends it, and a replay gets its receipt;
    - after the send: it runs. It may be sent twice, and is started once.

    The same holds if the caller disconnects: this may be cancelled at any point.

    A submission that no worker can execute or whose reservation is below the price is refused before anything is
    written or the balance is read, unless the same submission was accepted before.

    Raises Refused, BelowPrice and OverBudget (nothing changed), KeyReused, KeyBusy, SendFailed (ended and refunded, the
    key is free), DependencyUnavailable (unknown; the same key again is safe).
    """
    refused = await unserved(priced, ask) or below_price(priced, ask)
    if refused is not None:
        placed = await accepted_before(priced, ask, refused)
        return Accepted(placed.run, placed.balance_usd_micros, placed.is_replayed)
    placing = place_joint if priced.idempotency_locks is None else place_split
    async with placing(priced, ask) as placed:
        is_queued = placed.is_replayed or placed.run.not_before is not None  # a keeper sends it at its time (DELAY-7)
        run = placed.run if is_queued else await _queue(priced, placed.run)
        return Accepted(run, placed.balance_usd_micros, placed.is_replayed)


async def _queue(priced: Priced, run: PricedRun) -> PricedRun:
    """Steps 9 to 11."""
    try:
        await send(priced, run, run.updated_at)
    except DependencyUnavailable as error:
        return await _take_back(priced, run, error)
    try:
        await priced.ledger.transact_softly(lambda tx: tx.runs.mark_enqueued(run.run_id))
    except DependencyUnavailable as error:  # it is sent again, but started only once
        log.warning("sent a run, but could not record that", **facts.about(run), cause=error)
    return run


async def _take_back(priced: Priced, run: PricedRun, error: DependencyUnavailable) -> PricedRun:
    """PRICED-99. The claim decides whether the message arrived after all. Raises SendFailed, DependencyUnavailable."""
    log.warning("could not queue the run", **facts.about(run), cause=error)
    intent = refund(Reason.QUEUE_ENQUEUE_FAILED)
    claimed = await claim_end(priced, run, Basis.SEND_FAILED, Actor.API, intent, patience=BRIEF)
    if isinstance(claimed, Lost):
        log.info("unanswered send had succeeded: a worker has the run", **facts.about(run))
        return run
    if isinstance(await finish(priced, claimed, Actor.API, BRIEF), Finished):
        raise SendFailed(run.run_id) from error
    raise DependencyUnavailable("the run could not be queued, and is not refunded yet; it will be") from error
