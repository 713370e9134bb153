"""Put a job back into the queue after an attempt that ended without a result."""

from __future__ import annotations

from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.beat import refresh
from pyoco_server.actions.programs.complete_end import complete_end, write_end
from pyoco_server.actions.programs.history import requeue_event
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.core.programs import moves
from pyoco_server.core.programs.budget import Why, is_lost, retry_delay_seconds
from pyoco_server.core.programs.moves import program_of
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.rounds import Rounds
from pyoco_server.core.run import Run, changed
from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.queue.port import Reply
from pyoco_server.ports.runs.port import Stored
from pyoco_server.ports.wakeups.port import Wakeup

__all__ = ["Why", "complete_retry", "put_back", "put_back_held"]

log = get_logger(__name__)


async def put_back(backend: Backend, attempt: ProgramAttempt, why: Why) -> bool:
    """Make the run PENDING for a later attempt (GRID-79, GRID-81).

    The run ends instead if a cancel is requested or its retry budget is spent (GRID-80). Costs one write, an event and
    an answer. Closes the attempt; frees no slot. Returns False if the attempt was closed or belongs to another process;
    nothing was done then. A crash after the record leaves a message that is redelivered.

    Raises Unavailable: the attempt is still owned; call again, or let the lease expire.
    """
    async with attempt.ending, attempt.lock:
        return await put_back_held(backend, attempt, why)


async def put_back_held(backend: Backend, attempt: ProgramAttempt, why: Why, reported_error: str | None = None) -> bool:
    """Do the same while holding the lock. `reported_error` is the error that the worker reported.

    Returns False if the attempt belongs to another process; nothing was done then.
    """
    if attempt.closed:
        return False
    rounds = Rounds(f"run {attempt.run.run_id}")
    while True:
        rounds.begin()
        moved = _next(backend, attempt.run, why, reported_error)
        if moved.is_terminal:
            written = await write_end(backend, moved, attempt.revision)
        else:
            written = await backend.runs.replace(moved, attempt.revision)
        if isinstance(written, Stored):
            attempt.closed = True
            await _complete(backend, attempt, written, why)
            attempt.run, attempt.revision = written.run, written.revision  # the caller sees when the job is due again
            return True
        if not await refresh(backend, attempt):
            attempt.closed = True
            log.info("attempt taken over before it could be put back", run_id=attempt.run.run_id, why=why)
            return False


def _next(backend: Backend, run: Run, why: Why, reported_error: str | None) -> Run:
    programs, now = programs_of(backend), backend.clock()
    if moves.is_cancel_asked(run):
        return moves.cancel(run, now)
    program = program_of(run)
    if is_lost(why):
        delay = programs.config.exec_worker_down_delay_sec
    else:
        delay = retry_delay_seconds(run.attempt - program.lost, programs.chance())
    waiting = moves.put_back(run, why, now + delay, now, reported_error)
    code = moves.budget_spent(waiting, run.attempt, programs.config.exec_max_lost)
    if code is None:
        return waiting
    if code is ErrorCode.MAX_LOST:
        again = moves.retry_lost(waiting, now, programs.chance())
        if again is not None:
            return again
    counted = changed(run, tries=waiting.tries, try_since=waiting.try_since)
    return moves.exhaust(counted, code, program_of(waiting).lost, now, reported_error)


async def complete_retry(backend: Backend, attempt: ProgramAttempt, written: Stored) -> None:
    """Do what follows the record of a run that waits for its next try: its event, and the end of its message."""
    await _complete(backend, attempt, written, Why.FAILED_TRY)


async def _leave_to_the_clock(backend: Backend, attempt: ProgramAttempt) -> None:
    """Remove the message: an alarm queues the job again. One that stays is put off until it is due."""
    if attempt.delivery is not None:
        await attempt.delivery.answer(Reply.ACK)
        return
    try:
        await programs_of(backend).queue.remove(moves.addressed(attempt.run))
    except Unavailable as error:
        log.warning("the message of a failed try could not be removed", run_id=attempt.run.run_id, error=error)


async def _complete(backend: Backend, attempt: ProgramAttempt, written: Stored, why: Why) -> None:
    programs, run = programs_of(backend), written.run
    if run.is_terminal:
        await complete_end(backend, written, attempt.delivery)
        return
    await programs.events.tell(requeue_event(attempt.run, why, run.updated_at))
    if run.waits_for_time:
        await _leave_to_the_clock(backend, attempt)
    elif attempt.delivery is not None:
        delay = max(0.0, (program_of(run).not_before or 0.0) - backend.clock())
        await attempt.delivery.answer(Reply.LATER, delay)
    await programs.wakeups.tell(program_of(run).group, Wakeup.DONE, run.run_id)
    log.info(
        "put back", run_id=run.run_id, attempt=run.attempt, why=why, worker_id=attempt.run.worker_id, error=run.error
    )
