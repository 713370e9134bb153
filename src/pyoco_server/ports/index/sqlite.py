"""The index in one SQLite file per gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pyoco_server.core.run import Run
from pyoco_server.ports.index import sqlite_counts, sqlite_feed, sqlite_programs, sqlite_query, sqlite_schema
from pyoco_server.ports.index.port import (
    EVERYBODY,
    Ahead,
    Counts,
    DelayedRun,
    ListPosition,
    Mark,
    Page,
    ProgramCounts,
    ProgramTotals,
    RunFilter,
    RunInProgress,
    Summary,
)
from pyoco_server.ports.runs.port import Removed, Stored
from pyoco_server.ports.sqlite.file import SqliteFile

__all__ = ["SqliteIndex"]


class SqliteIndex:
    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._file = SqliteFile(path, sqlite_schema.LAYOUT, lambda each: sqlite_schema.too_quiet(each, clock()))
        self._mark = Mark()
        self._changed = asyncio.Condition()

    async def open(self) -> Mark:
        mark = await self._file.open()
        await self._note(mark)
        return mark

    async def close(self) -> None:
        await self._file.close()

    async def damaged(self) -> None:
        await self._file.damaged()

    async def apply(self, items: tuple[Stored | Removed, ...], mark: Mark) -> None:
        now = self._clock()
        await self._file.write(lambda connection: sqlite_feed.apply(connection, items, mark, now))
        await self._note(mark)

    async def reset(self, epoch: str) -> None:
        await self._file.write(lambda connection: sqlite_schema.reset(connection, epoch))
        await self._note(Mark(epoch))

    async def applied(self, revision: int, seconds: float) -> bool:
        if self._mark.revision >= revision:
            return True
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self._mark.revision >= revision)
        except TimeoutError:
            return False
        return True

    async def mark_complete(self) -> None:
        await self._file.write(sqlite_schema.mark_complete)

    async def version(self, tenant_id: str = EVERYBODY) -> str:
        if tenant_id == EVERYBODY:
            return f"{self._mark.epoch}:{self._mark.revision}"
        return await self._file.read(lambda connection: sqlite_counts.version_of_tenant(connection, tenant_id))

    async def page(self, wanted: RunFilter, limit: int, after: ListPosition | None = None) -> Page:
        return await self._file.read(lambda connection: sqlite_query.page(connection, wanted, limit, after))

    async def count_by_status(self, wanted: RunFilter, limit: int) -> dict[str, int]:
        return await self._file.read(lambda connection: sqlite_query.count_by_status(connection, wanted, limit))

    async def counts(self) -> Counts:
        return await self._file.read(sqlite_counts.counts)

    async def programs(self) -> list[ProgramCounts]:
        return await self._file.read(sqlite_counts.programs)

    async def program_totals(self) -> ProgramTotals:
        return await self._file.read(sqlite_programs.totals)

    async def program_seconds(self, exec_name: str, limit: int) -> list[float]:
        return await self._file.read(lambda connection: sqlite_programs.recent_seconds(connection, exec_name, limit))

    async def group_seconds(self, tenant_id: str, group: str, limit: int) -> dict[str, list[float]]:
        return await self._file.read(lambda connection: sqlite_query.group_seconds(connection, tenant_id, group, limit))

    async def ahead(self, tag: str, submitted_at: float, run_id: str, limit: int) -> Ahead:
        return await self._file.read(
            lambda connection: sqlite_counts.ahead(connection, tag, submitted_at, run_id, limit)
        )

    async def packs_ahead(self, submitted_at: float, run_id: str, limit: int) -> Ahead:
        return await self._file.read(
            lambda connection: sqlite_counts.packs_ahead(connection, submitted_at, run_id, limit)
        )

    async def programs_ahead(self, run: Run, limit: int) -> Ahead:
        return await self._file.read(lambda connection: sqlite_counts.programs_ahead(connection, run, limit))

    async def unfinished(self, after: float, before: float, limit: int) -> list[Summary]:
        return await self._file.read(lambda connection: sqlite_counts.unfinished(connection, after, before, limit))

    async def open_programs(self, after: float, before: float, limit: int) -> list[Summary]:
        return await self._file.read(lambda connection: sqlite_counts.open_programs(connection, after, before, limit))

    async def delayed(self, after: DelayedRun | None, before: float, limit: int) -> list[DelayedRun]:
        return await self._file.read(lambda connection: sqlite_counts.delayed(connection, after, before, limit))

    async def repeats(self, run_id: str, tenant_id: str, limit: int) -> list[str]:
        return await self._file.read(lambda connection: sqlite_counts.repeats(connection, run_id, tenant_id, limit))

    async def quiet(self, tenant_id: str, before: float, limit: int) -> list[RunInProgress]:
        return await self._file.read(lambda connection: sqlite_counts.quiet(connection, tenant_id, before, limit))

    async def held(self, run_ids: Sequence[str]) -> list[RunInProgress]:
        return await self._file.read(lambda connection: sqlite_counts.held(connection, run_ids))

    async def _note(self, mark: Mark) -> None:
        async with self._changed:
            self._mark = mark
            self._changed.notify_all()
