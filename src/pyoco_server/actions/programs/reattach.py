"""Take over an attempt whose program runs on, from a process that is gone or has let it go."""

from __future__ import annotations

from collections.abc import Callable

from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.history import event_of
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.slots import find_slot_of, free_slot, take_slot, with_holder
from pyoco_server.core.programs import moves
from pyoco_server.core.programs.job import ProgramJob
from pyoco_server.core.programs.message import read_job
from pyoco_server.core.programs.moves import client_of, program_of
from pyoco_server.core.rounds import Rounds
from pyoco_server.core.run import Run
from pyoco_server.errors import Corrupt, InvalidJob
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.program_events.port import EventName
from pyoco_server.ports.runs.port import Stored
from pyoco_server.ports.slots.port import Slot

__all__ = ["reattach"]

log = get_logger(__name__)


async def reattach(
    backend: Backend,
    run_id: str,
    token: str,
    *,
    worker_id: str,
    holder: str,
    may_have: Callable[[Run], bool] = lambda _: True,
) -> ProgramAttempt | None:
    """Answer for it from here on (GRID-110): the same attempt, the same token. None: superseded by a newer attempt, or
    ended, or this worker may not have the run (`may_have`); its program must be stopped. A read and two writes.

    The slot of the attempt is taken along. When it was given up meanwhile, another one is taken if there is room: the
    program runs either way, and `beat` seeks one from then on. The message is not in this process's hand: it comes
    again, is put off while the lease is fresh, and is taken out by its subject in the end.

    Raises Unavailable. What a crash leaves behind: an attempt whose holder is gone, for the next one to take over.
    """
    rounds = Rounds(f"run {run_id}")
    while True:
        rounds.begin()
        try:
            found = await backend.runs.find(run_id)
        except Corrupt:
            return None
        if not isinstance(found, Stored) or not found.run.is_exec or found.run.is_terminal:
            return None
        if found.run.attempt_id != token or not may_have(found.run):
            return None
        attempt = await _take_over(backend, found, worker_id, holder)
        if attempt is not None:
            return attempt


async def _take_over(backend: Backend, found: Stored, worker_id: str, holder: str) -> ProgramAttempt | None:
    """None: somebody was faster, and nothing changed."""
    run = found.run
    program = program_of(run)
    mine = find_slot_of(backend, run)
    slot = mine or await take_slot(backend, program.group, client_of(run), holder)
    number = None if slot is None else slot.number
    moved = moves.reattach(run, worker_id=worker_id, holder=holder, slot=number, now=backend.clock())
    written = await backend.runs.replace(moved, found.revision)
    if not isinstance(written, Stored):
        if slot is not None and mine is None:
            await free_slot(backend, slot)
        return None
    await programs_of(backend).reached("reattach.recorded")
    if slot is not None:
        slot = await _keep(backend, written.run, slot, holder)
    await programs_of(backend).events.tell(event_of(written.run, EventName.REATTACH, backend.clock()))
    log.info("took over an attempt", run_id=run.run_id, attempt=run.attempt, worker_id=worker_id, was=program.holder)
    return ProgramAttempt(written.run, written.revision, run.attempt_id or "", _job_of(run), None, slot)


async def _keep(backend: Backend, run: Run, slot: Slot, holder: str) -> Slot | None:
    """Write ourselves into it: whoever held it before cannot free it any more. None: it was given up, and `beat` seeks
    another one."""
    return await programs_of(backend).slots.take(with_holder(slot, run, holder, backend.clock()))


def _job_of(run: Run) -> ProgramJob:
    try:
        return read_job(program_of(run).job or {})
    except InvalidJob:  # it runs already; nobody will need more than its address
        return moves.addressed(run)
