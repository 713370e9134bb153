"""Claim a run for one attempt."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyoco_server.actions.attempt import Attempt
from pyoco_server.core.flow_moves import claim, conclude
from pyoco_server.core.job import Job, run_of
from pyoco_server.core.outcome import Cancelled
from pyoco_server.core.retries.course import end_too_late, is_too_late
from pyoco_server.core.rounds import Rounds
from pyoco_server.core.run import Owner, Run, changed
from pyoco_server.core.states import RunState
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.runs.port import Absent, Lost, Stored, Withdrawn

__all__ = ["Busy", "FlowAttempt", "Spent", "alive_seconds", "claim_run", "is_forgotten"]

log = get_logger(__name__)

#: Maximum clock skew (FLOW-209); a heartbeat may look that much older than it is.
_SKEW_SECONDS = 5.0


@dataclass
class FlowAttempt(Attempt):
    """An attempt at a flow."""

    #: The run has no owner any more: the next delivery may claim it immediately.
    is_put_back: bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class Spent:
    """Nothing is left to do for this job: the run has ended, was withdrawn, or has just been ended."""

    why: str
    #: The run, if its dead letter may be missing: it had ended before, and the process that ended it may have crashed
    #: before it wrote the letter; or its deadline is over.
    run: Run | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Busy:
    """Another worker executes the run and its heartbeat is recent: the job may be redelivered later."""

    #: Seconds until the last heartbeat becomes stale, if no other follows.
    seconds: float


async def claim_run(backend: Backend, job: Job, me: Owner, *, first_delivery: bool) -> FlowAttempt | Spent | Busy:
    """Claim the run by compare-and-set, with attempt + 1. All older attempts are fenced from then on.

    The first delivery of a job from our own gateway names the revision to overwrite, so it costs one write and no read.
    If that write loses (the run was cancelled, or another worker was faster), the record is read and decides. A crash
    here leaves either nothing or a RUNNING record whose heartbeat goes stale: the next delivery takes over.
    """
    attempt_id = backend.new_id()
    if first_delivery and job.revision is not None:
        run = _claimed(backend, run_of(job), me, attempt_id)
        taken = await backend.runs.replace(run, job.revision)
        if isinstance(taken, Stored):
            return FlowAttempt(taken.run, taken.revision, attempt_id)
    rounds = Rounds(f"run {job.run_id}")
    while True:
        rounds.begin()
        step = await _claim_once(backend, job, me, attempt_id)
        if not isinstance(step, Lost):
            return step


async def _claim_once(backend: Backend, job: Job, me: Owner, attempt_id: str) -> FlowAttempt | Spent | Busy | Lost:  # noqa: PLR0911 - one case, one way out
    found = await backend.runs.find(job.run_id)
    now = backend.clock()
    if isinstance(found, Withdrawn):
        log.info("dropped job: submission was withdrawn", run_id=job.run_id)  # FLOW-310
        return Spent("withdrawn")
    if isinstance(found, Absent):
        return await _claim_unrecorded(backend, job, me, attempt_id)
    run = found.run
    if run.is_pack or run.is_exec:  # packs and programs have their own queues; no worker executes them from this one
        return Spent("of another kind")
    if run.is_terminal:  # FLOW-309
        return Spent("ended", run)
    if run.waits_for_time:  # a job of a version that does not know delays: the alarm queues another
        return Spent("not due yet")
    busy_seconds = alive_seconds(run, now, backend.config.run_heartbeat_interval_sec)
    if busy_seconds > 0:
        return Busy(busy_seconds)
    if run.status is RunState.CANCELLING:  # FLOW-184: a cancelled run never starts
        ended = await backend.runs.replace(conclude(run, Cancelled(), now), found.revision)
        return Spent("cancelled") if isinstance(ended, Stored) else ended
    if is_too_late(run, now):
        ended = await backend.runs.replace(end_too_late(run, now), found.revision)
        return Spent("too late for another try", ended.run) if isinstance(ended, Stored) else ended
    return _held(await backend.runs.replace(_claimed(backend, run, me, attempt_id), found.revision), attempt_id)


def _claimed(backend: Backend, run: Run, me: Owner, attempt_id: str) -> Run:
    """Claim the run; its timeout is never above that of its worker (RETRY-16)."""
    claimed, seconds_max = claim(run, me, attempt_id, backend.clock()), backend.config.run_timeout_sec
    is_above = claimed.timeout is not None and 0 < seconds_max < claimed.timeout
    return changed(claimed, timeout=seconds_max) if is_above else claimed


async def _claim_unrecorded(backend: Backend, job: Job, me: Owner, attempt_id: str) -> FlowAttempt | Spent | Lost:
    """Claim a run without a record: a foreign producer wrote none, and the job contains everything needed
    (FLOW-310)."""
    now = backend.clock()
    if is_forgotten(job, now, backend.config.runs_retention_sec):
        log.info("dropped job: its run ended and the record has expired", run_id=job.run_id)
        return Spent("forgotten")
    return _held(await backend.runs.create(_claimed(backend, run_of(job), me, attempt_id)), attempt_id)


def _held(written: Stored | Lost, attempt_id: str) -> FlowAttempt | Lost:
    return FlowAttempt(written.run, written.revision, attempt_id) if isinstance(written, Stored) else written


def is_forgotten(job: Job, now: float, retention_seconds: float) -> bool:
    """Whether a job of ours may have outlived the terminal record of its run, or the mark of its withdrawal.

    On a tag without workers a job waits forever, and a cancelled run must not start because its record has expired
    (FLOW-184).
    """
    return job.revision is not None and 0 < retention_seconds < now - job.submitted_at


def alive_seconds(run: Run, now: float, heartbeat_seconds: float) -> float:
    """Return for how many seconds the newest attempt still counts as alive; 0 or less: no worker seems to execute the
    run.

    Two live executions must not overlap.
    """
    if run.attempt_id is None:
        return 0.0
    return run.heartbeat_at + _SKEW_SECONDS + 3 * heartbeat_seconds - now
