"""The index in one SQLite file per gateway."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.index import sqlite_tables as tables
from pyoco_server.ports.index.port import Mark, RunFilter, Summary
from pyoco_server.ports.index.sqlite_query import page, unfinished
from pyoco_server.ports.runs.port import Removed, Stored

__all__ = ["SqliteIndex"]

log = get_logger(__name__)

T = TypeVar("T")


class SqliteIndex:
    """One thread writes and one reads, each with its own connection; the event loop never waits for the disk.

    A file that turns out to be damaged raises Unavailable once; `open` then throws it away and starts from nothing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: _Worker | None = None
        self._reader: _Worker | None = None
        self._damaged = False
        self._revision = 0
        self._changed = asyncio.Condition()

    async def open(self) -> Mark:
        """Raises Unavailable. May be called again, after an Unavailable of another call."""
        await self.close()
        self._writer, self._reader = _Worker("index-write"), _Worker("index-read")
        try:
            if self._damaged:
                await self._writer.run(lambda: tables.throw_away(self._path, "it was found damaged"))
                self._damaged = False
            mark = await self._writer.open(lambda: tables.open_or_make(self._path), tables.begin)
            await self._reader.open(lambda: tables.connect(self._path), lambda _: None)
        except (OSError, sqlite3.Error) as error:
            await self.close()
            raise Unavailable(f"the index of runs cannot be opened at {self._path}: {error}") from error
        await self._note(mark.revision)
        return mark

    async def close(self) -> None:
        reader, writer, self._reader, self._writer = self._reader, self._writer, None, None
        if reader is not None:
            await reader.close(lambda _: None)
        if writer is not None:
            await writer.close(tables.end)

    async def apply(self, items: tuple[Stored | Removed, ...], mark: Mark) -> None:
        await self._ask(self._writer, lambda connection: tables.apply(connection, items, mark))
        await self._note(mark.revision)

    async def reset(self, epoch: str) -> None:
        await self._ask(self._writer, lambda connection: tables.reset(connection, epoch))
        await self._note(0)

    async def applied(self, revision: int, seconds: float) -> bool:
        if self._revision >= revision:
            return True
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self._revision >= revision)
        except TimeoutError:
            return False
        return True

    async def page(self, wanted: RunFilter, limit: int) -> list[Summary]:
        return await self._ask(self._reader, lambda connection: page(connection, wanted, limit))

    async def unfinished(self, after: float, before: float, limit: int) -> list[Summary]:
        return await self._ask(self._reader, lambda connection: unfinished(connection, after, before, limit))

    async def _ask(self, worker: _Worker | None, question: Callable[[sqlite3.Connection], T]) -> T:
        if worker is None:
            raise Unavailable("the index of runs is closed")
        try:
            return await worker.ask(question)
        except sqlite3.OperationalError as error:  # no space left, locked: the file itself is sound
            raise Unavailable(f"the index of runs cannot be used: {error}") from error
        except sqlite3.DatabaseError as error:
            self._damaged = True
            raise Unavailable(f"the index of runs is damaged: {error}") from error

    async def _note(self, revision: int) -> None:
        async with self._changed:
            self._revision = revision
            self._changed.notify_all()


class _Worker:
    """A thread that owns a connection."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._connection: sqlite3.Connection | None = None

    async def run(self, step: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, step)

    async def open(self, connect: Callable[[], sqlite3.Connection], first: Callable[[sqlite3.Connection], T]) -> T:
        self._connection = await self.run(connect)
        return await self.ask(first)

    async def ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._connection
        assert connection is not None
        return await self.run(lambda: question(connection))

    async def close(self, last: Callable[[sqlite3.Connection], None]) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await self.run(lambda: _close(connection, last))
        await asyncio.to_thread(self._thread.shutdown)


def _close(connection: sqlite3.Connection, last: Callable[[sqlite3.Connection], None]) -> None:
    try:
        last(connection)
    except sqlite3.Error as error:  # a cache: the next start finds it unclean and looks closer
        log.warning("the index of runs was not closed cleanly", error=error)
    finally:
        connection.close()
