"""End a run that no worker will ever take."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.actions.claim import alive_seconds
from pyoco_server.actions.finish import write_terminal
from pyoco_server.actions.queue_again import queue_again
from pyoco_server.actions.read import worker_of
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.flow_moves import conclude
from pyoco_server.core.holds import Holds
from pyoco_server.core.outcome import Cancelled, DeadReason, Failed
from pyoco_server.core.run import KEEPER, Run
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

#: A submission writes record and job within its patience for NATS, twice 17 s in the worst case.
SUBMIT_SECONDS_MAX = 40.0
#: The error of a run that was ended because it had no job.
NO_JOB = "the run has a record but no job in the queue, so no worker would ever take it; submit it again"


def worked_on_seconds(run: Run, now: float, config: NatsBackendConfig) -> float:
    """Return for how many seconds the run counts as executed, by its own heartbeat; 0 or less: no worker executes it.

    More patient than a claim: a keeper does not know the heartbeat interval of every worker.
    """
    if run.attempt_id is None:
        return 0.0
    patient = run.heartbeat_at + config.worker_disconnect_timeout_sec - now
    return max(patient, alive_seconds(run, now, config.run_heartbeat_interval_sec))


async def life_seconds(backend: Backend, found: Stored) -> float:
    """Return for how many seconds a keeper treats the run as executed; 0 or less: no worker executes it. Raises
    Unavailable.

    The run's heartbeat interval is unknown, and its times may come from another clock. So a run counts as abandoned
    only if it was last written long enough ago by the clock of the store, and if the registry does not show the exact
    process that owns the run as alive and executing it. One round trip at most.
    """
    run, now, patience = found.run, backend.clock(), backend.config.worker_disconnect_timeout_sec
    if run.attempt_id is None:
        return 0.0
    seconds = max(worked_on_seconds(run, now, backend.config), found.stored_at + patience - now)
    if seconds > 0:
        return seconds
    return patience if await _is_executed(backend, run) else 0.0


async def _is_executed(backend: Backend, run: Run) -> bool:
    """Whether the record of the run's worker lists the run as running."""
    record = await worker_of(backend, run)
    return (
        record is not None
        and record.instance_id == run.instance_id
        and record.is_alive(backend.clock(), backend.config.worker_disconnect_timeout_sec)
        and run.run_id in record.running
    )


def may_wait(found: Stored, oldest: float | None) -> bool:
    """Whether the job of this run may be among those left in its queue, whose oldest was stored at `oldest`.

    Both times come from the store, so only one clock is trusted. A run that was claimed had its job before its record
    was last written; one that was not claimed gets its job within seconds of its record.
    """
    if oldest is None:
        return False
    latest = found.stored_at if found.run.attempt else found.stored_at + SUBMIT_SECONDS_MAX
    return oldest <= latest


def has_no_job(found: Stored, stock: Stock) -> bool:
    """Whether the queue, as read after `found` was last written, holds no job of this run.

    If too many jobs wait to check each one, the time decides, because jobs are stored in order of time: if every job
    that was never delivered was stored later than this run's job can have been, this run's job is among the delivered
    ones, or missing.
    """
    if found.run.run_id in stock.in_hand:
        return False
    if stock.waiting is not None:
        return found.run.run_id not in stock.waiting
    return not may_wait(found, stock.waiting_since)


@dataclass(frozen=True)
class QueueSnapshot:
    """The jobs in the queue of a tag, and when the read began."""

    stock: Stock
    at: float
    #: When the stream of jobs was created, by the clock of the store: it never held the job of an older record.
    begun_at: float = 0.0


async def snapshot_queue(backend: Backend, tag: str) -> QueueSnapshot:
    """Read the queue of a tag. Raises Unavailable."""
    now = backend.clock()
    begun_at = await backend.resources.begun_at(Holds.JOBS)
    return QueueSnapshot(await backend.queue.stock(tag), now, begun_at or 0.0)


async def rescue(
    backend: Backend,
    run_id: str,
    quiet_seconds: float,
    snapshot: QueueSnapshot | None = None,
    *,
    submit_seconds: float = SUBMIT_SECONDS_MAX,
) -> Run | None:
    """End the run if it had no update for that long and has no job in the queue; a cancelled one as `end_cancelled`
    does.

    Returns None if the run needs no rescue, or if its job was lost with the complete queue and was published again
    (SAFE-15).

    `snapshot`: a recent snapshot of the queue of its tag, if there is one; one serves many runs. The time of the
    snapshot matters: until a worker claims the run, its submission may take up to `submit_seconds` after the record,
    and the job may be stored after the snapshot. Costs one read and one compare-and-set, a queue snapshot if none is
    given, and one registry lookup at most. The write loses against any worker that still executes the run. Several
    keepers may try concurrently.
    """
    found = await backend.runs.find(run_id)
    if not isinstance(found, Stored) or found.run.is_terminal or not found.run.is_flow or found.run.waits_for_time:
        return None
    run = found.run
    if run.status is RunState.CANCELLING:
        return await _end_cancelled(backend, found, quiet_seconds)
    snapshot = snapshot or await snapshot_queue(backend, run.tag)
    is_quiet = snapshot.at - max(run.updated_at, run.heartbeat_at) >= quiet_seconds
    is_settled = run.attempt > 0 or snapshot.at - max(run.updated_at, found.stored_at) >= submit_seconds
    if not (is_quiet and is_settled and has_no_job(found, snapshot.stock)) or await life_seconds(backend, found) > 0:
        return None
    # A delayed run was certainly accepted: the process that released it crashed before it queued the job.
    is_owed = found.stored_at < snapshot.begun_at or (run.not_before is not None and run.status is RunState.PENDING)
    if is_owed and await queue_again(backend, found):
        return None
    lost = Failed(message=NO_JOB, why=DeadReason.ABANDONED)
    ended = await write_terminal(backend, conclude(run, lost, backend.clock(), KEEPER), found.revision)
    if not isinstance(ended, Stored):
        return None
    log.warning("ended a run without a job", run_id=run_id, tag=run.tag, was=run.status, status=ended.run.status)
    return ended.run


async def end_cancelled(backend: Backend, run_id: str, quiet_seconds: float) -> Run | None:
    """End a cancelled run that no worker executes, whether or not its job waits: a worker that takes the job finds the
    run ended (FLOW-17).

    Returns None if the run is not cancelled, is of another kind, or must not be ended yet. A run that was never claimed
    is ended `quiet_seconds` after the request; otherwise as soon as its worker has sent no heartbeat for too long as
    well (`life_seconds`; the request itself is a write and restarts that time). A worker that was merely disconnected
    loses its next write and stops (FLOW-311). One read, one registry lookup at most, one compare-and-set.
    """
    found = await backend.runs.find(run_id)
    if not isinstance(found, Stored) or found.run.status is not RunState.CANCELLING:
        return None
    if not found.run.is_flow:  # the ledger or the grid ends it, or a newer version does
        return None
    return await _end_cancelled(backend, found, quiet_seconds)


async def _end_cancelled(backend: Backend, found: Stored, quiet_seconds: float) -> Run | None:
    run, now = found.run, backend.clock()
    if now - max(run.updated_at, found.stored_at) < quiet_seconds or await life_seconds(backend, found) > 0:
        return None
    ended = await write_terminal(backend, conclude(run, Cancelled(), now, KEEPER), found.revision)
    if not isinstance(ended, Stored):
        return None
    log.info("ended a cancelled run that no worker executes", run_id=run.run_id, tag=run.tag, attempt=run.attempt)
    return ended.run
