"""Put a flow back: end its attempt, and leave the run to the next one."""

from __future__ import annotations

from pyoco_server.actions.attempt import Standing, standing_of
from pyoco_server.actions.beat import refresh
from pyoco_server.actions.claim import FlowAttempt
from pyoco_server.core.flow_moves import put_back
from pyoco_server.core.rounds import Rounds
from pyoco_server.core.run import HANDED_BACK, Run
from pyoco_server.core.states import RunState
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.runs.port import Stored

__all__ = ["put_back_run"]


async def put_back_run(backend: Backend, held: FlowAttempt, why: str = HANDED_BACK, error: str | None = None) -> bool:
    """Make the run PENDING without an owner, so that the next delivery need not wait for its heartbeat to go stale.

    One write. Returns False if the attempt has ended, was fenced, or is to be cancelled; nothing was written then, and
    the attempt is ended as usual (FLOW-20). Afterwards the attempt writes nothing more. A crash before the write leaves
    a RUNNING run whose heartbeat goes stale; a crash after it, a delivery that comes again when its deadline is over.

    Raises Unavailable: whether the run was put back is unknown, so this attempt may write nothing more either.
    """
    async with held.lock:
        if held.closed:
            return False
        held.closed = True  # no heartbeat after this, whatever becomes of the write
        rounds = Rounds(f"run {held.run.run_id}")
        standing = standing_of(held.run)
        while standing is Standing.OURS:
            rounds.begin()
            written = await backend.runs.replace(put_back(held.run, backend.clock(), why, error), held.revision)
            if isinstance(written, Stored):
                held.run, held.revision, held.is_put_back = written.run, written.revision, True
                return True
            standing = await refresh(backend, held)
            written_before = await _put_back_before(backend, held.run) if standing is Standing.FENCED else None
            if written_before is not None:
                held.run, held.revision, held.is_put_back = written_before.run, written_before.revision, True
                return True
        held.closed = False
        return False


async def _put_back_before(backend: Backend, run: Run) -> Stored | None:
    """Return the record if the write of this attempt took effect although its answer was lost: no other process
    puts a run back with this attempt."""
    found = await backend.runs.find(run.run_id)
    if not isinstance(found, Stored):
        return None
    facts = found.run.status, found.run.attempt, found.run.attempt_id
    return found if facts == (RunState.PENDING, run.attempt, None) else None
