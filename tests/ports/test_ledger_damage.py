"""Rows that our code has not written, and texts that no database accepts."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from contracts.ledger_places import Raw
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Actor, Basis
from pyoco_server.errors import Corrupt
from pyoco_server.ports.ledger import run_rows
from pyoco_server.ports.ledger.faults import LedgerRefused
from pyoco_server.ports.ledger.port import LedgerTx, Scan
from pyoco_server.ports.ledger.sql import SqlLedger
from support.backends import fields_of
from support.priced.ledgers import FAILS, Skew, a_new_run, a_reserved_run, migrated, open_ledger, sqlite_url
from support.priced.servers import PostgresServer


@pytest.fixture
def skew() -> Skew:
    return Skew()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield sqlite_url(tmp_path)
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.new_database(migrated)
    yield url
    server.drop_database(url)


@pytest.fixture
async def ledger(url: str, skew: Skew) -> AsyncIterator[SqlLedger]:
    async with open_ledger(url, skew) as ledger:
        yield ledger


@pytest.fixture
def raw(url: str) -> Raw:
    def ask(statement: str) -> list[tuple[Any, ...]]:
        if url.startswith("sqlite"):
            with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file, file:
                return file.execute(statement).fetchall()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement.encode())
            return []

    return ask


def claimed(tx: LedgerTx) -> PricedRun:
    run = a_reserved_run(tx)
    got = tx.ends.claim(run.run_id, run.version, Basis.SEND_FAILED, "claim-1", Actor.API, FAILS)
    assert isinstance(got, PricedRun)
    return got


@pytest.mark.parametrize("found", ["{}", "[]", '{"status": "FAILED"}', '"text"'])
async def test_a_row_that_cannot_be_read_is_left_out_of_a_scan_and_told(
    ledger: SqlLedger, raw: Raw, skew: Skew, found: str, caplog: pytest.LogCaptureFixture
) -> None:
    """PRICED-159: the others get what is due to them."""
    first, second, third = [await ledger.transact(claimed) for _ in range(3)]
    raw(f"UPDATE runs SET finalize_intent = '{found}' WHERE run_id = '{first.run_id}'")
    skew.move(1_000)
    with caplog.at_level(logging.ERROR):
        rows = await ledger.read(lambda tx: tx.runs.scan(Scan.STALE_CLAIMS, 100))
        assert [row.run_id for row in rows] == [second.run_id, third.run_id]
        assert await ledger.read(lambda tx: tx.runs.changed_since(0, "", 100)) == rows
    assert {fields_of(record).get("alarm") for record in caplog.records} == {"unreadable_row"}
    with pytest.raises(Corrupt, match=first.run_id):
        await ledger.read(lambda tx: tx.runs.get(first.run_id))
    with pytest.raises(Corrupt):  # who counts money is not told less than there is
        await ledger.read(lambda tx: tx.runs.unsettled("anna"))


@pytest.mark.parametrize("damaged", [3, 70])
async def test_rows_that_cannot_be_read_do_not_fill_a_batch(
    ledger: SqlLedger, raw: Raw, skew: Skew, damaged: int
) -> None:
    """However old they are; unless it is dozens of batches of them."""
    for _ in range(damaged):
        await ledger.transact_softly(claimed)
    raw("UPDATE runs SET finalize_intent = '{}'")
    good = [await ledger.transact(claimed) for _ in range(3)]
    skew.move(1_000)
    rows = await ledger.read(lambda tx: tx.runs.scan(Scan.STALE_CLAIMS, 2))
    expected = [run.run_id for run in good[:2]] if damaged < 2 * run_rows._DAMAGED_FACTOR else []
    assert [row.run_id for row in rows] == expected


async def test_text_that_is_no_json_is_damage_and_no_end_of_the_scan(
    tmp_path: Path, skew: Skew, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite would keep anything there."""
    url = sqlite_url(tmp_path)
    async with open_ledger(url, skew) as ledger:
        first, second, third = [await ledger.transact(claimed) for _ in range(3)]
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
            connection.execute("UPDATE runs SET finalize_intent = '{' WHERE run_id = ?", [first.run_id])
            connection.execute("UPDATE runs SET artifacts_json = 'x' WHERE run_id = ?", [second.run_id])
            connection.execute("UPDATE run_inputs SET inputs_json = '[' WHERE run_id = ?", [third.run_id])
        skew.move(1_000)
        with caplog.at_level(logging.ERROR):
            rows = await ledger.read(lambda tx: tx.runs.scan(Scan.STALE_CLAIMS, 100))
        assert [row.run_id for row in rows] == [third.run_id]
        assert len(caplog.records) == 2
        with pytest.raises(Corrupt, match="inputs"):
            await ledger.read(lambda tx: tx.runs.inputs(third.run_id))


async def test_a_text_that_the_database_does_not_take_is_refused_and_not_told(ledger: SqlLedger, url: str) -> None:
    """PRICED-171: a defect of the calling code, and no outage."""
    for text in ("half \ud800",) if url.startswith("sqlite") else ("half \ud800", "NUL \x00"):
        ask = a_new_run(trace_id=f"MARKER {text}")
        with pytest.raises(LedgerRefused) as caught:
            await ledger.transact(lambda tx, ask=ask: tx.runs.create(ask))  # type: ignore[misc]
        assert "MARKER" not in f"{caught.value!r}{caught.value.__cause__!r}"
    assert await ledger.read(lambda tx: tx.runs.changed_since(0, "", 10)) == []
