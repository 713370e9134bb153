"""Accept a job."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyoco_server.actions.programs.history import event_of
from pyoco_server.actions.programs.inputs import Content, Inline, keep_inputs
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.core.programs import moves
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.job import JobAsk, ProgramJob, check_ask, fingerprint, job_of
from pyoco_server.core.programs.message import read_job
from pyoco_server.core.programs.moves import program_of
from pyoco_server.core.rounds import Rounds
from pyoco_server.core.run import Caller, Run
from pyoco_server.errors import InvalidJob, NotStored, QueueFull, ResourceMissing, SnapshotTooLargeError, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.program_events.port import EventName
from pyoco_server.ports.program_queue.port import ClientQueue
from pyoco_server.ports.runs.port import Lost, Stored
from pyoco_server.ports.wakeups.port import Wakeup

__all__ = ["Content", "Inline", "Submitted", "enqueue", "submit_job"]

log = get_logger(__name__)


@dataclass(frozen=True)
class Submitted:
    """An accepted job: its run is recorded and queued."""

    run: Run
    #: An earlier submission created it. The run may have ended since.
    duplicate: bool
    #: Revision of the record, as it was written or read.
    revision: int = 0


async def submit_job(backend: Backend, caller: Caller, ask: JobAsk, content: Content) -> Submitted:
    """Store the inputs, record the run, put its job on the queue, then return (GRID-48).

    In that order; three round trips for small inputs. The caller checks permission first (`admit_client`).

    The same request, however often and wherever it is submitted, leads to one run and one message (GRID-50).

    What a crash leaves behind:
      before the record       nothing, or an object of inputs that expires;
      between record and job  a PENDING run without a message, never confirmed: the same request again queues it,
                              and so does the sweeper;
      after the job           an accepted run whose response was lost: the same request again finds it.

    Raises GridRefused, and nothing has changed then: JOB_ID_CONFLICT if the id belongs to another job, QUEUE_FULL,
    TOO_LARGE, or an error of `check_ask`. Raises Unavailable: the outcome is unknown, and the job may run (GRID-49).
    """
    ask = check_ask(ask)
    earlier = await _find_earlier(backend, caller, ask)
    if earlier is not None:
        return await _answer_repeat(backend, earlier)
    inputs = await keep_inputs(backend, ask, content)
    job = job_of(ask, inputs, backend.clock(), tenant_id=caller.tenant_id, api_key_id=caller.api_key_id)
    stored, is_new = await _record(backend, caller, ask, job)
    if not is_new:
        return await _answer_repeat(backend, stored)
    if stored.run.waits_for_time:  # a keeper queues it at its time (DELAY-4)
        return Submitted(stored.run, False, stored.revision)
    if job.schedule is None:  # the first claim of an earlier version would write a record without the schedule
        job = replace(job, revision=stored.revision, max_attempts=program_of(stored.run).max_attempts)
    await _enqueue_new(backend, stored, job)
    return Submitted(stored.run, False, stored.revision)


async def _answer_repeat(backend: Backend, stored: Stored) -> Submitted:
    """Answer a repeated submission. Queue the job again if it may be missing.

    The process that recorded it may have crashed before it queued the job. A claimed job has a message, which is
    removed only after the end; one that was never claimed is queued again.
    """
    if not stored.run.is_terminal and stored.run.attempt == 0 and not stored.run.waits_for_time:
        stored = await _enqueue_again(backend, stored)
    return Submitted(stored.run, True, stored.revision)


async def _find_earlier(backend: Backend, caller: Caller, ask: JobAsk) -> Stored | None:
    """Look for an earlier submission before large files are sent again. Raises GridRefused."""
    if sum(each.size for each in ask.files) <= programs_of(backend).config.exec_inline_max:
        return None  # `_record` detects repeats, and costs less for a new job
    found = await backend.runs.find(ask.run_id)
    if isinstance(found, Stored):
        _check_same(found.run, caller, ask)
        return found
    return None


def _check_same(run: Run, caller: Caller, ask: JobAsk) -> None:
    """Check that the run is of the same job (GRID-48 step 3); its id may even be that of a flow.

    The text is always the same: it reveals nothing about the other job (GRID-169).
    """
    program = run.program
    is_same = (
        program is not None
        and program.fingerprint == fingerprint(ask)
        and program.client_id == ask.client_id
        and run.tenant_id == caller.tenant_id
    )
    if not is_same:
        raise GridRefused(Code.JOB_ID_CONFLICT, "this JobId belongs to another job", job_id=ask.job_id)


async def _record(backend: Backend, caller: Caller, ask: JobAsk, job: ProgramJob) -> tuple[Stored, bool]:
    """Return the record of the run, and whether this call created it. Raises GridRefused, Unavailable."""
    run = moves.accept(job, programs_of(backend).config.exec_max_attempts)
    try:
        written = await backend.runs.create(run)
        rounds = Rounds(f"run {run.run_id}")
        while True:
            rounds.begin()
            if isinstance(written, Stored):
                return written, True
            found = await backend.runs.find(run.run_id)
            if isinstance(found, Stored):
                _check_same(found.run, caller, ask)
                return found, False
            # Withdrawn after a full queue, or past its retention: only a tombstone is left.
            written = await backend.runs.replace(run, found.revision)
    except SnapshotTooLargeError as error:
        message = "arguments and file names are too long to be recorded"
        raise GridRefused(Code.TOO_LARGE, message, job_id=ask.job_id) from error


async def _enqueue_new(backend: Backend, stored: Stored, job: ProgramJob) -> None:
    try:
        await enqueue(backend, stored.run, job)
    except QueueFull as error:
        await _take_back(backend, stored, job)
        raise GridRefused(Code.QUEUE_FULL, "the queue is full; try again later", job_id=job.job_id) from error
    except ResourceMissing as error:
        if isinstance(error, NotStored):  # SAFE-14: nothing stays stored
            await _take_back(backend, stored, job)
        raise


async def _take_back(backend: Backend, stored: Stored, job: ProgramJob) -> None:
    """Withdraw the record, unless it has changed since.

    Another submission of the same job may have queued it a moment later: it then checks whether the record still exists
    (`_enqueue_again`).
    """
    try:
        await backend.runs.withdraw(job.run_id, stored.revision)
    except Unavailable as error:
        log.warning("could not withdraw a refused job; the sweeper will queue it", run_id=job.run_id, error=error)


async def _enqueue_again(backend: Backend, stored: Stored) -> Stored:
    """Queue the job again. Returns the current record, which it creates if its first writer withdrew it meanwhile."""
    program = program_of(stored.run)
    try:
        job = read_job(program.job or {})
    except InvalidJob as error:  # written by an unknown client, or damaged: the sweeper ends it
        raise Unavailable(f"the record of run {stored.run.run_id} holds no job: {error}") from error
    try:
        await enqueue(backend, stored.run, job)
    except QueueFull as error:
        raise GridRefused(Code.QUEUE_FULL, "the queue is full; try again later", job_id=job.job_id) from error
    rounds = Rounds(f"run {job.run_id}")
    while True:
        rounds.begin()
        found = await backend.runs.find(job.run_id)
        if isinstance(found, Stored):
            return found
        again = await backend.runs.replace(moves.accept(job, program.max_attempts), found.revision)
        if not isinstance(again, Lost):
            return again


async def enqueue(backend: Backend, run: Run, job: ProgramJob) -> None:
    """Record the event, add the lane, put the job and publish the wakeup: the end of a submission, or its repair.

    Two round trips. The event is stored before the job can be claimed, so it is always the first (GRID-174).

    Raises QueueFull (a kind of NotStored), Unavailable.
    """
    programs = programs_of(backend)
    await programs.events.record(event_of(run, EventName.ENQUEUE, job.submitted_at, attempt=0))
    await programs.queue.add_client_queue(ClientQueue.of(job))
    await programs.queue.put(job)
    await programs.wakeups.tell(job.group, Wakeup.NEW, f"{job.exec_name}.{job.client}")
