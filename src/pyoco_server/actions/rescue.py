"""End a run that nobody will ever take."""

from __future__ import annotations

from pyoco_server.actions.claim import alive_seconds
from pyoco_server.actions.finish import write_terminal
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.outcome import Cancelled, DeadReason, Failed
from pyoco_server.core.run import Run, conclude
from pyoco_server.core.states import RunState
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.queue.port import Stock
from pyoco_server.ports.runs.port import Stored

__all__ = ["end_cancelled", "has_no_job", "may_wait", "rescue", "worked_on_seconds"]

log = get_logger(__name__)

#: A submission writes record and job within its patience for NATS, twice 17 s at the worst.
_SUBMIT_SECONDS_MAX = 40.0


def worked_on_seconds(run: Run, now: float, config: NatsBackendConfig) -> float:
    """For how long a keeper believes that somebody works on the run; 0 or less: nobody does.

    More patient than a claim: a keeper does not know the heartbeat interval of every worker.
    """
    if run.attempt_id is None:
        return 0.0
    patient = run.heartbeat_at + config.worker_disconnect_timeout_sec - now
    return max(patient, alive_seconds(run, now, config.run_heartbeat_interval_sec))


def may_wait(found: Stored, oldest: float | None) -> bool:
    """Whether the job of this run may be among those left in its queue, of which the oldest was stored then.

    Both times are the store's own, so no clock but one is trusted. A run that was claimed had its job before its record
    was last written; one that was not gets its job within seconds of its record.
    """
    if oldest is None:
        return False
    latest = found.stored_at if found.run.attempt else found.stored_at + _SUBMIT_SECONDS_MAX
    return oldest <= latest


def has_no_job(found: Stored, stock: Stock) -> bool:
    """Whether the queue, as it was after `found` was last written, holds no job of this run.

    Jobs come in by time. So when every job that was never delivered came in later than this run's can have, this run's
    is among those that were, or nowhere.
    """
    return found.run.run_id not in stock.in_hand and not may_wait(found, stock.waiting_since)


async def rescue(backend: Backend, run_id: str, quiet_seconds: float, stock: Stock | None = None) -> Run | None:
    """End the run if it has been quiet for that long and has no job in the queue; a cancelled one as `end_cancelled`
    does. None: it needs no rescue.

    `stock`: what the queue of its tag was found to hold, if somebody has looked a moment ago; one look serves many
    runs. One read and one compare-and-set, which is lost to anybody who still works on the run. Several keepers may try
    at once.
    """
    found = await backend.runs.find(run_id)
    if not isinstance(found, Stored) or found.run.is_terminal:
        return None
    run, now = found.run, backend.clock()
    if run.status is RunState.CANCELLING:
        return await _end_cancelled(backend, found, quiet_seconds)
    if now - max(run.updated_at, run.heartbeat_at) < quiet_seconds:
        return None
    if not has_no_job(found, stock or await backend.queue.stock(run.tag)):
        return None
    message = "the run has a record but no job in the queue, so no worker would ever take it; submit it again"
    ended = await write_terminal(
        backend, conclude(run, Failed(message=message, why=DeadReason.ABANDONED), now), found.revision
    )
    if not isinstance(ended, Stored):
        return None
    log.warning("ended a run without a job", run_id=run_id, tag=run.tag, was=run.status, status=ended.run.status)
    return ended.run


async def end_cancelled(backend: Backend, run_id: str, quiet_seconds: float) -> Run | None:
    """End a cancelled run that nobody works on, whether or not its job waits: whoever takes that finds the run ended
    (FLOW-17). None: it is not for us, or not yet.

    `quiet_seconds` after the request, if nobody has begun it; otherwise as soon as its worker has been silent for too
    long. A worker that was merely cut off loses its next write and stops (FLOW-311). One read, one compare-and-set.
    """
    found = await backend.runs.find(run_id)
    if not isinstance(found, Stored) or found.run.status is not RunState.CANCELLING:
        return None
    return await _end_cancelled(backend, found, quiet_seconds)


async def _end_cancelled(backend: Backend, found: Stored, quiet_seconds: float) -> Run | None:
    run, now = found.run, backend.clock()
    if worked_on_seconds(run, now, backend.config) > 0 or now - run.updated_at < quiet_seconds:
        return None
    ended = await write_terminal(backend, conclude(run, Cancelled(), now), found.revision)
    if not isinstance(ended, Stored):
        return None
    log.info("ended a cancelled run that nobody works on", run_id=run.run_id, tag=run.tag, attempt=run.attempt)
    return ended.run
