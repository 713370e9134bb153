"""The limits of priced runs: what the database and the web framework do by themselves, without a product around them.

The database's: one transaction that adds a row and changes a tenant's balance, synced to disk, and one look at a row
by its key. As many connections as clients, up to eight, each in a thread; no SQLAlchemy.
"""

from __future__ import annotations

import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Protocol

import psycopg
from fastapi import FastAPI

__all__ = ["app", "looks", "transactions"]

_CONNECTIONS_MAX = 8
_TABLES = (
    "CREATE TABLE IF NOT EXISTS bench_rows (run_id TEXT PRIMARY KEY, tenant_id TEXT, amount BIGINT, at BIGINT)",
    "CREATE TABLE IF NOT EXISTS bench_balances (tenant_id TEXT PRIMARY KEY, balance BIGINT)",
)

app = FastAPI()


@app.get("/v1/runs/{run_id}")
async def get_run(run_id: str) -> dict[str, object]:
    """As long as an answer of ours, and nothing is looked at."""
    return {
        "run_id": run_id,
        "status": "COMPLETED",
        "money_state": "SETTLED",
        "cost": dict.fromkeys(("reserved_usd", "used_usd", "minimum_fee_usd", "budget_remaining_usd"), "0.2500"),
        "result": {"presigned_url": "http://127.0.0.1/v1/results/" + "x" * 200, "sha256": "0" * 64},
        "meta": dict.fromkeys(("created_at", "updated_at"), "2026-01-01T00:00:00.000000Z"),
    }


class _Connection(Protocol):
    def execute(self, query: Any, params: Any = ..., /) -> Any: ...

    def close(self) -> None: ...


def _is_sqlite(url: str) -> bool:
    return url.startswith("sqlite:")


def _open(url: str) -> _Connection:
    """Transactions are begun and ended by hand."""
    if not _is_sqlite(url):
        return psycopg.connect(url, autocommit=True)
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=30)
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def transactions(url: str, clients: int, tenants: int, seconds: float) -> float:
    """INSERT and UPDATE, committed, per second."""
    mark, begin = ("?", "BEGIN IMMEDIATE") if _is_sqlite(url) else ("%s", "BEGIN")
    add = f"INSERT INTO bench_rows VALUES ({mark}, {mark}, {mark}, {mark})"
    take = f"UPDATE bench_balances SET balance = balance - {mark} WHERE tenant_id = {mark}"
    with closing(_open(url)) as connection:
        for table in _TABLES:
            connection.execute(table)
        for number in range(tenants):
            row = f"INSERT INTO bench_balances VALUES ({mark}, 0) ON CONFLICT DO NOTHING"
            connection.execute(row, (f"tenant-{number}",))

    def one(connection: _Connection, number: int) -> None:
        tenant = f"tenant-{number % tenants}"
        connection.execute(begin)
        connection.execute(add, (str(uuid.uuid4()), tenant, 250_000, number))
        connection.execute(take, (250_000, tenant))
        connection.execute("COMMIT")

    # SQLite has one writer: more of them would only sleep until the other is done.
    return _per_second(url, 1 if _is_sqlite(url) else min(clients, _CONNECTIONS_MAX), seconds, one)


def looks(url: str, clients: int, run_ids: Sequence[str], seconds: float) -> float:
    """Whole rows of runs by their id, per second."""
    question = f"SELECT * FROM runs WHERE run_id = {'?' if _is_sqlite(url) else '%s'}"

    def one(connection: _Connection, number: int) -> None:
        assert connection.execute(question, (run_ids[number % len(run_ids)],)).fetchone()

    return _per_second(url, min(clients, _CONNECTIONS_MAX), seconds, one)


def _per_second(url: str, connections: int, seconds: float, one: Callable[[_Connection, int], None]) -> float:
    done = [0] * connections
    ready = threading.Barrier(connections + 1)

    def repeat(which: int) -> None:
        with closing(_open(url)) as connection:
            ready.wait()
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                one(connection, done[which] * connections + which)
                done[which] += 1

    threads = [threading.Thread(target=repeat, args=(which,), daemon=True) for which in range(connections)]
    for thread in threads:
        thread.start()
    ready.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - began)
