"""Mend what a crash left between the record of a run and its message on the queue (GRID-57)."""

from __future__ import annotations

from pyoco_server.actions.programs.complete_end import complete_end, complete_found_end, write_end
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.submit import enqueue
from pyoco_server.core.programs.message import read_job
from pyoco_server.core.programs.moves import addressed, fail_invalid, program_of
from pyoco_server.core.states import RunState
from pyoco_server.errors import InvalidJob
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.runs.port import Stored

__all__ = ["mend", "put_lost"]

log = get_logger(__name__)


async def mend(backend: Backend, run_id: str) -> bool:
    """Put the message of a run that waits for one, take out that of a run that has ended, with what its end still
    lacks. True: something was to be done, and is. Two round trips when nothing is; several may try at once.

    What has changed within EXEC_STALE_SEC is passed over: whoever changed it may still be at it. Raises Unavailable,
    and Corrupt when the record cannot be read.
    """
    programs = programs_of(backend)
    found = await backend.runs.find(run_id)
    if not isinstance(found, Stored) or not found.run.is_exec:
        return False
    if backend.clock() - found.run.updated_at < programs.config.exec_stale_sec:
        return False
    is_queued = await programs.queue.has(addressed(found.run))
    if found.run.is_terminal:
        return (is_queued or _lacks_letter(found)) and await _settle(backend, found)
    return not is_queued and await _put(backend, found)


async def put_lost(backend: Backend, run_id: str, before: float) -> bool:
    """Put the message of a PENDING run whose record was stored before this instant, when the queue was created again
    (SAFE-15). False: it needs none. Raises as `mend` does."""
    found = await backend.runs.find(run_id)
    if not isinstance(found, Stored) or not found.run.is_exec or found.run.status is not RunState.PENDING:
        return False
    if found.stored_at >= before or await programs_of(backend).queue.has(addressed(found.run)):
        return False
    return await _put(backend, found)


def _lacks_letter(found: Stored) -> bool:
    program = program_of(found.run)
    return program.dlq_due and not program.dlq_done


async def _settle(backend: Backend, found: Stored) -> bool:
    log.warning("the message of a job that has ended was left behind; it is removed", run_id=found.run.run_id)
    return await complete_found_end(backend, found, None)


async def _put(backend: Backend, found: Stored) -> bool:
    run = found.run
    try:
        job = read_job(program_of(run).job or {})
    except InvalidJob as error:  # nobody could run it, and it would wait for ever
        ended = await write_end(backend, fail_invalid(run, str(error), backend.clock()), found.revision)
        return isinstance(ended, Stored) and await complete_end(backend, ended, None)
    log.warning("a job was missing in its queue; it is put again", run_id=run.run_id, attempt=run.attempt)
    await enqueue(backend, run, job)
    return True
