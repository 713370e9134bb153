"""Migrates the ledger's tables to this version, and detects their version.

Any number of processes may call this concurrently: one migrates, the others wait and find it done.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import Connection, Engine, inspect, text

from pyoco_server.errors import LedgerOutdated
from pyoco_server.ports.ledger.connect import (
    address,
    engine_for_reading,
    engine_for_writing,
    execute_pragma,
    file_of,
    is_sqlite,
)
from pyoco_server.ports.ledger.faults import ledger_errors
from pyoco_server.ports.ledger.identity import give_new_id, stored_id
from pyoco_server.ports.ledger.schema import ledger_entries, ledger_settings, ledger_txns, metadata

if TYPE_CHECKING:
    from alembic.config import Config

__all__ = [
    "MIGRATE",
    "Migrated",
    "Schema",
    "check",
    "downgrade",
    "give_id_at",
    "is_empty",
    "schema_of",
    "service_rights",
    "status",
    "stored_id_at",
    "upgrade",
]

#: The command shown to operators.
MIGRATE: Final = "pyoco-server-admin ledger migrate"
#: "PRICED", as a number: an advisory lock key that no other application uses.
_LOCK: Final = 0x505249434544
#: How long a migration waits for another one.
_LOCK_SECONDS: Final = 60
_STEPS: Final = Path(__file__).parent.joinpath("migrations")


class Migrated(NamedTuple):
    """Version before and after; None: there were, or are, no tables."""

    before: str | None
    after: str | None


@dataclass(frozen=True)
class Schema:
    """The version of the tables, and the version this program requires."""

    version: str | None
    wanted: str
    #: Whether this program supports the version: False for a newer one.
    is_known: bool

    @property
    def is_current(self) -> bool:
        return self.version == self.wanted


def upgrade(url: str) -> Migrated:
    """Migrate to the newest version, atomically. Raises DependencyUnavailable and LedgerOutdated."""

    def go(config: Config) -> None:
        from alembic import command  # noqa: PLC0415 - slow to import, and most processes have nothing to migrate

        command.upgrade(config, "head")

    return _walk(url, go)


def downgrade(url: str, to: str) -> Migrated:
    """Migrate back to version `to`; `base` removes all tables and rows. For tests, and for operators who accept the
    data loss."""

    def go(config: Config) -> None:
        from alembic import command  # noqa: PLC0415 - as above

        command.downgrade(config, to)

    return _walk(url, go)


def status(url: str) -> Schema:
    """Return the version. Changes nothing. Raises DependencyUnavailable."""
    where = address(url)
    if (path := file_of(where)) is not None and not path.exists():
        return _schema(None)
    with ledger_errors(), contextlib.closing(engine_for_reading(where).connect()) as connection:
        return schema_of(connection)


def stored_id_at(url: str) -> str | None:
    """The id of the ledger at this address. None: it has no id, no tables, or does not exist. Changes nothing.

    Raises DependencyUnavailable.
    """
    where = address(url)
    if (path := file_of(where)) is not None and not path.exists():
        return None
    with ledger_errors(), contextlib.closing(engine_for_reading(where).connect()) as connection:
        return stored_id(connection) if inspect(connection).has_table(ledger_settings.name) else None


def give_id_at(url: str) -> str:
    """Return the id of a ledger that has its tables; one of an older version gets a new id. Raises
    DependencyUnavailable."""
    with _opened(url) as connection:
        give_new_id(connection)
        found = stored_id(connection)
        assert found is not None  # assigned just above
        return found


def is_empty(url: str) -> bool:
    """Whether there is no table at all, nor even a file. Changes nothing. Raises DependencyUnavailable."""
    where = address(url)
    if (path := file_of(where)) is not None and not path.exists():
        return True
    with ledger_errors(), contextlib.closing(engine_for_reading(where).connect()) as connection:
        return not inspect(connection).get_table_names()


def schema_of(connection: Connection) -> Schema:
    """Detect the version without Alembic: importing that takes most of a second, and every process calls this at its
    start."""
    if not inspect(connection).has_table("alembic_version"):
        return _schema(None)
    return _schema(connection.execute(text("SELECT version_num FROM alembic_version")).scalar())


def _schema(version: str | None) -> Schema:
    """The file name of a migration contains its version: `v0001_priced_runs.py` is 0001."""
    known = {path.name[1:].partition("_")[0] for path in _STEPS.joinpath("versions").glob("v[0-9]*_*.py")}
    return Schema(version, max(known), is_known=version is None or version in known)


def check(schema: Schema) -> None:
    """Raise LedgerOutdated unless the tables have exactly this version."""
    if schema.is_current:
        return
    if schema.version is None:
        raise LedgerOutdated(f"the ledger has no tables yet: run `{MIGRATE}`")
    if not schema.is_known:
        raise LedgerOutdated(
            f"the ledger is of version {schema.version}, which is newer than this program: "
            f"it knows {schema.wanted}. Update this program"
        )
    raise LedgerOutdated(
        f"the ledger is of version {schema.version}, and this program needs {schema.wanted}: run `{MIGRATE}`"
    )


def service_rights(role: str) -> tuple[str, ...]:
    """Statements by which the owner of the tables grants a service on PostgreSQL the rights it needs, without the right
    to change the journal (PRICED-56). Triggers refuse such changes to everyone, but an owner could drop a trigger."""
    changed = sorted(set(metadata.tables) - {ledger_txns.name, ledger_entries.name})
    name = '"' + role.replace('"', '""') + '"'
    return (
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON {', '.join(changed)} TO {name}",
        f"GRANT SELECT, INSERT ON {ledger_txns.name}, {ledger_entries.name} TO {name}",
        f"GRANT SELECT ON alembic_version TO {name}",
    )


def _walk(url: str, go: Callable[[Config], None]) -> Migrated:
    with _opened(url) as connection:
        before = schema_of(connection)
        if not before.is_known:
            check(before)
        if before.version is None:
            _refuse_tables_of_others(connection)
        go(_config(connection))
        if before.version is None and inspect(connection).has_table(ledger_settings.name):
            give_new_id(connection)
        return Migrated(before.version, schema_of(connection).version)


def _refuse_tables_of_others(connection: Connection) -> None:
    """`runs` is a common name: another application's table must not become our ledger."""
    taken = sorted(set(inspect(connection).get_table_names()) & set(metadata.tables))
    if taken:
        raise LedgerOutdated(
            f"the database has tables that are not the ledger's ({', '.join(taken)}): give it a database of its own"
        )


def _config(connection: Connection) -> Config:
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it logs even while it is imported
    from alembic.config import Config  # noqa: PLC0415 - slow to import, and most processes have nothing to migrate

    config = Config(attributes={"connection": connection})
    config.set_main_option("path_separator", "os")
    config.set_main_option("script_location", str(_STEPS).replace("%", "%%"))
    return config


@contextlib.contextmanager
def _opened(url: str) -> Iterator[Connection]:
    """A transaction with an exclusive migration lock: SQLite's own lock on the file, or an advisory lock."""
    where = address(url)
    with ledger_errors():
        engine: Engine = engine_for_writing(where)
        try:
            with engine.connect() as connection:
                if is_sqlite(where):
                    execute_pragma(connection, f"PRAGMA busy_timeout = {_LOCK_SECONDS * 1000}")
                with connection.begin():
                    if not is_sqlite(where):
                        connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'"))
                        connection.execute(text("SET LOCAL statement_timeout = 0"))
                        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
                    yield connection
        finally:
            engine.dispose()
