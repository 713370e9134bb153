"""Take over an attempt whose program is still running, from a process that exited or released it."""

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
    """Become the holder of the attempt, with the same number and token (GRID-110). Costs a read and two writes.

    Returns None if a newer attempt has begun, the run has ended, or this worker may not run it (`may_have`): its
    program must be stopped then.

    The slot of the attempt is kept. If it was freed meanwhile, another one is taken if the cap allows: the program runs
    either way, and `beat` tries to get a slot from then on. This process does not hold the message: it is redelivered,
    put off while the lease is fresh, and finally removed by its subject.

    Raises Unavailable. A crash leaves an attempt without a live holder, which the next process takes over.
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
    """Returns None if another process wrote the record first; nothing changed then."""
    run = found.run
    program = program_of(run)
    own_slot = find_slot_of(backend, run)
    slot = own_slot or await take_slot(backend, program.group, client_of(run), holder)
    number = None if slot is None else slot.number
    moved = moves.reattach(run, worker_id=worker_id, holder=holder, slot=number, now=backend.clock())
    written = await backend.runs.replace(moved, found.revision)
    if not isinstance(written, Stored):
        if slot is not None and own_slot is None:
            await free_slot(backend, slot)
        return None
    if slot is not None:
        slot = await _keep(backend, written.run, slot, holder)
    await programs_of(backend).events.tell(event_of(written.run, EventName.REATTACH, backend.clock()))
    log.info("took over an attempt", run_id=run.run_id, attempt=run.attempt, worker_id=worker_id, was=program.holder)
    return ProgramAttempt(written.run, written.revision, run.attempt_id or "", _job_of(run), None, slot)


async def _keep(backend: Backend, run: Run, slot: Slot, holder: str) -> Slot | None:
    """Write the new holder into the slot, so that the previous one cannot free it.

    Returns None if the slot was freed meanwhile; `beat` then tries to get another one.
    """
    return await programs_of(backend).slots.take(with_holder(slot, run, holder, backend.clock()))


def _job_of(run: Run) -> ProgramJob:
    try:
        return read_job(program_of(run).job or {})
    except InvalidJob:  # it is running already; only its address is needed
        return moves.addressed(run)
