"""Opens the ledger's database: from an address to connections that are configured as its rules require (PRICED-53)."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Literal, Self

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

from pyoco_server.errors import SettingError
from pyoco_server.ports.ledger.memory import DATABASES, MemoryDatabase
from pyoco_server.ports.ledger.types import is_postgres
from pyoco_server.ports.memory.named import name_in

__all__ = [
    "SocketHandle",
    "address",
    "durably",
    "engine_for_reading",
    "engine_for_writing",
    "execute_pragma",
    "file_of",
    "is_sqlite",
    "memory_of",
    "reading",
    "softly",
]

_BUSY_MS: Final = 5_000
_POSTGRES = {
    "lock_timeout": "5s",
    # A process that is suspended in the middle of a transaction must not lock a tenant's budget for long.
    "idle_in_transaction_session_timeout": "15s",
    "timezone": "UTC",
}
_WRITE_SECONDS: Final = 10
#: An audit reads the entire journal.
_READ_SECONDS: Final = 55


class SocketHandle:
    """The socket of a connection, so that another thread than the one waiting on it can shut it down.

    It is a duplicate of the driver's descriptor: the driver may close its own at any time, and the number could be
    reused.
    """

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=os.dup(fd))

    @classmethod
    def of(cls, driver: Any) -> Self | None:
        """Returns None for SQLite, which has no socket."""
        return cls(driver.fileno()) if hasattr(driver, "fileno") else None

    def cut(self) -> None:
        """Shut down the connection; both ends are notified."""
        with contextlib.suppress(OSError):  # it was closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


def address(url: str) -> URL:
    """Parse an address. Raises SettingError with a message of ours, without the address, which may contain a
    password."""
    if name := name_in(url):
        return URL.create("sqlite", host=name)  # a file URL has no host: `memory_of` recognizes it by that
    try:
        found = make_url(url)
    except (ArgumentError, ValueError):
        raise SettingError("PYOCO_LEDGER_URL is not an address") from None
    if found.get_backend_name() == "postgresql":
        return found.set(drivername="postgresql+psycopg")
    if found.drivername == "sqlite" and found.database and found.database != ":memory:" and not found.host:
        return found
    raise SettingError("PYOCO_LEDGER_URL must be sqlite:////path/of/a/file or postgresql://user@host:port/database")


def is_sqlite(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


def file_of(url: URL) -> Path | None:
    """The file of an SQLite ledger. None: the ledger is in PostgreSQL, or in memory."""
    return Path(url.database) if is_sqlite(url) and url.database else None


def memory_of(url: URL) -> MemoryDatabase | None:
    """The database of `memory://name`, created at first use. None for every other address."""
    return DATABASES.of(url.host) if is_sqlite(url) and url.host else None


def engine_for_writing(url: URL) -> Engine:
    """Every transaction holds the write lock from its beginning (SQLite), or is READ COMMITTED (PostgreSQL)."""
    if not is_sqlite(url):
        return _postgres(url, isolation="READ COMMITTED", seconds=_WRITE_SECONDS)
    memory, path = memory_of(url), file_of(url)
    if path is not None:
        _make_file(path)
    pragmas = ("foreign_keys = ON", "synchronous = FULL")
    return _sqlite(url, "BEGIN IMMEDIATE", pragmas, memory.connect_to_write if memory is not None else None)


def engine_for_reading(url: URL) -> Engine:
    """Every transaction reads one snapshot, and cannot write."""
    if is_sqlite(url):
        memory = memory_of(url)
        return _sqlite(url, "BEGIN", ("query_only = ON",), memory.connect if memory is not None else None)
    return _postgres(url, isolation="REPEATABLE READ", seconds=_READ_SECONDS)


@contextlib.contextmanager
def durably(connection: Connection) -> Iterator[None]:
    """A transaction that is synced to disk when it ends."""
    if not is_postgres(connection.dialect):
        execute_pragma(connection, "PRAGMA synchronous = FULL")
    with connection.begin():
        yield


@contextlib.contextmanager
def softly(connection: Connection) -> Iterator[None]:
    """A transaction that does not wait for the disk."""
    if not is_postgres(connection.dialect):
        execute_pragma(connection, "PRAGMA synchronous = NORMAL")
    with connection.begin():
        if is_postgres(connection.dialect):
            connection.exec_driver_sql("SET LOCAL synchronous_commit = off")
        yield


def reading(connection: Connection) -> AbstractContextManager[object]:
    return connection.begin()


def execute_pragma(connection: Connection, pragma: str) -> None:
    """Execute a pragma on SQLite, outside of any transaction: inside of one it would have no effect."""
    driver: Any = connection.connection.driver_connection
    driver.execute(pragma).close()


def _make_file(path: Path) -> None:
    """Create the file so that only this user can read it. SQLite gives its side files the same mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))


def _sqlite(url: URL, begin: str, pragmas: tuple[str, ...], connect: Callable[[], sqlite3.Connection] | None) -> Engine:
    """`connect`: for a database in memory."""
    if connect is not None:
        engine = create_engine("sqlite://", creator=connect, poolclass=NullPool, hide_parameters=True)
    else:
        engine = create_engine(url, poolclass=NullPool, hide_parameters=True, connect_args={"check_same_thread": False})

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _: object) -> None:
        connection.isolation_level = None  # otherwise the driver would begin transactions itself, and too late
        for pragma in (f"busy_timeout = {_BUSY_MS}", "journal_mode = WAL", *pragmas):
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def begin_now(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _postgres(url: URL, isolation: Literal["READ COMMITTED", "REPEATABLE READ"], seconds: int) -> Engine:
    settings = _POSTGRES | {"statement_timeout": f"{seconds}s"}
    engine = create_engine(
        url,
        poolclass=NullPool,
        hide_parameters=True,
        isolation_level=isolation,
        connect_args={
            "connect_timeout": 5,
            "application_name": "pyoco-server",
            # Time until unacknowledged data breaks the connection: the network may fail without a notification.
            "tcp_user_timeout": 10_000,
            "keepalives": 1,
            "keepalives_idle": 15,
            "keepalives_interval": 5,
            "keepalives_count": 3,
        },
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _: object) -> None:
        connection.autocommit = True  # otherwise a rollback would revert these settings
        connection.execute("; ".join(f"SET {name} = '{value}'" for name, value in settings.items()))
        connection.autocommit = False
        connection.read_only = isolation == "REPEATABLE READ"

    return engine
