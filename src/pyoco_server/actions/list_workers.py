"""List the workers."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.core.names import worker_id_problem
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import ALIVE, WorkerRecord
from pyoco_server.errors import WorkerNotFound
from pyoco_server.ports.backend import Backend

__all__ = ["SeenWorker", "WorkerFilter", "list_workers", "see_worker"]


@dataclass(frozen=True, kw_only=True)
class WorkerFilter:
    """Which workers to return; all conditions must match (FLOW-136 to FLOW-139)."""

    #: The derived states to include.
    states: frozenset[WorkerState] = ALIVE
    include_hidden: bool = False
    #: Only workers that serve this tag.
    tag: str | None = None
    limit: int = 500


@dataclass(frozen=True)
class SeenWorker:
    """A worker's own record, and the state derived from it (FLOW-27)."""

    record: WorkerRecord
    state: WorkerState


async def list_workers(backend: Backend, wanted: WorkerFilter) -> list[SeenWorker]:
    """Return the workers, most recently seen first (FLOW-141). O(workers) in memory, no round trip.

    Raises Unavailable while the registry may be out of date.
    """
    now, silence = backend.clock(), backend.config.worker_disconnect_timeout_sec
    seen = [SeenWorker(record, record.derived_state(now, silence)) for record in await backend.registry.all()]
    shown = [each for each in seen if _is_wanted(each, wanted)]
    shown.sort(key=lambda each: (-each.record.last_seen_at, each.record.worker_id))
    return shown[: wanted.limit]


async def see_worker(backend: Backend, worker_id: str) -> SeenWorker:
    """Return one worker, hidden or not. Raises WorkerNotFound."""
    record = await backend.registry.find(worker_id) if worker_id_problem(worker_id) is None else None
    if record is None:
        raise WorkerNotFound
    return SeenWorker(record, record.derived_state(backend.clock(), backend.config.worker_disconnect_timeout_sec))


def _is_wanted(each: SeenWorker, wanted: WorkerFilter) -> bool:
    return (
        each.state in wanted.states
        and (wanted.include_hidden or not each.record.hidden)
        and (wanted.tag is None or wanted.tag in each.record.tags)
    )
