"""Choose the id of a worker that was started without one."""

from __future__ import annotations

from itertools import count

from pyoco_server.ports.backend import Backend

__all__ = ["choose_worker_id"]


async def choose_worker_id(backend: Backend, wanted: str) -> str:
    """Return `wanted`, or `wanted-2`, `wanted-3`, … while a live worker has that id (CLI-11).

    One read per id. Workers that start in the same moment may choose the same id: it names them, and does not own runs.
    Raises Unavailable.
    """
    worker_id, numbers = wanted, count(2)
    while await _is_alive(backend, worker_id):
        worker_id = f"{wanted}-{next(numbers)}"
    return worker_id


async def _is_alive(backend: Backend, worker_id: str) -> bool:
    record = await backend.registry.find(worker_id)
    silence = backend.config.worker_disconnect_timeout_sec
    return record is not None and record.is_alive(backend.clock(), silence)
