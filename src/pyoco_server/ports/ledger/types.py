"""The column types of the ledger: one Python value, and its representation in each database."""

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

__all__ = ["DAMAGED", "BigInt", "InstantColumn", "Json", "Now", "RunId", "SmallInt", "is_postgres"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

#: Returned in place of invalid JSON.
DAMAGED: Final = object()

#: 64 bits in both; SQLite names every integer type INTEGER, and only auto-increments an INTEGER key.
BigInt = BigInteger().with_variant(Integer(), "sqlite")
SmallInt = SmallInteger().with_variant(Integer(), "sqlite")


def is_postgres(dialect: Dialect) -> bool:
    return dialect.name == "postgresql"


class RunId(TypeDecorator[str]):
    """A UUID in its canonical form, in lower case. PostgreSQL rejects anything else, so validate before querying."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(postgresql.UUID(as_uuid=False) if is_postgres(dialect) else Text())


class InstantColumn(TypeDecorator[int]):
    """Microseconds of unix time; exact, never converted through floating point."""

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
    """An object or a list, or DAMAGED. None is stored as NULL, never as JSON null."""

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
        except (ValueError, RecursionError):  # SQLite stores any text; one damaged row must not block the others
            return DAMAGED


class Now(FunctionElement[int]):
    """Default of a time column, for rows inserted manually: our code always sets it. SQLite only provides whole
    seconds."""

    type = InstantColumn()
    inherit_cache = True


@compiles(Now)
def _now(*_: Any, **__: Any) -> str:
    return "now()"


@compiles(Now, "sqlite")
def _now_sqlite(*_: Any, **__: Any) -> str:
    return "(CAST(strftime('%s', 'now') AS INTEGER) * 1000000)"
