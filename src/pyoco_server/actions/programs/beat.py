"""Renew the lease of an attempt, and return whether it still owns its run."""

from __future__ import annotations

from pyoco_server.actions.attempt import Standing
from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.slots import free_slot, take_slot
from pyoco_server.core.programs import moves
from pyoco_server.core.programs.moves import client_of, program_of
from pyoco_server.core.rounds import Rounds
from pyoco_server.core.states import RunState
from pyoco_server.errors import Corrupt
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.runs.port import Stored

__all__ = ["beat", "refresh"]


async def beat(backend: Backend, attempt: ProgramAttempt) -> Standing:
    """Renew the lease with one write (GRID-56).

    A conflict reveals a cancel request: the record is read and written again.

    FENCED closes the attempt. An attempt without a slot, such as one taken over while its client was at its cap, gets
    one as soon as the cap allows. Raises Unavailable.
    """
    async with attempt.lock:
        if attempt.closed:
            return Standing.FENCED
        await _seek_slot(backend, attempt)
        rounds = Rounds(f"run {attempt.run.run_id}")
        while True:
            rounds.begin()
            slot = None if attempt.slot is None else attempt.slot.number
            written = await backend.runs.replace(moves.beat(attempt.run, slot, backend.clock()), attempt.revision)
            if isinstance(written, Stored):
                attempt.run, attempt.revision = written.run, written.revision
                return Standing.CANCEL_REQUESTED if attempt.run.status is RunState.CANCELLING else Standing.OURS
            if not await refresh(backend, attempt):
                attempt.closed = True
                return Standing.FENCED


async def refresh(backend: Backend, attempt: ProgramAttempt) -> bool:
    """Reread the record after a lost write. Returns False if its token or holder differs, or the run has ended.

    The caller holds the lock.
    """
    try:
        found = await backend.runs.find(attempt.run.run_id)
    except Corrupt:
        return False
    if not isinstance(found, Stored) or found.run.status not in (RunState.RUNNING, RunState.CANCELLING):
        return False
    if found.run.attempt_id != attempt.attempt_id or program_of(found.run).holder != program_of(attempt.run).holder:
        return False
    attempt.run, attempt.revision = found.run, found.revision
    return True


async def _seek_slot(backend: Backend, attempt: ProgramAttempt) -> None:
    if attempt.slot is not None:
        return
    program = program_of(attempt.run)
    slot = await take_slot(backend, program.group, client_of(attempt.run), program.holder or "")
    if slot is None:
        return
    filled = await programs_of(backend).slots.fill(slot, attempt.run.run_id, attempt.attempt_id, backend.clock())
    if filled is None:
        await free_slot(backend, slot)
    attempt.slot = filled
