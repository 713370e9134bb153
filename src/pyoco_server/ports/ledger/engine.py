"""Threads that own the connections, and the queue of transactions in front of them.

SQLite has one writer: its thread takes all waiting jobs together, each in its own savepoint, and ends them with one
COMMIT, so that one sync to disk serves all of them. PostgreSQL has several, each with one transaction at a time.

No result is delivered before it is committed. If a caller is cancelled or times out, its job is removed from the queue
if it still waits; if it has begun, it happens completely or not at all. A transaction that hangs for too long loses its
connection: a server that keeps a connection open without responding would block the thread forever.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import SQLAlchemyError

from pyoco_server.errors import DependencyUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.ledger.connect import SocketHandle
from pyoco_server.ports.ledger.faults import ended_for_another, ledger_errors, lost_connection
from pyoco_server.ports.ledger.quick import Quick

__all__ = ["TransactionJob", "TransactionThreads"]

log = get_logger(__name__)

_WAITING_MAX: Final = 10_000
#: Attempts at a transaction that PostgreSQL aborted in favour of another, or whose connection was already dead.
_TRIES: Final = 4
_CLOSE_SECONDS: Final = 10
#: Part of that time, for threads whose connections were shut down.
_LAST_SECONDS: Final = 1
_SECOND_NS: Final = 1_000_000_000


@dataclass(eq=False)
class TransactionJob:
    """One transaction that a caller waits for."""

    #: May be called again, from the beginning.
    work: Callable[[Connection], Any]
    #: Called after the commit and before the answer, in the thread; must not fail.
    committed: Callable[[], None] = lambda: None
    #: A power failure may lose it.
    is_soft: bool = False
    answer: Future[Any] = field(default_factory=Future)
    #: The caller has stopped waiting: the job is not retried.
    is_left: bool = False


class TransactionThreads:
    """Threads of one kind, each with its own connection; started on demand, up to `threads`."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        durably: Callable[[Connection], AbstractContextManager[object]],
        softly: Callable[[Connection], AbstractContextManager[object]],
        *,
        threads: int = 1,
        batch_max: int = 1,
    ) -> None:
        """`durably` and `softly` wrap the work in a transaction."""
        self._engine, self._durably, self._softly, self._batch_max = engine, durably, softly, batch_max
        self._name, self._threads_max = name, threads
        #: Guards the fields below, and signals a new job.
        self._arrived = threading.Condition()
        self._waiting: OrderedDict[TransactionJob, None] = OrderedDict()
        self._running: dict[TransactionJob, _Held] = {}
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._is_closed = False
        #: Connections opened before this time are not reused: one of them hung.
        self._distrusted_ns = 0
        self._own = threading.local()
        # Before all other listeners: even the first command to the server may get no response.
        event.listen(engine, "connect", self._connected, insert=True)

    async def ask(self, job: TransactionJob, seconds: int) -> Any:
        """Run a job. Raises DependencyUnavailable: the queue is full, the job took too long, or the database failed."""
        with self._arrived:
            if self._is_closed:
                raise DependencyUnavailable("the ledger is closed")
            if len(self._waiting) >= _WAITING_MAX:
                raise DependencyUnavailable("too many transactions wait for the ledger")
            if self._idle <= len(self._waiting) and len(self._threads) < self._threads_max:
                self._add_thread()
            self._waiting[job] = None
            self._arrived.notify()
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.wrap_future(job.answer)
        except TimeoutError as error:
            raise DependencyUnavailable(f"the ledger did not answer within {seconds} s") from error
        finally:
            if not job.answer.done() or job.answer.cancelled():
                self._leave(job, seconds)

    async def close(self) -> None:
        """Return once all waiting jobs are done and every connection is closed, or after 10 s: then hanging connections
        are shut down, and waiting jobs are refused. Idempotent."""
        with self._arrived:
            self._is_closed = True
            self._arrived.notify_all()
        await asyncio.to_thread(self._end)
        self._engine.dispose()

    def _end(self) -> None:
        until_ns = time.monotonic_ns() + _CLOSE_SECONDS * _SECOND_NS
        if not self._join(until_ns - _LAST_SECONDS * _SECOND_NS):
            with self._arrived:
                left = list(self._waiting)
                self._waiting.clear()
                for job in self._running:
                    job.is_left = True
                for held in self._running.values():
                    held.cut()
            for job in left:
                if job.answer.set_running_or_notify_cancel():
                    job.answer.set_exception(DependencyUnavailable("the ledger is closed"))
            self._join(until_ns)

    def _join(self, until_ns: int) -> bool:
        """Whether all threads have ended."""
        for thread in self._threads:
            thread.join(_seconds(until_ns - time.monotonic_ns()))
        return not any(thread.is_alive() for thread in self._threads)

    def _leave(self, job: TransactionJob, seconds: int) -> None:
        """Drop a job whose caller has stopped waiting. A waiting job is removed from the queue: it may hold a large
        submission.

        A job that has begun gets `seconds` from its begin, since a long queue is not the fault of its connection.
        """
        job.is_left = True
        with self._arrived:
            if job in self._waiting:
                del self._waiting[job]
            held = self._running.get(job)
            if held is None:
                return
            left_ns = held.began_ns + seconds * _SECOND_NS - time.monotonic_ns()
        asyncio.get_running_loop().call_later(_seconds(left_ns), self._give_up, job)

    def _give_up(self, job: TransactionJob) -> None:
        with self._arrived:
            held = self._running.get(job)
            if held is None:
                return
            held.cut()
            self._distrusted_ns = time.monotonic_ns()
        log.warning("a ledger transaction hangs; shutting down its connection", kind=self._name)

    def _connected(self, driver: Any, _: object) -> None:
        self._own.held.use(SocketHandle.of(driver))

    def _add_thread(self) -> None:
        """Start a thread. Raises DependencyUnavailable if there is none at all: the machine may be out of threads for a
        while."""
        thread = threading.Thread(target=self._serve, name=f"{self._name}-{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            log.warning("could not start a thread for the ledger", kind=self._name, threads=len(self._threads))
            if not self._threads:
                raise DependencyUnavailable("there is no thread for the ledger") from error
        else:
            self._threads.append(thread)  # only if it runs: a thread that was never started would never be replaced

    def _next(self, held: _Held) -> list[TransactionJob]:
        """Wait for jobs and take them in the order of arrival. Returns an empty list if the engine is closed and all
        jobs are done."""
        with self._arrived:
            while not self._waiting and not self._is_closed:
                self._idle += 1
                self._arrived.wait()
                self._idle -= 1
            taken = [self._waiting.popitem(last=False)[0] for _ in range(min(len(self._waiting), self._batch_max))]
            held.begin(self._distrusted_ns)
            self._running.update(dict.fromkeys(taken, held))
            return taken

    def _serve(self) -> None:
        held = self._own.held = _Held(self._engine)
        while taken := self._next(held):
            jobs = [job for job in taken if job.answer.set_running_or_notify_cancel()]
            if jobs:
                self._perform(held, jobs)
            with self._arrived:
                for job in taken:
                    del self._running[job]
        held.drop()

    def _perform(self, held: _Held, jobs: Sequence[TransactionJob]) -> None:
        try:
            with ledger_errors():
                if len(jobs) == 1:
                    self._do_one(held, jobs[0])
                else:
                    self._do_together(held, jobs)
        except BaseException as error:  # noqa: BLE001  (the top of a thread: the waiting caller gets the error)
            if isinstance(error, DependencyUnavailable):
                held.drop()
            for job in jobs:
                if not job.answer.done():
                    job.answer.set_exception(error)

    def _do_one(self, held: _Held, job: TransactionJob) -> None:
        for tries_left in reversed(range(_TRIES)):
            is_done = False
            try:
                with self._begin(job.is_soft)(held.connection()):
                    value = job.work(held.connection())
                    is_done = True
            except SQLAlchemyError as error:
                # Not if the work was done: then the COMMIT got no response, and its result is unknown.
                has_died = not is_done and lost_connection(error)
                if not tries_left or job.is_left or not (has_died or ended_for_another(error)):
                    raise
                if has_died:
                    held.drop()
            else:
                _Outcome(value).tell(job)
                return

    def _do_together(self, held: _Held, jobs: Sequence[TransactionJob]) -> None:
        """Run several jobs in one transaction. Raises errors that are not of a single job; then nothing was
        committed."""
        connection = held.connection()
        with self._begin(all(job.is_soft for job in jobs))(connection):
            outcomes = [_do_beside_others(connection, job) for job in jobs]
        for job, outcome in zip(jobs, outcomes, strict=True):
            outcome.tell(job)

    def _begin(self, is_soft: bool) -> Callable[[Connection], AbstractContextManager[object]]:
        return self._softly if is_soft else self._durably


@dataclass(frozen=True)
class _Outcome:
    value: Any = None
    error: Exception | None = None

    def tell(self, job: TransactionJob) -> None:
        if self.error is not None:
            job.answer.set_exception(self.error)
        else:
            job.committed()
            job.answer.set_result(self.value)


def _do_beside_others(connection: Connection, job: TransactionJob) -> _Outcome:
    """Run a job in a savepoint, on SQLite. Raises an error that ended the entire transaction; any other is the job's
    outcome."""
    quick = Quick(connection)
    quick.say("SAVEPOINT one")  # not through SQLAlchemy, which costs as much as all statements of a short job
    try:
        with ledger_errors():
            value = job.work(connection)
    except Exception as error:
        if not _is_in_transaction(connection):
            raise
        quick.say("ROLLBACK TO one")
        quick.say("RELEASE one")
        return _Outcome(error=error)
    quick.say("RELEASE one")
    return _Outcome(value)


def _is_in_transaction(connection: Connection) -> bool:
    """SQLite ends a transaction by itself, for example if the disk is full."""
    return bool(getattr(connection.connection.driver_connection, "in_transaction", True))


class _Held:
    """A thread's connection. After an outage it is discarded, and reopened for the next transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        #: Set also while the connection is being opened.
        self._line: SocketHandle | None = None
        self._is_cut = self._is_distrusted = False
        self._opened_ns = 0
        #: When its current jobs began.
        self.began_ns = 0

    def begin(self, distrusted_ns: int) -> None:
        """Begin new jobs. A connection that was opened before `distrusted_ns` is replaced."""
        self.began_ns, self._is_cut = time.monotonic_ns(), False
        self._is_distrusted = self._opened_ns <= distrusted_ns

    def connection(self) -> Connection:
        if self._is_distrusted:
            self.drop()
        if self._connection is None:
            self._connection = self._engine.connect()
        return self._connection

    def use(self, line: SocketHandle | None) -> None:
        """Set the current connection."""
        with self._lock:
            before, self._line, self._opened_ns = self._line, line, time.monotonic_ns()
            if before is not None:
                before.close()
            if line is not None and self._is_cut:
                line.cut()

    def cut(self) -> None:
        """Shut down the connection from another thread: waiting for the server fails, now and until the next
        `begin`."""
        with self._lock:
            self._is_cut = True
            if self._line is not None:
                self._line.cut()

    def drop(self) -> None:
        self._is_distrusted = False
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(SQLAlchemyError):  # it is broken, or not needed any more
                connection.invalidate()
                connection.close()
        self.use(None)


def _seconds(ns: int) -> Any:
    return max(timedelta(0), timedelta(microseconds=ns // 1000)).total_seconds()
