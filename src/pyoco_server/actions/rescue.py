"""End a run that nobody will ever take."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.actions.claim import alive_seconds
from pyoco_server.actions.finish import write_terminal
from pyoco_server.actions.queue_again import queue_again
from pyoco_server.actions.read import worker_of
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.holds import Holds
from pyoco_server.core.outcome import Cancelled, DeadReason, Failed
from pyoco_server.core.run import KEEPER, Run, conclude
from pyoco_server.core.states import RunState
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.queue.port import Stock
from pyoco_server.ports.runs.port import Stored

__all__ = [
    "NO_JOB",
    "SUBMIT_SECONDS_MAX",
    "QueueSnapshot",
    "end_cancelled",
    "has_no_job",
    "life_seconds",
    "may_wait",
    "rescue",
    "snapshot_queue",
    "worked_on_seconds",
]

log = get_logger(__name__)

#: A submission writes record and job within its patience for NATS, twice 17 s at the worst.
SUBMIT_SECONDS_MAX = 40.0
#: The error of a run that was ended because it had none.
NO_JOB = "the run has a record but no job in the queue, so no worker would ever take it; submit it again"


def worked_on_seconds(run: Run, now: float, config: NatsBackendConfig) -> float:
    """For how long a keeper believes, by the run's own heartbeat, that somebody works on it; 0 or less: nobody does.

    More patient than a claim: a keeper does not know the heartbeat interval of every worker.
    """
    if run.attempt_id is None:
        return 0.0
    patient = run.heartbeat_at + config.worker_disconnect_timeout_sec - now
    return max(patient, alive_seconds(run, now, config.run_heartbeat_interval_sec))


async def life_seconds(backend: Backend, found: Stored) -> float:
    """For how long a keeper believes that somebody works on the run; 0 or less: nobody does. Raises Unavailable.

    Its heartbeat comes at an interval that we do not know, and perhaps by another clock. So before a run counts as left
    alone: it was last written long enough ago, by the clock of the store; and the registry is asked whether the very
    process that has the run is alive and says that it executes it. One round trip at most.
    """
    run, now, patience = found.run, backend.clock(), backend.config.worker_disconnect_timeout_sec
    if run.attempt_id is None:
        return 0.0
    seconds = max(worked_on_seconds(run, now, backend.config), found.stored_at + patience - now)
    if seconds > 0:
        return seconds
    return patience if await _is_executed(backend, run) else 0.0


async def _is_executed(backend: Backend, run: Run) -> bool:
    """By the word of its worker."""
    record = await worker_of(backend, run)
    return (
        record is not None
        and record.instance_id == run.instance_id
        and record.is_alive(backend.clock(), backend.config.worker_disconnect_timeout_sec)
        and run.run_id in record.running
    )


def may_wait(found: Stored, oldest: float | None) -> bool:
    """Whether the job of this run may be among those left in its queue, of which the oldest was stored then.

    Both times are the store's own, so no clock but one is trusted. A run that was claimed had its job before its record
    was last written; one that was not gets its job within seconds of its record.
    """
    if oldest is None:
        return False
    latest = found.stored_at if found.run.attempt else found.stored_at + SUBMIT_SECONDS_MAX
    return oldest <= latest


def has_no_job(found: Stored, stock: Stock) -> bool:
    """Whether the queue, as it was after `found` was last written, holds no job of this run.

    Are there too many that wait to look at each, then by time: jobs come in by it. When every job that was never
    delivered came in later than this run's can have, this run's is among those that were, or nowhere.
    """
    if found.run.run_id in stock.in_hand:
        return False
    if stock.waiting is not None:
        return found.run.run_id not in stock.waiting
    return not may_wait(found, stock.waiting_since)


@dataclass(frozen=True)
class QueueSnapshot:
    """What the queue of a tag held, and when somebody began to look."""

    stock: Stock
    at: float
    #: When the stream of jobs was created, by the clock of the store: it never had the job of a record that is older.
    begun_at: float = 0.0


async def snapshot_queue(backend: Backend, tag: str) -> QueueSnapshot:
    """Raises Unavailable."""
    now = backend.clock()
    begun_at = await backend.resources.begun_at(Holds.JOBS)
    return QueueSnapshot(await backend.queue.stock(tag), now, begun_at or 0.0)


async def rescue(
    backend: Backend,
    run_id: str,
    quiet_seconds: float,
    look: QueueSnapshot | None = None,
    *,
    submit_seconds: float = SUBMIT_SECONDS_MAX,
) -> Run | None:
    """End the run if it has been quiet for that long and has no job in the queue; a cancelled one as `end_cancelled`
    does. None: it needs no rescue, or its job was lost with the whole queue and was put again (SAFE-15).

    `look`: what the queue of its tag was found to hold, if somebody has looked a moment ago; one look serves many runs.
    When that was is what counts: while nobody has begun the run, its submission may be under way for `submit_seconds`
    after its record, and its job may come after the look. One read and one compare-and-set, which is lost to anybody
    who still works on the run. Several keepers may try at once.
    """
    found = await backend.runs.find(run_id)
    if not isinstance(found, Stored) or found.run.is_terminal or not found.run.is_flow:
        return None
    run = found.run
    if run.status is RunState.CANCELLING:
        return await _end_cancelled(backend, found, quiet_seconds)
    look = look or await snapshot_queue(backend, run.tag)
    is_quiet = look.at - max(run.updated_at, run.heartbeat_at) >= quiet_seconds
    is_settled = run.attempt > 0 or look.at - max(run.updated_at, found.stored_at) >= submit_seconds
    if not (is_quiet and is_settled and has_no_job(found, look.stock)) or await life_seconds(backend, found) > 0:
        return None
    if found.stored_at < look.begun_at and await queue_again(backend, found):
        return None
    lost = Failed(message=NO_JOB, why=DeadReason.ABANDONED)
    ended = await write_terminal(backend, conclude(run, lost, backend.clock(), KEEPER), found.revision)
    if not isinstance(ended, Stored):
        return None
    log.warning("ended a run without a job", run_id=run_id, tag=run.tag, was=run.status, status=ended.run.status)
    return ended.run


async def end_cancelled(backend: Backend, run_id: str, quiet_seconds: float) -> Run | None:
    """End a cancelled run that nobody works on, whether or not its job waits: whoever takes that finds the run ended
    (FLOW-17). None: it is not for us, or not yet.

    `quiet_seconds` after the request, if nobody has begun it; otherwise as soon as its worker has shown no sign of life
    for too long (`life_seconds`; the request itself is a write, and begins that time anew). A worker that was merely
    cut off loses its next write and stops (FLOW-311). One read, one question at most, one compare-and-set.
    """
    found = await backend.runs.find(run_id)
    if not isinstance(found, Stored) or found.run.status is not RunState.CANCELLING:
        return None
    if not found.run.is_flow:  # the ledger's, the grid's own, or of a version that knows more
        return None
    return await _end_cancelled(backend, found, quiet_seconds)


async def _end_cancelled(backend: Backend, found: Stored, quiet_seconds: float) -> Run | None:
    run, now = found.run, backend.clock()
    if now - max(run.updated_at, found.stored_at) < quiet_seconds or await life_seconds(backend, found) > 0:
        return None
    ended = await write_terminal(backend, conclude(run, Cancelled(), now, KEEPER), found.revision)
    if not isinstance(ended, Stored):
        return None
    log.info("ended a cancelled run that nobody works on", run_id=run.run_id, tag=run.tag, attempt=run.attempt)
    return ended.run
