"""Ports that report what passes through them: which runs there are, and for which tags a worker is needed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from pyoco_server.core.dead_letter import DeadLetter
from pyoco_server.core.job import Job
from pyoco_server.core.run import Run
from pyoco_server.ports.alarms.port import Alarm, NoAlarms
from pyoco_server.ports.queue.port import Delivery, Intake, Leftover, Notices, Queue, Stock
from pyoco_server.ports.runs.port import Absent, Changes, Lost, Runs, Stored, Withdrawn

__all__ = ["HeardQueue", "HeardRuns", "UnusedAlarms"]


class HeardRuns:
    """Calls `heard` with every run that was written, and `withdrawn` with the id of one that was withdrawn."""

    def __init__(self, runs: Runs, heard: Callable[[Run], None], withdrawn: Callable[[str], None]) -> None:
        self._runs, self._heard, self._withdrawn = runs, heard, withdrawn

    def _told(self, written: Stored | Lost) -> Stored | Lost:
        if isinstance(written, Stored):
            self._heard(written.run)
        return written

    async def create(self, run: Run) -> Stored | Lost:
        return self._told(await self._runs.create(run))

    def check_size(self, run: Run) -> None:
        self._runs.check_size(run)

    async def find(self, run_id: str) -> Stored | Withdrawn | Absent:
        return await self._runs.find(run_id)

    async def replace(self, run: Run, revision: int) -> Stored | Lost:
        return self._told(await self._runs.replace(run, revision))

    async def replace_smallest(self, run: Run, revision: int) -> Stored | Lost:
        return self._told(await self._runs.replace_smallest(run, revision))

    async def withdraw(self, run_id: str, revision: int) -> bool:
        is_gone = await self._runs.withdraw(run_id, revision)
        if is_gone:
            self._withdrawn(run_id)
        return is_gone

    async def newest(self) -> int:
        return await self._runs.newest()

    def changes(
        self, after: int = 0, epoch: str = "", on_heard: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[Changes, None]:
        return self._runs.changes(after, epoch, on_heard)


class HeardQueue:
    """Awaits `serve` with the tag of each job before it is stored."""

    def __init__(self, queue: Queue, serve: Callable[[str], Awaitable[None]]) -> None:
        self._queue, self._serve = queue, serve

    async def put(self, job: Job, message_id: str | None = None) -> None:
        await self._serve(job.tag)
        await self._queue.put(job, message_id)

    async def bury(self, letter: DeadLetter, letter_id: str) -> None:
        await self._queue.bury(letter, letter_id)

    async def buried(self, tag: str | None = None) -> int:
        return await self._queue.buried(tag)

    async def leftover(self, tag: str, after: int = 0) -> Leftover | None:
        return await self._queue.leftover(tag, after)

    async def remove(self, leftover: Leftover) -> None:
        await self._queue.remove(leftover)

    async def stock(self, tag: str) -> Stock:
        return await self._queue.stock(tag)

    async def open_notices(self) -> Notices:
        return await self._queue.open_notices()

    async def open_intake(self, tags: Sequence[str], on_delivery: Callable[[Delivery], None]) -> Intake:
        return await self._queue.open_intake(tags, on_delivery)


class UnusedAlarms(NoAlarms):
    """What is due is read from the records instead."""

    async def put(self, alarm: Alarm) -> None:
        """Do nothing."""
