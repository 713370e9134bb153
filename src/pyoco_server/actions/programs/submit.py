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
    """A job that counts: its run is recorded and queued."""

    run: Run
    #: An earlier submission had made it. The run may have ended since.
    duplicate: bool
    #: Of the record, as it was written or read.
    revision: int = 0


async def submit_job(backend: Backend, caller: Caller, ask: JobAsk, content: Content) -> Submitted:
    """Keep the inputs, record the run, then put its job on the queue, then answer (GRID-48). In that order; three round
    trips for small inputs. Whether the caller may ask for this is decided before (`admit_client`).

    The same ask, however often and wherever, leads to one run and one message (GRID-50).

    What a crash leaves behind:
      before the record       nothing, or an object of inputs that expires;
      between record and job  a PENDING run without a message, never answered with success: the same ask again puts it,
                              and so does the sweeper;
      after the job           an accepted run whose answer was lost: the same ask again finds it.

    Raises GridRefused, and nothing has changed then: JOB_ID_CONFLICT when the id is another job's, QUEUE_FULL,
    TOO_LARGE, or what `check_ask` finds. Raises Unavailable: nobody knows, and the job may run (GRID-49).
    """
    ask = check_ask(ask)
    earlier = await _find_earlier(backend, caller, ask)
    if earlier is not None:
        return await _again(backend, earlier)
    inputs = await keep_inputs(backend, ask, content)
    job = job_of(ask, inputs, backend.clock(), tenant_id=caller.tenant_id, api_key_id=caller.api_key_id)
    programs = programs_of(backend)
    await programs.reached("submit.stored")
    stored, is_new = await _record(backend, caller, ask, job)
    await programs.reached("submit.recorded")
    if not is_new:
        return await _again(backend, stored)
    job = replace(job, revision=stored.revision, max_attempts=program_of(stored.run).max_attempts)
    await _enqueue_new(backend, stored, job)
    return Submitted(stored.run, False, stored.revision)


async def _again(backend: Backend, stored: Stored) -> Submitted:
    """It was submitted before. Somebody else recorded it, and may have died before the queue had it: one that was
    claimed has a message, for that leaves the queue only after the end; one that was not is put once more."""
    if not stored.run.is_terminal and stored.run.attempt == 0:
        stored = await _enqueue_again(backend, stored)
    return Submitted(stored.run, True, stored.revision)


async def _find_earlier(backend: Backend, caller: Caller, ask: JobAsk) -> Stored | None:
    """Files may be large: whoever sends them again learns it before. Raises GridRefused."""
    if sum(each.size for each in ask.files) <= programs_of(backend).config.exec_inline_max:
        return None  # `_record` finds out, and costs less for one that is new
    found = await backend.runs.find(ask.run_id)
    if isinstance(found, Stored):
        _check_same(found.run, caller, ask)
        return found
    return None


def _check_same(run: Run, caller: Caller, ask: JobAsk) -> None:
    """GRID-48 step 3; also when the id is that of a flow. The text is the same for all: it tells nothing of the other
    job (GRID-169)."""
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
    """The record of the run, and whether this call has made it. Raises GridRefused, Unavailable."""
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
            # Taken back after a full queue, or past its retention: only the mark of that is there.
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
    """On condition that nobody has touched the record since. Another submission of the same job may have found room a
    moment later: it looks whether the record is still there (`_enqueue_again`)."""
    try:
        await backend.runs.withdraw(job.run_id, stored.revision)
    except Unavailable as error:
        log.warning("the record of a job that was refused stays; the sweeper puts it", run_id=job.run_id, error=error)


async def _enqueue_again(backend: Backend, stored: Stored) -> Stored:
    """Returns the record as it is found then: whoever recorded it may have taken it back meanwhile."""
    program = program_of(stored.run)
    try:
        job = read_job(program.job or {})
    except InvalidJob as error:  # a stranger's, or damaged: the sweeper ends it
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
    """Tell it, make its lane known, put it, wake somebody: what a submission ends with, and what mends one that was cut
    short. Two round trips. The event is stored before anybody can claim the job, so that it is the first (GRID-174).

    Raises QueueFull (a kind of NotStored), Unavailable.
    """
    programs = programs_of(backend)
    await programs.events.record(event_of(run, EventName.ENQUEUE, job.submitted_at, attempt=0))
    await programs.reached("submit.told")
    await programs.queue.add_lane(ClientQueue.of(job))
    await programs.queue.put(job)
    await programs.reached("submit.queued")
    await programs.wakeups.tell(job.group, Wakeup.NEW, f"{job.exec_name}.{job.client}")
