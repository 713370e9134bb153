"""End a run that nobody will ever take."""

from __future__ import annotations

from pyoco_server.core.outcome import DeadReason, Failed
from pyoco_server.core.run import Run, conclude
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.runs.port import Stored

__all__ = ["may_wait", "rescue"]

log = get_logger(__name__)

#: A submission writes record and job within its patience for NATS, twice 17 s at the worst; clocks agree within 5 s.
_SUBMIT_SECONDS_MAX = 40.0


def may_wait(submitted_at: float, oldest: float | None) -> bool:
    """Whether the job of a run submitted then may be in a queue whose oldest job is this old: then it is waiting, and
    whoever takes it decides."""
    return oldest is not None and oldest <= submitted_at + _SUBMIT_SECONDS_MAX


async def rescue(backend: Backend, run_id: str, quiet_seconds: float) -> Run | None:
    """End the run if it has been quiet for that long and has no job in the queue. None: it needs no rescue.

    A job is stored after its record and leaves the queue only after the run has ended. So when every job of the tag
    that is still there came in long after this run was submitted, this run's job is not among them. Two reads and one
    compare-and-set, which is lost to anybody who still works on the run. Several keepers may try at once.
    """
    found = await backend.runs.find(run_id)
    if not isinstance(found, Stored) or found.run.is_terminal:
        return None
    run, now = found.run, backend.clock()
    quiet_since = max(run.updated_at, run.heartbeat_at)
    if now - quiet_since < quiet_seconds:
        return None
    if may_wait(run.submitted_at, await backend.queue.oldest(run.tag)):
        return None
    message = "the run has a record but no job in the queue, so no worker would ever take it; submit it again"
    ended = await backend.runs.replace(
        conclude(run, Failed(message=message, why=DeadReason.ABANDONED), now), found.revision
    )
    if not isinstance(ended, Stored):
        return None
    log.warning("ended a run without a job", run_id=run_id, tag=run.tag, was=run.status, status=ended.run.status)
    return ended.run
