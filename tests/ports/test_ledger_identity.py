"""The id of a ledger, and what SQLite does not notice: that its file was deleted or replaced while it was used."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path

import pytest

from pyoco_server.errors import DependencyUnavailable, OtherLedger
from pyoco_server.ports.ledger import migrate
from pyoco_server.ports.ledger.sql import SqlLedger
from support.priced.ledgers import SPANS, a_reserved_run, memory_url, open_ledger, sqlite_url
from support.priced.servers import PostgresServer


def without_id(url: str) -> str:
    """As a ledger of an older version."""
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("DELETE FROM ledger_settings WHERE name = 'ledger_id'")
    return url


def another(folder: Path) -> Path:
    """A ledger with an id of its own."""
    folder.mkdir()
    migrate.upgrade(f"sqlite:///{folder / 'ledger.db'}")
    return folder / "ledger.db"


def test_each_new_ledger_gets_an_id_of_its_own(tmp_path: Path, postgres_server: PostgresServer) -> None:
    """SAFE-12"""
    urls = [f"sqlite:///{tmp_path / name}" for name in ("one.db", "two.db")]
    urls.append(postgres_server.new_database())
    for url in urls:
        assert migrate.stored_id_at(url) is None
        migrate.upgrade(url)
    assert len({migrate.stored_id_at(url) for url in urls} - {None}) == 3
    before = migrate.stored_id_at(urls[0])
    migrate.upgrade(urls[0])
    assert migrate.stored_id_at(urls[0]) == before


def test_no_ledger_has_no_id_and_asking_creates_none(tmp_path: Path) -> None:
    assert migrate.stored_id_at(f"sqlite:///{tmp_path / 'ledger.db'}") is None
    assert list(tmp_path.iterdir()) == []


async def test_a_ledger_of_an_older_version_has_no_id_until_it_is_given_one(tmp_path: Path) -> None:
    """SAFE-12: and no step of a migration is needed for it"""
    url = without_id(sqlite_url(tmp_path))
    assert migrate.status(url).is_current
    async with open_ledger(url) as ledger, open_ledger(url) as other:
        assert await ledger.stored_id() is None
        assert await ledger.transact(lambda tx: tx.identity.give("first")) == "first"
        assert await other.transact(lambda tx: tx.identity.give("second")) == "first"
        assert await other.stored_id() == "first"
    without_id(url)
    given = migrate.give_id_at(url)
    assert migrate.give_id_at(url) == given == migrate.stored_id_at(url)


async def test_a_commit_to_a_file_that_was_deleted_is_not_called_done(tmp_path: Path) -> None:
    """SAFE-12: from the first transaction on, and no empty file takes its place"""
    async with open_ledger(sqlite_url(tmp_path)) as ledger:
        await ledger.transact(a_reserved_run)
        (tmp_path / "ledger.db").unlink()
        for _ in range(3):
            with pytest.raises(OtherLedger, match="deleted or moved away while this process used it"):
                await ledger.transact(a_reserved_run)
        with pytest.raises(OtherLedger):
            await ledger.probe()
        with pytest.raises(OtherLedger):
            await ledger.stored_id()
        assert not (tmp_path / "ledger.db").exists()


async def test_a_file_that_is_put_back_is_used_again(tmp_path: Path) -> None:
    async with open_ledger(sqlite_url(tmp_path)) as ledger:
        path, away = tmp_path / "ledger.db", tmp_path / "away.db"
        path.rename(away)
        with pytest.raises(OtherLedger):
            await ledger.transact(a_reserved_run)
        away.rename(path)
        run = await ledger.transact(a_reserved_run)
        assert await ledger.read(lambda tx: tx.runs.get(run.run_id)) is not None
        assert await ledger.stored_id() is not None


@pytest.mark.parametrize("is_copy", [True, False], ids=["a copy of itself", "another ledger"])
async def test_a_file_in_its_place_is_never_written_to(tmp_path: Path, is_copy: bool) -> None:
    """SAFE-12: neither is a copy, which lacks what was committed since, and has the log of the other file beside it"""
    other = another(tmp_path / "other")
    async with open_ledger(sqlite_url(tmp_path)) as ledger:
        path = tmp_path / "ledger.db"
        await ledger.transact(a_reserved_run)
        if is_copy:
            shutil.copy(path, other)
        before = other.read_bytes()
        other.rename(path)
        for _ in range(2):
            with pytest.raises(OtherLedger, match="replaced by another file"):
                await ledger.transact(a_reserved_run)
        with pytest.raises(OtherLedger, match="replaced by another file"):
            await ledger.stored_id()
        assert path.read_bytes() == before


async def test_a_file_that_is_overwritten_has_the_id_of_the_other(tmp_path: Path) -> None:
    """SAFE-12: it is the same file to the system, with other bytes in it"""
    other = another(tmp_path / "other")
    async with open_ledger(sqlite_url(tmp_path)) as ledger:
        own = await ledger.stored_id()
        shutil.copyfile(other, tmp_path / "ledger.db")
        assert await ledger.stored_id() not in {None, own}


async def test_a_new_ledger_has_nothing_of_one_that_was_deleted_while_it_was_used(tmp_path: Path) -> None:
    """The log of the deleted file stays, and SQLite must not replay it into the new one."""
    path = tmp_path / "ledger.db"
    url = f"sqlite:///{path}"
    migrate.upgrade(url)
    before = migrate.stored_id_at(url)
    async with open_ledger(url) as ledger:
        await ledger.transact(a_reserved_run)
        path.unlink()
        shutil.copy(tmp_path / "ledger.db-wal", tmp_path / "kept")
    shutil.move(tmp_path / "kept", tmp_path / "ledger.db-wal")  # as after `kill -9`
    migrate.upgrade(url)
    assert migrate.stored_id_at(url) not in {None, before}
    async with open_ledger(url) as ledger:
        assert await ledger.read(lambda tx: tx.tenants.all()) == []


async def test_a_ledger_that_may_not_be_used_does_nothing_but_say_its_id(tmp_path: Path) -> None:
    """SAFE-12"""
    problem: list[Exception] = []

    def check() -> None:
        if problem:
            raise problem[0]

    async with open_ledger(sqlite_url(tmp_path), check_allowed=check) as ledger:
        problem.append(OtherLedger())
        asked = (ledger.transact, ledger.transact_softly, ledger.read, ledger.read_long)
        for ask in asked:
            with pytest.raises(OtherLedger):
                await ask(lambda tx: tx.now_us())
        for look in (ledger.ping, ledger.probe):
            with pytest.raises(OtherLedger):
                await look()
        assert await ledger.stored_id() is not None
        problem.clear()
        await ledger.transact(a_reserved_run)


async def test_a_ledger_that_is_not_open_does_not_say_its_id(tmp_path: Path) -> None:
    with pytest.raises(DependencyUnavailable, match="not open"):
        await SqlLedger(sqlite_url(tmp_path), SPANS).stored_id()


async def test_a_ledger_in_memory_has_an_id_too() -> None:
    """SAFE-12"""
    with memory_url() as url:
        async with open_ledger(url) as ledger:
            assert await ledger.stored_id() == migrate.stored_id_at(url) is not None
