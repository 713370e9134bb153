"""The ledger's file: copied while it is written, put back whole or not at all."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contracts.backups import back_up, put_back
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.backup import LEDGER
from pyoco_server.errors import BackupFailed
from pyoco_server.ports.backups import ledger_file
from pyoco_server.ports.backups.folder import FolderArchive
from pyoco_server.ports.backups.jetstream import JetStreamStreams
from pyoco_server.ports.backups.ledger_file import SqliteLedgerFile
from pyoco_server.ports.nats.link import Link


def opened(path: Path) -> contextlib.closing[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None, timeout=10, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    return contextlib.closing(connection)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two columns that are always written together."""
    found = tmp_path / "data" / "ledger.db"
    found.parent.mkdir()
    with opened(found) as ledger:
        ledger.execute("CREATE TABLE pairs (one INTEGER, two INTEGER, filling BLOB)")
        for number in range(300):
            ledger.execute("INSERT INTO pairs VALUES (?, ?, zeroblob(20000))", (number, number))
    return found


@pytest.fixture
def streams(link: Link, prepared: NatsBackendConfig) -> JetStreamStreams:
    return JetStreamStreams(link, prepared)


def rows(path: Path) -> list[tuple[int, int]]:
    with contextlib.closing(sqlite3.connect(path)) as ledger:
        assert ledger.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return ledger.execute("SELECT one, two FROM pairs ORDER BY rowid").fetchall()


def test_a_copy_is_of_one_moment_although_somebody_writes_between_all_its_steps(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And never begins anew: it would never end."""
    monkeypatch.setattr(ledger_file, "_PAGES", 100)
    before, written = rows(path), []
    with opened(path) as writer:

        class Busy(type(tmp_path)):  # type: ignore[misc]
            def exists(self, **_: object) -> bool:
                """Asked between two steps."""
                writer.execute("UPDATE pairs SET one = one + 1, two = two + 1")
                writer.execute("INSERT INTO pairs VALUES (0, 0, zeroblob(100))")
                written.append(1)
                assert len(written) < 100, "it begins anew"
                return True

        SqliteLedgerFile(path).copy(Busy(tmp_path / "copy.db"))
    assert len(written) > 10
    assert rows(tmp_path / "copy.db") == before
    assert rows(path) != before


def test_a_copy_that_nobody_wants_any_more_ends(path: Path, tmp_path: Path) -> None:
    with pytest.raises(BackupFailed, match="given up"):
        SqliteLedgerFile(path).copy(_vanishing(tmp_path / "copy.db"))


def _vanishing(path: Path) -> Path:
    class Gone(type(path)):  # type: ignore[misc]
        def exists(self, **_: object) -> bool:
            return False

    return Gone(path)


def test_what_is_no_database_makes_no_copy(tmp_path: Path) -> None:
    """None of its text is told: it may be anybody's."""
    strange = tmp_path / "ledger.db"
    strange.write_bytes(b"secret" * 1000)
    (tmp_path / "copy.db").touch()
    with pytest.raises(BackupFailed) as caught:
        SqliteLedgerFile(strange).copy(tmp_path / "copy.db")
    assert "SQLITE_NOTADB" in str(caught.value)


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), 50_000):
        yield data[at : at + 50_000]


async def _broken(data: bytes) -> AsyncIterator[bytes]:
    yield data[:50_000]
    raise BackupFailed("the disk it comes from is gone")


async def test_a_ledger_that_is_put_back_is_not_mixed_with_the_one_before(path: Path, tmp_path: Path) -> None:
    """What the older one had not written into its file yet would be taken for a part of the new one."""
    copy = tmp_path / "copy.db"
    copy.touch()
    ledger = SqliteLedgerFile(path)
    ledger.copy(copy)
    before = rows(copy)
    with opened(path) as connection:
        connection.execute("UPDATE pairs SET one = -1, two = -1")
        for ending in ("-wal", "-shm"):  # as a crash leaves them
            path.with_name(f"kept{ending}").write_bytes(path.with_name(path.name + ending).read_bytes())
    for ending in ("-wal", "-shm"):
        path.with_name(f"kept{ending}").rename(path.with_name(path.name + ending))
    await ledger.put(_pieces(copy.read_bytes()))
    assert rows(path) == before


async def test_a_ledger_that_cannot_be_put_back_whole_leaves_the_one_before(path: Path) -> None:
    before = rows(path)
    with pytest.raises(BackupFailed, match="is gone"):
        await SqliteLedgerFile(path).put(_broken(path.read_bytes()))
    assert rows(path) == before
    assert [each.name for each in path.parent.iterdir()] == ["ledger.db"]


async def test_a_ledger_is_used_while_somebody_has_it_open_and_not_afterwards(path: Path) -> None:
    ledger = SqliteLedgerFile(path)
    with opened(path) as connection:
        connection.execute("SELECT count(*) FROM pairs").fetchone()
        found = await ledger.find()
        assert found is not None
        assert found.is_used
    found = await ledger.find()
    assert found is not None
    assert not found.is_used
    path.unlink()
    assert await ledger.find() is None


async def test_a_backup_brings_the_ledger_back_and_says_what_stands_in_its_way(
    prepared: NatsBackendConfig, streams: JetStreamStreams, path: Path, tmp_path: Path
) -> None:
    ledger, archive = SqliteLedgerFile(path), FolderArchive(tmp_path / "backup")
    before = rows(path)
    manifest = await back_up(prepared, streams, archive, ledger)
    assert manifest.ledger is not None
    assert [each.name for each in (tmp_path / "backup" / LEDGER).iterdir()] == [manifest.ledger.name]
    assert (await archive.manifest()).ledger == manifest.ledger
    with opened(path) as connection:
        connection.execute("DELETE FROM pairs")
        with pytest.raises(BackupFailed, match="--replace removes it first"):
            await put_back(prepared, streams, archive, only=[LEDGER], ledger=ledger)
        with pytest.raises(BackupFailed, match="somebody uses"):
            await put_back(prepared, streams, archive, only=[LEDGER], may_replace=True, ledger=ledger)
    with pytest.raises(BackupFailed, match="names a database that is no file"):
        await put_back(prepared, streams, archive, only=[LEDGER], may_replace=True)
    assert rows(path) == []
    await put_back(prepared, streams, archive, only=[LEDGER], may_replace=True, ledger=ledger)
    assert rows(path) == before


async def test_a_restore_that_goes_on_leaves_the_ledger_it_has_put_back(
    prepared: NatsBackendConfig, streams: JetStreamStreams, path: Path, tmp_path: Path
) -> None:
    ledger, archive = SqliteLedgerFile(path), FolderArchive(tmp_path / "backup")
    await back_up(prepared, streams, archive, ledger)
    elsewhere = SqliteLedgerFile(tmp_path / "other" / "ledger.db")
    await put_back(prepared, streams, archive, only=[LEDGER], ledger=elsewhere)
    put_at = Path(elsewhere.path).stat().st_mtime_ns
    await put_back(prepared, streams, archive, only=[LEDGER], ledger=elsewhere)
    assert Path(elsewhere.path).stat().st_mtime_ns == put_at


async def test_priced_messages_that_are_put_and_taken_meanwhile_are_not_lost(
    link: Link, prepared: NatsBackendConfig, tmp_path: Path
) -> None:
    """A row that waits in the copy of the ledger has its message in the backup."""
    from pyoco_server.config import PricedConfig
    from pyoco_server.ports.nats.ensuring import ensure
    from pyoco_server.ports.nats.resources import priced_resources

    priced = PricedConfig(pack_stream="H9_PACKS", pack_subject="h9.packs", results_bucket="h9-results")
    resources = [item for item in priced_resources(prepared, priced) if "H9" in item.name or "h9" in item.name]
    await ensure(link, resources)
    streams = JetStreamStreams(link, prepared, priced)

    class Late(SqliteLedgerFile):
        async def exists(self) -> bool:
            place = await link.store("h9.packs", b"late")
            await link.api("STREAM.MSG.DELETE.H9_PACKS", {"seq": place}, dict)
            return False

    archive = FolderArchive(tmp_path / "backup")
    try:
        manifest = await back_up(prepared, streams, archive, Late(tmp_path / "none.db"))
        assert {item.name for item in resources} <= {stream.name for stream in manifest.streams}
        (packs,) = manifest.only(["H9_PACKS"])
        assert (packs.messages, packs.changes) == (1, 1)
        await put_back(prepared, streams, archive, only=["H9_PACKS"], may_replace=True)
        found = await streams.find("H9_PACKS")
        assert found is not None
        assert found.messages == 1
    finally:
        for item in resources:
            await streams.remove(item.name)
