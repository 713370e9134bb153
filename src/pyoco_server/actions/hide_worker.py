"""Hide a worker in lists, or show it again."""

from __future__ import annotations

from pyoco_server.core.names import worker_id_problem
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.errors import WorkerNotFound
from pyoco_server.ports.backend import Backend

__all__ = ["hide_worker"]


async def hide_worker(backend: Backend, worker_id: str, hidden: bool) -> WorkerRecord:
    """Store whether the worker is hidden. Stops nothing and deletes nothing (FLOW-146). Raises WorkerNotFound.

    Two round trips. A crash before the write changes nothing; after it, the setting is stored, and repeating the
    request changes nothing (FLOW-147).
    """
    # Invalid ids are not looked up: `*` would match all workers.
    record = None
    if worker_id_problem(worker_id) is None:
        record = await backend.registry.hide(worker_id, hidden, backend.clock())
    if record is None:
        raise WorkerNotFound
    return record
