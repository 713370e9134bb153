"""A SQLite file that is a cache: owned by two threads, and thrown away when it is of no use."""

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

#: Of the errors of a disk these tell of no room or no memory; of the others nobody knows what they left in the file.
_NO_ROOM = frozenset({"SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_NOMEM", "SQLITE_IOERR_GETTEMPPATH"})
#: Of one row: how far the cache has read, and whether it was closed properly.
_MARK_COLUMNS = (
    "epoch TEXT NOT NULL DEFAULT ''",
    "revision INTEGER NOT NULL DEFAULT 0",
    "clean INTEGER NOT NULL DEFAULT 1",
)


@dataclass(frozen=True)
class Layout:
    """What is in the file. Raise the version with every change of the schema: another one is built anew."""

    #: For messages: "the index of ...".
    name: str
    version: int
    schema: str
    #: Without one of these the file is of no use. The table `mark` comes by itself.
    tables: tuple[str, ...]
    #: What the mark remembers beside its own: further columns of its one row, as they begin.
    mark_columns: tuple[str, ...] = ()


class SqliteFile:
    """One thread writes and one reads, each with its own connection; the event loop never waits for the disk.

    A file that turns out to be damaged raises Unavailable until it is opened again: `open` throws it away and starts
    from nothing. `damaged` tells whoever feeds it when that is due.
    """

    def __init__(
        self, path: Path, layout: Layout, problem: Callable[[sqlite3.Connection], str | None] = lambda _: None
    ) -> None:
        """`problem` is asked when a file is opened: why it is of no use though it is sound, or None."""
        self._path, self._layout, self._problem = path, layout, problem
        self._writer: _Owner | None = None
        self._reader: _Owner | None = None
        self._closing: asyncio.Task[None] | None = None
        self._damaged = asyncio.Event()

    async def open(self) -> Mark:
        """How far the cache has read. Raises Unavailable. May be called again, after an Unavailable of another call."""
        await self.close()
        name = self._layout.name
        writer, reader = _Owner(f"{name} write"), _Owner(f"{name} read")
        try:
            if self._damaged.is_set():
                await writer.run(lambda: self._throw_away("it was found damaged"))
                self._damaged.clear()
            mark = await writer.open(self._open_or_make, _begin)
            await reader.open(lambda: _connect(self._path), lambda _: None)
            self._writer, self._reader = writer, reader  # not before: nobody may ask an owner without a connection
        except (OSError, sqlite3.Error) as error:
            raise Unavailable(f"{name} cannot be opened at {self._path}: {error}") from error
        finally:
            if self._writer is not writer:
                self._closing = asyncio.create_task(_close_both(reader, writer))
                await self.close()
        return mark

    async def close(self) -> None:
        """May be called twice. Who is cancelled while waiting does not keep it from being closed, nor the next who
        closes or opens it from waiting for that."""
        reader, writer, self._reader, self._writer = self._reader, self._writer, None, None
        if reader is not None and writer is not None:
            self._closing = asyncio.create_task(_close_both(reader, writer))
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def damaged(self) -> None:
        """Returns once anybody, reading or writing, has found the file damaged; at once until it is opened again."""
        await self._damaged.wait()

    async def read(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """All from one instant, however many statements it takes. Raises Unavailable."""
        if self._damaged.is_set():  # pages that are still in memory would answer, and nobody knows how old they are
            raise Unavailable(f"{self._layout.name} is damaged")
        return await self._ask(self._reader, question, "DEFERRED")

    async def write(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """In one transaction: all of it or nothing. Raises Unavailable, also when a reader found the file damaged."""
        if self._damaged.is_set():
            raise Unavailable(f"{self._layout.name} is damaged")
        return await self._ask(self._writer, change, "IMMEDIATE")

    async def _ask(self, owner: _Owner | None, question: Callable[[sqlite3.Connection], T], kind: str) -> T:
        if owner is None:
            raise Unavailable(f"{self._layout.name} is closed")

        def whole(connection: sqlite3.Connection) -> T:
            with _transaction(connection, kind):
                return question(connection)

        try:
            return await owner.ask(whole)
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
                self._throw_away(str(error))
            else:
                why = self._why_not(connection)
                if why is None:
                    return connection
                connection.close()
                self._throw_away(why)
        connection = _connect(self._path)
        connection.executescript(self._layout.schema)
        connection.execute(f"CREATE TABLE mark ({', '.join((*_MARK_COLUMNS, *self._layout.mark_columns))})")
        connection.execute("INSERT INTO mark DEFAULT VALUES")
        # Last: a file that is half made has another version.
        connection.execute(f"PRAGMA user_version = {self._layout.version}")
        return connection

    def _why_not(self, connection: sqlite3.Connection) -> str | None:
        """Why this file cannot be used, or None. Looks at every page only after an unclean end: about 1 s for 1M
        rows."""
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version != self._layout.version:
                return f"it has schema version {version}, not {self._layout.version}"
            connection.execute(f"SELECT 1 FROM {', '.join(self._layout.tables)} LIMIT 0")  # noqa: S608  (our own words)
            (clean,) = connection.execute("SELECT clean FROM mark").fetchone()
            found = self._problem(connection)
            if found is None and not clean:
                (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        except (sqlite3.DatabaseError, TypeError) as error:  # TypeError: the row is missing, or holds something else
            return str(error)
        return None if found in {None, "ok"} else str(found)

    def _throw_away(self, why: str) -> None:
        log.warning(f"{self._layout.name} is built anew", reason=why)
        for ending in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + ending).unlink(missing_ok=True)


class _Owner:
    """A thread that owns a connection. Questions are answered in their order, the last one before it closes."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        #: Only its thread looks at it.
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
    """The writer last, and alone: only then its log is put into the file."""
    await reader.close(lambda _: None)
    await writer.close(_end)


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the file is of no use any more. No space left, locked, out of memory: the file itself is sound."""
    if not isinstance(error, sqlite3.OperationalError):
        return True
    name: str = getattr(error, "sqlite_errorname", "")  # missing: not SQLite's own word
    return name.startswith(("SQLITE_IOERR", "SQLITE_CORRUPT", "SQLITE_NOTADB")) and name not in _NO_ROOM


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=5)
    try:
        # A cache: what a power cut spoils is built anew, so nobody waits for the disk.
        connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; PRAGMA cache_size = -8192;")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _close(connection: sqlite3.Connection, last: Callable[[sqlite3.Connection], None]) -> None:
    try:
        last(connection)
    except sqlite3.Error as error:  # a cache: the next start finds it unclean and looks closer
        log.warning("a cache was not closed cleanly", error=error)
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
