"""A fast path to SQLite: a kept statement is compiled once, and then runs directly on the driver's cursor.

SQLAlchemy's execution costs about 60 microseconds of Python per statement, several times what SQLite itself needs, and
a submit has a dozen of them in one thread. With PostgreSQL round trips dominate, so it does not use this path.
"""

from __future__ import annotations

import sqlite3
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from sqlalchemy import Connection, Executable
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError

__all__ = ["Quick", "keep"]

S = TypeVar("S", bound=Executable)

#: Statements that live as long as the process. SQLAlchemy compiles any other at each execution.
_KEPT: set[Executable] = set()
_PREPARED: dict[Executable, _Prepared] = {}

Process = Callable[[Any], Any] | None


def keep(statement: S) -> S:
    """Register a statement to be kept forever. Everything that differs between calls must be a bind parameter. Returns
    it."""
    _KEPT.add(statement)
    return statement


class Rows:
    """The subset of a result's interface that the ledger uses. All rows are in memory."""

    __slots__ = ("_rows", "rowcount")

    def __init__(self, rows: Sequence[Any], rowcount: int) -> None:
        self._rows, self.rowcount = rows, rowcount

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def first(self) -> Any:
        return self._rows[0] if self._rows else None

    def one(self) -> Any:
        (row,) = self._rows
        return row

    def scalar(self) -> Any:
        return self._rows[0][0] if self._rows else None

    def scalar_one(self) -> Any:
        return self.one()[0]

    def all(self) -> Sequence[Any]:
        return self._rows


class _Prepared:
    __slots__ = ("_binds", "_names", "_results", "_row", "text")

    def __init__(self, statement: Any, dialect: Dialect) -> None:
        compiled = statement.compile(dialect=dialect)
        self.text = str(compiled)
        self._names: tuple[str, ...] = tuple(compiled.positiontup or ())
        #: Name, default value and value processor of each bind parameter.
        self._binds: tuple[tuple[str, Any, Process], ...] = tuple(
            (name, compiled.params.get(name), compiled.binds[name].type.dialect_impl(dialect).bind_processor(dialect))
            for name in self._names
        )
        columns = list(getattr(statement, "exported_columns", ()))
        self._row = _row_type([column.key for column in columns]) if columns else None
        self._results = tuple(
            (at, process)
            for at, column in enumerate(columns)
            if (process := column.type.dialect_impl(dialect).result_processor(dialect, None)) is not None
        )

    def bound(self, parameters: Mapping[str, Any]) -> list[Any]:
        return [
            process(value) if process is not None else value
            for value, process in ((parameters.get(name, own), process) for name, own, process in self._binds)
        ]

    def rows(self, cursor: sqlite3.Cursor) -> Sequence[Any]:
        if self._row is None:
            return ()
        make, results = self._row._make, self._results
        if not results:
            return [make(values) for values in cursor]
        made = []
        for values in cursor:
            row = list(values)
            for at, process in results:
                row[at] = process(row[at])
            made.append(make(row))
        return made


def _row_type(names: Sequence[str]) -> Any:
    return namedtuple("Row", names, rename=True)


class Quick:
    """An SQLite connection inside a transaction, with the interface that the ledger's statements use."""

    __slots__ = ("_driver", "connection", "dialect")

    def __init__(self, connection: Connection) -> None:
        self.connection, self.dialect = connection, connection.dialect
        self._driver: sqlite3.Connection = connection.connection.driver_connection  # type: ignore[assignment]  # it is one

    def execute(self, statement: Executable, parameters: Any = None) -> Any:
        """Raises the same errors as SQLAlchemy, so that callers need not distinguish the two paths."""
        if statement not in _KEPT:
            return self.connection.execute(statement, parameters)
        prepared = _PREPARED.get(statement)
        if prepared is None:
            prepared = _PREPARED[statement] = _Prepared(statement, self.dialect)
        try:
            if isinstance(parameters, list):
                cursor = self._driver.executemany(prepared.text, [prepared.bound(each) for each in parameters])
            else:
                cursor = self._driver.execute(prepared.text, prepared.bound(parameters or {}))
            answer = Rows(prepared.rows(cursor), cursor.rowcount)
        except sqlite3.Error as error:
            self._raise(prepared.text, error)
        cursor.close()
        return answer

    def say(self, sql: str) -> None:
        """Execute SQL that is not one of the ledger's statements: savepoints. Raises like `execute`."""
        try:
            self._driver.execute(sql).close()
        except sqlite3.Error as error:
            self._raise(sql, error)

    def _raise(self, text: str, error: sqlite3.Error) -> NoReturn:
        raise DBAPIError.instance(
            text,
            None,
            error,
            sqlite3.Error,
            hide_parameters=True,
            dialect=self.dialect,
        ) from error
