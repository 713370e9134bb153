"""Queue the job of a delayed program whose time has come."""

from __future__ import annotations

from pyoco_server.actions.programs.complete_end import complete_end, write_end
from pyoco_server.actions.programs.submit import enqueue
from pyoco_server.core.programs.message import read_job
from pyoco_server.core.programs.moves import fail_invalid, program_of
from pyoco_server.errors import InvalidJob
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.runs.port import Stored

__all__ = ["enqueue_released"]


async def enqueue_released(backend: Backend, released: Stored) -> None:
    """Put the job of a released run on its queue. A repeat is dropped while the first job is there.

    Raises Unavailable, also if the queue is full: the caller tries again.
    """
    try:
        job = read_job(program_of(released.run).job or {})
    except InvalidJob as error:  # it can never run, and would wait forever
        ended = await write_end(backend, fail_invalid(released.run, str(error), backend.clock()), released.revision)
        if isinstance(ended, Stored):
            await complete_end(backend, ended, None)
        return
    await enqueue(backend, released.run, job)
