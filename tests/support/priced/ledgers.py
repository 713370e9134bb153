"""Ledgers ready to use, a clock to move, and runs to put into them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyoco_server.core.priced import constants
from pyoco_server.core.priced.instants import SECOND_US
from pyoco_server.core.priced.run import Intent, MoneyOp, NewRun, PricedRun, ResultPointer
from pyoco_server.core.states.priced import Status
from pyoco_server.ports.ledger import migrate
from pyoco_server.ports.ledger.memory import DATABASES, MemoryDatabase, forget_database
from pyoco_server.ports.ledger.port import LedgerTx, Spans
from pyoco_server.ports.ledger.sql import SqlLedger
from support.priced.servers import PostgresServer

__all__ = [
    "COMPLETES",
    "FAILS",
    "POINTER",
    "REFUNDS",
    "SPANS",
    "Skew",
    "a_new_run",
    "a_reserved_run",
    "an_id",
    "memory_url",
    "migrated",
    "open_ledger",
    "postgres_ledger",
    "sqlite_ledger",
    "sqlite_url",
]

#: The contract's own figures.
SPANS = Spans(
    lease_seconds=constants.LEASE_TTL_SECONDS,
    reservation_seconds=constants.RESERVATION_TTL_SECONDS,
    submit_abandon_seconds=constants.SUBMIT_ABANDON_SECONDS,
    resend_after_seconds=constants.RESEND_AFTER_SECONDS,
    reconcile_after_seconds=constants.FINALIZE_STALE_SECONDS,
    retention_seconds=constants.RETENTION_SECONDS,
)

POINTER = ResultPointer(bucket="dpp-results", key="dpp/anna/envelope.json", sha256="ab" * 32, size_bytes=812)
COMPLETES = Intent(status=Status.COMPLETED, money_op=MoneyOp.SETTLE, charge_usd_micros=50_000, result=POINTER)
FAILS = Intent(status=Status.FAILED, money_op=MoneyOp.SETTLE, charge_usd_micros=5_000, reason_code="WORKER_TIMEOUT")
REFUNDS = Intent(status=Status.FAILED, money_op=MoneyOp.REFUND, charge_usd_micros=0, reason_code="RESERVATION_EXPIRED")


class Skew:
    """How far the ledger's clock is ahead of the real one."""

    def __init__(self) -> None:
        self.us = 0

    def __call__(self) -> int:
        return self.us

    def move(self, seconds: int = 0, *, us: int = 0) -> None:
        self.us += seconds * SECOND_US + us


def an_id() -> str:
    return str(uuid.uuid4())


def a_new_run(**other: Any) -> NewRun:
    ask = NewRun(
        run_id=an_id(),
        tenant_id="anna",
        pack_type="decision",
        profile_version=constants.PROFILE_VERSION,
        idempotency_key=f"key-{uuid.uuid4().hex}",
        payload_hash="0" * 64,
        reserved_usd_micros=250_000,
        minimum_fee_usd_micros=5_000,
        timebox_sec=90,
        min_reliability_e4=0,
        inline=0,
        artifacts={},
        inputs={"question": "what now?"},
        trace_id="t_1",
    )
    return replace(ask, **other)


def a_reserved_run(tx: LedgerTx, **other: Any) -> PricedRun:
    """T1 and T2, and no money: for who tests rows alone."""
    made = tx.runs.create(a_new_run(**other))
    assert isinstance(made, PricedRun)
    reserved = tx.runs.mark_reserved(made.run_id, made.version)
    assert isinstance(reserved, PricedRun)
    return reserved


def migrated(url: str) -> None:
    """What `PostgresServer.new_database` makes its copies of."""
    migrate.upgrade(url)


@functools.cache
def _template() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="pyoco-tests-ledger-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    migrate.upgrade(f"sqlite:///{folder / 'ledger.db'}")
    return folder / "ledger.db"


def sqlite_url(folder: Path) -> str:
    """A ledger with all tables and no row in this folder: the copy of a file that was migrated once."""
    path = folder / "ledger.db"
    shutil.copy(_template(), path)
    return f"sqlite:///{path}"


@functools.cache
def _memory_template() -> MemoryDatabase:
    """Not the file: that is in WAL mode, which a database in memory cannot be."""
    migrate.upgrade("memory://template")
    return DATABASES.of("template")


@contextlib.contextmanager
def memory_url() -> Iterator[str]:
    """A ledger in memory with all tables and no row: a copy, since a migration takes a second. Removed at the end."""
    name = f"ledger-{uuid.uuid4().hex}"
    with (
        contextlib.closing(_memory_template().connect()) as template,
        contextlib.closing(DATABASES.of(name).connect()) as copy,
    ):
        template.backup(copy)
    try:
        yield f"memory://{name}"
    finally:
        forget_database(name)


@contextlib.asynccontextmanager
async def open_ledger(
    url: str, skew: Skew | None = None, spans: Spans = SPANS, **other: Any
) -> AsyncIterator[SqlLedger]:
    ledger = SqlLedger(url, spans, skew_us=skew or Skew(), **other)
    await ledger.start()
    try:
        yield ledger
    finally:
        await ledger.close()


@contextlib.asynccontextmanager
async def sqlite_ledger(folder: Path, skew: Skew | None = None, spans: Spans = SPANS) -> AsyncIterator[SqlLedger]:
    async with open_ledger(sqlite_url(folder), skew, spans) as ledger:
        yield ledger


@contextlib.asynccontextmanager
async def postgres_ledger(
    server: PostgresServer, skew: Skew | None = None, spans: Spans = SPANS, **other: Any
) -> AsyncIterator[SqlLedger]:
    """In a database of its own."""
    url = server.new_database(migrated)
    try:
        async with open_ledger(url, skew, spans, **other) as ledger:
            yield ledger
    finally:
        server.drop_database(url)
