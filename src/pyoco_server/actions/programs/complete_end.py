"""The steps after the terminal record of a run: its dead letter, its last event, and the removal of its message.

They run in that order, first in the process that wrote the record. Any process that finds a terminal record repeats
them, since the first one may have crashed in between (GRID-53 step 3, GRID-57). Repeating them changes nothing.
"""

from __future__ import annotations

import asyncio

from pyoco_server.actions.programs.history import end_event
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.slots import free_slot_of
from pyoco_server.core.dead_letter import dead_letter_of
from pyoco_server.core.outcome import DeadReason
from pyoco_server.core.programs.moves import addressed, note_dead_letter, program_of, with_short_tails
from pyoco_server.core.run import Run
from pyoco_server.errors import CATALOGUE, SnapshotTooLargeError, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.queue.port import Delivery, Reply
from pyoco_server.ports.runs.port import Lost, Stored
from pyoco_server.ports.wakeups.port import Wakeup

__all__ = ["complete_end", "complete_found_end", "write_end"]

log = get_logger(__name__)

_TRIES = 3
_PAUSE_SECONDS = 0.5


async def write_end(backend: Backend, ended: Run, revision: int) -> Stored | Lost:
    """Write a terminal record: with short tails if it is too large (GRID-153), in its smallest form if it still is."""
    short = with_short_tails(ended)
    for form in (ended, short):
        try:
            return await backend.runs.replace(form, revision)
        except SnapshotTooLargeError as error:
            log.warning("terminal record of a job is too large", run_id=ended.run_id, error=error)
    return await backend.runs.replace_smallest(short, revision)


async def complete_end(backend: Backend, stored: Stored, delivery: Delivery | None) -> bool:
    """Write the dead letter and the event, then remove the message, in that order (GRID-10).

    The message is acknowledged, or removed by its subject if this process did not receive it. Costs three round trips,
    and two more for a dead letter. Returns False if a step failed: the message stays and is redelivered, or the sweeper
    finds it. Never raises Unavailable.
    """
    programs, run = programs_of(backend), stored.run
    await programs.wakeups.tell(program_of(run).group, Wakeup.DONE, run.run_id)
    try:
        await _bury(backend, stored, delivery)
        await programs.events.record(end_event(run))
        if delivery is None:
            await programs.queue.remove(addressed(run))
        else:
            await delivery.answer(Reply.ACK)
    except Unavailable as error:
        log.warning("job ended but its message could not be removed yet", run_id=run.run_id, error=error)
        return False
    return True


async def _bury(backend: Backend, stored: Stored, delivery: Delivery | None) -> None:
    """Write the dead letter if one is due (GRID-86). Raises Unavailable if the letter, or the note of it, failed."""
    run, program = stored.run, program_of(stored.run)
    if not program.dlq_due or program.dlq_done:
        return
    reason = DeadReason(run.reason) if run.reason else DeadReason.EXECUTION_ERROR
    count, subject = (None, None) if delivery is None else (delivery.count, delivery.subject)
    dead_letter = dead_letter_of(run, reason, backend.clock(), num_delivered=count, subject=subject)
    for tries_left in reversed(range(_TRIES)):
        try:
            await backend.queue.bury(dead_letter, f"{run.run_id}.dlq.{run.attempt}")
            break
        except Unavailable as error:
            text = CATALOGUE[11]
            log.error(text.en, run_id=run.run_id, reason=reason, err_id=text.err_id, msg_id=text.msg_id, cause=error)
            if not tries_left:
                raise
            await asyncio.sleep(_PAUSE_SECONDS)
    # LOST: another process that found the run ended has noted it.
    await backend.runs.replace(note_dead_letter(run, backend.clock()), stored.revision)


async def complete_found_end(backend: Backend, stored: Stored, delivery: Delivery | None) -> bool:
    """Complete a run that had already ended. The process that ended it may have crashed before it freed the slot."""
    await free_slot_of(backend, stored.run)
    return await complete_end(backend, stored, delivery)
