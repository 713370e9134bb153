"""Transactions on a database in memory, each executed completely in the event loop, without threads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from pyoco_server.errors import DependencyUnavailable
from pyoco_server.ports.ledger.engine import TransactionJob
from pyoco_server.ports.ledger.faults import ledger_errors
from pyoco_server.ports.ledger.memory import MemoryDatabase

__all__ = ["InlineTransactions"]

Begin = Callable[[Connection], AbstractContextManager[object]]


class InlineTransactions:
    """One connection, opened at first use. `durably` and `softly` do not differ in memory.

    A transaction never suspends its task, so it cannot be cancelled halfway, and no two of them overlap.
    """

    def __init__(
        self,
        call: str,
        engine: Engine,
        begin: Begin,
        database: MemoryDatabase,
        after_commit: Callable[[], None] = lambda: None,
    ) -> None:
        """`call`: name of the call in the simulated network. `after_commit` may raise, see `MemoryDatabase`."""
        self._call, self._engine, self._begin = call, engine, begin
        self._database, self._after_commit = database, after_commit
        self._connection: Connection | None = None
        self._is_closed = False

    async def ask(self, job: TransactionJob, seconds: int) -> Any:
        """Run a job. Raises DependencyUnavailable, also if the simulated network takes longer than `seconds`."""
        async with self._database.network.call(self._call, seconds):
            return self._perform(job)

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        self._is_closed = True
        self._drop()
        self._engine.dispose()

    def _perform(self, job: TransactionJob) -> Any:
        if self._is_closed:
            raise DependencyUnavailable("the ledger is closed")
        if self._connection is None:
            with ledger_errors():
                self._connection = self._engine.connect()
        try:
            with ledger_errors(), self._begin(self._connection):
                value = job.work(self._connection)
            self._after_commit()
        except BaseException as error:
            # A simulated crash: SQLAlchemy may have invalidated the connection.
            if isinstance(error, DependencyUnavailable) or not isinstance(error, Exception):
                self._drop()
            raise
        job.committed()
        return value

    def _drop(self) -> None:
        """Close the connection, rolling back an open transaction."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(SQLAlchemyError):
                connection.invalidate()
                connection.close()
