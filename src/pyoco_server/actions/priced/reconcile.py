"""Complete a claimed end that was not made: the claim's holder crashed, or could not reach its stores."""

from __future__ import annotations

from pyoco_server.actions.priced import facts
from pyoco_server.actions.priced.finalize import Ending, Unfinished, decided, finish
from pyoco_server.actions.priced.intents import failure
from pyoco_server.actions.priced.patience import BRIEF, NO_PATIENCE, RetryLimit
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.core.priced.run import PricedRun, ResultPointer
from pyoco_server.core.states.priced import Actor
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.ledger.port import LedgerTx, Lost
from pyoco_server.ports.priced import Priced

__all__ = ["reconcile"]

log = get_logger(__name__)


async def reconcile(priced: Priced, run: PricedRun, patience: RetryLimit = BRIEF) -> Ending:
    """Take over the stale claim, which fences its holder (PRICED-25), then complete its intent.

    A settlement that was already made is adopted, never repeated (PRICED-162). A success is published only if its
    result is stored as intended; otherwise the run fails with the minimum fee (PRICED-161). If the store of results
    does not answer, the claim stays and becomes stale again. Raises DependencyUnavailable if the claim could not be
    taken over.
    """
    token = priced.new_id()
    taken = await decided(
        priced,
        run.run_id,
        lambda tx: tx.ends.take_over(run.run_id, run.version, token, Actor.RECONCILE),
        lambda row: row.finalize_token == token,
        NO_PATIENCE,
    )
    if isinstance(taken, Lost):
        return taken
    log.warning("took over a stale claim", **facts.step(taken, run.version), alarm="reconcile_action")
    priced.show(taken)
    assert taken.intent is not None
    if taken.intent.result is not None:
        checked = await _checked(priced, taken, taken.intent.result)
        if not isinstance(checked, PricedRun):
            return checked
        taken = checked
    return await finish(priced, taken, Actor.RECONCILE, patience)


async def _checked(priced: Priced, run: PricedRun, result: ResultPointer) -> PricedRun | Lost | Unfinished:
    """Return the run, with another intent if its result is not the intended one (T19)."""
    if result.bucket != priced.results.bucket:
        log.error("the result of a run is in a bucket that this keeper does not read", **facts.about(run))
        return Unfinished()
    try:
        head = await priced.results.head(result.key)
    except DependencyUnavailable as error:
        log.warning("could not check a result; its claim stays", **facts.about(run), cause=error)
        return Unfinished()
    if head is not None and head.sha256 == result.sha256:
        return run
    return await _fail_missing(priced, run)


async def _fail_missing(priced: Priced, run: PricedRun) -> PricedRun | Lost | Unfinished:
    intent = failure(run, Reason.RESULT_MISSING)
    token = run.finalize_token
    assert token is not None

    def work(tx: LedgerTx) -> PricedRun | Lost:
        return tx.ends.replace_intent(run.run_id, run.version, token, intent)

    def is_own(row: PricedRun) -> bool:
        return row.finalize_token == token and row.version == run.version + 1

    try:
        changed = await decided(priced, run.run_id, work, is_own, NO_PATIENCE)
    except DependencyUnavailable as error:
        log.warning("could not write another intent; the claim stays", **facts.about(run), cause=error)
        return Unfinished()
    if isinstance(changed, PricedRun):
        log.warning(
            "result is missing or different: the run fails",
            **facts.step(changed, run.version),
            **facts.failed(intent.reason_code),
            alarm="reconcile_action",
        )
        priced.show(changed)
    return changed
