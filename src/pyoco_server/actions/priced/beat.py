"""Say that a run is being worked on: renew its lease, and tell the others who may look."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from pyoco_server.actions.priced import facts
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.pack_queue.port import Delivery
from pyoco_server.ports.priced import Priced

__all__ = ["beat", "keep_hidden"]

log = get_logger(__name__)

#: For the queue, and for Redis: neither decides, so nobody waits for them for long.
_HIDE_SECONDS = 5


async def beat(priced: Priced, run: PricedRun, lease_token: str) -> bool:
    """T5. False: the lease is lost for good (PRICED-123): cancel the pack, upload nothing more, do not claim,
    acknowledge.

    Nobody waits for it to be on disk: a power failure that takes the renewal makes the lease end early, and an end is
    claimed by its guard all the same. Raises DependencyUnavailable: unknown, beat again.
    """
    is_alive = await priced.ledger.transact_softly(lambda tx: tx.leases.heartbeat(run.run_id, run.version, lease_token))
    if not is_alive:
        log.warning("the lease of the run is lost", **facts.about(run))
    return is_alive


async def keep_hidden(priced: Priced, run: PricedRun, lease_token: str, delivery: Delivery) -> None:
    """After a beat that went well: the queue's visibility and the Redis lease, too (PRICED-122).

    Both at once, five seconds at most, and in vain if need be: a second delivery is skipped, since a run is started
    once.
    """
    doings = [_tried(run, "queue", priced.queue.extend(delivery))]
    if priced.idempotency_locks is not None:
        doings.append(_tried(run, "idempotency_locks", priced.idempotency_locks.extend_lease(run.run_id, lease_token)))
    await asyncio.gather(*doings)


async def _tried(run: PricedRun, store: str, doing: Awaitable[object]) -> None:
    try:
        async with asyncio.timeout(_HIDE_SECONDS):
            await doing
    except (DependencyUnavailable, TimeoutError) as error:
        log.warning("the message of a run could not be kept hidden", **facts.about(run), store=store, cause=error)
