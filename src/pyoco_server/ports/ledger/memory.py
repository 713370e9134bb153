"""Ledgers in the memory of this process, for tests: SQLite databases that are shared by name.

They use SQLite's in-memory file system ("memdb"), where several connections lock and see each other's commits as with a
file. There is no write-ahead log, so a reader and a writer exclude each other. `InlineTransactions` executes one
transaction after another, so neither has to wait.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, Final

from pyoco_server.errors import SettingError
from pyoco_server.ports.memory.named import Named
from pyoco_server.ports.memory.network import Network

__all__ = ["DATABASES", "MemoryDatabase", "forget_database"]

#: The first version of SQLite with shared databases in memdb.
_VERSION_MIN: Final = (3, 36, 0)
_numbers: Final = itertools.count(1)


class MemoryDatabase:
    """One database and the hooks of a simulation. Lives until it is forgotten or the process ends."""

    def __init__(self, name: str) -> None:
        """Raises SettingError."""
        if sqlite3.sqlite_version_info < _VERSION_MIN:
            raise SettingError(f"PYOCO_LEDGER_URL: memory:// needs SQLite 3.36, this is {sqlite3.sqlite_version}")
        # The number makes a forgotten name refer to a new database, even while connections to the old one are open.
        self.uri = f"file:/pyoco-{next(_numbers)}-{name}?vfs=memdb"
        #: Delays and failures before and after a transaction; called with "ledger.write" or "ledger.read".
        self.network = Network()
        #: Called inside a write transaction, with the next statement: before each one after the first, and with
        #: "COMMIT" before the commit. If it raises, the transaction is rolled back and the exception is propagated.
        self.between_statements: Callable[[str], None] | None = None
        #: Called after the commit of a write transaction and before its caller gets the answer. It may raise.
        self.after_commit: Callable[[], None] | None = None
        #: Added to the clock of the calling process. A simulation with clock skew uses it to give the database its own
        #: clock, as PostgreSQL has one.
        self.skew_us: Callable[[], int] = lambda: 0
        self._keep_alive = sqlite3.connect(self.uri, uri=True, check_same_thread=False)

    def connect(self) -> sqlite3.Connection:
        """Connect for reading: no hook is called."""
        return sqlite3.connect(self.uri, uri=True, check_same_thread=False)

    def connect_to_write(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.uri, uri=True, check_same_thread=False, factory=_HookedConnection)
        assert isinstance(connection, _HookedConnection)
        connection.database = self
        return connection

    def call_after_commit(self) -> None:
        if self.after_commit is not None:
            self.after_commit()

    def close(self) -> None:
        """Close the database. The memory is freed when the last connection is closed."""
        self._keep_alive.close()


#: The databases of `memory://name`.
DATABASES: Final = Named(MemoryDatabase)


def forget_database(name: str) -> None:
    """Forget a database: the next use of the name creates an empty one. Does nothing if there is none."""
    found = DATABASES.forget(name)
    if found is not None:
        found.close()


class _HookedConnection(sqlite3.Connection):
    """Calls the hook between statements: at the driver, which both SQLAlchemy and `Quick` use."""

    database: MemoryDatabase | None = None
    _statements = 0

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(_HookedCursor if factory is None else factory)

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> Any:
        return self.cursor().executemany(sql, parameters)

    def commit(self) -> None:
        if self.in_transaction:
            self._call_hook("COMMIT")
        super().commit()

    def about_to_execute(self, sql: str) -> None:
        if not self.in_transaction:  # BEGIN, or a pragma before it
            self._statements = 0
            return
        self._statements += 1
        if self._statements > 1:
            self._call_hook(sql)

    def _call_hook(self, sql: str) -> None:
        if self.database is not None and self.database.between_statements is not None:
            self.database.between_statements(sql)


class _HookedCursor(sqlite3.Cursor):
    connection: _HookedConnection

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        self.connection.about_to_execute(sql)
        return super().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> Any:
        return super().executemany(sql, self._one_by_one(sql, parameters))

    def _one_by_one(self, sql: str, parameters: Any) -> Iterator[Any]:
        """Each row counts as a separate statement."""
        for each in parameters:
            self.connection.about_to_execute(sql)
            yield each
