"""Say that a run is being worked on: renew its lease."""

from __future__ import annotations

from pyoco_server.actions.priced import facts
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.pack_queue.port import Delivery
from pyoco_server.ports.priced import Priced

__all__ = ["beat"]

log = get_logger(__name__)


async def beat(priced: Priced, run: PricedRun, lease_token: str, delivery: Delivery | None = None) -> bool:
    """T5, then the queue's visibility and the Redis lease (PRICED-122). False: the lease is lost for good
    (PRICED-123): cancel the pack, upload nothing more, do not claim, acknowledge.

    Nobody waits for it to be on disk: a power failure that takes the renewal makes the lease end early, and an end is
    claimed by its guard all the same. Raises DependencyUnavailable for the ledger alone: unknown, beat again.
    """
    is_alive = await priced.ledger.transact_softly(lambda tx: tx.leases.heartbeat(run.run_id, run.version, lease_token))
    if not is_alive:
        log.warning("the lease of the run is lost", **facts.about(run))
        return False
    try:
        if delivery is not None:
            await priced.queue.extend(delivery)
        if priced.hints is not None:
            await priced.hints.extend_lease(run.run_id, lease_token)
    except DependencyUnavailable as error:  # a second delivery is skipped: the run is started once
        log.warning("the message of a run could not be kept invisible", **facts.about(run), cause=error)
    return True
