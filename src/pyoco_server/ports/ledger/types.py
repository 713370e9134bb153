"""The column types of the ledger: one value in Python, and each database's own way to keep it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import BigInteger, Dialect, Integer, SmallInteger, Text
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from pyoco_server.core.priced.instants import utc

__all__ = ["DAMAGED", "BigInt", "Instant", "Json", "Now", "RunId", "SmallInt", "is_postgres"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

#: Found where JSON should be.
DAMAGED: Final = object()

#: 64 bits in both; SQLite calls every whole number INTEGER, and counts an INTEGER key up by itself.
BigInt = BigInteger().with_variant(Integer(), "sqlite")
SmallInt = SmallInteger().with_variant(Integer(), "sqlite")


def is_postgres(dialect: Dialect) -> bool:
    return dialect.name == "postgresql"


class RunId(TypeDecorator[str]):
    """A UUID in its usual writing, in lower case. What is not one is refused by PostgreSQL: look before asking."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(postgresql.UUID(as_uuid=False) if is_postgres(dialect) else Text())


class Instant(TypeDecorator[int]):
    """Microseconds of unix time, exact: no double is in between."""

    impl = BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(postgresql.TIMESTAMP(timezone=True) if is_postgres(dialect) else Integer())

    def process_bind_param(self, value: int | None, dialect: Dialect) -> Any:
        return utc(value) if value is not None and is_postgres(dialect) else value

    def process_result_value(self, value: Any, dialect: Dialect) -> int | None:
        if value is None or not is_postgres(dialect):
            return value  # type: ignore[no-any-return]  # an int, as it was written
        return int((value - _EPOCH) // _MICROSECOND)


class Json(TypeDecorator[Any]):
    """An object or a list, or DAMAGED. Nothing is NULL, and never JSON's own null."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(postgresql.JSON(none_as_null=True) if is_postgres(dialect) else Text())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        if isinstance(value, Mapping):
            value = dict(value)
        if value is None or is_postgres(dialect):
            return value
        return json.dumps(value, allow_nan=False, separators=(",", ":"))

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        if value is None or is_postgres(dialect):
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError):  # SQLite holds any text; one damaged row must not hide those beside it
            return DAMAGED


class Now(FunctionElement[int]):
    """The default of a column, for whoever adds a row by hand: we always say when. SQLite has whole seconds alone."""

    type = Instant()
    inherit_cache = True


@compiles(Now)
def _now(*_: Any, **__: Any) -> str:
    return "now()"


@compiles(Now, "sqlite")
def _now_sqlite(*_: Any, **__: Any) -> str:
    return "(CAST(strftime('%s', 'now') AS INTEGER) * 1000000)"
