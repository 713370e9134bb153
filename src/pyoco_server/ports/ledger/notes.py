"""Information that one process leaves in the ledger for others to read. No money, and nothing that a decision depends
on."""

from __future__ import annotations

from typing import Final

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite

from pyoco_server.ports.ledger.dialect import Sql
from pyoco_server.ports.ledger.schema import ledger_settings

__all__ = ["SqlNotes"]

#: Separates notes from the settings that all processes must agree on, which are in the same table.
_PREFIX: Final = "note:"


class SqlNotes:
    """See `port.Notes`."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def get(self, name: str) -> str | None:
        found = select(ledger_settings.c.value).where(ledger_settings.c.name == _PREFIX + name)
        return self._sql.connection.execute(found).scalar()

    def put(self, name: str, text: str) -> None:
        insert = postgresql.insert if self._sql.is_postgres else sqlite.insert
        written = insert(ledger_settings).values(name=_PREFIX + name, value=text)
        self._sql.connection.execute(written.on_conflict_do_update(index_elements=["name"], set_={"value": text}))
