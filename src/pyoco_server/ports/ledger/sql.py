"""The ledger in SQLite or PostgreSQL, both through SQLAlchemy Core. The statements are in the other modules of this
package."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, TypeVar

from sqlalchemy import Connection, text

from pyoco_server.errors import DependencyUnavailable
from pyoco_server.ports.ledger import migrate
from pyoco_server.ports.ledger.connect import (
    address,
    durably,
    engine_for_reading,
    engine_for_writing,
    file_of,
    is_sqlite,
    memory_of,
    reading,
    softly,
)
from pyoco_server.ports.ledger.dialect import Sql
from pyoco_server.ports.ledger.ends import SqlEnds
from pyoco_server.ports.ledger.engine import TransactionJob, TransactionThreads
from pyoco_server.ports.ledger.faults import ledger_errors
from pyoco_server.ports.ledger.identity import SqlIdentity, stored_id
from pyoco_server.ports.ledger.inline import InlineTransactions
from pyoco_server.ports.ledger.journal_tables import SqlJournal
from pyoco_server.ports.ledger.leases import SqlLeases
from pyoco_server.ports.ledger.memory import MemoryDatabase
from pyoco_server.ports.ledger.modes import SqlBudgetModes
from pyoco_server.ports.ledger.money_tables import SqlMoney
from pyoco_server.ports.ledger.notes import SqlNotes
from pyoco_server.ports.ledger.opened_file import OpenedFile
from pyoco_server.ports.ledger.port import LedgerTx, Spans
from pyoco_server.ports.ledger.rates import SqlRates
from pyoco_server.ports.ledger.run_rows import SqlRunRows
from pyoco_server.ports.ledger.tenants import SqlTenants
from pyoco_server.ports.ledger.uploads import SqlUploads

__all__ = ["SqlLedger"]

T = TypeVar("T")

_WRITE_SECONDS: Final = 15
_READ_SECONDS: Final = 15
#: An audit reads the entire journal.
_LONG_READ_SECONDS: Final = 60
_PING_SECONDS: Final = 2
#: Transactions that share one sync to disk: more would make the first wait too long for the last.
_BATCH_MAX: Final = 256


class SqlLedger:
    """See `port.Ledger`. Usable between `start` and `close`; it recovers from outages of the database by itself."""

    def __init__(
        self,
        url: str,
        spans: Spans,
        *,
        skew_us: Callable[[], int] = lambda: 0,
        make_missing: bool = False,
        migrate_older: bool = False,
        threads: int = 8,
        check_allowed: Callable[[], None] = lambda: None,
    ) -> None:
        """`skew_us` moves the ledger's clock, for tests. `make_missing`: create the tables in an empty database;
        `migrate_older`: migrate those of an earlier version.

        `threads`: concurrent writers on PostgreSQL, and half as many readers, each with a connection that is opened at
        first use. `check_allowed` is called before each transaction, and raises to refuse it. Raises SettingError.
        """
        self._url, self._where, self._spans, self._skew_us = url, address(url), spans, skew_us
        self._memory: MemoryDatabase | None = None
        self._make_missing, self._migrate_older = make_missing, migrate_older
        self._threads, self._check_allowed = threads, check_allowed
        #: None: the ledger is not a file, or not started yet.
        self._file: OpenedFile | None = None
        self._known_tenants: set[str] = set()
        self._writing: TransactionThreads | InlineTransactions | None = None
        self._reading: TransactionThreads | InlineTransactions | None = None

    async def start(self) -> None:
        """Raises DependencyUnavailable, and LedgerOutdated for tables of another version; may be retried."""
        await asyncio.to_thread(self._check_tables)
        memory = self._memory = memory_of(self._where)
        if memory is not None:
            writing, after_commit = engine_for_writing(self._where), memory.call_after_commit
            self._writing = InlineTransactions("ledger.write", writing, durably, memory, after_commit)
            self._reading = InlineTransactions("ledger.read", engine_for_reading(self._where), reading, memory)
            return
        writers, batch_max = (1, _BATCH_MAX) if is_sqlite(self._where) else (self._threads, 1)
        with ledger_errors():
            engine = await asyncio.to_thread(engine_for_writing, self._where)
        engine_to_read = engine_for_reading(self._where)
        commit: Callable[[Connection], AbstractContextManager[object]] = durably
        commit_softly: Callable[[Connection], AbstractContextManager[object]] = softly
        if (path := file_of(self._where)) is not None:
            opened = self._file = OpenedFile(path)
            opened.guard(engine)
            opened.guard(engine_to_read)
            commit, commit_softly = opened.checked(durably), opened.checked(softly)
        self._writing = TransactionThreads(
            "ledger-write", engine, commit, commit_softly, threads=writers, batch_max=batch_max
        )
        # More than one: an audit takes long, and must not block other reads.
        readers = max(2, self._threads // 2)
        self._reading = TransactionThreads("ledger-read", engine_to_read, reading, reading, threads=readers)

    async def close(self) -> None:
        """Wait for every pending transaction, at most 10 s. Idempotent."""
        await asyncio.gather(*(each.close() for each in (self._reading, self._writing) if each is not None))

    async def transact(self, work: Callable[[LedgerTx], T]) -> T:
        return await self._ask(self._writing, work, _WRITE_SECONDS)

    async def transact_softly(self, work: Callable[[LedgerTx], T]) -> T:
        return await self._ask(self._writing, work, _WRITE_SECONDS, is_soft=True)

    async def read(self, question: Callable[[LedgerTx], T]) -> T:
        return await self._ask(self._reading, question, _READ_SECONDS)

    async def read_long(self, question: Callable[[LedgerTx], T]) -> T:
        return await self._ask(self._reading, question, _LONG_READ_SECONDS)

    async def stored_id(self) -> str | None:
        if self._reading is None:
            raise DependencyUnavailable("the ledger is not open")
        if self._file is None:
            found: str | None = await self._reading.ask(TransactionJob(stored_id), _PING_SECONDS)
            return found
        self._file.check()
        # On a new connection: an open one may not notice that the file was overwritten.
        return await asyncio.to_thread(migrate.stored_id_at, self._url)

    async def ping(self) -> None:
        self._check_allowed()
        if self._reading is None:
            raise DependencyUnavailable("the ledger is not open")
        await self._reading.ask(TransactionJob(lambda connection: connection.execute(_ANYTHING).all()), _PING_SECONDS)

    async def probe(self) -> None:
        await self._ask(self._writing, lambda tx: tx.notes.put("probe", str(tx.now_us())), _PING_SECONDS, is_soft=True)

    async def _ask(
        self,
        transactions: TransactionThreads | InlineTransactions | None,
        work: Callable[[LedgerTx], T],
        seconds: int,
        *,
        is_soft: bool = False,
    ) -> T:
        self._check_allowed()
        if transactions is None:
            raise DependencyUnavailable("the ledger is not open")
        seen: set[str] = set()

        def do(connection: Connection) -> T:
            sql = Sql(connection, self._spans, self._clock_skew_us, self._known_tenants)
            answer = work(_offer(sql))
            seen.update(sql.seen_tenants)
            return answer

        answer: T = await transactions.ask(
            TransactionJob(do, lambda: self._known_tenants.update(seen), is_soft), seconds
        )
        return answer

    def _clock_skew_us(self) -> int:
        return self._skew_us() + (self._memory.skew_us() if self._memory is not None else 0)

    def _check_tables(self) -> None:
        found = migrate.status(self._url)
        is_older = found.version is not None and found.is_known and not found.is_current
        if (found.version is None and self._make_missing) or (is_older and self._migrate_older):
            migrate.upgrade(self._url)
            found = migrate.status(self._url)
        migrate.check(found)


_ANYTHING = text("SELECT 1")


def _offer(sql: Sql) -> LedgerTx:
    return LedgerTx(
        now_us=sql.now_us,
        tenants=SqlTenants(sql),
        runs=SqlRunRows(sql),
        leases=SqlLeases(sql),
        ends=SqlEnds(sql),
        money=SqlMoney(sql),
        journal=SqlJournal(sql),
        modes=SqlBudgetModes(sql),
        notes=SqlNotes(sql),
        identity=SqlIdentity(sql),
        rates=SqlRates(sql),
        uploads=SqlUploads(sql),
    )
