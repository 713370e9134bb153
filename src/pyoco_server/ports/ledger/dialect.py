"""What one transaction needs of its database besides rows: a connection, and the ledger's clock (PRICED-27).

The clock is PostgreSQL's own, read in the statement; for SQLite, which runs on a single host, it is that of this
process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import BindParameter, ColumnElement, Connection, Interval, bindparam, func, select, type_coerce

from pyoco_server.core.priced.instants import SECOND_US
from pyoco_server.ports.ledger.port import Spans
from pyoco_server.ports.ledger.quick import Quick
from pyoco_server.ports.ledger.types import InstantColumn, is_postgres

__all__ = ["Sql", "clock", "process_us", "statement_clock"]

_NANOSECONDS: Final = 1_000


def process_us() -> int:
    return time.time_ns() // _NANOSECONDS


def clock(name: str, *, on_postgres: bool) -> ColumnElement[int]:
    """The clock at the moment a row is evaluated, for a kept statement: `Sql.shift` is bound to `name`.

    It cannot be used to search an index, and two uses in one statement may differ by some microseconds.
    """
    return _shifted(func.clock_timestamp(), bindparam(name, type_=Interval())) if on_postgres else _process(name)


def statement_clock(name: str, *, on_postgres: bool) -> ColumnElement[int]:
    """The clock at the beginning of the statement: one constant value, which can be used to search an index."""
    return _shifted(func.statement_timestamp(), bindparam(name, type_=Interval())) if on_postgres else _process(name)


def _process(name: str) -> ColumnElement[int]:
    return bindparam(name, type_=InstantColumn())


def _shifted(at: ColumnElement[Any], by: BindParameter[Any]) -> ColumnElement[int]:
    return type_coerce(at + by, InstantColumn())


class Sql:
    """One transaction's connection, time spans and clock.

    On SQLite the clock does not advance within a transaction: it is read at first use, while the file is locked.
    """

    __slots__ = ("_at_us", "_skew_us", "connection", "is_postgres", "known_tenants", "seen_tenants", "spans")

    def __init__(
        self,
        connection: Connection,
        spans: Spans,
        skew_us: Callable[[], int] = lambda: 0,
        known_tenants: frozenset[str] | set[str] = frozenset(),
    ) -> None:
        self.is_postgres = is_postgres(connection.dialect)
        self.connection: Connection | Quick = connection if self.is_postgres else Quick(connection)
        self.spans = spans
        #: Tenants that certainly exist in the ledger: they are never deleted.
        self.known_tenants = known_tenants
        #: Tenants that this transaction found or created: certain once it has been committed.
        self.seen_tenants: set[str] = set()
        self._skew_us = skew_us
        self._at_us: int | None = None

    def now(self) -> ColumnElement[int]:
        return self.ahead(0)

    def ago(self, seconds: int) -> ColumnElement[int]:
        return self.ahead(-seconds)

    def ahead(self, seconds: int) -> ColumnElement[int]:
        if self.is_postgres:
            return _shifted(func.clock_timestamp(), bindparam(None, self.shift(seconds), type_=Interval()))
        return bindparam(None, self.shift(seconds), type_=InstantColumn())

    def shift(self, seconds: int = 0) -> Any:
        """Return the value to bind to a `clock` that is this far ahead of now; negative: before now."""
        if self.is_postgres:
            return timedelta(seconds=seconds, microseconds=self._skew_us())
        return self.now_us() + seconds * SECOND_US

    def now_us(self) -> int:
        """The time at the beginning of this transaction or later. One round trip on PostgreSQL."""
        if self.is_postgres:
            return int(self.connection.execute(select(self.now())).scalar_one())
        if self._at_us is None:
            self._at_us = process_us() + self._skew_us()
        return self._at_us
