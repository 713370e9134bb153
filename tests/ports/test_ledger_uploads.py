"""Uploads in the ledger, on both databases: room is never given twice, and what is over stays over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from pyoco_server.core.priced.instants import SECOND_US
from pyoco_server.core.priced.upload import PENDING_SECONDS, ROOM_BYTES_MIN, NewUpload, Upload
from pyoco_server.ports.ledger import connect, migrate
from pyoco_server.ports.ledger.dialect import Sql
from pyoco_server.ports.ledger.port import Ledger, LedgerTx, StorageFull
from pyoco_server.ports.ledger.sql import SqlLedger
from pyoco_server.ports.ledger.uploads import SqlUploads
from support.priced.ledgers import SPANS, Skew, an_id, postgres_ledger, sqlite_ledger

PLENTY = 10**9
RETENTION = SPANS.retention_seconds


@pytest.fixture
def skew() -> Skew:
    return Skew()


@pytest.fixture(params=["sqlite", "postgres"])
async def ledger(request: pytest.FixtureRequest, tmp_path: Path, skew: Skew) -> AsyncIterator[SqlLedger]:
    opening = (
        sqlite_ledger(tmp_path, skew)
        if request.param == "sqlite"
        else postgres_ledger(request.getfixturevalue("postgres_server"), skew)
    )
    async with opening as ledger:
        yield ledger


def a_file(size_bytes: int = 100, sha256: str = "ab" * 32, tenant_id: str = "anna") -> NewUpload:
    upload_id = an_id()
    return NewUpload(
        upload_id=upload_id,
        tenant_id=tenant_id,
        key=f"dpp/{tenant_id}/{upload_id}/scan.png",
        sha256=sha256,
        size_bytes=size_bytes,
        content_type="image/png",
    )


def reserved(tx: LedgerTx, ask: NewUpload) -> Upload:
    row = tx.uploads.reserve(ask, PLENTY)
    assert isinstance(row, Upload)
    return row


def stored(tx: LedgerTx, ask: NewUpload) -> Upload:
    reserved(tx, ask)
    row = tx.uploads.confirm(ask.upload_id, ask.tenant_id)
    assert row is not None
    return row


def _reserving(ask: NewUpload, tenant_bytes_max: int = PLENTY) -> Callable[[LedgerTx], Upload | StorageFull]:
    return lambda tx: tx.uploads.reserve(ask, tenant_bytes_max)


def _confirming(ask: NewUpload) -> Callable[[LedgerTx], Upload | None]:
    return lambda tx: tx.uploads.confirm(ask.upload_id, ask.tenant_id)


def _abandon(upload_id: str, tx: LedgerTx) -> None:
    tx.uploads.abandon(upload_id)


def _defer(upload_id: str, tx: LedgerTx) -> None:
    tx.uploads.defer(upload_id)


async def expired(ledger: Ledger) -> list[str]:
    return [row.upload_id for row in await ledger.read(lambda tx: tx.uploads.expired(10))]


async def test_a_reservation_becomes_a_file_for_the_retention(ledger: Ledger, skew: Skew) -> None:
    ask = a_file()
    first = await ledger.transact(lambda tx: reserved(tx, ask))
    assert first.expires_at == pytest.approx(first.created_at + PENDING_SECONDS * SECOND_US, abs=SECOND_US)
    assert {name: getattr(first, name) for name in vars(ask)} == vars(ask)
    assert await ledger.read(lambda tx: tx.uploads.find("anna", ask.sha256)) is None
    skew.move(60)
    kept = await ledger.transact(lambda tx: tx.uploads.confirm(ask.upload_id, "anna"))
    assert kept == replace(first, expires_at=first.created_at + RETENTION * SECOND_US)
    assert await ledger.transact(lambda tx: tx.uploads.confirm(ask.upload_id, "anna")) == kept
    assert await ledger.read(lambda tx: tx.uploads.find("anna", ask.sha256)) == kept
    assert await ledger.read(lambda tx: tx.uploads.find("bert", ask.sha256)) is None


async def test_only_a_file_with_more_than_half_of_its_time_is_found(ledger: Ledger, skew: Skew) -> None:
    ask = a_file()
    await ledger.transact(lambda tx: stored(tx, ask))
    skew.move(RETENTION // 2 - 60)
    assert await ledger.read(lambda tx: tx.uploads.find("anna", ask.sha256)) is not None
    skew.move(120)
    assert await ledger.read(lambda tx: tx.uploads.find("anna", ask.sha256)) is None
    assert await ledger.read(lambda tx: tx.uploads.used_bytes("anna")) == ROOM_BYTES_MIN


async def test_room_is_each_tenants_own_and_comes_back(ledger: Ledger, skew: Skew) -> None:
    room = 10**6
    one = await ledger.transact(lambda tx: stored(tx, a_file(600_000, "11" * 32)))
    assert await ledger.transact(_reserving(a_file(400_001), room)) == StorageFull(600_000, one.expires_at)
    assert isinstance(await ledger.transact(_reserving(a_file(400_000), room)), Upload)
    assert isinstance(await ledger.transact(_reserving(a_file(room, tenant_id="bert"), room)), Upload)
    assert await ledger.transact(_reserving(a_file(room + 1, tenant_id="carl"), room)) == StorageFull(0, None)
    skew.move(PENDING_SECONDS)
    assert await ledger.read(lambda tx: tx.uploads.used_bytes("anna")) == 600_000, "what is over counts no more"
    skew.move(RETENTION)
    assert await ledger.read(lambda tx: tx.uploads.used_bytes("anna")) == 0


async def test_of_many_who_want_the_last_room_no_more_than_fit_get_it(ledger: Ledger) -> None:
    asks = [a_file(100, f"{n:064x}") for n in range(16)]
    rows = await asyncio.gather(*(ledger.transact(_reserving(ask, 5 * ROOM_BYTES_MIN + 1)) for ask in asks))
    assert sum(isinstance(row, Upload) for row in rows) == 5
    assert await ledger.read(lambda tx: tx.uploads.used_bytes("anna")) == 5 * ROOM_BYTES_MIN


async def test_the_smallest_file_takes_64_kib_of_the_room(ledger: Ledger) -> None:
    """So that a tenant has no more rows to be counted than its room has 64 KiB"""
    room = 2 * ROOM_BYTES_MIN
    for size_bytes, used in ((1, ROOM_BYTES_MIN), (ROOM_BYTES_MIN, room)):
        kept = await ledger.transact(_reserving(a_file(size_bytes), room))
        assert isinstance(kept, Upload)
        assert kept.size_bytes == size_bytes
        assert await ledger.read(lambda tx: tx.uploads.used_bytes("anna")) == used
    assert isinstance(await ledger.transact(_reserving(a_file(1), room)), StorageFull)
    larger = ROOM_BYTES_MIN + 1
    assert isinstance(await ledger.transact(_reserving(a_file(larger, tenant_id="bert"), larger)), Upload)
    assert await ledger.read(lambda tx: tx.uploads.used_bytes("bert")) == larger


async def test_of_the_same_bytes_at_once_one_upload_stays(ledger: Ledger) -> None:
    asks = [a_file() for _ in range(6)]
    for ask in asks:
        await ledger.transact(_reserving(ask))
    rows = await asyncio.gather(*(ledger.transact(_confirming(ask)) for ask in asks))
    assert len({row.upload_id for row in rows if row is not None}) == 1
    assert None not in rows
    assert await ledger.read(lambda tx: tx.uploads.used_bytes("anna")) == ROOM_BYTES_MIN
    assert len(await expired(ledger)) == 5


async def test_what_is_abandoned_takes_no_room_and_is_found_when_it_is_over(ledger: Ledger, skew: Skew) -> None:
    ask, kept = a_file(), a_file(sha256="cd" * 32)
    await ledger.transact(lambda tx: (reserved(tx, ask), stored(tx, kept)))
    for upload_id in (ask.upload_id, kept.upload_id, ask.upload_id):
        await ledger.transact(partial(_abandon, upload_id))
    assert await ledger.read(lambda tx: tx.uploads.used_bytes("anna")) == ROOM_BYTES_MIN, (
        "a stored file is not given up"
    )
    assert await expired(ledger) == [], "its bytes may still turn up"
    skew.move(PENDING_SECONDS + 1)
    assert await expired(ledger) == [ask.upload_id]


async def test_what_is_abandoned_is_not_confirmed(ledger: Ledger, skew: Skew) -> None:
    ask = a_file()
    await ledger.transact(_reserving(ask))
    await ledger.transact(partial(_abandon, ask.upload_id))
    assert await ledger.transact(_confirming(ask)) is None
    assert await ledger.read(lambda tx: tx.uploads.find("anna", ask.sha256)) is None
    assert await ledger.read(lambda tx: tx.uploads.used_bytes("anna")) == 0
    skew.move(PENDING_SECONDS + 1)
    assert await expired(ledger) == [ask.upload_id]


async def test_a_confirm_that_found_the_same_bytes_finds_them_again(ledger: Ledger) -> None:
    late, first = a_file(), a_file()
    await ledger.transact(lambda tx: (reserved(tx, late), stored(tx, first)))
    for _ in range(2):
        found = await ledger.transact(_confirming(late))
        assert found is not None
        assert found.upload_id == first.upload_id


async def test_what_is_over_stays_over(ledger: Ledger, skew: Skew) -> None:
    late, lost = a_file(), a_file(sha256="cd" * 32)
    await ledger.transact(lambda tx: (reserved(tx, late), stored(tx, lost)))
    assert not await ledger.transact(lambda tx: tx.uploads.remove(late.upload_id)), "not yet"
    skew.move(PENDING_SECONDS + 1)
    assert await ledger.transact(lambda tx: tx.uploads.confirm(late.upload_id, "anna")) is None
    await ledger.transact(lambda tx: tx.uploads.lose(lost.upload_id))
    skew.move(1)
    assert await ledger.read(lambda tx: tx.uploads.find("anna", lost.sha256)) is None
    assert set(await expired(ledger)) == {late.upload_id, lost.upload_id}
    assert await ledger.transact(lambda tx: tx.uploads.remove(late.upload_id))
    assert not await ledger.transact(lambda tx: tx.uploads.remove(late.upload_id))
    assert await ledger.transact(lambda tx: tx.uploads.confirm(late.upload_id, "anna")) is None


async def test_the_oldest_comes_first_and_no_more_than_were_asked_for(ledger: Ledger, skew: Skew) -> None:
    ids = []
    for n in range(3):
        ask = a_file(sha256=f"{n:064x}")
        await ledger.transact(_reserving(ask))
        ids.append(ask.upload_id)
        skew.move(1)
    skew.move(PENDING_SECONDS)
    assert [row.upload_id for row in await ledger.read(lambda tx: tx.uploads.expired(2))] == ids[:2]


async def test_what_could_not_be_removed_lets_all_others_go_first(ledger: Ledger, skew: Skew) -> None:
    asks = [a_file(sha256=f"{n:064x}") for n in range(3)]
    for ask in asks[:2]:
        await ledger.transact(_reserving(ask))
        skew.move(1)
    skew.move(PENDING_SECONDS)
    kept = await ledger.transact(lambda tx: stored(tx, asks[2]))
    for ask in (asks[0], asks[2]):
        await ledger.transact(partial(_defer, ask.upload_id))
    assert await expired(ledger) == [asks[1].upload_id, asks[0].upload_id]
    assert await ledger.read(lambda tx: tx.uploads.find("anna", kept.sha256)) == kept, "it is not over"
    assert await ledger.transact(lambda tx: tx.uploads.remove(asks[0].upload_id))


async def test_a_tenants_files_are_counted_by_an_index_alone(tmp_path: Path, skew: Skew) -> None:
    """The very question that is asked"""
    async with sqlite_ledger(tmp_path, skew) as ledger:
        await ledger.transact(lambda tx: stored(tx, a_file()))
    engine = connect.engine_for_reading(connect.address(f"sqlite:///{tmp_path / 'ledger.db'}"))
    asked: list[tuple[str, Any]] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(_c: object, _k: object, statement: str, values: Any, _x: object, _m: object) -> None:
        asked.append((statement, values))

    with engine.connect() as connection:
        assert SqlUploads(Sql(connection, SPANS, lambda: skew.us, set())).used_bytes("anna") == ROOM_BYTES_MIN
        ((statement, values),) = [each for each in asked if "uploads" in each[0]]
        (plan,) = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
    engine.dispose()
    assert "USING COVERING INDEX idx_uploads_tenant (tenant_id=? AND expires_at>?)" in plan[3]


def test_a_ledger_of_the_version_before_gets_the_table_and_keeps_its_rows(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    migrate.upgrade(url)
    assert migrate.downgrade(url, "0001").after == "0001"
    engine = connect.engine_for_writing(connect.address(url))
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO tenants (tenant_id, display_name) VALUES ('anna', 'Anna')"))
    migrate.upgrade(url)
    with engine.begin() as connection:
        assert connection.execute(text("SELECT tenant_id FROM tenants")).scalars().all() == ["anna"]
        assert connection.execute(text("SELECT count(*) FROM uploads")).scalar() == 0
    engine.dispose()
