"""The audit: silent about a ledger in which everything happened, and loud about one micro anywhere in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, text

from contracts.budget import BY
from pyoco_server.core.priced import journal
from pyoco_server.core.priced.journal import available
from pyoco_server.core.priced.run import Intent, PricedRun
from pyoco_server.core.states.priced import Actor, Basis
from pyoco_server.ports.budget.port import Closed, Reserved
from pyoco_server.ports.ledger.audit import audit
from pyoco_server.ports.ledger.connect import address, engine_for_writing
from pyoco_server.ports.ledger.port import Final, Ledger, LedgerTx
from support.priced.ledgers import COMPLETES, FAILS, REFUNDS, a_new_run, an_id, migrated, open_ledger, sqlite_url
from support.priced.servers import PostgresServer


def submitted(tx: LedgerTx, tenant: str) -> PricedRun:
    made = tx.runs.create(a_new_run(tenant_id=tenant))
    assert isinstance(made, PricedRun)
    assert isinstance(tx.money.reserve(tenant, made.run_id, made.reserved_usd_micros), Reserved)
    return certainly(tx.runs.mark_reserved(made.run_id, made.version))


def started(tx: LedgerTx, tenant: str) -> PricedRun:
    run = submitted(tx, tenant)
    return certainly(tx.leases.start(run.run_id, run.version, "lease"))


def claimed(tx: LedgerTx, tenant: str, intent: Intent) -> PricedRun:
    if intent is REFUNDS:
        run, basis, lease = submitted(tx, tenant), Basis.SEND_FAILED, None
    else:
        run, basis, lease = started(tx, tenant), Basis.LEASE, "lease"
    return certainly(tx.ends.claim(run.run_id, run.version, basis, "end", Actor.WORKER, intent, lease))


def ended(tx: LedgerTx, tenant: str, step: str, intent: Intent) -> PricedRun:
    run = claimed(tx, tenant, intent)
    if intent is REFUNDS:
        closed = tx.money.refund_full(tenant, run.run_id, BY)
    else:
        closed = tx.money.settle(tenant, run.run_id, intent.charge_usd_micros, BY)
    assert isinstance(closed, Closed)
    final = Final(step=step, intent=intent, charge_usd_micros=closed.charge_usd_micros)
    return certainly(tx.ends.commit(run.run_id, run.version, "end", final))


def certainly(run: object) -> PricedRun:
    assert isinstance(run, PricedRun)
    return run


def everything(tx: LedgerTx) -> None:
    """Each place a run's money can be at, for two tenants, and a third that was made and never did a thing."""
    tx.tenants.ensure("idle")
    for tenant in ("anna", "bert"):
        tx.money.credit(tenant, 10_000_000, f"r-{tenant}")
        submitted(tx, tenant)
        started(tx, tenant)
        claimed(tx, tenant, COMPLETES)
        ended(tx, tenant, "T7", COMPLETES)
        ended(tx, tenant, "T8", FAILS)
        ended(tx, tenant, "T14", REFUNDS)
        disputed = claimed(tx, tenant, COMPLETES)
        certainly(tx.ends.dispute(disputed.run_id, disputed.version, "end"))
        tx.journal.post(journal.correction(tenant, f"c-{tenant}", available(tenant), -3, "lost and found"))
        tx.money.adjust(tenant, -3)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One ledger in which everything has happened: tests undo what they do to it."""
    if request.param == "sqlite":
        url = sqlite_url(Path(tmp_path_factory.mktemp("audit")))
        asyncio.run(filled(url))
        yield url
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.new_database(migrated)
    asyncio.run(filled(url))
    yield url
    server.drop_database(url)


async def filled(url: str) -> None:
    async with open_ledger(url) as ledger:
        await ledger.transact(everything)


@pytest.fixture(scope="module")
def engine(url: str) -> Iterator[Engine]:
    engine = engine_for_writing(address(url))
    yield engine
    engine.dispose()


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    """To a ledger whose journal can be changed; what is done is undone."""
    with engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET LOCAL session_replication_role = replica"))
        else:
            for table in ("ledger_txns", "ledger_entries"):
                for change in ("update", "delete"):
                    connection.execute(text(f"DROP TRIGGER {table}_no_{change}"))
        yield connection
        connection.rollback()


@pytest.fixture
async def ledger(url: str) -> AsyncIterator[Ledger]:
    async with open_ledger(url) as ledger:
        yield ledger


async def test_a_sound_ledger_has_no_differences(ledger: Ledger) -> None:
    """PRICED-60"""
    report = await ledger.read(lambda tx: tx.journal.audit())
    assert report.differences == ()
    assert report.tenants == 3
    balances = await ledger.read(lambda tx: {each: tx.money.balance(each) for each in ("anna", "bert", "idle")})
    assert report.available == balances
    assert balances["idle"] == 0 < balances["anna"]
    assert await ledger.read(lambda tx: tx.journal.audit(joins_ledger=False)) == report


def entry(kind: str, account: str) -> str:
    """One of anna's: of a fact of this kind, on this account."""
    return (
        "entry_id = (SELECT min(e.entry_id) FROM ledger_entries e JOIN ledger_txns t ON t.txn_id = e.txn_id"
        f" WHERE t.tenant_id = 'anna' AND t.kind = '{kind}' AND e.account = '{account}')"
    )


def fact(kind: str) -> str:
    return f"txn_id = (SELECT min(txn_id) FROM ledger_txns WHERE tenant_id = 'anna' AND kind = '{kind}')"


def put(kind: str, *legs: tuple[str, int]) -> list[str]:
    """More legs for a fact of anna's."""
    return [
        "INSERT INTO ledger_entries (txn_id, account, amount_usd_micros)"
        f" SELECT txn_id, '{account}', {amount} FROM ledger_txns WHERE {fact(kind)}"
        for account, amount in legs
    ]


def moved(kind: str, *legs: tuple[str, int]) -> list[str]:
    """Legs that are there, changed."""
    return [
        f"UPDATE ledger_entries SET amount_usd_micros = amount_usd_micros + {amount} WHERE {entry(kind, account)}"
        for account, amount in legs
    ]


def in_run(money_state: str) -> str:
    """One run of anna's whose money is there, or what belongs to it."""
    return (
        "CAST(run_id AS TEXT) = (SELECT min(CAST(run_id AS TEXT)) FROM runs"
        f" WHERE tenant_id = 'anna' AND money_state = '{money_state}')"
    )


def more(table: str, column: str, amount: int, money_state: str) -> str:
    return f"UPDATE {table} SET {column} = {column} + {amount} WHERE {in_run(money_state)}"


AVAILABLE, HELD = "tenant:anna:available", "tenant:anna:held"
REVENUE, FUNDING, CORRECTION = "platform:revenue", "platform:funding", "platform:correction"
BALANCE = "UPDATE budgets SET balance_usd_micros = balance_usd_micros + {} WHERE tenant_id = 'anna'"
MOST = "reservation_max_cost_usd_micros"

#: What is done, and the checks that must find it. Each is one micro, one row or one word.
PLANTS: dict[str, tuple[list[str], set[int]]] = {
    "balance too high": ([BALANCE.format(1)], {2}),
    "balance too low": ([BALANCE.format(-1)], {2}),
    "balance gone": (["DELETE FROM budgets WHERE tenant_id = 'anna'"], {2}),
    "entry gone": ([f"DELETE FROM ledger_entries WHERE {entry('SETTLE', REVENUE)}"], {1, 4, 5}),
    "held entry gone": ([f"DELETE FROM ledger_entries WHERE {entry('RESERVE', HELD)}"], {1, 3, 5}),
    "revenue more": (put("SETTLE", (REVENUE, 1)), {1, 4, 5}),
    "revenue more, and balanced": (put("TOPUP", (REVENUE, 1), (FUNDING, -1)), {1, 4}),
    "revenue moved from the refund": (moved("SETTLE", (REVENUE, 1), (AVAILABLE, -1)), {2, 4, 5}),
    "one leg off": (moved("REFUND", (HELD, 1)), {1, 3, 5}),
    "settlement does not add up": (moved("SETTLE", (REVENUE, 1)), {1, 4, 5}),
    "reserve larger": (moved("RESERVE", (HELD, 1), (AVAILABLE, -1)), {2, 3, 5}),
    "refund smaller": (moved("REFUND", (HELD, 1), (AVAILABLE, -1)), {2, 3, 5}),
    "top-up larger": (moved("TOPUP", (FUNDING, -1), (AVAILABLE, 1)), {2}),
    "correction larger": (moved("CORRECTION", (CORRECTION, 1), (AVAILABLE, -1)), {2}),
    "between the platform's accounts": (put("TOPUP", (CORRECTION, 1), (FUNDING, -1)), {1}),
    "between held and available": (put("CORRECTION", (HELD, 1), (AVAILABLE, -1)), {1, 2, 3}),
    "to another tenant": (put("TOPUP", ("tenant:bert:available", 1), (AVAILABLE, -1)), {1, 2}),
    "to nobody": (put("TOPUP", ("tenant:ghost:available", 1), (AVAILABLE, -1)), {1, 2}),
    "corrected for another tenant": (
        [f"UPDATE ledger_entries SET account = 'tenant:bert:held' WHERE {entry('CORRECTION', AVAILABLE)}"],
        {1, 2, 3},
    ),
    "fact without entries": (
        [
            "INSERT INTO ledger_txns (op_key, kind, tenant_id, actor, created_at)"
            f" SELECT 'topup:x', kind, tenant_id, actor, created_at FROM ledger_txns WHERE {fact('TOPUP')}"
        ],
        {1},
    ),
    "fact of another tenant": ([f"UPDATE ledger_txns SET tenant_id = 'bert' WHERE {fact('SETTLE')}"], {1, 4, 5}),
    "fact of another kind": ([f"UPDATE ledger_txns SET kind = 'REFUND' WHERE {fact('SETTLE')}"], {1, 5}),
    "fact of another name": ([f"UPDATE ledger_txns SET op_key = 'close:x' WHERE {fact('SETTLE')}"], {1}),
    "fact gone": (
        [
            f"DELETE FROM ledger_entries WHERE {entry('RESERVE', HELD)}",
            f"DELETE FROM ledger_entries WHERE {fact('RESERVE')}",
            f"DELETE FROM ledger_txns WHERE {fact('RESERVE')}",
        ],
        {2, 3, 5},
    ),
    "run charged less": ([more("runs", "actual_cost_usd_micros", -1, "SETTLED")], {4, 5}),
    "run reserved more": ([more("runs", MOST, 1, "RESERVED")], {3, 5}),
    "settled run reserved more": ([more("runs", MOST, 1, "SETTLED")], {5}),
    "run never reserved": ([f"UPDATE runs SET money_state = 'NONE' WHERE {in_run('RESERVED')}"], {3, 5}),
    "run refunded instead": (
        [f"UPDATE runs SET money_state = 'REFUNDED', actual_cost_usd_micros = 0 WHERE {in_run('SETTLED')}"],
        {4, 5},
    ),
    "refunded run gone": (
        [f"DELETE FROM run_inputs WHERE {in_run('REFUNDED')}", f"DELETE FROM runs WHERE {in_run('REFUNDED')}"],
        {5},
    ),
    "open reservation gone": ([f"DELETE FROM reservations WHERE {in_run('RESERVED')}"], {3}),
    "disputed reservation gone": ([f"DELETE FROM reservations WHERE {in_run('DISPUTED')}"], {3}),
    "settled reservation gone": ([f"DELETE FROM reservations WHERE {in_run('SETTLED')}"], {5}),
    "refunded reservation gone": ([f"DELETE FROM reservations WHERE {in_run('REFUNDED')}"], {5}),
    "reservation smaller": ([more("reservations", "reserved_usd_micros", -1, "RESERVED")], {3}),
    "reservation of another tenant": ([f"UPDATE reservations SET tenant_id = 'bert' WHERE {in_run('RESERVED')}"], {3}),
    "reservation charged more": (
        [
            "UPDATE reservations SET charge_usd_micros = charge_usd_micros + 1,"
            f" refund_usd_micros = refund_usd_micros - 1 WHERE {in_run('SETTLED')}"
        ],
        {5},
    ),
    "reservation of no run": (
        [
            "INSERT INTO reservations (run_id, tenant_id, reserved_usd_micros, state, created_at)"
            " SELECT {new}, tenant_id, 1, 'OPEN', created_at FROM reservations WHERE tenant_id = 'anna' LIMIT 1"
        ],
        {3},
    ),
}

#: Of these the budget's own tables alone know; where the budget is elsewhere it is compared there.
OF_THE_BUDGET = {"balance too high", "balance too low", "balance gone", "top-up larger", "correction larger"} | {
    name for name in PLANTS if "reservation" in name
}


@pytest.mark.parametrize("name", PLANTS)
def test_one_micro_is_found_wherever_it_is(connection: Connection, name: str) -> None:
    """PRICED-60, PRICED-16"""
    statements, checks = PLANTS[name]
    new = f"CAST('{an_id()}' AS {'UUID' if connection.dialect.name == 'postgresql' else 'TEXT'})"
    for statement in statements:
        assert connection.execute(text(statement.replace("{new}", new))).rowcount == 1, statement
    found = audit(connection, joins_ledger=True)
    assert {each.check for each in found.differences} == checks, found.differences
    assert "anna" in {each.tenant_id for each in found.differences}
    assert bool(audit(connection, joins_ledger=False).differences) == (name not in OF_THE_BUDGET)


def test_a_difference_says_what_should_be(connection: Connection) -> None:
    connection.execute(text("UPDATE budgets SET balance_usd_micros = balance_usd_micros + 1 WHERE tenant_id = 'bert'"))
    report = audit(connection, joins_ledger=True)
    [difference] = report.differences
    right = report.available["bert"]
    assert (difference.tenant_id, difference.run_id) == ("bert", None)
    assert difference.detail == f"the balance is {right + 1} instead of {right}"


def test_less_than_nothing_is_a_difference_wherever_the_budget_is(connection: Connection) -> None:
    """PRICED-16"""
    for statement in moved("TOPUP", (FUNDING, 9_999_000), (AVAILABLE, -9_999_000)):
        connection.execute(text(statement))
    [difference] = audit(connection, joins_ledger=False).differences
    assert (difference.check, difference.tenant_id) == (2, "anna")
    assert "never below nothing" in difference.detail


def test_available_is_the_journals_word(connection: Connection) -> None:
    """What a budget elsewhere is compared with, whatever the tables here say"""
    before = audit(connection, joins_ledger=False).available
    connection.execute(text("UPDATE budgets SET balance_usd_micros = 0"))
    for statement in moved("TOPUP", (FUNDING, -1), (AVAILABLE, 1)):
        connection.execute(text(statement))
    report = audit(connection, joins_ledger=False)
    assert report.available == before | {"anna": before["anna"] + 1}
    assert report.differences == ()


async def test_an_audit_sees_one_moment(url: str, ledger: Ledger) -> None:
    """PRICED-60: while money moves, no audit sees the half of a movement"""

    async def move(stop: asyncio.Event) -> None:
        while not stop.is_set():
            await ledger.transact(lambda tx: ended(tx, "idle", "T7", COMPLETES))

    await ledger.transact(lambda tx: tx.money.credit("idle", 10**9, f"r-{an_id()}"))
    async with open_ledger(url) as other:
        stop = asyncio.Event()
        moving = [asyncio.create_task(move(stop)) for _ in range(4)]
        for _ in range(10):
            assert (await other.read(lambda tx: tx.journal.audit())).differences == ()
            if url.startswith("postgresql"):  # where each statement has a moment of its own
                assert (await other.transact(lambda tx: tx.journal.audit())).differences == ()
        stop.set()
        await asyncio.gather(*moving)


async def test_sums_beyond_64_bits_are_told_as_they_are(
    request: pytest.FixtureRequest, tmp_path: Path, postgres_server: PostgresServer
) -> None:
    """PRICED-60: what all tenants were given, and what one was given and spent over the years"""
    most, each = 9_000_000_000_000_000, 515  # twice that is a little more than 64 bits hold
    there = postgres_server.new_database(migrated)
    request.addfinalizer(lambda: postgres_server.drop_database(there))
    for url in (sqlite_url(tmp_path), there):
        async with open_ledger(url) as ledger:
            for tenant in ("a", "b"):
                await ledger.transact(lambda tx, tenant=tenant: many_credits(tx, tenant, most, each))  # type: ignore[misc]
            report = await ledger.read(lambda tx: tx.journal.audit())
            assert (report.differences, report.available) == ((), {"a": most * each, "b": most * each})
            await ledger.transact(lambda tx: spent_and_given_again(tx, most, each))
            report = await ledger.read(lambda tx: tx.journal.audit(joins_ledger=False))
            assert report.available["a"] == most * each
            sums = await ledger.read(lambda tx: tx.journal.balances("a"))
            assert (sums.available_usd_micros, sums.credited_usd_micros) == (most * each, 2 * most * each)
            assert sums.corrected_usd_micros == -most * each
            await ledger.transact(lambda tx: beyond(tx, most, each))
            report = await ledger.read(lambda tx: tx.journal.audit())
            assert report.available["b"] == 2 * most * each > 2**63
            [told] = [one.detail for one in report.differences if one.tenant_id == "b"]
            assert told == f"the balance is {most * each} instead of {2 * most * each}"


def many_credits(tx: LedgerTx, tenant: str, amount: int, times: int) -> None:
    for number in range(times):
        tx.money.credit(tenant, amount, f"{tenant}-{number}")


def spent_and_given_again(tx: LedgerTx, amount: int, times: int) -> None:
    for number in range(times):
        tx.journal.post(journal.correction("a", f"a-{number}", available("a"), -amount, "spent"))
        tx.journal.post(journal.topup("a", f"again-{number}", amount))


def beyond(tx: LedgerTx, amount: int, times: int) -> None:
    for number in range(times):
        tx.journal.post(journal.topup("b", f"b-again-{number}", amount))
