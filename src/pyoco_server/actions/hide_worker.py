"""Show a worker in lists, or leave it out."""

from __future__ import annotations

from pyoco_server.core.names import worker_id_problem
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.errors import WorkerNotFound
from pyoco_server.ports.backend import Backend

__all__ = ["hide_worker"]


async def hide_worker(backend: Backend, worker_id: str, hidden: bool) -> WorkerRecord:
    """Write down the operator's wish. It stops nothing and deletes nothing (FLOW-146). Raises WorkerNotFound.

    Two round trips. A crash before the write leaves everything as it was; after it, the wish is kept, and saying it
    again changes nothing (FLOW-147).
    """
    # What cannot be a worker's id is not asked for: `*` would be a question for all of them.
    record = None
    if worker_id_problem(worker_id) is None:
        record = await backend.registry.hide(worker_id, hidden, backend.clock())
    if record is None:
        raise WorkerNotFound
    return record
