"""End a run whose worker sends no more heartbeats."""

from __future__ import annotations

from pyoco_server.actions.priced.finalize import Ending, claim_end, finish
from pyoco_server.actions.priced.intents import failure
from pyoco_server.actions.priced.patience import BRIEF, RetryLimit
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Actor, Basis
from pyoco_server.ports.ledger.port import Lost
from pyoco_server.ports.priced import Priced

__all__ = ["reap"]


async def reap(priced: Priced, run: PricedRun, actor: Actor = Actor.REAPER, patience: RetryLimit = BRIEF) -> Ending:
    """Fail the run with the minimum fee, whether or not a result was uploaded (PRICED-155).

    The claim itself checks the lease again, so that a heartbeat after the scan defeats it (PRICED-153). A crash after
    the claim leaves it to reconcile. Raises DependencyUnavailable if the end could not be claimed.
    """
    claimed = await claim_end(priced, run, Basis.LEASE_EXPIRED, actor, failure(run, Reason.WORKER_TIMEOUT))
    return claimed if isinstance(claimed, Lost) else await finish(priced, claimed, actor, patience)
