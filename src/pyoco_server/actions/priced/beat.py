"""Renew the lease of a run that is being executed, and extend its message and its Redis lease."""

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

#: Time limit for the queue and for Redis: neither decides anything, so they may not cause a long wait.
_HIDE_SECONDS = 5


async def beat(priced: Priced, run: PricedRun, lease_token: str) -> bool:
    """Renew the lease (T5).

    Returns False if the lease is lost for good (PRICED-123): cancel the pack, upload nothing more, do not claim,
    acknowledge the message. The write need not be on disk: if a power failure undoes the renewal, the lease ends early,
    and the claim's guard still holds. Raises DependencyUnavailable: the outcome is unknown, send another heartbeat.
    """
    is_alive = await priced.ledger.transact_softly(lambda tx: tx.leases.heartbeat(run.run_id, run.version, lease_token))
    if not is_alive:
        log.warning("lease lost", **facts.about(run))
    return is_alive


async def keep_hidden(priced: Priced, run: PricedRun, lease_token: str, delivery: Delivery) -> None:
    """Extend the queue's visibility timeout and the Redis lease after a successful heartbeat (PRICED-122).

    Both concurrently, for five seconds at most, best effort: if it fails, the redelivered message is skipped, because a
    run is started only once.
    """
    calls = [_best_effort(run, "queue", priced.queue.extend(delivery))]
    if priced.idempotency_locks is not None:
        calls.append(
            _best_effort(run, "idempotency_locks", priced.idempotency_locks.extend_lease(run.run_id, lease_token))
        )
    await asyncio.gather(*calls)


async def _best_effort(run: PricedRun, store: str, call: Awaitable[object]) -> None:
    try:
        async with asyncio.timeout(_HIDE_SECONDS):
            await call
    except (DependencyUnavailable, TimeoutError) as error:
        log.warning("could not extend the visibility of a message", **facts.about(run), store=store, cause=error)
