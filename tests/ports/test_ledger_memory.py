"""Ledgers in memory: the contract without threads, migrations, and transactions that a simulation cuts."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from contracts.ledger import LedgerContract
from contracts.ledger_places import LEASE, Raw
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.errors import DependencyUnavailable, SettingError
from pyoco_server.ports.ledger import migrate
from pyoco_server.ports.ledger.connect import address
from pyoco_server.ports.ledger.memory import DATABASES, MemoryDatabase, forget_database
from pyoco_server.ports.ledger.port import Ledger, LedgerTx
from pyoco_server.ports.ledger.sql import SqlLedger
from support.priced.ledgers import Skew, a_new_run, a_reserved_run, memory_url, open_ledger


@pytest.fixture
def skew() -> Skew:
    return Skew()


@pytest.fixture
def url() -> Iterator[str]:
    with memory_url() as url:
        yield url


@pytest.fixture
def database(url: str) -> MemoryDatabase:
    return DATABASES.of(url.removeprefix("memory://"))


@pytest.fixture
def raw(database: MemoryDatabase) -> Raw:
    def ask(statement: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(database.connect()) as connection, connection:
            return connection.execute(statement).fetchall()

    return ask


@pytest.fixture
async def ledger(url: str, skew: Skew) -> AsyncIterator[SqlLedger]:
    async with open_ledger(url, skew) as ledger:
        yield ledger


class TestMemoryLedger(LedgerContract):
    @pytest.fixture
    async def others(self, url: str, skew: Skew) -> AsyncIterator[list[Ledger]]:
        async with open_ledger(url, skew) as second, open_ledger(url, skew) as third:
            yield [second, third]

    async def test_a_read_sees_one_moment_and_waits_for_no_writer(self, ledger: Ledger) -> None:
        """PRICED-183: the contract pauses a read in its own thread. Here there is none, and a read is executed as a
        whole: a write that is requested at the same time is visible to all of the read or to nothing of it."""
        run = await ledger.transact(a_reserved_run)

        def look_twice(tx: LedgerTx) -> tuple[PricedRun | None, PricedRun | None]:
            return tx.runs.get(run.run_id), tx.runs.get(run.run_id)

        def start(tx: LedgerTx) -> object:
            return tx.leases.start(run.run_id, run.version, LEASE)

        first, started, second = await asyncio.gather(
            ledger.read(look_twice), ledger.transact(start), ledger.read(look_twice)
        )
        assert isinstance(started, PricedRun)
        for before, after in (first, second):
            assert before == after
            assert before in (run, started)
        assert await ledger.read(look_twice) == (started, started)


# --- the database -----------------------------------------------------------------------------------------------------


async def test_an_empty_database_is_migrated_as_a_file_is() -> None:
    url = "memory://a-new-ledger"
    try:
        assert migrate.is_empty(url)
        assert migrate.status(url).version is None
        async with open_ledger(url, make_missing=True) as ledger:
            await ledger.transact(a_reserved_run)
        assert migrate.status(url).is_current
        assert not migrate.is_empty(url)
        async with open_ledger(url) as again:  # what was written outlives its ledger, within the process
            assert await again.read(lambda tx: len(tx.runs.unsettled("anna"))) == 1
    finally:
        forget_database("a-new-ledger")
    assert migrate.is_empty(url)
    forget_database("a-new-ledger")


async def test_a_forgotten_database_is_empty_even_while_it_is_open(ledger: SqlLedger, url: str) -> None:
    await ledger.transact(a_reserved_run)
    forget_database(url.removeprefix("memory://"))
    assert migrate.status(url).version is None
    assert await ledger.read(lambda tx: len(tx.runs.unsettled("anna"))) == 1


async def test_names_are_separate_databases(ledger: SqlLedger) -> None:
    await ledger.transact(a_reserved_run)
    with memory_url() as other_url:
        async with open_ledger(other_url) as other:
            assert await other.read(lambda tx: tx.runs.unsettled("anna")) == []


@pytest.mark.parametrize("url", ["memory://", "memory:name", "sqlite://name", "sqlite://name/path"])
def test_an_address_without_a_name_or_path_is_refused(url: str) -> None:
    with pytest.raises(SettingError, match="PYOCO_LEDGER_URL"):
        address(url)


# --- no threads -------------------------------------------------------------------------------------------------------


async def test_transactions_run_in_the_thread_of_the_event_loop(ledger: SqlLedger) -> None:
    threads = [await ask(lambda _: threading.current_thread()) for ask in (ledger.transact, ledger.read)]
    assert threads == [threading.main_thread()] * 2
    assert not [each for each in threading.enumerate() if each.name.startswith("ledger-")]


async def test_a_closed_ledger_is_unavailable(ledger: SqlLedger) -> None:
    await ledger.close()
    await ledger.close()
    with pytest.raises(DependencyUnavailable):
        await ledger.transact(a_reserved_run)


async def test_a_cancelled_transaction_has_happened_or_not(ledger: SqlLedger) -> None:
    for turns in range(5):
        task = asyncio.create_task(ledger.transact(lambda tx, n=turns: tx.notes.put(f"n{n}", "x")))  # type: ignore[misc]
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    notes = await ledger.read(lambda tx: [tx.notes.get(f"n{turns}") for turns in range(5)])
    assert notes[0] is None
    assert notes[-1] == "x"
    assert notes == sorted(notes, key=lambda note: note or "")


# --- cuts -------------------------------------------------------------------------------------------------------------


class Dead(BaseException):
    """The simulated process has ended."""


TABLES = ("tenants", "budgets", "runs", "run_inputs", "ledger_txns", "ledger_entries")


def submit(tx: LedgerTx) -> None:
    """Statements of both kinds: those that `Quick` keeps, and those that SQLAlchemy compiles each time."""
    tx.money.credit("anna", 1_000_000, "first")
    made = tx.runs.create(a_new_run())
    assert isinstance(made, PricedRun)
    tx.money.reserve("anna", made.run_id, made.reserved_usd_micros)
    assert isinstance(tx.runs.mark_reserved(made.run_id, made.version), PricedRun)
    tx.runs.unsettled("anna")


def contents(raw: Raw) -> dict[str, list[tuple[Any, ...]]]:
    return {table: raw(f"SELECT * FROM {table}") for table in TABLES}


async def cut_points(ledger: SqlLedger, database: MemoryDatabase) -> list[str]:
    """The statements that the hook got, in one transaction that is undone at the end."""
    seen: list[str] = []

    def note(statement: str) -> None:
        seen.append(statement)
        if statement == "COMMIT":
            raise Dead

    database.between_statements = note
    with pytest.raises(Dead):
        await ledger.transact(submit)
    database.between_statements = None
    return seen


async def test_the_hook_sees_every_statement_after_the_first_and_the_commit(
    ledger: SqlLedger, database: MemoryDatabase
) -> None:
    """Compared with what SQLite itself says it executed."""
    executed: list[str] = []

    def trace(tx: LedgerTx) -> None:
        driver = tx.tenants._sql.connection._driver  # type: ignore[attr-defined]
        driver.set_trace_callback(executed.append)
        submit(tx)

    seen: list[str] = []
    database.between_statements = seen.append
    await ledger.transact(trace)
    assert seen[-1] == "COMMIT"
    assert [each.split()[:3] for each in executed[1:]] == [each.split()[:3] for each in seen]
    assert len(seen) > 8


async def test_a_transaction_that_is_cut_anywhere_leaves_nothing(
    ledger: SqlLedger, database: MemoryDatabase, url: str, raw: Raw
) -> None:
    before = contents(raw)
    points = len(await cut_points(ledger, database))
    for point in range(points):
        left = iter(range(point, -1, -1))

        def cut(_: str) -> None:
            if next(left) == 0:  # noqa: B023  (called before the next turn)
                raise Dead

        database.between_statements = cut
        with pytest.raises(Dead):
            await ledger.transact(submit)
        assert contents(raw) == before, point
    database.between_statements = None
    async with open_ledger(url) as survivor:
        await survivor.transact(submit)
        assert await survivor.read(lambda tx: tx.money.balance("anna")) == 750_000
    assert isinstance(await ledger.transact(a_reserved_run), PricedRun)  # the connection is replaced


async def test_a_transaction_that_is_cut_after_its_commit_has_happened(
    ledger: SqlLedger, database: MemoryDatabase, raw: Raw
) -> None:
    def cut() -> None:
        raise Dead

    database.after_commit = cut
    with pytest.raises(Dead):
        await ledger.transact(submit)
    assert raw("SELECT balance_usd_micros FROM budgets") == [(750_000,)]
    assert await ledger.read(lambda tx: len(tx.runs.unsettled("anna"))) == 1  # reads have no hook
    database.after_commit = None
    assert isinstance(await ledger.transact(a_reserved_run), PricedRun)


async def test_an_outage_between_statements_undoes_the_transaction(
    ledger: SqlLedger, database: MemoryDatabase, raw: Raw
) -> None:
    def fail(_: str) -> None:
        raise DependencyUnavailable("for this test")

    database.between_statements = fail
    with pytest.raises(DependencyUnavailable):
        await ledger.transact(submit)
    database.between_statements = None
    assert raw("SELECT * FROM runs") == []
    await ledger.transact(submit)


async def test_a_network_that_takes_too_long_is_an_outage(
    ledger: SqlLedger, database: MemoryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_: str) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("pyoco_server.ports.ledger.sql._WRITE_SECONDS", 0)
    plain, database.network.on_reply = database.network.on_reply, never
    database.network.on_request = never
    with pytest.raises(DependencyUnavailable):
        await ledger.transact(submit)
    database.network.on_request = database.network.on_reply = plain
    assert await ledger.read(lambda tx: tx.runs.unsettled("anna")) == []


async def test_a_database_may_have_a_clock_of_its_own(ledger: SqlLedger, database: MemoryDatabase) -> None:
    before_us = await ledger.read(lambda tx: tx.now_us())
    database.skew_us = lambda: 3_600_000_000
    assert await ledger.read(lambda tx: tx.now_us()) >= before_us + 3_600_000_000
