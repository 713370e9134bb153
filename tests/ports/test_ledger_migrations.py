"""The tables of a ledger: made, taken down and made again, on both databases."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect, text

from pyoco_server.core.priced.run import PricedRun
from pyoco_server.errors import LedgerOutdated
from pyoco_server.ports.ledger import connect, migrate
from pyoco_server.ports.ledger.schema import metadata
from pyoco_server.ports.ledger.sql import SqlLedger
from support.priced.ledgers import SPANS, a_reserved_run, open_ledger


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without a table."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'new' / 'ledger.db'}"


@contextlib.contextmanager
def opened(url: str) -> Iterator[Connection]:
    engine = connect.engine_for_writing(connect.address(url))
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def test_tables_go_up_and_down_and_up(url: str) -> None:
    newest = migrate.status(url).wanted
    assert migrate.status(url).version is None
    assert migrate.upgrade(url) == (None, newest)
    assert migrate.upgrade(url) == (newest, newest)
    assert migrate.downgrade(url, "base") == (newest, None)
    with opened(url) as connection:
        assert set(inspect(connection).get_table_names()) <= {"alembic_version"}
    assert migrate.upgrade(url) == (None, newest)
    assert migrate.status(url).is_current


def test_the_migrations_make_what_the_statements_expect(url: str) -> None:
    """PRICED-8, PRICED-9, PRICED-10, PRICED-14, PRICED-30"""
    migrate.upgrade(url)
    with opened(url) as connection:
        if url.startswith("postgresql"):  # of SQLite's indexes it does not understand a DESC
            found = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(found, metadata) == []
        looked = inspect(connection)
        for name, table in metadata.tables.items():
            checks = {str(one.name) for one in table.constraints if str(one.name).startswith("ck_")}
            assert {one["name"] for one in looked.get_check_constraints(name)} == checks
            assert {one["name"] for one in looked.get_indexes(name)} == {index.name for index in table.indexes}


def test_the_rules_of_the_migrations_are_those_of_the_schema(tmp_path: Path) -> None:
    """As SQLite keeps them: the schema's own tables beside those of the migrations, which append new columns."""
    made, meant = f"sqlite:///{tmp_path / 'made.db'}", f"sqlite:///{tmp_path / 'meant.db'}"
    migrate.upgrade(made)
    words = {}
    for url in (made, meant):
        with opened(url) as connection:
            if url == meant:
                metadata.create_all(connection)
            rows = connection.execute(text("SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'index')"))
            words[url] = {
                name: sorted(re.findall(r"[^\s,()]+", sql)) for name, sql in rows if sql and name != "alembic_version"
            }
    assert words[made] == words[meant]


def test_many_may_migrate_at_once(url: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        done = list(threads.map(lambda _: migrate.upgrade(url), range(8)))
    assert sorted(one.before or "" for one in done) == ["", *[done[0].after] * 7]
    assert migrate.status(url).is_current


def test_a_migration_of_sqlite_waits_a_minute_for_another_one(tmp_path: Path) -> None:
    """As on PostgreSQL. Five seconds, the wait of all other transactions, are too few on a busy machine."""
    with migrate._opened(f"sqlite:///{tmp_path / 'ledger.db'}") as connection:
        assert connection.execute(text("PRAGMA busy_timeout")).scalar() == 60_000


async def test_a_ledger_without_tables_gets_them_only_from_who_may_make_them(url: str) -> None:
    with pytest.raises(LedgerOutdated, match="pyoco-server-admin ledger migrate"):
        await SqlLedger(url, SPANS).start()
    assert migrate.status(url).version is None
    async with open_ledger(url, make_missing=True) as ledger:
        assert isinstance(await ledger.transact(a_reserved_run), PricedRun)
    async with open_ledger(url) as ledger:  # and then everybody may use them
        await ledger.ping()


async def test_only_who_may_migrate_does_so_at_its_start(tmp_path: Path) -> None:
    """A data folder of an earlier version is used as it is, without a command of the operator."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    migrate.upgrade(url)
    migrate.downgrade(url, "0002")
    with pytest.raises(LedgerOutdated, match="pyoco-server-admin ledger migrate"):
        await SqlLedger(url, SPANS, make_missing=True).start()
    async with open_ledger(url, migrate_older=True) as ledger:
        assert isinstance(await ledger.transact(a_reserved_run), PricedRun)


async def test_a_ledger_of_another_version_is_not_touched(url: str) -> None:
    migrate.upgrade(url)
    with opened(url) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(LedgerOutdated, match="newer than this program"):
        await SqlLedger(url, SPANS, make_missing=True).start()
    with pytest.raises(LedgerOutdated, match="newer than this program"):
        migrate.upgrade(url)
    with pytest.raises(LedgerOutdated, match=r"needs 0002: run `pyoco-server-admin ledger migrate`"):
        migrate.check(migrate.Schema("0001", "0002", is_known=True))


def test_tables_of_somebody_else_are_not_taken_for_ours(url: str) -> None:
    with opened(url) as connection:
        connection.execute(text("CREATE TABLE runs (distance INTEGER)"))
    with pytest.raises(LedgerOutdated, match="not the ledger's"):
        migrate.upgrade(url)
    with opened(url) as connection:
        assert inspect(connection).get_table_names() == ["runs"]


def test_a_migration_that_fails_leaves_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Exception):
        pass

    def broken(*_: object, **__: object) -> None:
        raise Broken

    with monkeypatch.context() as patched:
        patched.setattr("alembic.operations.Operations.create_index", broken)
        with pytest.raises(Broken):
            migrate.upgrade(url)
    with opened(url) as connection:
        assert inspect(connection).get_table_names() == []
    assert migrate.upgrade(url).before is None
