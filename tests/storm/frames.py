"""A caller of programs through the door, over TCP: it keeps its jobs, and submits them again after each loss."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from typing import Any

from pyoco_server.client.frames.job import Job
from pyoco_server.core.frames.messages import SubmitAck
from pyoco_server.core.programs.names import run_id_of
from pyoco_server.errors import PyocoError
from pyoco_server.grid_client import GridClient, JobRequest
from storm.book import Book, Kind
from storm.site import GROUP, StormSite

__all__ = ["DOOR", "call_door"]

#: Instead of a tenant: clients of the door have no key, and callers with a key do not see their runs.
DOOR = "door"
_JOBS_MAX = 8
_INSIST_SECONDS_MAX = 300.0


class _Caller(GridClient):
    def __init__(self, book: Book, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._book = book

    def accepted(self, job: Job, ack: SubmitAck) -> None:
        self._book.accept(run_id_of(job.job_id, GROUP), Kind.PROGRAM, DOOR, job.job_id, {"COMPLETED"})
        super().accepted(job, ack)


async def call_door(site: StormSite, book: Book, seed: int, stopping: asyncio.Event) -> None:
    """Until the load stops, and everything it was told yes for has a result."""
    dice = random.Random(f"{seed} door")
    jobs: set[asyncio.Task[None]] = set()
    async with _Caller(book, site.door[0], site.door[1], "storm", desired=2) as client:
        while not stopping.is_set():
            for job in [each for each in jobs if each.done()]:
                jobs.remove(job)
                job.result()
            if len(jobs) < _JOBS_MAX:
                job_id = str(uuid.UUID(int=dice.getrandbits(128), version=4))
                ask = JobRequest(exec_name="sleepn", args=(f"{dice.uniform(0.0, 0.8):.1f}",), job_id=job_id)
                jobs.add(asyncio.create_task(_run(client, book, ask)))
            await asyncio.sleep(dice.uniform(0.4, 1.2))
        if jobs:
            await asyncio.wait(jobs, timeout=_INSIST_SECONDS_MAX)
        for job in jobs:
            if not job.done():
                book.complain("a job through the door has no result")
                job.cancel()
        for ended in await asyncio.gather(*jobs, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended


async def _run(client: GridClient, book: Book, ask: JobRequest) -> None:
    """A client keeps its jobs through every loss: whatever it gives up is wrong. A result is a yes, too."""
    began = time.monotonic()
    try:
        result = await client.run(ask)
    except PyocoError as error:
        book.complain(f"job {ask.job_id} through the door has no result: {error!r}")
        return
    run = book.accept(run_id_of(ask.job_id, GROUP), Kind.PROGRAM, DOOR, ask.job_id, {"COMPLETED"})
    book.saw(run.run_id, result.status.value, "frames", began)
