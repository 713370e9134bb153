"""Write the heartbeat of a run, and detect cancel requests and takeovers."""

from __future__ import annotations

from pyoco_server.actions.attempt import Standing, standing_of
from pyoco_server.actions.claim import FlowAttempt
from pyoco_server.core.flow_moves import beat, mark_cancel_overdue
from pyoco_server.core.outcome import NOTHING_YET, Progress
from pyoco_server.core.run import Run
from pyoco_server.errors import SnapshotTooLargeError
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.runs.port import Stored

__all__ = ["beat_run", "refresh", "report_overdue_cancel"]

log = get_logger(__name__)


async def beat_run(backend: Backend, held: FlowAttempt, progress: Progress | None) -> Standing:
    """Write one heartbeat with the current progress: one write. A conflict reveals a cancel request.

    If the snapshot is too large, the heartbeat is written without the new progress (FLOW-362). Raises Unavailable.
    """
    async with held.lock:
        if held.closed:
            return Standing.OURS
        now = backend.clock()
        try:
            return await _write(backend, held, beat(held.run, progress or NOTHING_YET, now))
        except SnapshotTooLargeError as error:
            log.warning("progress not stored: snapshot too large", run_id=held.run.run_id, error=error)
            return await _write(backend, held, beat(held.run, NOTHING_YET, now))


async def report_overdue_cancel(backend: Backend, held: FlowAttempt, seconds: float) -> Standing:
    """Record that the cancellation did not converge (FLOW-186)."""
    async with held.lock:
        if held.closed:
            return Standing.OURS
        return await _write(backend, held, mark_cancel_overdue(held.run, seconds, backend.clock()))


async def _write(backend: Backend, held: FlowAttempt, run: Run) -> Standing:
    written = await backend.runs.replace(run, held.revision)
    if isinstance(written, Stored):
        held.run, held.revision = written.run, written.revision
        return standing_of(held.run)
    return await refresh(backend, held)


async def refresh(backend: Backend, held: FlowAttempt) -> Standing:
    """Read the record again after a lost write. If this attempt still owns the run (a cancel came in), continue from
    the new revision."""
    found = await backend.runs.find(held.run.run_id)
    if not isinstance(found, Stored) or found.run.is_terminal or not found.run.is_owned_by(held.attempt_id):
        return Standing.FENCED
    held.run, held.revision = found.run, found.revision
    return standing_of(held.run)
