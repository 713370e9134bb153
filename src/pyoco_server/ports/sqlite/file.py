"""A SQLite file used as a cache: owned by two threads, and rebuilt if it is unusable."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.index.port import Mark

__all__ = ["Layout", "SqliteFile", "move_mark", "read_mark"]

log = get_logger(__name__)

T = TypeVar("T")

#: Of SQLite's I/O errors, those caused by lack of space or memory. Any other may have damaged the file.
_NO_ROOM = frozenset({"SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_NOMEM", "SQLITE_IOERR_GETTEMPPATH"})
#: The columns of the single mark row: how far the cache has read, and whether it was closed cleanly.
_MARK_COLUMNS = (
    "epoch TEXT NOT NULL DEFAULT ''",
    "revision INTEGER NOT NULL DEFAULT 0",
    "clean INTEGER NOT NULL DEFAULT 1",
)


@dataclass(frozen=True)
class Layout:
    """The contents of the file.

    Increase the version with every change of the schema: a file of another version is rebuilt.
    """

    #: For messages: "the index of ...".
    name: str
    version: int
    schema: str
    #: A file that lacks one of these is unusable. The table `mark` is created automatically.
    tables: tuple[str, ...]
    #: Additional columns of the mark row, with their defaults.
    mark_columns: tuple[str, ...] = ()


class SqliteFile:
    """One thread writes and one reads, each with its own connection; the event loop never waits for the disk.

    A damaged file raises Unavailable until it is opened again: `open` deletes it and starts with an empty one.
    `damaged` notifies the feed when that is needed.
    """

    def __init__(
        self, path: Path, layout: Layout, problem: Callable[[sqlite3.Connection], str | None] = lambda _: None
    ) -> None:
        """`problem` checks a file when it is opened: it returns why an intact file is unusable, or None."""
        self._path, self._layout, self._problem = path, layout, problem
        self._writer: _Owner | None = None
        self._reader: _Owner | None = None
        self._closing: asyncio.Task[None] | None = None
        self._damaged = asyncio.Event()

    async def open(self) -> Mark:
        """Open or create the file. Return how far the cache has read. Raises Unavailable.

        May be called again after another call raised Unavailable.
        """
        await self.close()
        name = self._layout.name
        writer, reader = _Owner(f"{name} write"), _Owner(f"{name} read")
        try:
            if self._damaged.is_set():
                await writer.run(lambda: self._delete_file("it was found damaged"))
                self._damaged.clear()
            mark = await writer.open(self._open_or_make, _begin)
            await reader.open(lambda: _connect(self._path), lambda _: None)
            self._writer, self._reader = writer, reader  # not before: an owner without a connection must not be used
        except (OSError, sqlite3.Error) as error:
            raise Unavailable(f"{name} cannot be opened at {self._path}: {error}") from error
        finally:
            if self._writer is not writer:
                self._closing = asyncio.create_task(_close_both(reader, writer))
                await self.close()
        return mark

    async def close(self) -> None:
        """Close the file. Idempotent.

        If a caller is cancelled while waiting, closing continues, and the next call of `close` or `open` waits for it.
        """
        reader, writer, self._reader, self._writer = self._reader, self._writer, None, None
        if reader is not None and writer is not None:
            self._closing = asyncio.create_task(_close_both(reader, writer))
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def damaged(self) -> None:
        """Return once a read or a write has found the file damaged; until it is reopened, return immediately."""
        await self._damaged.wait()

    async def read(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query in one snapshot, however many statements it executes. Raises Unavailable."""
        if self._damaged.is_set():  # cached pages could still answer, but they may be stale
            raise Unavailable(f"{self._layout.name} is damaged")
        return await self._ask(self._reader, question, "DEFERRED")

    async def write(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """Run a change in one transaction. Raises Unavailable, also if a reader has found the file damaged."""
        if self._damaged.is_set():
            raise Unavailable(f"{self._layout.name} is damaged")
        return await self._ask(self._writer, change, "IMMEDIATE")

    async def _ask(self, owner: _Owner | None, question: Callable[[sqlite3.Connection], T], kind: str) -> T:
        if owner is None:
            raise Unavailable(f"{self._layout.name} is closed")

        def in_transaction(connection: sqlite3.Connection) -> T:
            with _transaction(connection, kind):
                return question(connection)

        try:
            return await owner.ask(in_transaction)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise Unavailable(f"{self._layout.name} cannot be used: {error}") from error
            self._damaged.set()
            raise Unavailable(f"{self._layout.name} is damaged: {error}") from error

    def _open_or_make(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            try:
                connection = _connect(self._path)
            except sqlite3.DatabaseError as error:
                self._delete_file(str(error))
            else:
                why = self._problem_of(connection)
                if why is None:
                    return connection
                connection.close()
                self._delete_file(why)
        connection = _connect(self._path)
        connection.executescript(self._layout.schema)
        connection.execute(f"CREATE TABLE mark ({', '.join((*_MARK_COLUMNS, *self._layout.mark_columns))})")
        connection.execute("INSERT INTO mark DEFAULT VALUES")
        # Last: a file that was left incomplete has another version.
        connection.execute(f"PRAGMA user_version = {self._layout.version}")
        return connection

    def _problem_of(self, connection: sqlite3.Connection) -> str | None:
        """Return why this file cannot be used, or None.

        Checks every page only after an unclean shutdown: about 1 s for 1M rows.
        """
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version != self._layout.version:
                return f"it has schema version {version}, not {self._layout.version}"
            connection.execute(f"SELECT 1 FROM {', '.join(self._layout.tables)} LIMIT 0")  # noqa: S608  (our own constants)
            (clean,) = connection.execute("SELECT clean FROM mark").fetchone()
            found = self._problem(connection)
            if found is None and not clean:
                (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        except (sqlite3.DatabaseError, TypeError) as error:  # TypeError: the row is missing or malformed
            return str(error)
        return None if found in {None, "ok"} else str(found)

    def _delete_file(self, why: str) -> None:
        log.warning(f"{self._layout.name} is built anew", reason=why)
        for ending in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + ending).unlink(missing_ok=True)


class _Owner:
    """A thread that owns a connection. Calls run in order; `close` runs last."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        #: Only its thread uses it.
        self._connection: sqlite3.Connection | None = None

    async def run(self, step: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, step)

    async def open(self, connect: Callable[[], sqlite3.Connection], first: Callable[[sqlite3.Connection], T]) -> T:
        def begin() -> T:
            self._connection = connect()
            return first(self._connection)

        return await self.run(begin)

    async def ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        def step() -> T:
            assert self._connection is not None
            return question(self._connection)

        return await self.run(step)

    async def close(self, last: Callable[[sqlite3.Connection], None]) -> None:
        def end() -> None:
            connection, self._connection = self._connection, None
            if connection is not None:
                _close(connection, last)

        await self.run(end)
        await asyncio.to_thread(self._thread.shutdown)


async def _close_both(reader: _Owner, writer: _Owner) -> None:
    """Close the reader first: only the last connection to close checkpoints the write-ahead log."""
    await reader.close(lambda _: None)
    await writer.close(_end)


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """Return whether the file is unusable. No space, locked, out of memory: the file itself is intact."""
    if not isinstance(error, sqlite3.OperationalError):
        return True
    name: str = getattr(error, "sqlite_errorname", "")  # missing: the error is not from SQLite itself
    return name.startswith(("SQLITE_IOERR", "SQLITE_CORRUPT", "SQLITE_NOTADB")) and name not in _NO_ROOM


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=5)
    try:
        # It is a cache: what a power failure damages is rebuilt, so no write waits for the disk.
        connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; PRAGMA cache_size = -8192;")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _close(connection: sqlite3.Connection, last: Callable[[sqlite3.Connection], None]) -> None:
    try:
        last(connection)
    except sqlite3.Error as error:  # only a cache: the next start finds it unclean and checks every page
        log.warning("cache was not closed cleanly", error=error)
    finally:
        connection.close()


def _begin(connection: sqlite3.Connection) -> Mark:
    mark = read_mark(connection)
    connection.execute("UPDATE mark SET clean = 0")
    return mark


def _end(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE mark SET clean = 1")


def read_mark(connection: sqlite3.Connection) -> Mark:
    return Mark(*connection.execute("SELECT epoch, revision FROM mark").fetchone())


def move_mark(connection: sqlite3.Connection, mark: Mark) -> None:
    connection.execute("UPDATE mark SET epoch = ?, revision = ?", (mark.epoch, mark.revision))


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection, kind: str) -> Iterator[None]:
    connection.execute(f"BEGIN {kind}")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # a full disk rolls back by itself
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
