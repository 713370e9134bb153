"""The journal in SQL, on both databases: each fact once, for ever, and everything told from the entries alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from contracts.budget import BY, a_run
from pyoco_server.core.priced import journal
from pyoco_server.core.priced.instants import SECOND_US
from pyoco_server.core.priced.journal import available, held
from pyoco_server.core.states.priced import Actor
from pyoco_server.errors import Corrupt
from pyoco_server.ports.ledger.connect import address, engine_for_writing
from pyoco_server.ports.ledger.port import Balances, Ledger, LedgerTx, Spend
from support.priced.ledgers import Skew, migrated, open_ledger, sqlite_url
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
async def ledger(url: str, skew: Skew) -> AsyncIterator[Ledger]:
    async with open_ledger(url, skew) as ledger:
        yield ledger


async def test_a_fact_is_written_once(ledger: Ledger) -> None:
    """PRICED-57: the second is no error, and leaves the transaction it was found in alone"""
    fact = journal.topup("anna", "r", 5)

    def twice(tx: LedgerTx) -> tuple[bool, bool, bool]:
        return tx.journal.post(fact), tx.journal.post(fact), tx.journal.post(journal.topup("anna", "r2", 7))

    assert await ledger.transact(twice) == (True, False, True)
    assert not await ledger.transact(lambda tx: tx.journal.post(journal.topup("bert", "r", 99)))
    [second, first] = await ledger.read(lambda tx: tx.journal.lines(None, None, 10))
    assert (first.op_key, first.available_usd_micros, second.op_key) == ("topup:r", 5, "topup:r2")


async def test_of_many_writers_of_one_fact_one_writes_it(ledger: Ledger) -> None:
    """PRICED-57: settle and refund of a run share a name"""
    run = a_run()
    closings = [journal.settle("anna", run, 100, n, BY) for n in range(8)] + [journal.refund("anna", run, 100, BY)] * 8
    answers = await asyncio.gather(
        *(ledger.transact(lambda tx, fact=fact: tx.journal.post(fact)) for fact in closings)  # type: ignore[misc]
    )
    assert sum(answers) == 1
    assert len(await ledger.read(lambda tx: tx.journal.lines(None, None, 100))) == 1


async def test_a_contradiction_between_tables_and_journal_undoes_the_transaction(ledger: Ledger) -> None:
    """PRICED-57"""
    first, second = a_run(), a_run()
    await ledger.transact(lambda tx: tx.money.credit("anna", 1000, "r"))
    await ledger.transact(lambda tx: tx.money.reserve("anna", first, 100))
    await ledger.transact(lambda tx: tx.journal.post(journal.refund("anna", first, 100, BY)))
    await ledger.transact(lambda tx: tx.journal.post(journal.reserve("anna", second, 100, Actor.API)))
    with pytest.raises(Corrupt):
        await ledger.transact(lambda tx: tx.money.settle("anna", first, 5, BY))
    with pytest.raises(Corrupt):
        await ledger.transact(lambda tx: tx.money.reserve("anna", second, 100))
    assert await ledger.read(lambda tx: tx.money.balance("anna")) == 900
    assert len(await ledger.read(lambda tx: tx.money.open_reservations(2**52, 10))) == 1


async def test_balances_are_told_from_the_entries_alone(ledger: Ledger) -> None:
    """PRICED-16, PRICED-59, PRICED-184"""
    large = 9_000_000_000_000_000
    settled, refunded, held_still = a_run(), a_run(), a_run()

    def life(tx: LedgerTx) -> None:
        tx.money.credit("anna", large, "r1")
        tx.money.credit("anna", 1_000, "r2")
        tx.money.credit("bert", 77, "r3")
        for run in (settled, refunded, held_still):
            tx.money.reserve("anna", run, 300)
        tx.money.settle("anna", settled, 40, BY)
        tx.money.refund_full("anna", refunded, BY)
        tx.journal.post(journal.correction("anna", "c1", available("anna"), -7, "lost and found"))
        tx.journal.post(journal.correction("anna", "c2", held("anna"), 2, "lost and found"))
        tx.money.adjust("anna", -7)

    await ledger.transact(life)
    anna, bert, nobody = await ledger.read(lambda tx: [tx.journal.balances(each) for each in ("anna", "bert", "no")])
    assert anna == Balances(
        tenant_id="anna",
        available_usd_micros=large + 1_000 - 300 - 40 - 7,
        held_usd_micros=302,
        charged_usd_micros=40,
        credited_usd_micros=large + 1_000,
        corrected_usd_micros=-5,
    )
    assert anna.credited_usd_micros + anna.corrected_usd_micros == (
        anna.available_usd_micros + anna.held_usd_micros + anna.charged_usd_micros
    )
    assert anna.available_usd_micros == await ledger.read(lambda tx: tx.money.balance("anna"))
    assert (bert.available_usd_micros, bert.credited_usd_micros, bert.held_usd_micros) == (77, 77, 0)
    assert nobody.available_usd_micros == nobody.credited_usd_micros == 0


async def test_lines_are_told_from_the_newest_on_in_pages(ledger: Ledger, skew: Skew) -> None:
    run = a_run()
    skew.move(-1000)
    await ledger.transact(lambda tx: tx.money.credit("anna", 1000, "r1"))
    await ledger.transact(lambda tx: tx.money.credit("bert", 1000, "r2"))
    await ledger.transact(lambda tx: tx.money.reserve("anna", run, 100, "t_1"))
    await ledger.transact(lambda tx: tx.money.settle("anna", run, 30, BY))
    correction = journal.correction("anna", "c", available("anna"), 3, "a memo")
    await ledger.transact(lambda tx: tx.journal.post(correction))
    all_of_anna = await ledger.read(lambda tx: tx.journal.lines("anna", None, 10))
    told = [(e.kind, e.available_usd_micros, e.held_usd_micros, e.charged_usd_micros) for e in all_of_anna]
    assert told == [
        ("CORRECTION", 3, 0, 0),
        ("SETTLE", 70, -100, 30),
        ("RESERVE", -100, 100, 0),
        ("TOPUP", 1000, 0, 0),
    ]
    settle = all_of_anna[1]
    assert (settle.op_key, settle.run_id, settle.actor, settle.memo) == (f"close:{run}", run, "worker", None)
    assert (all_of_anna[0].memo, all_of_anna[0].actor, all_of_anna[0].run_id) == ("a memo", "operator", None)
    now_us = await ledger.read(lambda tx: tx.now_us())
    assert all(0 <= now_us - line.created_at < 60 * SECOND_US for line in all_of_anna)
    first = await ledger.read(lambda tx: tx.journal.lines("anna", None, 3))
    rest = await ledger.read(lambda tx: tx.journal.lines("anna", first[-1].txn_id, 3))
    assert first + rest == all_of_anna
    assert len(await ledger.read(lambda tx: tx.journal.lines(None, None, 10))) == 5
    assert await ledger.read(lambda tx: tx.journal.lines("nobody", None, 10)) == []


async def test_spending_is_told_by_steps_of_time(ledger: Ledger, skew: Skew) -> None:
    since = await ledger.read(lambda tx: tx.now_us())
    await ledger.transact(lambda tx: tx.money.credit("anna", 10**9, "r1"))
    await ledger.transact(lambda tx: tx.money.credit("bert", 10**9, "r2"))

    async def charged(tenant: str, charge: int | None) -> None:
        def life(tx: LedgerTx) -> None:
            run = a_run()
            tx.money.reserve(tenant, run, 1000)
            if charge is None:
                tx.money.refund_full(tenant, run, BY)
            else:
                tx.money.settle(tenant, run, charge, BY)

        await ledger.transact(life)

    await charged("anna", 10)
    await charged("bert", 5)
    await charged("anna", None)
    skew.move(3 * 3600)
    await charged("anna", 1)
    await charged("anna", 0)
    step = 3600 * SECOND_US
    assert await ledger.read(lambda tx: tx.journal.spend("anna", since, step)) == [
        Spend(start_at=since, charged_usd_micros=10, runs=2),
        Spend(start_at=since + 3 * step, charged_usd_micros=1, runs=2),
    ]
    assert await ledger.read(lambda tx: tx.journal.spend(None, since, 7 * step)) == [
        Spend(start_at=since, charged_usd_micros=16, runs=5)
    ]
    assert await ledger.read(lambda tx: tx.journal.spend("bert", since + step, step)) == []


@pytest.mark.parametrize("table", ["ledger_txns", "ledger_entries"])
async def test_what_is_written_stays_as_it_was(ledger: Ledger, url: str, table: str) -> None:
    """PRICED-56, PRICED-185: not even the owner of the tables changes a line"""
    await ledger.transact(lambda tx: tx.money.credit("anna", 1000, "r"))
    engine = engine_for_writing(address(url))
    for change in (f"UPDATE {table} SET txn_id = txn_id", f"DELETE FROM {table}"):
        with pytest.raises(DBAPIError), engine.begin() as connection:
            connection.execute(text(change))
    engine.dispose()
    assert (await ledger.read(lambda tx: tx.journal.balances("anna"))).available_usd_micros == 1000
