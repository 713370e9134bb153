"""SQLite by the shortest way: a statement that is kept is compiled once, and then runs on the driver's own cursor.

SQLAlchemy's own way costs some 60 microseconds of Python for each statement, several times what SQLite itself needs,
and a submit has a dozen of them in one thread. PostgreSQL's time goes into round trips: it is left alone.
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

#: Statements that live as long as the process. Any other is compiled by SQLAlchemy each time it is asked for.
_KEPT: set[Executable] = set()
_PREPARED: dict[Executable, _Prepared] = {}

Process = Callable[[Any], Any] | None


def keep(statement: S) -> S:
    """The same statement, which is never thrown away and has all that differs from call to call bound."""
    _KEPT.add(statement)
    return statement


class Rows:
    """As much of a result as the ledger asks for. All rows are here."""

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
        #: What is bound by the statement itself, and how each value becomes one of the driver's.
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

    def bound(self, told: Mapping[str, Any]) -> list[Any]:
        return [
            process(value) if process is not None else value
            for value, process in ((told.get(name, own), process) for name, own, process in self._binds)
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
    """A connection of SQLite inside a transaction, as the ledger's statements use it."""

    __slots__ = ("_driver", "dialect", "whole")

    def __init__(self, whole: Connection) -> None:
        self.whole, self.dialect = whole, whole.dialect
        self._driver: sqlite3.Connection = whole.connection.driver_connection  # type: ignore[assignment]  # it is one

    def execute(self, statement: Executable, told: Any = None) -> Any:
        """Raises what SQLAlchemy would: nobody else has to know of this way."""
        if statement not in _KEPT:
            return self.whole.execute(statement, told)
        prepared = _PREPARED.get(statement)
        if prepared is None:
            prepared = _PREPARED[statement] = _Prepared(statement, self.dialect)
        try:
            if isinstance(told, list):
                cursor = self._driver.executemany(prepared.text, [prepared.bound(each) for each in told])
            else:
                cursor = self._driver.execute(prepared.text, prepared.bound(told or {}))
            answer = Rows(prepared.rows(cursor), cursor.rowcount)
        except sqlite3.Error as error:
            self._raise(prepared.text, error)
        cursor.close()
        return answer

    def say(self, word: str) -> None:
        """For what is no statement of the ledger's: savepoints. Raises as `execute`."""
        try:
            self._driver.execute(word).close()
        except sqlite3.Error as error:
            self._raise(word, error)

    def _raise(self, text: str, error: sqlite3.Error) -> NoReturn:
        raise DBAPIError.instance(
            text,
            None,
            error,
            sqlite3.Error,
            hide_parameters=True,
            dialect=self.dialect,
        ) from error
