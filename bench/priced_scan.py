"""What one look of the reaper costs, among few rows and among many: a batch of runs whose lease is over, or none."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import uvloop
from sqlalchemy import insert, text

from bench.priced_stores import STORES
from bench.report import heading, median, table
from pyoco_server.config.priced import PricedConfig
from pyoco_server.core.priced.constants import JANITOR_BATCH, PROFILE_VERSION
from pyoco_server.core.priced.instants import SECOND_US
from pyoco_server.ports.ledger import connect, migrate, run_rows
from pyoco_server.ports.ledger.port import Scan
from pyoco_server.ports.ledger.schema import runs, tenants
from pyoco_server.ports.ledger.sql import SqlLedger
from pyoco_server.wiring.priced import spans_of

__all__ = ["scans"]

_FEW, _MANY = 1_000, int(os.environ.get("BENCH_PRICED_ROWS", "100000"))
_AT_ONCE = 5_000
_LOOKS = 50
_HOUR_US = 3600 * SECOND_US
#: One of so many is being worked on; the others have ended.
_ONE_IN = 10


def _rows(first: int, end: int, now_us: int) -> Iterator[dict[str, Any]]:
    """Every lease has a minute to an hour to go."""
    for number in range(first, end):
        works = number % _ONE_IN == 0
        yield {
            "run_id": str(uuid.uuid4()),
            "tenant_id": "bench",
            "pack_type": "decision",
            "profile_version": PROFILE_VERSION,
            "status": "PROCESSING" if works else "COMPLETED",
            "money_state": "RESERVED" if works else "SETTLED",
            "finalize_stage": None if works else "COMMITTED",
            "idempotency_key": f"bench-{number}",
            "payload_hash": "0" * 64,
            "version": 2 if works else 4,
            "reservation_max_cost_usd_micros": 250_000,
            "minimum_fee_usd_micros": 5_000,
            "timebox_sec": 90,
            "min_reliability_e4": 8_000,
            "retention_until": now_us + 24 * _HOUR_US,
            "lease_token": str(uuid.uuid4()),
            "lease_expires_at": now_us + (60 + number % 3540) * SECOND_US,
            "created_at": now_us - number,
            "updated_at": now_us - number,
        }


def _fill(url: str, first: int, end: int) -> None:
    engine = connect.engine_for_writing(connect.address(url))
    now_us = time.time_ns() // 1000
    with engine.begin() as connection:
        if not first:
            told = {"tenant_id": "bench", "display_name": "bench", "status": "ACTIVE", "created_at": now_us}
            connection.execute(insert(tenants), told)
        for start in range(first, end, _AT_ONCE):
            connection.execute(insert(runs), list(_rows(start, min(start + _AT_ONCE, end), now_us)))
    with engine.begin() as connection:
        connection.execute(text("ANALYZE"))
    engine.dispose()


def _plan(url: str) -> str:
    """How the database would do it, in its own words."""
    where = connect.address(url)
    is_sqlite = connect.is_sqlite(where)
    engine = connect.engine_for_reading(where)
    try:
        with engine.begin() as connection:
            compiled = run_rows._scan(Scan.EXPIRED_LEASES, not is_sqlite).compile(dialect=connection.dialect)
            told = {**compiled.params, "_limit": JANITOR_BATCH, "_a": 0 if is_sqlite else timedelta(0)}
            if is_sqlite:
                values = tuple(told[name] for name in compiled.positiontup or ())
                steps = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled}", values)]
            else:
                steps = [row[0] for row in connection.exec_driver_sql(f"EXPLAIN (COSTS OFF) {compiled}", told)]
        return next(str(step).replace("->", "").strip() for step in steps if "runs" in step)
    finally:
        engine.dispose()


async def _milliseconds(url: str, *, expired: bool) -> float:
    """The median of some looks, as the reaper has them."""
    ledger = SqlLedger(url, spans_of(PricedConfig()), skew_us=lambda: 2 * _HOUR_US if expired else 0)
    await ledger.start()
    took = []
    try:
        for _ in range(_LOOKS):
            began = time.perf_counter()
            found = await ledger.read(lambda tx: tx.runs.scan(Scan.EXPIRED_LEASES, JANITOR_BATCH))
            took.append((time.perf_counter() - began) * 1000)
            assert len(found) == (JANITOR_BATCH if expired else 0)
    finally:
        await ledger.close()
    return median(took)


def scans(names: list[str]) -> None:
    if not names:
        return
    heading(f"priced: one look of the reaper, milliseconds, among {_FEW:,} and {_MANY:,} rows; lower is better")
    rows = [("", f"{_FEW:,}", f"{_MANY:,}", "ratio", "plan")]
    for name in names:
        with STORES[name]() as stores:
            url = stores.ledger_url
            migrate.upgrade(url)
            found: dict[tuple[bool, int], float] = {}
            for first, end in ((0, _FEW), (_FEW, _MANY)):
                _fill(url, first, end)
                for expired in (False, True):
                    found[expired, end] = uvloop.run(_milliseconds(url, expired=expired))
            plan = _plan(url)
        for expired, what in ((False, "no lease is over"), (True, f"{JANITOR_BATCH} leases are over")):
            few, many = found[expired, _FEW], found[expired, _MANY]
            rows.append((f"{name}, {what}", f"{few:.2f}", f"{many:.2f}", f"{many / few:.2f}", plan))
    table(rows)
