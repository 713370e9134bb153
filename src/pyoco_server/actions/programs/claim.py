"""Claim a job for one attempt."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.complete_end import complete_end, complete_found_end, write_end
from pyoco_server.actions.programs.history import event_of, put_back_event, requeue_event
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.slots import free_slot, free_slot_of, take_slot
from pyoco_server.core.dead_letter import DeadLetter
from pyoco_server.core.outcome import DeadReason
from pyoco_server.core.programs import moves
from pyoco_server.core.programs.budget import Why
from pyoco_server.core.programs.job import ProgramJob
from pyoco_server.core.programs.message import decode_job
from pyoco_server.core.programs.moves import program_of
from pyoco_server.core.programs.record import EXEC, TAG
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.retries.course import is_too_late
from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState
from pyoco_server.errors import Corrupt, InvalidJob, QueueFull, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.program_events.port import REPEAT_SECONDS, EventName
from pyoco_server.ports.program_queue.port import ClientQueue
from pyoco_server.ports.queue.port import Delivery, Reply
from pyoco_server.ports.runs.port import LOST, Lost, Stored
from pyoco_server.ports.slots.port import Slot
from pyoco_server.ports.wakeups.port import Wakeup

__all__ = ["Passed", "claim_job", "free_slot", "release", "take_slot"]

log = get_logger(__name__)

#: GRID-53
_ROUNDS_MAX = 5
_BUSY_SECONDS, _CORRUPT_SECONDS, _CONFLICT_SECONDS, _SLOT_SECONDS = 10.0, 10.0, 1.0, 0.1


@dataclass(frozen=True)
class Passed:
    """The delivery was answered and there is nothing to run. The slot stays with the caller."""

    why: str


@dataclass(frozen=True)
class _Claim:
    """The inputs of a claim, the same for each of its tries."""

    backend: Backend
    delivery: Delivery
    slot: Slot
    job: ProgramJob
    token: str
    worker_id: str
    holder: str

    def of(self, run: Run) -> Run:
        now = self.backend.clock()
        owner = {"token": self.token, "worker_id": self.worker_id, "holder": self.holder}
        return moves.claim(run, **owner, slot=self.slot.number, now=now)


async def claim_job(
    backend: Backend, delivery: Delivery, slot: Slot, *, worker_id: str, holder: str
) -> ProgramAttempt | Passed:
    """Claim the job by compare-and-set with attempt + 1, then write its run id into the slot (GRID-53).

    Every older attempt is fenced from the first write on. Nothing may be started before the second.

    Costs two writes for a first delivery, whose message contains the revision to write over; otherwise a read as well.
    `slot` may be a new one, or one that the caller kept from an attempt that just ended.

    What a crash leaves behind:
      before the record          nothing: the job is redelivered;
      after it                   a RUNNING record whose lease expires: the next delivery counts the attempt as lost,
                                 and frees its slot.

    Raises Unavailable: the delivery is not answered, and the job is redelivered.
    """
    try:
        job = _read(delivery)
    except InvalidJob as error:
        return await _refuse(backend, delivery, error)
    if _tokens(delivery) != job.subject_tokens:
        return await _move_to_its_tenant(backend, delivery, job)
    claim = _Claim(backend, delivery, slot, job, backend.new_id(), worker_id, holder)
    if job.revision is not None and job.max_attempts is not None and delivery.count == 1:
        first = moves.accept(job, job.max_attempts)
        written = await backend.runs.replace(claim.of(first), job.revision)
        if isinstance(written, Stored):
            return await _name_slot(claim, first, written)
    for _ in range(_ROUNDS_MAX):
        step = await _claim_once(claim)
        if not isinstance(step, Lost):
            return step
    return await _put_off(delivery, _CONFLICT_SECONDS, "its record changes too fast")


def _read(delivery: Delivery) -> ProgramJob:
    job = decode_job(delivery.data)
    if _tokens(delivery) not in (job.subject_tokens, job.old_subject_tokens):
        raise InvalidJob("the job is stored under the wrong subject", run_id=job.run_id)
    return job


def _tokens(delivery: Delivery) -> tuple[str, ...]:
    return tuple(delivery.subject.split(".")[-4:])


async def _move_to_its_tenant(backend: Backend, delivery: Delivery, job: ProgramJob) -> Passed:
    """Move a job from the lane shared by all tenants, where a version without tenants put it, to its tenant's own lane.

    It is put into the new lane first and then removed from the old one. A crash in between leaves two messages of one
    run: the claim decides, and the other message is removed after the end.

    If the queue is full, the old message is removed first; the sweeper queues the job again if it is lost in between. A
    worker whose NATS user may not publish jobs cannot do this: a door or the sweeper does. Raises Unavailable and
    Corrupt.
    """
    programs = programs_of(backend)
    found = await backend.runs.find(job.run_id)
    if isinstance(found, Stored) and found.run.is_terminal:
        await complete_found_end(backend, found, delivery)
        return Passed("it had ended before")
    await programs.queue.add_client_queue(ClientQueue.of(job))
    try:
        await programs.queue.put(job)
        await delivery.answer(Reply.ACK)
    except QueueFull:
        await delivery.answer(Reply.ACK)
        await programs.queue.put(job)
    await programs.wakeups.tell(job.group, Wakeup.NEW, f"{job.exec_name}.{job.client}")
    return Passed("it is moved to the lane of its tenant")


async def _claim_once(claim: _Claim) -> ProgramAttempt | Passed | Lost:  # noqa: PLR0911 - one step, one way out
    """Steps 2 to 9, in that order. Each judges the current record."""
    backend, delivery, job = claim.backend, claim.delivery, claim.job
    try:
        found = await backend.runs.find(job.run_id)
    except Corrupt as error:  # never overwrite an unreadable record
        log.error("job record cannot be read", run_id=job.run_id, error=error)
        return await _put_off(delivery, _CORRUPT_SECONDS, "its record cannot be read")
    if not isinstance(found, Stored):  # a message without a record is never discarded: create the record
        created = await backend.runs.replace(moves.accept(job, _attempts_max(claim)), found.revision)
        if isinstance(created, Lost):
            return created
        found = created
    run, now = found.run, backend.clock()
    if not run.is_exec or program_of(run).fingerprint != job.fingerprint:
        return await _refuse(backend, delivery, InvalidJob("the job is not that of its run", run_id=job.run_id))
    if run.is_terminal:
        return await _settled(claim, found)
    if run.attempt_id == claim.token:  # GRID-11: an earlier try succeeded, and the record was marked since
        return await _name_slot(claim, None, found)
    programs = programs_of(backend)
    is_under_way = run.status is not RunState.PENDING
    if is_under_way and (programs.grace.covers(now) or moves.is_fresh(run, now, programs.config.exec_lease_fresh_sec)):
        return await _put_off(delivery, _BUSY_SECONDS, "another worker executes it")
    if moves.is_cancel_asked(run):  # GRID-162
        return await _end(claim, found, moves.cancel(run, now))
    return await _attempt(claim, found, now, was_lost=is_under_way)


async def _attempt(claim: _Claim, found: Stored, now: float, *, was_lost: bool) -> ProgramAttempt | Passed | Lost:
    """Steps 6 to 9: no other worker runs the job, and no cancel is requested."""
    backend, run = claim.backend, found.run
    program = program_of(run)
    if not was_lost and program.not_before is not None and program.not_before > now:
        return await _put_off(claim.delivery, program.not_before - now, "it is not due yet")
    if is_too_late(run, now):
        return await _end(claim, found, moves.fail_too_late(run, now))
    claimed, programs = claim.of(run), programs_of(backend)
    code = moves.budget_spent(claimed, run.attempt, programs.config.exec_max_lost)
    if code is ErrorCode.MAX_LOST:
        put_back = moves.put_back(run, Why.HOLDER_LOST, now, now) if was_lost else run
        again = moves.retry_lost(put_back, now, programs.chance())
        if again is not None:
            return await _wait_again(claim, found, again)
    if code is not None:
        return await _end(claim, found, moves.exhaust(run, code, program_of(claimed).lost, now))
    written = await backend.runs.replace(claimed, found.revision)
    return await _name_slot(claim, run, written) if isinstance(written, Stored) else LOST


async def _name_slot(claim: _Claim, before: Run | None, written: Stored) -> ProgramAttempt | Passed:
    """Step 10: write the run id into the slot. The claim is recorded now, and is released if the attempt cannot begin.

    `before` is the run as it was before the claim, if known.
    """
    backend, programs = claim.backend, programs_of(claim.backend)
    now = backend.clock()
    attempt = ProgramAttempt(written.run, written.revision, claim.token, claim.job, claim.delivery, claim.slot)
    lost = before if before is not None and before.status is RunState.RUNNING else None
    if lost is not None:  # GRID-174: its previous holder can no longer report it
        # The previous holder may not have reported the start, and may resume and do so. Two reports within the
        # deduplication window count as one, and this is its position in the history. After the window they would count
        # as two; a holder that was suspended for longer than the window adds a second one.
        if lost.start_time is not None and now - lost.start_time < REPEAT_SECONDS:
            await programs.events.tell(event_of(lost, EventName.ASSIGN, lost.start_time))
        await programs.events.tell(requeue_event(lost, Why.HOLDER_LOST, now))
    put_back = None if before is None else put_back_event(before, now)
    if put_back is not None:  # for the same reason: the process that put the job back may report it later
        await programs.events.tell(put_back)
    try:
        filled = await programs.slots.fill(claim.slot, claim.job.run_id, claim.token, now)
    except Unavailable:
        await release(backend, attempt)
        raise
    if filled is None:
        await release(backend, attempt, _SLOT_SECONDS)
        return Passed("its slot was taken over")
    attempt.slot = filled
    await programs.events.tell(event_of(written.run, EventName.ASSIGN, now))
    if lost is not None:
        await free_slot_of(backend, lost)
    return attempt


async def _wait_again(claim: _Claim, found: Stored, again: Run) -> Passed | Lost:
    """The lost attempts are a failed try (RETRY-15): an alarm queues the job for the next one."""
    written = await claim.backend.runs.replace(again, found.revision)
    if isinstance(written, Lost):
        return written
    await free_slot_of(claim.backend, found.run)
    await programs_of(claim.backend).events.tell(requeue_event(found.run, Why.FAILED_TRY, written.run.updated_at))
    await claim.delivery.answer(Reply.ACK)
    return Passed("it waits for its next try")


async def _end(claim: _Claim, found: Stored, ended: Run) -> Passed | Lost:
    written = await write_end(claim.backend, ended, found.revision)
    if isinstance(written, Lost):
        return written
    await free_slot_of(claim.backend, found.run)
    await complete_end(claim.backend, written, claim.delivery)
    return Passed(f"it has ended: {ended.status}")


async def _settled(claim: _Claim, found: Stored) -> Passed:
    await complete_found_end(claim.backend, found, claim.delivery)
    return Passed("it had ended before")


async def _put_off(delivery: Delivery, seconds: float, why: str) -> Passed:
    await delivery.answer(Reply.LATER, seconds)
    return Passed(why)


async def _refuse(backend: Backend, delivery: Delivery, error: InvalidJob) -> Passed:
    """Step 1: write a dead letter, then drop the message. Raises Unavailable if the letter could not be written."""
    # GRID-175: invalid input is logged without a traceback, so build an equal error that was never raised.
    logged = InvalidJob(str(error), run_id=error.run_id)
    log.warning("invalid job message in the queue of programs", run_id=error.run_id, error=logged)
    dead_letter = DeadLetter(
        timestamp=backend.clock(),
        reason=DeadReason.INVALID_JOB,
        error=str(error),
        tag=TAG,
        kind=EXEC,
        run_id=error.run_id,
        num_delivered=delivery.count,
        subject=delivery.subject,
    )
    await backend.queue.bury(dead_letter, f"{delivery.subject}.dlq.invalid")
    await delivery.answer(Reply.DROP)
    return Passed("it is no job")


def _attempts_max(claim: _Claim) -> int:
    return claim.job.max_attempts or programs_of(claim.backend).config.exec_max_attempts


async def release(backend: Backend, attempt: ProgramAttempt, delay_seconds: float = 0.0) -> None:
    """Undo a claim that was never handed to a worker, which therefore was no attempt (GRID-41).

    One write, then the delivery is returned for immediate redelivery. A run with a cancel request ends instead. Closes
    the attempt; frees no slot.

    Never raises: if the write fails, the attempt counts as lost once its lease has expired.
    """
    async with attempt.lock:
        if attempt.closed:
            return
        attempt.closed = True
        try:
            await _release(backend, attempt, delay_seconds)
        except Unavailable as error:
            log.warning("could not undo a claim; its lease will expire", run_id=attempt.run.run_id, error=error)


async def _release(backend: Backend, attempt: ProgramAttempt, delay_seconds: float) -> None:
    run, revision = attempt.run, attempt.revision
    for _ in range(_ROUNDS_MAX):
        if moves.is_cancel_asked(run):
            ended = await write_end(backend, moves.cancel(run, backend.clock()), revision)
            if isinstance(ended, Stored):
                await complete_end(backend, ended, attempt.delivery)
                return
        else:
            written = await backend.runs.replace(moves.release(run, backend.clock()), revision)
            if isinstance(written, Stored):
                if attempt.delivery is not None:
                    await attempt.delivery.answer(Reply.LATER, delay_seconds)
                group = attempt.job.group
                await programs_of(backend).wakeups.tell(
                    group, Wakeup.NEW, f"{attempt.job.exec_name}.{attempt.job.client}"
                )
                return
        found = await backend.runs.find(run.run_id)
        if not isinstance(found, Stored) or found.run.is_terminal or found.run.attempt_id != attempt.attempt_id:
            return
        run, revision = found.run, found.revision
