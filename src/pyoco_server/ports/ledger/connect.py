"""Opening the ledger's database: from an address to connections that are set up as its rules ask (PRICED-53)."""

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
    "Line",
    "address",
    "durably",
    "engine_for_reading",
    "engine_for_writing",
    "file_of",
    "is_sqlite",
    "memory_of",
    "reading",
    "softly",
]

_BUSY_MS: Final = 5_000
_POSTGRES = {
    "lock_timeout": "5s",
    # A process that stands still in the middle of a transaction must not hold a tenant's budget for long.
    "idle_in_transaction_session_timeout": "15s",
    "timezone": "UTC",
}
_WRITE_SECONDS: Final = 10
#: An audit reads the whole journal.
_READ_SECONDS: Final = 55


class Line:
    """The socket of a connection, to be cut by another thread than the one that waits on it.

    A socket of our own to the same end: the driver may close its own at any time, and its number would be another's.
    """

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=os.dup(fd))

    @classmethod
    def of(cls, driver: Any) -> Self | None:
        """None for SQLite, which has none."""
        return cls(driver.fileno()) if hasattr(driver, "fileno") else None

    def cut(self) -> None:
        """Both ends hear of it."""
        with contextlib.suppress(OSError):  # it was gone already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


def address(url: str) -> URL:
    """Raises SettingError: in our words, and without the address, which may hold a password."""
    if name := name_in(url):
        return URL.create("sqlite", host=name)  # no file has a host: `memory_of` recognizes it by that
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
    """The file of a ledger in SQLite. None: it is in PostgreSQL, or in memory."""
    return Path(url.database) if is_sqlite(url) and url.database else None


def memory_of(url: URL) -> MemoryDatabase | None:
    """The database of `memory://name`, created at first use. None for every other address."""
    return DATABASES.of(url.host) if is_sqlite(url) and url.host else None


def engine_for_writing(url: URL) -> Engine:
    """Every transaction holds the right to write from its beginning (SQLite), or is READ COMMITTED."""
    if not is_sqlite(url):
        return _postgres(url, isolation="READ COMMITTED", seconds=_WRITE_SECONDS)
    memory, path = memory_of(url), file_of(url)
    if path is not None:
        _make_file(path)
    pragmas = ("foreign_keys = ON", "synchronous = FULL")
    return _sqlite(url, "BEGIN IMMEDIATE", pragmas, memory.connect_to_write if memory is not None else None)


def engine_for_reading(url: URL) -> Engine:
    """Every transaction sees one moment, and cannot write."""
    if is_sqlite(url):
        memory = memory_of(url)
        return _sqlite(url, "BEGIN", ("query_only = ON",), memory.connect if memory is not None else None)
    return _postgres(url, isolation="REPEATABLE READ", seconds=_READ_SECONDS)


@contextlib.contextmanager
def durably(connection: Connection) -> Iterator[None]:
    """A transaction that is on the disk when it is over."""
    if not is_postgres(connection.dialect):
        _say(connection, "PRAGMA synchronous = FULL")
    with connection.begin():
        yield


@contextlib.contextmanager
def softly(connection: Connection) -> Iterator[None]:
    """A transaction that does not wait for the disk."""
    if not is_postgres(connection.dialect):
        _say(connection, "PRAGMA synchronous = NORMAL")
    with connection.begin():
        if is_postgres(connection.dialect):
            connection.exec_driver_sql("SET LOCAL synchronous_commit = off")
        yield


def reading(connection: Connection) -> AbstractContextManager[object]:
    return connection.begin()


def _say(connection: Connection, word: str) -> None:
    """To SQLite, outside of any transaction: inside of one it would not listen."""
    driver: Any = connection.connection.driver_connection
    driver.execute(word).close()


def _make_file(path: Path) -> None:
    """Money is nobody else's business: only this user may read it. SQLite gives its side files the same mode."""
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
        connection.isolation_level = None  # the driver begins nothing by itself: it would begin too late
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
            # What is sent and not even received for so long: the network is gone, and nobody has said so.
            "tcp_user_timeout": 10_000,
            "keepalives": 1,
            "keepalives_idle": 15,
            "keepalives_interval": 5,
            "keepalives_count": 3,
        },
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _: object) -> None:
        connection.autocommit = True  # or these would end with a transaction that is rolled back
        connection.execute("; ".join(f"SET {name} = '{value}'" for name, value in settings.items()))
        connection.autocommit = False
        connection.read_only = isolation == "REPEATABLE READ"

    return engine
