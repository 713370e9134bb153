"""Request the cancellation of a job."""

from __future__ import annotations

from pyoco_server.actions.programs.complete_end import complete_end, write_end
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.core.programs import moves
from pyoco_server.core.programs.moves import program_of
from pyoco_server.core.programs.record import CANCEL_GRACE_SECONDS
from pyoco_server.core.rounds import Rounds
from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState
from pyoco_server.errors import NotOfThisKind, RunNotFound, SnapshotTooLargeError
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.runs.port import Lost, Stored
from pyoco_server.ports.wakeups.port import Wakeup

__all__ = ["ask_job", "cancel_job", "tell_holder"]


async def cancel_job(backend: Backend, run_id: str, by: str | None, reason: str | None) -> Stored:
    """Cancel a waiting job immediately and remove its message; mark a running one, which its holder stops (section 21).

    A job that has ended, or whose cancellation was requested before, is returned unchanged (GRID-161).

    The caller checks permission; `by` is recorded. Costs a read and a write, and three more round trips for a waiting
    job. Raises RunNotFound, NotOfThisKind and Unavailable.
    """
    rounds = Rounds(f"run {run_id}")
    while True:
        rounds.begin()
        found = await backend.runs.find(run_id)
        if not isinstance(found, Stored):
            raise RunNotFound(f"there is no run {run_id}")
        if not found.run.is_exec:
            raise NotOfThisKind("the run is not one of a program")
        if found.run.is_terminal or found.run.status is RunState.CANCELLING:
            return found
        requested = await ask_job(backend, found, by, reason)
        if isinstance(requested, Stored):
            return requested


async def ask_job(
    backend: Backend, found: Stored, by: str | None, reason: str | None, grace_seconds: float | None = None
) -> Stored | Lost:
    """Do the same for a run just read, which is PENDING or RUNNING. LOST: it has changed since; nothing was done.

    `grace_seconds` may only shorten the time that every program has.
    """
    run, now = found.run, backend.clock()
    if run.status is RunState.PENDING:
        ended = await write_end(backend, moves.cancel(run, now, reason, by), found.revision)
        if isinstance(ended, Stored):
            await complete_end(backend, ended, None)
        return ended
    marked = await _mark(backend, found, by, reason, CANCEL_GRACE_SECONDS if grace_seconds is None else grace_seconds)
    if isinstance(marked, Stored):
        await tell_holder(backend, run)
    return marked


async def tell_holder(backend: Backend, run: Run) -> None:
    """Make the holder of an attempt read its record at once. Raises Unavailable."""
    await programs_of(backend).wakeups.tell(program_of(run).group, Wakeup.CANCEL, run.run_id)


async def _mark(backend: Backend, found: Stored, by: str | None, reason: str | None, grace: float) -> Stored | Lost:
    now = backend.clock()
    try:
        return await backend.runs.replace(moves.ask_cancel(found.run, reason, by, now, grace), found.revision)
    except SnapshotTooLargeError:  # the cancel request must be recorded; its reason need not
        return await backend.runs.replace(moves.ask_cancel(found.run, None, by, now, grace), found.revision)
