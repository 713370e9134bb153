"""The line of transactions before a ledger: one commit for many, who stops waiting, and a database in trouble."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, exc

from contracts.ledger_places import Raw
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.ports.ledger import connect, engine, sql
from pyoco_server.ports.ledger.engine import TransactionThreads
from pyoco_server.ports.ledger.faults import LedgerRefused
from pyoco_server.ports.ledger.port import LedgerTx, Scan
from pyoco_server.ports.ledger.quick import Quick
from pyoco_server.ports.ledger.sql import SqlLedger
from support.priced.ledgers import SPANS, Skew, a_new_run, a_reserved_run, open_ledger, sqlite_url
from support.waiting import eventually


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


@pytest.fixture
async def ledger(url: str, skew: Skew) -> AsyncIterator[SqlLedger]:
    async with open_ledger(url, skew) as ledger:
        yield ledger


class Held:
    """The writer stands still, in a transaction of its own, until it is let go: whatever comes meanwhile waits."""

    def __init__(self, ledger: SqlLedger) -> None:
        self._entered, self._left = threading.Event(), threading.Event()
        self.task = asyncio.create_task(ledger.transact(self._stand))

    def _stand(self, _: LedgerTx) -> None:
        self._entered.set()
        assert self._left.wait(100)

    async def __aenter__(self) -> Held:
        await asyncio.to_thread(self._entered.wait, 100)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.let_go()
        await self.task

    def let_go(self) -> None:
        self._left.set()


def connection_of(tx: LedgerTx) -> Connection:
    quick = tx.tenants._sql.connection  # type: ignore[attr-defined]
    assert isinstance(quick, Quick)
    return quick.connection


async def waiting(*coroutines: Any) -> list[asyncio.Task[Any]]:
    """Started in this order, and in the line."""
    tasks = []
    for coroutine in coroutines:
        tasks.append(asyncio.create_task(coroutine))
        await asyncio.sleep(0)
    return tasks


# --- one commit for many ----------------------------------------------------------------------------------------------


async def test_all_that_wait_share_one_commit_in_the_order_of_their_arrival(
    url: str, skew: Skew, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    order: list[int] = []

    def counted(name: str, real: Callable[[Connection], Any]) -> Callable[[Connection], Any]:
        @contextlib.contextmanager
        def count(connection: Connection) -> Iterator[None]:
            begun.append(name)
            with real(connection):
                yield

        return count

    monkeypatch.setattr(sql, "durably", counted("durably", connect.durably))
    monkeypatch.setattr(sql, "softly", counted("softly", connect.softly))
    async with open_ledger(url, skew) as ledger:
        async with Held(ledger):
            tasks = await waiting(*(ledger.transact(lambda _, n=n: order.append(n)) for n in range(40)))  # type: ignore[misc]
        await asyncio.gather(*tasks)
        assert order == list(range(40))
        assert begun == ["durably", "durably"]
        async with Held(ledger):
            tasks = await waiting(*(ledger.transact_softly(lambda _: None) for _ in range(3)))
        await asyncio.gather(*tasks)
        assert begun[2:] == ["durably", "softly"]
        async with Held(ledger):
            tasks = await waiting(ledger.transact_softly(lambda _: None), ledger.transact(lambda _: None))
        await asyncio.gather(*tasks)
        assert begun[4:] == ["durably", "durably"]


async def test_nobody_hears_of_a_result_before_it_is_committed(ledger: SqlLedger, raw: Raw) -> None:
    """PRICED-181"""
    second_works, go_on = threading.Event(), threading.Event()

    def second(_: LedgerTx) -> None:
        second_works.set()
        assert go_on.wait(100)

    async with Held(ledger):
        tasks = await waiting(ledger.transact(a_reserved_run), ledger.transact(second))
    await asyncio.to_thread(second_works.wait, 100)
    await asyncio.sleep(0.02)
    assert not tasks[0].done()
    assert raw("SELECT * FROM runs") == []
    go_on.set()
    await asyncio.gather(*tasks)
    assert len(raw("SELECT * FROM runs")) == 1


async def test_who_fails_does_not_harm_those_beside(ledger: SqlLedger, raw: Raw) -> None:
    """PRICED-183"""

    def gives_up(tx: LedgerTx) -> None:
        a_reserved_run(tx, tenant_id="gives-up")
        raise ValueError("no")

    def breaks_a_rule(tx: LedgerTx) -> None:
        a_reserved_run(tx, tenant_id="breaks-a-rule", reserved_usd_micros=-1)

    async with Held(ledger):
        tasks = await waiting(
            ledger.transact(a_reserved_run),
            ledger.transact(gives_up),
            ledger.transact(a_reserved_run),
            ledger.transact(breaks_a_rule),
            ledger.transact(a_reserved_run),
        )
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one) for one in done] == [PricedRun, ValueError, PricedRun, LedgerRefused, PricedRun]
    assert raw("SELECT count(*) FROM runs") == [(3,)]
    assert raw("SELECT tenant_id FROM tenants") == [("anna",)]


async def test_a_tenant_whose_making_was_undone_is_made_again(ledger: SqlLedger, raw: Raw) -> None:
    """Each of two in one commit needs the tenant, and only the second is done."""

    def gives_up(tx: LedgerTx) -> None:
        a_reserved_run(tx)
        raise ValueError("no")

    async with Held(ledger):
        tasks = await waiting(ledger.transact(gives_up), ledger.transact(a_reserved_run))
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one) for one in done] == [ValueError, PricedRun]
    assert raw("SELECT tenant_id, balance_usd_micros FROM budgets") == [("anna", 0)]


@pytest.mark.parametrize(("name", "level"), [("transact", 2), ("transact_softly", 1)])
async def test_only_what_may_be_lost_does_not_wait_for_the_disk(ledger: SqlLedger, name: str, level: int) -> None:
    """PRICED-181"""

    def look(tx: LedgerTx) -> Any:
        return connection_of(tx).exec_driver_sql("PRAGMA synchronous").scalar()

    assert await getattr(ledger, name)(look) == level


# --- who stops waiting ------------------------------------------------------------------------------------------------


async def test_who_is_cancelled_in_the_line_leaves_nothing(ledger: SqlLedger, raw: Raw) -> None:
    async with Held(ledger):
        (task,) = await waiting(ledger.transact(a_reserved_run))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await ledger.transact(lambda _: None)
    assert raw("SELECT * FROM runs") == []


async def test_who_is_cancelled_too_late_has_done_it_whole(ledger: SqlLedger, raw: Raw) -> None:
    entered, left = threading.Event(), threading.Event()

    def slow(tx: LedgerTx) -> None:
        a_reserved_run(tx)
        entered.set()
        assert left.wait(100)
        a_reserved_run(tx)

    (task,) = await waiting(ledger.transact(slow))
    await asyncio.to_thread(entered.wait, 100)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert raw("SELECT * FROM runs") == []
    left.set()
    await eventually(lambda: len(raw("SELECT * FROM runs")) == 2)


async def test_a_ledger_that_takes_too_long_is_unavailable(ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Held(ledger):
        monkeypatch.setattr(sql, "_WRITE_SECONDS", 0.05)
        with pytest.raises(DependencyUnavailable, match="did not answer within"):
            await ledger.transact(a_reserved_run)
        monkeypatch.setattr(sql, "_WRITE_SECONDS", 15)
    assert await ledger.transact(a_reserved_run)


@pytest.mark.parametrize("how", ["cancelled", "too late"])
async def test_who_stops_waiting_is_out_of_the_line_at_once(
    ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Each may hold a quarter of a megabyte of inputs, and ten thousand of them fit in."""
    assert isinstance(ledger._writing, TransactionThreads)
    async with Held(ledger):
        monkeypatch.setattr(sql, "_WRITE_SECONDS", 0.5 if how == "too late" else 15)
        tasks = await waiting(*(ledger.transact(a_reserved_run) for _ in range(5)))
        assert len(ledger._writing._waiting) == 5
        if how == "cancelled":
            for task in tasks:
                task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(one) for one in done} <= {asyncio.CancelledError, DependencyUnavailable}
        assert len(ledger._writing._waiting) == 0
        monkeypatch.setattr(sql, "_WRITE_SECONDS", 15)
    running = ledger._writing._running
    await eventually(lambda: not running)


async def test_a_line_that_is_too_long_is_refused(ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_WAITING_MAX", 2)
    async with Held(ledger):
        tasks = await waiting(*(ledger.transact(a_reserved_run) for _ in range(2)))
        with pytest.raises(DependencyUnavailable, match="too many"):
            await ledger.transact(a_reserved_run)
    assert len(await asyncio.gather(*tasks)) == 2


async def test_a_machine_that_has_no_thread_has_one_later(
    ledger: SqlLedger, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that never ran must not be counted: nothing would ever be done again."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(DependencyUnavailable, match="no thread"):
            await ledger.transact(a_reserved_run)
    assert raw("SELECT count(*) FROM runs") == [(0,)]
    assert await ledger.transact(a_reserved_run)
    assert raw("SELECT count(*) FROM runs") == [(1,)]


async def test_closing_waits_for_what_was_asked_for(url: str, skew: Skew, raw: Raw) -> None:
    async with open_ledger(url, skew) as ledger:
        held = Held(ledger)
        async with held:
            tasks = await waiting(ledger.transact(a_reserved_run))
            (closing,) = await waiting(ledger.close())
            held.let_go()
            await closing
        assert (await tasks[0]).run_id
        for ask in (ledger.transact(a_reserved_run), ledger.read(lambda tx: tx.now_us()), ledger.ping()):
            with pytest.raises(DependencyUnavailable, match="closed"):
                await ask
    assert raw("SELECT count(*) FROM runs") == [(1,)]
    names = {thread.name for thread in threading.enumerate()}
    assert not any(name.startswith("ledger-") for name in names)


async def test_a_ledger_that_was_not_started_is_unavailable(url: str) -> None:
    ledger = SqlLedger(url, SPANS)
    with pytest.raises(DependencyUnavailable, match="not open"):
        await ledger.transact(a_reserved_run)
    with pytest.raises(DependencyUnavailable, match="not open"):
        await ledger.ping()
    await ledger.close()


# --- a database in trouble --------------------------------------------------------------------------------------------


async def test_a_database_that_stays_locked_is_unavailable_and_then_it_is_there_again(
    url: str, skew: Skew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PRICED-53"""
    monkeypatch.setattr(connect, "_BUSY_MS", 30)
    async with open_ledger(url, skew) as ledger:
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(DependencyUnavailable, match="SQLITE_BUSY"):
                await ledger.transact(a_reserved_run)
            assert await ledger.read(lambda tx: tx.runs.scan(Scan.AGED, 1)) == []
        assert await ledger.transact(a_reserved_run)


async def test_a_full_disk_takes_the_whole_commit_and_no_more(ledger: SqlLedger, raw: Raw) -> None:
    def fill(tx: LedgerTx) -> None:
        pages = connection_of(tx).exec_driver_sql("PRAGMA page_count").scalar_one()
        connection_of(tx).exec_driver_sql(f"PRAGMA max_page_count = {pages}")

    def large(tx: LedgerTx) -> None:
        a_reserved_run(tx, inputs={"text": "x" * 200_000})

    await ledger.transact(fill)
    async with Held(ledger):
        tasks = await waiting(ledger.transact(large), ledger.transact(large))
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one) for one in done] == [DependencyUnavailable] * 2
    assert "SQLITE_FULL" in str(done[0])
    assert raw("SELECT * FROM runs") == []
    await ledger.transact(large)  # on a new connection, which has room
    assert raw("SELECT count(*) FROM runs") == [(1,)]


async def test_a_commit_without_an_answer_is_unknown_and_not_tried_again(
    url: str, skew: Skew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PRICED-22"""
    worked = []

    @contextlib.contextmanager
    def dies(connection: Connection) -> Iterator[None]:
        with connection.begin():
            yield
        raise exc.OperationalError("COMMIT", {}, Exception("gone"), connection_invalidated=True)

    monkeypatch.setattr(sql, "durably", dies)
    async with open_ledger(url, skew) as ledger:
        with pytest.raises(DependencyUnavailable):
            await ledger.transact(lambda _: worked.append(1))
    assert worked == [1]


async def test_a_connection_that_had_died_before_the_work_was_done_is_replaced(ledger: SqlLedger) -> None:
    tries = []

    def work(tx: LedgerTx) -> PricedRun:
        run = a_reserved_run(tx)
        tries.append(run.run_id)
        if len(tries) == 1:
            raise exc.OperationalError("SELECT", {}, Exception("gone"), connection_invalidated=True)
        return run

    run = await ledger.transact(work)
    assert await ledger.read(lambda tx: tx.runs.get(tries[0])) is None
    assert await ledger.read(lambda tx: tx.runs.get(tries[1])) == run


async def test_an_error_tells_nothing_of_what_was_stored(ledger: SqlLedger) -> None:
    """PRICED-171"""
    run = await ledger.transact(a_reserved_run)
    with pytest.raises(LedgerRefused) as caught:
        await ledger.transact(lambda tx: tx.runs.create(a_new_run(run_id=run.run_id, inputs={"m": "MARKER"})))
    assert "MARKER" not in str(caught.value)
    assert caught.value.__cause__ is None
