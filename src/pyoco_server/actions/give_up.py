"""Give up a job that the queue will never deliver again."""

from __future__ import annotations

from dataclasses import replace

from pyoco_server.actions.bury import bury, bury_run
from pyoco_server.actions.claim import Busy, is_forgotten
from pyoco_server.actions.finish import find_unended, write_after
from pyoco_server.actions.rescue import life_seconds
from pyoco_server.core.dead_letter import DeadLetter
from pyoco_server.core.job import Job, decode_job, run_of
from pyoco_server.core.outcome import Cancelled, DeadReason, Failed
from pyoco_server.core.retries.course import has_failed_a_try
from pyoco_server.core.rounds import Rounds
from pyoco_server.core.run import KEEPER, Run
from pyoco_server.core.states import RunState
from pyoco_server.errors import InvalidJob, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.queue.port import Leftover
from pyoco_server.ports.runs.port import Absent, Stored, Withdrawn

__all__ = ["give_up"]

log = get_logger(__name__)

_WHY = "the job was delivered as often as it may be and no worker could end its run"


async def give_up(backend: Backend, leftover: Leftover, deliveries: int | None = None) -> Busy | None:
    """End the run as failed (as cancelled if that was requested), write the dead letter, remove the job, in that order.

    A run whose policy retries lost attempts waits for its next try instead (RETRY-15).

    Returns Busy if a worker still executes the run and will end it: nothing was done, try again later. Raises
    Unavailable, also if the letter could not be stored, and then the job stays in the queue; and Corrupt if the record
    cannot be read.

    A job without a record comes from a foreign producer (FLOW-310), and only its letter remains. A job whose submission
    was withdrawn, or whose run ended so long ago that its record has expired, gets no letter; nor does a job that names
    a pack or a program, which have their own queues.

    A crash leaves behind:

    - after the terminal record: a job whose run has ended. The next try writes the letter if it is missing.
    - after the letter: the same, and the next try removes the job. The letter has the same id (`bury_run`).

    Several keepers may try concurrently: one of them ends the run.
    """
    job, run_id = _read(leftover)
    ended = await _end(backend, run_id) if run_id is not None else None
    if isinstance(ended, Busy):
        return ended
    if not await _bury(backend, leftover, job, ended, deliveries):
        raise Unavailable("the letter of a job that was given up is not stored, so the job stays")
    await backend.queue.remove(leftover)
    log.warning("removed a job that the queue would never deliver again", run_id=run_id, tag=leftover.tag)
    return None


def _read(leftover: Leftover) -> tuple[Job | InvalidJob, str | None]:
    try:
        job = decode_job(leftover.data)
    except InvalidJob as error:
        return error, error.run_id
    return job, job.run_id


async def _bury(
    backend: Backend,
    leftover: Leftover,
    job: Job | InvalidJob,
    ended: Run | Withdrawn | Absent | None,
    deliveries: int | None,
) -> bool:
    """Write the letter, if one is called for. Returns False if it could not be written."""
    subject = leftover.subject or None
    if isinstance(ended, Withdrawn):
        return True
    if isinstance(ended, Run):
        return await bury_run(backend, ended, num_delivered=deliveries, subject=subject)
    if isinstance(job, InvalidJob):
        dead_letter = _dead_letter_of_nobody(backend, leftover, job, deliveries)
        letter_id = f"{job.run_id}.dlq.invalid" if job.run_id else f"{leftover.sequence}.dlq"  # as a worker does
        return await bury(backend, dead_letter, letter_id)
    if is_forgotten(job, backend.clock(), backend.config.runs_retention_sec):
        return True
    run = replace(run_of(job), tag=leftover.tag, error=_WHY, reason=DeadReason.MAX_DELIVER)
    return await bury_run(backend, run, num_delivered=deliveries, subject=subject)


async def _end(backend: Backend, run_id: str) -> Run | Busy | Withdrawn | Absent:
    """Return the run that has ended or waits for a next try, here or earlier, or else what was found in its place."""
    rounds = Rounds(f"run {run_id}")
    while True:
        rounds.begin()
        found = await find_unended(backend, run_id)
        if not isinstance(found, Stored):
            return found
        seconds = await life_seconds(backend, found)
        if seconds > 0:
            return Busy(seconds)
        if found.run.waits_for_time or has_failed_a_try(found.run, found.run.attempt):
            return found.run  # the job of an earlier try: the next one has a job of its own
        is_cancelled = found.run.status is RunState.CANCELLING
        outcome = Cancelled() if is_cancelled else Failed(message=_WHY, why=DeadReason.MAX_DELIVER)
        written = await write_after(backend, found.run, outcome, found.revision, KEEPER)
        if isinstance(written, Stored):
            return written.run


def _dead_letter_of_nobody(
    backend: Backend, leftover: Leftover, error: InvalidJob, deliveries: int | None
) -> DeadLetter:
    return DeadLetter(
        timestamp=backend.clock(),
        reason=DeadReason.INVALID_JOB,
        error=str(error),
        tag=leftover.tag,
        run_id=error.run_id,
        num_delivered=deliveries,
        subject=leftover.subject or None,
    )
