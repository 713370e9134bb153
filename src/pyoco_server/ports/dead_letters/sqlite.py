"""The index of dead letters in one SQLite file per gateway."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from pyoco_server.ports.dead_letters import sqlite_tables as tables
from pyoco_server.ports.dead_letters.port import DeadLetterChanges, DeadLetterCount, DeadLetterFilter, DeadLetterPage
from pyoco_server.ports.dead_letters.sqlite_query import counts, of_group, page, recent, total
from pyoco_server.ports.index.port import EVERYBODY, Mark
from pyoco_server.ports.sqlite.file import SqliteFile

__all__ = ["SqliteDeadLetterIndex"]


class SqliteDeadLetterIndex:
    def __init__(self, path: Path) -> None:
        self._file = SqliteFile(path, tables.LAYOUT)

    async def open(self) -> Mark:
        return await self._file.open()

    async def close(self) -> None:
        await self._file.close()

    async def damaged(self) -> None:
        await self._file.damaged()

    async def apply(self, changes: DeadLetterChanges) -> None:
        await self._file.write(lambda connection: tables.apply(connection, changes))

    async def forget(self, letter_ids: Collection[int]) -> None:
        await self._file.write(lambda connection: tables.forget(connection, letter_ids))

    async def reset(self, epoch: str) -> None:
        await self._file.write(lambda connection: tables.reset(connection, epoch))

    async def page(self, wanted: DeadLetterFilter, limit: int, before: int | None = None) -> DeadLetterPage:
        return await self._file.read(lambda connection: page(connection, wanted, limit, before))

    async def counts(self, tenant_id: str = EVERYBODY) -> list[DeadLetterCount]:
        return await self._file.read(lambda connection: counts(connection, tenant_id))

    async def total(self, tenant_id: str = EVERYBODY) -> int:
        return await self._file.read(lambda connection: total(connection, tenant_id))

    async def of_group(self, tenant_id: str, group: str) -> tuple[int, int | None]:
        return await self._file.read(lambda connection: of_group(connection, tenant_id, group))

    async def recent(self, tenant_id: str, since: float, limit: int) -> int:
        return await self._file.read(lambda connection: recent(connection, tenant_id, since, limit))
