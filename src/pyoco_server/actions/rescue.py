"""End a run that nobody will ever take."""

from __future__ import annotations

from pyoco_server.actions.finish import write_terminal
from pyoco_server.core.outcome import DeadReason, Failed
from pyoco_server.core.run import Run, conclude
from pyoco_server.core.states import RunState
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.runs.port import Stored

__all__ = ["may_wait", "rescue"]

log = get_logger(__name__)

#: A submission writes record and job within its patience for NATS, twice 17 s at the worst.
_SUBMIT_SECONDS_MAX = 40.0


def may_wait(found: Stored, oldest: float | None) -> bool:
    """Whether the job of this run may be among those left in its queue, of which the oldest was stored then.

    Both times are the store's own, so no clock but one is trusted. A run that was claimed had its job before its record
    was last written; one that was not gets its job within seconds of its record.
    """
    if oldest is None:
        return False
    latest = found.stored_at if found.run.attempt else found.stored_at + _SUBMIT_SECONDS_MAX
    return oldest <= latest


async def rescue(backend: Backend, run_id: str, quiet_seconds: float) -> Run | None:
    """End the run if it has been quiet for that long and has no job in the queue, or was cancelled before anyone began
    it. None: it needs no rescue.

    Jobs come in by time and leave the queue only after their run has ended. So when every job of the tag that is still
    there came in later than this run's can have, this run has none. Two reads and one compare-and-set, which is lost
    to anybody who still works on the run. Several keepers may try at once.
    """
    found = await backend.runs.find(run_id)
    if not isinstance(found, Stored) or found.run.is_terminal:
        return None
    run, now = found.run, backend.clock()
    if now - max(run.updated_at, run.heartbeat_at) < quiet_seconds:
        return None
    # A cancelled run that nobody has begun need not wait for its job to be taken: whoever takes it finds it ended.
    is_over = run.status is RunState.CANCELLING and run.attempt == 0
    if not is_over and may_wait(found, await backend.queue.oldest(run.tag)):
        return None
    message = "the run has a record but no job in the queue, so no worker would ever take it; submit it again"
    ended = await write_terminal(
        backend, conclude(run, Failed(message=message, why=DeadReason.ABANDONED), now), found.revision
    )
    if not isinstance(ended, Stored):
        return None
    log.warning("ended a run without a job", run_id=run_id, tag=run.tag, was=run.status, status=ended.run.status)
    return ended.run
