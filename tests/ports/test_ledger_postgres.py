"""The ledger in PostgreSQL, and what is its own there."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, make_url, text

from contracts.ledger import LedgerContract
from contracts.ledger_places import LEASE, Raw
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.errors import DependencyUnavailable, KeyBusy
from pyoco_server.ports.ledger import connect, engine, migrate, run_rows, sql
from pyoco_server.ports.ledger.engine import TransactionThreads
from pyoco_server.ports.ledger.port import Exists, Ledger, LedgerTx, Scan
from pyoco_server.ports.ledger.schema import runs
from pyoco_server.ports.ledger.sql import SqlLedger
from support.priced.ledgers import SPANS, Skew, a_new_run, a_reserved_run, migrated, open_ledger
from support.priced.postgres import another, by_way_of
from support.priced.servers import PostgresServer
from support.relays import Relay, relayed
from support.servers import unique
from support.waiting import eventually


@pytest.fixture
def skew() -> Skew:
    return Skew()


@pytest.fixture
def url(postgres_server: PostgresServer) -> Iterator[str]:
    url = postgres_server.new_database(migrated)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def raw(url: str) -> Raw:
    def ask(statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    return ask


@pytest.fixture
async def ledger(url: str, skew: Skew) -> AsyncIterator[SqlLedger]:
    async with open_ledger(url, skew) as ledger:
        yield ledger


@pytest.fixture
async def others(url: str, skew: Skew) -> AsyncIterator[list[Ledger]]:
    async with open_ledger(url, skew) as second, open_ledger(url, skew) as third:
        yield [second, third]


class TestPostgresLedger(LedgerContract):
    pass


class TestWhatPostgresItselfDoes:
    """The part of the contract that its locks, its types, its rules and its transactions have to keep."""

    test_a_new_run_is_stored_as_it_was_asked_for = LedgerContract.test_a_new_run_is_stored_as_it_was_asked_for
    test_of_many_who_create_under_one_key_one_does = LedgerContract.test_of_many_who_create_under_one_key_one_does
    test_of_many_with_the_same_guard_one_wins = LedgerContract.test_of_many_with_the_same_guard_one_wins
    test_a_step_is_taken_from_its_places_and_from_no_other = (
        LedgerContract.test_a_step_is_taken_from_its_places_and_from_no_other
    )
    test_its_id_is_given_when_it_is_created_and_never_changes = (
        LedgerContract.test_its_id_is_given_when_it_is_created_and_never_changes
    )
    test_a_transaction_is_done_whole_or_not = LedgerContract.test_a_transaction_is_done_whole_or_not
    test_a_read_sees_one_moment_and_waits_for_no_writer = (
        LedgerContract.test_a_read_sees_one_moment_and_waits_for_no_writer
    )
    test_a_read_cannot_write = LedgerContract.test_a_read_cannot_write
    test_numbers_of_64_bits_come_back_as_they_were = LedgerContract.test_numbers_of_64_bits_come_back_as_they_were
    test_the_journal_cannot_be_changed = LedgerContract.test_the_journal_cannot_be_changed
    test_a_row_that_must_not_be_cannot_be = LedgerContract.test_a_row_that_must_not_be_cannot_be
    test_a_scan_finds_what_qualifies_the_oldest_first = LedgerContract.test_a_scan_finds_what_qualifies_the_oldest_first
    test_changes_are_read_in_their_order_and_none_twice = (
        LedgerContract.test_changes_are_read_in_their_order_and_none_twice
    )
    test_the_clock_is_the_ledgers = LedgerContract.test_the_clock_is_the_ledgers


def said(tx: LedgerTx, word: str) -> Any:
    return tx.tenants._sql.connection.exec_driver_sql(word).scalar()  # type: ignore[attr-defined]


def _new_row(run: PricedRun, key: str) -> str:
    """The same row once more, under another id and key."""
    columns = [column.name for column in runs.c if column.name not in ("run_id", "idempotency_key")]
    listed = ", ".join(columns)
    return (
        f"INSERT INTO runs (run_id, idempotency_key, {listed}) "
        f"SELECT gen_random_uuid(), '{key}', {listed} FROM runs WHERE run_id = '{run.run_id}'"
    )


async def test_a_key_that_another_writes_for_too_long_is_busy(
    url: str, skew: Skew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PRICED-182"""
    monkeypatch.setitem(connect._POSTGRES, "lock_timeout", "100ms")
    async with open_ledger(url, skew) as ledger:
        run = await ledger.transact(a_reserved_run)
        with another(url) as other:
            other.execute(_new_row(run, "the-same-key").encode())
            with pytest.raises(KeyBusy):
                await ledger.transact(lambda tx: tx.runs.create(a_new_run(idempotency_key="the-same-key")))
            other.commit()
        found = await ledger.transact(lambda tx: tx.runs.create(a_new_run(idempotency_key="the-same-key")))
        assert isinstance(found, Exists)


async def test_who_waits_for_a_key_gets_it_when_the_other_gives_up(ledger: SqlLedger, url: str, raw: Raw) -> None:
    """PRICED-182"""
    run = await ledger.transact(a_reserved_run)
    with another(url) as other:
        other.execute(_new_row(run, "the-same-key").encode())
        asked = asyncio.create_task(
            ledger.transact(lambda tx: tx.runs.create(a_new_run(idempotency_key="the-same-key")))
        )
        await eventually(lambda: raw("SELECT count(*) FROM pg_locks WHERE NOT granted") == [(1,)])
        other.rollback()
        assert isinstance(await asked, PricedRun)


async def test_any_other_lock_that_is_held_for_too_long_is_an_outage(
    url: str, skew: Skew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connect._POSTGRES, "lock_timeout", "100ms")
    async with open_ledger(url, skew) as ledger:
        run = await ledger.transact(a_reserved_run)
        with another(url) as other:
            other.execute("SELECT 1 FROM runs FOR UPDATE")
            with pytest.raises(DependencyUnavailable, match="55P03"):
                await ledger.transact(lambda tx: tx.leases.start(run.run_id, run.version, LEASE))
            assert await ledger.read(lambda tx: tx.runs.get(run.run_id)) == run
        assert isinstance(await ledger.transact(lambda tx: tx.leases.start(run.run_id, 1, LEASE)), PricedRun)


async def test_of_two_that_wait_for_each_other_both_get_on(ledger: SqlLedger) -> None:
    """One of them is given up by the database, and done again from the beginning."""
    first, second = [await ledger.transact(a_reserved_run) for _ in range(2)]
    both = threading.Barrier(2, timeout=100)
    tries = []

    def crosswise(tx: LedgerTx, one: PricedRun, other: PricedRun) -> None:
        tries.append(one.run_id)
        tx.runs.mark_enqueued(one.run_id)
        if len(tries) <= 2:
            both.wait()
        tx.runs.mark_enqueued(other.run_id)

    await asyncio.gather(
        ledger.transact(lambda tx: crosswise(tx, first, second)),
        ledger.transact(lambda tx: crosswise(tx, second, first)),
    )
    assert len(tries) >= 3  # who is done again may be faster than the other, and be given up once more


async def test_connections_that_were_cut_are_replaced_and_nobody_notices(ledger: SqlLedger, raw: Raw) -> None:
    for _ in range(3):
        await asyncio.gather(*(ledger.transact(a_reserved_run) for _ in range(8)))
        await asyncio.gather(*(ledger.read(lambda tx: tx.now_us()) for _ in range(8)))
        raw(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    assert await ledger.transact(a_reserved_run)
    assert raw("SELECT count(*) FROM runs") == [(25,)]


async def test_an_outage_of_the_server_is_survived_and_nothing_answered_is_lost(
    own_postgres_server: PostgresServer, skew: Skew
) -> None:
    """PRICED-181"""
    async with open_ledger(own_postgres_server.new_database(migrated), skew, threads=2) as ledger:
        made = [await ledger.transact(a_reserved_run) for _ in range(5)]
        own_postgres_server.kill()
        for ask in (ledger.transact(a_reserved_run), ledger.read(lambda tx: tx.now_us()), ledger.ping()):
            with pytest.raises(DependencyUnavailable):
                await ask
        own_postgres_server.start()
        await ledger.ping()
        assert [await ledger.read(lambda tx, r=run: tx.runs.get(r.run_id)) for run in made] == made  # type: ignore[misc]


async def test_a_server_that_stands_still_is_unavailable(
    own_postgres_server: PostgresServer, skew: Skew, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_ledger(own_postgres_server.new_database(migrated), skew, threads=2) as ledger:
        await ledger.ping()
        await ledger.transact(a_reserved_run)
        monkeypatch.setattr(sql, "_WRITE_SECONDS", 0.2)
        monkeypatch.setattr(sql, "_PING_SECONDS", 0.2)
        with own_postgres_server.frozen():
            for ask in (ledger.transact(a_reserved_run), ledger.ping()):
                with pytest.raises(DependencyUnavailable, match="within"):
                    await ask
        monkeypatch.undo()
        await ledger.ping()


@pytest.fixture
def relay(url: str) -> Iterator[Relay]:
    where = make_url(url)
    with relayed(f"{where.host}:{where.port}") as relay:
        yield relay


async def test_connections_that_stand_still_are_given_up_and_the_next_ones_work(
    url: str, skew: Skew, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PRICED-181: a firewall that forgot them, or a server that moved away."""
    async with open_ledger(by_way_of(relay, url), skew, threads=4) as ledger:
        await _all_at_once(ledger, 4)
        assert relay.connections >= 6
        relay.stand_still()
        monkeypatch.setattr(sql, "_WRITE_SECONDS", 0.3)
        monkeypatch.setattr(sql, "_READ_SECONDS", 0.3)
        for ask in (ledger.transact(a_reserved_run), ledger.read(lambda tx: tx.now_us())):
            with pytest.raises(DependencyUnavailable, match="within"):
                await ask
        lanes = [lane for lane in (ledger._writing, ledger._reading) if isinstance(lane, TransactionThreads)]
        await asyncio.gather(*(_until_given_up(lane) for lane in lanes))
        monkeypatch.setattr(sql, "_WRITE_SECONDS", 60)
        monkeypatch.setattr(sql, "_READ_SECONDS", 60)
        await _all_at_once(ledger, 4)  # one that stood still was enough: nobody waits for the others of its time
        assert len(await ledger.read(lambda tx: tx.runs.changed_since(0, "", 100))) == 0


async def _until_given_up(lane: engine.TransactionThreads | None) -> None:
    """A transaction has its whole time from its beginning: one that began late loses its connection after its caller
    has gone, and one that had not begun by then leaves it as it is. So others ask, until one was given up."""
    assert lane is not None
    while not lane._distrusted_ns:
        with contextlib.suppress(DependencyUnavailable):
            await lane.ask(engine.TransactionJob(lambda connection: connection.execute(text("SELECT 1"))), 1)


async def _all_at_once(ledger: SqlLedger, threads: int) -> None:
    writing, reading = (threading.Barrier(count, timeout=100) for count in (threads, threads // 2))
    await asyncio.gather(
        *(ledger.transact(lambda tx: (tx.now_us(), writing.wait())) for _ in range(threads)),
        *(ledger.read(lambda tx: (tx.now_us(), reading.wait())) for _ in range(threads // 2)),
    )


async def test_a_connection_that_stands_still_is_given_up_though_nobody_waits(
    url: str, skew: Skew, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asked was cancelled long before."""
    async with open_ledger(by_way_of(relay, url), skew, threads=1) as ledger:
        await ledger.transact(a_reserved_run)
        relay.stand_still()
        monkeypatch.setattr(sql, "_WRITE_SECONDS", 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await ledger.transact(a_reserved_run)
        monkeypatch.setattr(sql, "_WRITE_SECONDS", 60)
        await ledger.transact(a_reserved_run)
    assert relay.connections == 3  # one is for the look at the tables


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_connection_that_stands_still_while_it_is_opened_is_given_up(
    url: str, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """What is said to the server first, before any transaction, has no time limit of its own. `is_late`: there was not
    even a connection when nobody waited any more."""
    monkeypatch.setitem(connect._POSTGRES, "timezone", "UTC'; SELECT pg_sleep(60); SET timezone = 'UTC")
    slow = connect.engine_for_writing(connect.address(url))
    lane = engine.TransactionThreads("ledger-write", slow, connect.durably, connect.softly)
    left = threading.Event()
    if is_late:
        event.listen(slow, "connect", lambda *_: left.wait(100), insert=True)
    with pytest.raises(DependencyUnavailable, match="within"):
        await lane.ask(engine.TransactionJob(lambda _: None), 1)
    await eventually(lambda: len(lane._running) == (1 if is_late else 0))
    left.set()
    await eventually(lambda: not lane._running)
    await lane.close()


async def test_a_long_line_is_no_fault_of_a_connection(
    url: str, skew: Skew, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has all its time from its beginning: what is done then is done, and the connection stays."""
    ahead_ns = 0
    clock = SimpleNamespace(monotonic_ns=lambda: time.monotonic_ns() + ahead_ns)
    monkeypatch.setattr(engine, "time", clock)
    monkeypatch.setattr(sql, "_WRITE_SECONDS", 60)
    async with open_ledger(by_way_of(relay, url), skew, threads=1) as ledger:
        first, begun, second = threading.Event(), threading.Event(), threading.Event()
        count = len(await ledger.read(lambda tx: tx.runs.changed_since(0, "", 100)))
        busy = asyncio.create_task(ledger.transact(lambda _: first.wait(100)))
        await eventually(lambda: relay.connections == 3)

        def wait_and_write(tx: LedgerTx) -> None:
            begun.set()
            second.wait(100)
            a_reserved_run(tx)

        late = asyncio.create_task(ledger.transact(wait_and_write))
        await eventually(
            lambda: isinstance(ledger._writing, engine.TransactionThreads) and len(ledger._writing._waiting) == 1
        )
        ahead_ns = 61 * 10**9  # its time in the line
        first.set()
        await busy
        assert await asyncio.to_thread(begun.wait, 100)
        late.cancel()  # as at its caller's timeout, nobody waits for it from here on
        await asyncio.gather(late, return_exceptions=True)
        await asyncio.sleep(0.01)  # were its time over, the timer that is due already would cut its connection first
        second.set()
        await ledger.transact(lambda tx: tx.now_us())
        assert len(await ledger.read(lambda tx: tx.runs.changed_since(0, "", 100))) == count + 1
    assert relay.connections == 3


async def test_closing_does_not_wait_for_each_connection_that_stands_still(
    url: str, skew: Skew, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_CLOSE_SECONDS", 2)
    async with open_ledger(by_way_of(relay, url), skew, threads=4) as ledger:
        await _all_at_once(ledger, 4)
        relay.stand_still()
        asked = [asyncio.create_task(ledger.transact(a_reserved_run)) for _ in range(6)]
        await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        await ledger.close()
        assert asyncio.get_running_loop().time() - began < 30
        async with asyncio.timeout(60):
            ends = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(end) for end in ends] == [DependencyUnavailable] * 6
    assert not any(thread.name.startswith("ledger-") for thread in threading.enumerate())


def test_the_network_does_not_keep_a_connection_for_ever(url: str) -> None:
    with contextlib.closing(connect.engine_for_writing(connect.address(url)).connect()) as connection:
        driver: Any = connection.connection.driver_connection
        told = {option.keyword: option.val for option in driver.pgconn.info}
    assert told[b"tcp_user_timeout"] == b"10000"
    assert (told[b"keepalives"], told[b"keepalives_idle"]) == (b"1", b"15")


async def test_no_error_tells_the_password(unused_port: int) -> None:
    ledger = SqlLedger(f"postgresql://anna:s3cret@127.0.0.1:{unused_port}/ledger", SPANS)
    with pytest.raises(DependencyUnavailable) as caught:
        await ledger.start()
    error: BaseException | None = caught.value
    while error is not None:
        assert "s3cret" not in f"{error}{error!r}"
        error = error.__cause__


async def test_as_many_connections_are_opened_as_are_needed_at_once(url: str, skew: Skew, raw: Raw) -> None:
    opened = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    async with open_ledger(url, skew, threads=3) as ledger:
        for _ in range(10):
            await ledger.transact(a_reserved_run)
        assert 1 <= raw(opened)[0][0] <= 3  # who has just answered may still be busy with that
        all_three = threading.Barrier(3, timeout=100)
        await asyncio.gather(*(ledger.transact(lambda _: all_three.wait()) for _ in range(3)))
        await asyncio.gather(*(ledger.transact(a_reserved_run) for _ in range(20)))
        assert raw(opened) == [(3,)]
    await eventually(lambda: raw(opened) == [(0,)])


@pytest.mark.parametrize(("name", "word"), [("transact", "on"), ("transact_softly", "off")])
async def test_only_what_may_be_lost_does_not_wait_for_the_disk(ledger: SqlLedger, name: str, word: str) -> None:
    """PRICED-181"""
    assert await getattr(ledger, name)(lambda tx: said(tx, "SHOW synchronous_commit")) == word


async def test_a_transaction_is_of_the_isolation_its_rules_ask_for(ledger: SqlLedger) -> None:
    """PRICED-53"""
    level = "SHOW transaction_isolation"
    assert await ledger.transact(lambda tx: said(tx, level)) == "read committed"
    assert await ledger.read(lambda tx: said(tx, level)) == "repeatable read"
    assert await ledger.transact(lambda tx: said(tx, "SHOW lock_timeout")) == "5s"
    assert await ledger.transact(lambda tx: said(tx, "SHOW statement_timeout")) == "10s"


async def test_a_service_without_the_right_to_change_the_journal_does_its_work(
    postgres_server: PostgresServer, url: str, raw: Raw
) -> None:
    """PRICED-56"""
    role = unique("service")
    raw(f"CREATE ROLE {role} LOGIN")
    for grant in migrate.service_rights(role):
        raw(grant)
    as_service = url.replace("postgres@", f"{role}@")
    try:
        async with open_ledger(as_service) as ledger:
            await ledger.transact(lambda tx: tx.money.credit("anna", 1_000_000, "a-gift"))
            run = await ledger.transact(a_reserved_run)
            await ledger.transact(lambda tx: tx.money.reserve("anna", run.run_id, 250_000))
        for change in ("UPDATE ledger_txns SET memo = 'x'", "DELETE FROM ledger_entries", "TRUNCATE ledger_entries"):
            with another(as_service) as other, pytest.raises(psycopg.errors.InsufficientPrivilege):
                other.execute(change.encode())
        with pytest.raises(psycopg.Error, match="append-only"):
            raw("TRUNCATE ledger_txns CASCADE")
    finally:
        raw(f"DROP OWNED BY {role}")
        raw(f"DROP ROLE {role}")


async def test_scans_use_their_indexes_among_many_rows(ledger: SqlLedger, raw: Raw) -> None:
    """PRICED-186"""
    run = await ledger.transact(a_reserved_run)
    await ledger.transact(lambda tx: tx.runs.mark_enqueued(run.run_id))
    copies = _new_row(run, "x").replace("'x'", "NULL").replace(" FROM runs ", " FROM runs, generate_series(1, 3000) ")
    raw(copies)
    raw("ANALYZE runs")
    plans = await ledger.read(lambda tx: {kind: _plan(tx, kind) for kind in Scan})
    assert {kind for kind, plan in plans.items() if "Seq Scan" in plan or "Sort" in plan} == set(), plans
    assert "idx_runs_unsent" in plans[Scan.UNSENT]
    assert "idx_runs_unsent" in plans[Scan.ABANDONED]
    assert "idx_runs_retention" in plans[Scan.PAST_RETENTION]


def _plan(tx: LedgerTx, kind: Scan) -> str:
    connection = tx.tenants._sql.connection  # type: ignore[attr-defined]
    compiled = run_rows._scan(kind, True).compile(dialect=connection.dialect)
    values = {name: 10 if name == "_limit" else timedelta(hours=-1) for name in compiled.params}
    return "\n".join(row[0] for row in connection.exec_driver_sql(f"EXPLAIN {compiled}", values))
