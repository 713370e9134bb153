"""Give a job back to the queue after an attempt that did not end it."""

from __future__ import annotations

from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.beat import refresh
from pyoco_server.actions.programs.complete_end import complete_end, write_end
from pyoco_server.actions.programs.history import requeue_event
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.core.programs import moves
from pyoco_server.core.programs.budget import Why, is_lost, retry_delay_seconds, spent
from pyoco_server.core.programs.moves import program_of
from pyoco_server.core.rounds import Rounds
from pyoco_server.core.run import Run
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.queue.port import Reply
from pyoco_server.ports.runs.port import Stored
from pyoco_server.ports.wakeups.port import Wakeup

__all__ = ["Why", "put_back", "put_back_held"]

log = get_logger(__name__)


async def put_back(backend: Backend, attempt: ProgramAttempt, why: Why) -> bool:
    """PENDING again, for a later attempt (GRID-79, GRID-81); or the end, when somebody wants it stopped or its budget
    is spent (GRID-80). One write, an event, an answer. Closes the attempt; frees no slot.

    Raises Unavailable: it is still ours, so ask again, or let the lease end. False: it was closed, or another's by now,
    and nothing was done. What a crash after the record leaves behind: a message that comes again by itself.
    """
    async with attempt.ending, attempt.lock:
        return await put_back_held(backend, attempt, why)


async def put_back_held(backend: Backend, attempt: ProgramAttempt, why: Why, said: str | None = None) -> bool:
    """The same for who holds the lock; `said`: what the worker could not do. False: it was another's, and nothing was
    done."""
    if attempt.closed:
        return False
    rounds = Rounds(f"run {attempt.run.run_id}")
    while True:
        rounds.begin()
        moved = _next(backend, attempt.run, why, said)
        if moved.is_terminal:
            written = await write_end(backend, moved, attempt.revision)
        else:
            written = await backend.runs.replace(moved, attempt.revision)
        if isinstance(written, Stored):
            attempt.closed = True
            await _tell(backend, attempt, written, why)
            attempt.run, attempt.revision = written.run, written.revision  # whoever asked sees when it comes again
            return True
        if not await refresh(backend, attempt):
            attempt.closed = True
            log.info("an attempt was another's before it could be put back", run_id=attempt.run.run_id, why=why)
            return False


def _next(backend: Backend, run: Run, why: Why, said: str | None) -> Run:
    programs, now = programs_of(backend), backend.clock()
    if moves.is_cancel_asked(run):
        return moves.cancel(run, now)
    program = program_of(run)
    if is_lost(why):
        delay = programs.config.exec_worker_down_delay_sec
    else:
        delay = retry_delay_seconds(run.attempt - program.lost, programs.chance())
    waiting = moves.put_back(run, why, now + delay, now, said)
    code = spent(program_of(waiting), run.attempt, programs.config.exec_max_lost)
    return waiting if code is None else moves.exhaust(run, code, program_of(waiting).lost, now, said)


async def _tell(backend: Backend, attempt: ProgramAttempt, written: Stored, why: Why) -> None:
    programs, run = programs_of(backend), written.run
    if run.is_terminal:
        await programs.reached("finish.recorded")
        await complete_end(backend, written, attempt.delivery)
        return
    await programs.reached("put_back.recorded")
    await programs.events.tell(requeue_event(attempt.run, why, run.updated_at))
    await programs.reached("put_back.told")
    if attempt.delivery is not None:
        delay = max(0.0, (program_of(run).not_before or 0.0) - backend.clock())
        await attempt.delivery.answer(Reply.LATER, delay)
    await programs.wakeups.tell(program_of(run).group, Wakeup.DONE, run.run_id)
    await programs.reached("put_back.answered")
    log.info(
        "put back", run_id=run.run_id, attempt=run.attempt, why=why, worker_id=attempt.run.worker_id, error=run.error
    )
