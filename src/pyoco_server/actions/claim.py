"""Take a run for one attempt."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyoco_server.actions.attempt import Attempt
from pyoco_server.core.job import Job, run_of
from pyoco_server.core.outcome import Cancelled
from pyoco_server.core.rounds import Rounds
from pyoco_server.core.run import Owner, Run, claim, conclude
from pyoco_server.core.states import RunState
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.runs.port import Absent, Lost, Stored, Withdrawn

__all__ = ["Busy", "FlowAttempt", "Spent", "alive_seconds", "claim_run", "is_forgotten"]

log = get_logger(__name__)

#: Clocks agree within this (FLOW-209); a heartbeat may look that much older than it is.
_SKEW_SECONDS = 5.0


@dataclass
class FlowAttempt(Attempt):
    """An attempt at a flow."""

    #: Nobody owns it any more: the next delivery may claim it at once.
    given_back: bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class Spent:
    """Nothing is left to do for this job: the run has ended, was withdrawn, or has just been cancelled."""

    why: str
    #: The run, if it had ended before: whoever ended it may have died before its letter.
    run: Run | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Busy:
    """Somebody else executes the run and shows signs of life: the job may come again later."""

    #: When the last sign of life, if it stays the last, will be too old.
    seconds: float


async def claim_run(backend: Backend, job: Job, me: Owner, *, first_delivery: bool) -> FlowAttempt | Spent | Busy:
    """Take the run by compare-and-set, attempt + 1. Every older attempt is fenced from then on.

    A first delivery of our own gateway names the revision to write over, so it costs one write and no read; when
    that is lost (somebody cancelled, or was faster) the record is read and decides. A crash in here leaves either
    nothing or a RUNNING record whose heartbeat goes stale: the next delivery takes over.
    """
    attempt_id = backend.new_id()
    if first_delivery and job.revision is not None:
        run = claim(run_of(job), me, attempt_id, backend.clock())
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
        log.info("the submission was withdrawn; its job is dropped", run_id=job.run_id)  # FLOW-310
        return Spent("withdrawn")
    if isinstance(found, Absent):
        return await _claim_unrecorded(backend, job, me, attempt_id)
    run = found.run
    if (
        run.is_pack or run.is_exec
    ):  # those have queues of their own: a job of this one that names such a run is nobody's
        return Spent("of another kind")
    if run.is_terminal:  # FLOW-309
        return Spent("ended", run)
    busy_seconds = alive_seconds(run, now, backend.config.run_heartbeat_interval_sec)
    if busy_seconds > 0:
        return Busy(busy_seconds)
    if run.status is RunState.CANCELLING:  # FLOW-184: it never starts
        ended = await backend.runs.replace(conclude(run, Cancelled(), now), found.revision)
        return Spent("cancelled") if isinstance(ended, Stored) else ended
    return _held(await backend.runs.replace(claim(run, me, attempt_id, now), found.revision), attempt_id)


async def _claim_unrecorded(backend: Backend, job: Job, me: Owner, attempt_id: str) -> FlowAttempt | Spent | Lost:
    """A foreign producer wrote no record: the job itself tells all (FLOW-310)."""
    now = backend.clock()
    if is_forgotten(job, now, backend.config.runs_retention_sec):
        log.info("the run has ended so long ago that its record is gone; its job is dropped", run_id=job.run_id)
        return Spent("forgotten")
    return _held(await backend.runs.create(claim(run_of(job), me, attempt_id, now)), attempt_id)


def _held(written: Stored | Lost, attempt_id: str) -> FlowAttempt | Lost:
    return FlowAttempt(written.run, written.revision, attempt_id) if isinstance(written, Stored) else written


def is_forgotten(job: Job, now: float, retention_seconds: float) -> bool:
    """Whether a job of ours may be older than the record of its run's end, or than the mark of its withdrawal: on a tag
    that nobody serves, a job waits for ever, and a cancelled run must not start because of that (FLOW-184)."""
    return job.revision is not None and 0 < retention_seconds < now - job.submitted_at


def alive_seconds(run: Run, now: float, heartbeat_seconds: float) -> float:
    """For how long the newest attempt still counts as alive; 0 or less: nobody works on the run, as far as one can
    tell. Two live executions must not overlap."""
    if run.attempt_id is None:
        return 0.0
    return run.heartbeat_at + _SKEW_SECONDS + 3 * heartbeat_seconds - now
