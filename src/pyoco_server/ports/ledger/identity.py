"""The random id of a ledger, stored in its own tables: distinguishes ledgers from each other (SAFE-12)."""

from __future__ import annotations

import uuid
from typing import Any, Final

from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from pyoco_server.ports.ledger.dialect import Sql
from pyoco_server.ports.ledger.schema import ledger_settings
from pyoco_server.ports.ledger.types import is_postgres

__all__ = ["SqlIdentity", "give_new_id", "stored_id"]

_NAME: Final = "ledger_id"
_GET = select(ledger_settings.c.value).where(ledger_settings.c.name == _NAME)


def _writing(ledger_id: str, *, on_postgres: bool) -> Any:
    insert = postgresql.insert if on_postgres else sqlite.insert
    return insert(ledger_settings).values(name=_NAME, value=ledger_id).on_conflict_do_nothing()


def give_new_id(connection: Connection) -> None:
    """Store a new id; for the transaction that creates the tables."""
    connection.execute(_writing(str(uuid.uuid4()), on_postgres=is_postgres(connection.dialect)))


def stored_id(connection: Connection) -> str | None:
    """Read the id. None: the ledger was created by an older version."""
    found = connection.execute(_GET).scalar()
    return None if found is None else str(found)


class SqlIdentity:
    """See `port.Identity`."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def get(self) -> str | None:
        found = self._sql.connection.execute(_GET).scalar()
        return None if found is None else str(found)

    def give(self, ledger_id: str) -> str:
        self._sql.connection.execute(_writing(ledger_id, on_postgres=self._sql.is_postgres))
        stands = self.get()
        assert stands is not None  # it is never deleted
        return stands
