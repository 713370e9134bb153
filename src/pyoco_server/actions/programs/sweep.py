"""Repair what a crash left between the record of a run and its message on the queue (GRID-57)."""

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
    """Queue a waiting run whose message is missing; remove the message of an ended run and complete its end.

    Returns True if there was something to repair and it is done. Costs two round trips if there was not. Several
    processes may try concurrently.

    Runs that changed within `exec_stale_sec` are skipped: their writer may still be active. Raises Unavailable, and
    Corrupt if the record cannot be read.
    """
    programs = programs_of(backend)
    found = await backend.runs.find(run_id)
    if not isinstance(found, Stored) or not found.run.is_exec or found.run.waits_for_time:
        return False
    if backend.clock() - found.run.updated_at < programs.config.exec_stale_sec:
        return False
    is_queued = await programs.queue.has(addressed(found.run))
    if found.run.is_terminal:
        return (is_queued or _lacks_dead_letter(found)) and await _settle(backend, found)
    return not is_queued and await _put(backend, found)


async def put_lost(backend: Backend, run_id: str, before: float) -> bool:
    """Queue a PENDING run recorded before this instant, at which the queue was created again (SAFE-15).

    Returns False if there was nothing to do. Raises like `mend`.
    """
    found = await backend.runs.find(run_id)
    if not isinstance(found, Stored) or not found.run.is_exec or found.run.status is not RunState.PENDING:
        return False
    if found.run.waits_for_time:
        return False
    if found.stored_at >= before or await programs_of(backend).queue.has(addressed(found.run)):
        return False
    return await _put(backend, found)


def _lacks_dead_letter(found: Stored) -> bool:
    program = program_of(found.run)
    return program.dlq_due and not program.dlq_done


async def _settle(backend: Backend, found: Stored) -> bool:
    log.warning("removing the leftover message of an ended job", run_id=found.run.run_id)
    return await complete_found_end(backend, found, None)


async def _put(backend: Backend, found: Stored) -> bool:
    run = found.run
    try:
        job = read_job(program_of(run).job or {})
    except InvalidJob as error:  # it can never run, and would wait forever
        ended = await write_end(backend, fail_invalid(run, str(error), backend.clock()), found.revision)
        return isinstance(ended, Stored) and await complete_end(backend, ended, None)
    log.warning("job missing in its queue; queueing it again", run_id=run.run_id, attempt=run.attempt)
    await enqueue(backend, run, job)
    return True
