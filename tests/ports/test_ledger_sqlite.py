"""The ledger in SQLite, and what is its own there: a file, a clock that can stand still, and plans to look at."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from contracts.ledger import LedgerContract
from contracts.ledger_places import LEASE, Raw
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Actor, Basis
from pyoco_server.errors import DependencyUnavailable, SettingError
from pyoco_server.ports.ledger import dialect, run_rows
from pyoco_server.ports.ledger.port import LOST, Ledger, LedgerTx, Scan
from pyoco_server.ports.ledger.quick import Quick
from pyoco_server.ports.ledger.sql import SqlLedger
from support.priced.ledgers import FAILS, SPANS, Skew, a_reserved_run, open_ledger, sqlite_url


@pytest.fixture
def skew() -> Skew:
    return Skew()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return sqlite_url(tmp_path)


@pytest.fixture
def raw(url: str) -> Raw:
    def ask(statement: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
            return connection.execute(statement).fetchall()

    return ask


class TestSqliteLedger(LedgerContract):
    @pytest.fixture
    async def ledger(self, url: str, skew: Skew) -> AsyncIterator[Ledger]:
        async with open_ledger(url, skew) as ledger:
            yield ledger

    @pytest.fixture
    async def others(self, url: str, skew: Skew) -> AsyncIterator[list[Ledger]]:
        async with open_ledger(url, skew) as second, open_ledger(url, skew) as third:
            yield [second, third]


@pytest.fixture
async def ledger(url: str, skew: Skew) -> AsyncIterator[SqlLedger]:
    async with open_ledger(url, skew) as ledger:
        yield ledger


def connection_of(tx: LedgerTx) -> Connection:
    quick = tx.tenants._sql.connection  # type: ignore[attr-defined]
    assert isinstance(quick, Quick)
    return quick.connection


# --- the file ---------------------------------------------------------------------------------------------------------


async def test_the_file_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "a folder" / "deep" / "ledger.db"
    async with open_ledger(f"sqlite:///{path}", make_missing=True) as ledger:
        await ledger.transact(a_reserved_run)
        files = sorted(each.name for each in path.parent.iterdir())
        assert files == ["ledger.db", "ledger.db-shm", "ledger.db-wal"]
        assert all(stat.S_IMODE(each.stat().st_mode) == 0o600 for each in path.parent.iterdir())
        with contextlib.closing(sqlite3.connect(path)) as other:  # another process may read
            assert other.execute("SELECT status FROM runs").fetchall() == [("QUEUED",)]
            assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://a:secret@b/c", "nonsense:secret"])
def test_an_address_that_is_none_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(SettingError) as caught:
        SqlLedger(url, SPANS)
    assert "secret" not in str(caught.value)


async def test_a_folder_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ledger = SqlLedger(f"sqlite:///{tmp_path / 'file' / 'ledger.db'}", SPANS, make_missing=True)
    with pytest.raises(DependencyUnavailable):
        await ledger.start()


async def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_text("nothing of the sort" * 100)
    ledger = SqlLedger(f"sqlite:///{tmp_path / 'ledger.db'}", SPANS, make_missing=True)
    with pytest.raises(DependencyUnavailable):
        await ledger.start()


_WRITER = """
import asyncio, sys
from support.priced.ledgers import a_reserved_run, open_ledger

async def main():
    async with open_ledger(sys.argv[1]) as ledger:
        while True:
            run = await ledger.transact(a_reserved_run)
            print(run.run_id, flush=True)

asyncio.run(main())
"""


def test_what_was_answered_survives_kill_9(url: str, raw: Raw) -> None:
    """PRICED-181"""
    paths = {"PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen([sys.executable, "-c", _WRITER, url], stdout=subprocess.PIPE, text=True, env=paths) as writer:
        assert writer.stdout is not None
        answered = [writer.stdout.readline().strip() for _ in range(20)]
        writer.send_signal(signal.SIGKILL)
        answered += [line.strip() for line in writer.stdout if line.endswith("\n")]
    stored = {run_id for (run_id,) in raw("SELECT run_id FROM runs")}
    assert set(answered) <= stored
    assert raw("SELECT count(*) FROM runs WHERE version = 1") == [(len(stored),)]  # each of them whole


# --- by the clock, to the microsecond ---------------------------------------------------------------------------------


async def test_the_guards_are_as_strict_as_written(
    ledger: SqlLedger, skew: Skew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PRICED-27: on PostgreSQL the same conditions are used, and its clock does not stand still."""
    monkeypatch.setattr(dialect, "process_us", lambda: 1_800_000_000_000_000)
    run = await ledger.transact(a_reserved_run)
    skew.move(3_600)
    assert await ledger.transact(lambda tx: tx.leases.start(run.run_id, 1, LEASE)) is LOST
    skew.move(us=-1)
    started = await ledger.transact(lambda tx: tx.leases.start(run.run_id, 1, LEASE))
    assert isinstance(started, PricedRun)
    skew.move(120)
    claim = lambda tx: tx.ends.claim(run.run_id, 2, Basis.LEASE_EXPIRED, "c", Actor.REAPER, FAILS)  # noqa: E731
    assert await ledger.transact(claim) is LOST
    assert await ledger.read(lambda tx: tx.runs.scan(Scan.EXPIRED_LEASES, 1)) == []
    skew.move(us=1)
    assert not await ledger.transact(lambda tx: tx.leases.heartbeat(run.run_id, 2, LEASE))
    skew.move(us=-1)
    assert await ledger.transact(lambda tx: tx.leases.heartbeat(run.run_id, 2, LEASE))
    skew.move(120, us=1)
    assert len(await ledger.read(lambda tx: tx.runs.scan(Scan.EXPIRED_LEASES, 1))) == 1
    assert isinstance(await ledger.transact(claim), PricedRun)
    skew.move(300)
    assert await ledger.transact(lambda tx: tx.ends.take_over(run.run_id, 3, "d", Actor.RECONCILE)) is LOST
    skew.move(us=1)
    assert isinstance(
        await ledger.transact(lambda tx: tx.ends.take_over(run.run_id, 3, "d", Actor.RECONCILE)), PricedRun
    )


# --- by an index ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", Scan)
async def test_no_scan_looks_at_the_whole_table(ledger: SqlLedger, kind: Scan) -> None:
    """PRICED-186"""

    def plan(tx: LedgerTx) -> list[str]:
        return explained(tx, run_rows._scan(kind, False))

    steps = await ledger.read(plan)
    assert len(steps) == 1, steps  # no sorting
    assert steps[0].startswith(f"SEARCH runs USING INDEX {INDEXES[kind]} ("), steps


INDEXES = {
    Scan.EXPIRED_LEASES: "idx_runs_status_lease",
    Scan.LONG_EXPIRED_LEASES: "idx_runs_status_lease",
    Scan.AGED: "idx_runs_status_created",
    Scan.ABANDONED: "idx_runs_unsent",
    Scan.UNSENT: "idx_runs_unsent",
    Scan.STALE_CLAIMS: "idx_runs_finalize",
    Scan.PAST_RETENTION: "idx_runs_retention",
    Scan.DISPUTED: "idx_runs_finalize",
}


def explained(tx: LedgerTx, statement: Any) -> list[str]:
    compiled = statement.compile(dialect=connection_of(tx).dialect)
    values = dict.fromkeys(compiled.params, 0)
    rows = connection_of(tx).exec_driver_sql(
        f"EXPLAIN QUERY PLAN {compiled}", tuple(values[name] for name in compiled.positiontup)
    )
    return [row[3] for row in rows]


@pytest.mark.parametrize("name", ["_GET", "_GET_OWNED", "_BY_KEY", "_INPUTS", "_CHANGED", "_UNSETTLED"])
async def test_no_question_looks_at_the_whole_table(ledger: SqlLedger, name: str) -> None:
    steps = await ledger.read(lambda tx: explained(tx, getattr(run_rows, name)))
    assert all(step.startswith("SEARCH") or "ORDER BY" in step for step in steps), steps
    if name == "_UNSETTLED":
        assert "idx_runs_status" in steps[0], steps
