"""Defects to put into the product, so that a test can tell whether the simulator finds them: a context manager each."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from sqlalchemy import Update, bindparam, update

from pyoco_server.actions.priced import place_joint, place_split, same_key, submit
from pyoco_server.actions.priced.intents import refund
from pyoco_server.core.priced.journal import Closing, Kind, Txn
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Actor, Basis, Stage, Status
from pyoco_server.errors import DependencyUnavailable, PyocoError
from pyoco_server.loops.priced import sweeper
from pyoco_server.loops.priced.reconciler import Reconciler
from pyoco_server.ports.budget.memory import MemoryBudget
from pyoco_server.ports.budget.port import Closed, NoReserve, OpenReservation
from pyoco_server.ports.ledger import ends, leases
from pyoco_server.ports.ledger.dialect import clock
from pyoco_server.ports.ledger.journal_tables import SqlJournal
from pyoco_server.ports.ledger.port import LedgerTx
from pyoco_server.ports.ledger.quick import keep
from pyoco_server.ports.ledger.rows import COLUMNS
from pyoco_server.ports.ledger.schema import runs
from pyoco_server.ports.ledger.sql import SqlLedger
from pyoco_server.ports.ledger.steps import bound
from pyoco_server.ports.ledger.types import RunId
from pyoco_server.ports.priced import Priced
from simulation.process import CURRENT

__all__ = ["DEFECTS"]

_RUN = bindparam("_run", type_=RunId())


def _unconditional(values: dict[str, Any]) -> Update:
    """An update of a row wherever it is."""
    counted = {"version": runs.c.version + 1, "updated_at": clock("_now", on_postgres=False), **values}
    return keep(update(runs).where(runs.c.run_id == _RUN).values(**counted).returning(*COLUMNS))


@contextlib.contextmanager
def settle_without_its_condition() -> Iterator[None]:
    """Split mode: the budget closes a reservation again when it is asked again, and gives the rest back twice."""
    original, known = MemoryBudget._close, dict[str, OpenReservation]()

    def close(self: MemoryBudget, tenant_id: str, run_id: str, charge: int | None) -> Closed | NoReserve:
        found = self._store.reservations.get(run_id, 0)
        if found is not None:
            known[run_id] = found
        elif run_id in known:
            self._put(known[run_id])
        return original(self, tenant_id, run_id, charge)

    with mock.patch.object(MemoryBudget, "_close", close):
        yield


@contextlib.contextmanager
def finalize_without_its_claim() -> Iterator[None]:
    """A commit ends the run without checking who holds the claim, and also if it has ended."""

    def end(step: str, change: Any, releases_key: bool, on_postgres: bool) -> Update:
        values: dict[str, Any] = {column.name: bound(column) for column in ends._WRITTEN}
        values |= {"idempotency_key": None} if releases_key else {}
        values |= {"status": change.status.value, "money_state": change.money.value}
        return _unconditional({**values, "finalize_stage": Stage.COMMITTED.value})

    with mock.patch.object(ends, "_end", end):
        yield


@contextlib.contextmanager
def claim_without_its_condition() -> Iterator[None]:
    """A claim is won although another actor has claimed or ended the run since it was read."""

    def claim(basis: Basis, on_postgres: bool) -> Update:
        return _unconditional(
            {
                "finalize_stage": Stage.CLAIMED.value,
                "status": runs.c.status,
                "finalize_token": bound(runs.c.finalize_token),
                "finalize_claimed_at": clock("_now", on_postgres=on_postgres),
                "finalize_actor": bound(runs.c.finalize_actor),
                "finalize_intent": bound(runs.c.finalize_intent),
            }
        )

    with mock.patch.object(ends, "_claim", claim):
        yield


@contextlib.contextmanager
def refund_after_a_lost_claim() -> Iterator[None]:
    """A gateway that got no answer to a send gives the money back, although a worker has the run."""
    original = submit._take_back

    async def take_back(priced: Priced, run: PricedRun, error: DependencyUnavailable) -> PricedRun:
        found = await original(priced, run, error)
        by = Closing(actor=Actor.API)
        if priced.budget.joins_ledger:
            await priced.ledger.transact(lambda tx: tx.money.refund_full(run.tenant_id, run.run_id, by))
        else:
            await priced.budget.refund_full(run.tenant_id, run.run_id, by)
        return found

    with mock.patch.object(submit, "_take_back", take_back):
        yield


@contextlib.contextmanager
def refund_without_a_claim() -> Iterator[None]:
    """A gateway that got no answer to a send ends the run as refunded without claiming its end first: by a commit
    without conditions."""

    async def take_back(priced: Priced, run: PricedRun, error: DependencyUnavailable) -> PricedRun:
        intent = refund(Reason.QUEUE_ENQUEUE_FAILED)
        values = {
            "status": Status.FAILED.value,
            "money_state": "REFUNDED",
            "finalize_stage": Stage.COMMITTED.value,
            "actual_cost_usd_micros": 0,
            "last_error_reason_code": intent.reason_code,
            "idempotency_key": None,
        }

        def work(tx: LedgerTx) -> None:
            sql = tx.ends._sql  # type: ignore[attr-defined]
            sql.connection.execute(_unconditional(values), {"_run": run.run_id, "_now": sql.shift()}).first()
            if priced.budget.joins_ledger:
                tx.money.refund_full(run.tenant_id, run.run_id, Closing(actor=Actor.API))

        await priced.ledger.transact(work)
        raise DependencyUnavailable("the run could not be queued") from error

    with mock.patch.object(submit, "_take_back", take_back):
        yield


@contextlib.contextmanager
def start_without_its_condition() -> Iterator[None]:
    """T4 takes a run wherever it is: a message that is delivered twice is executed twice."""

    def start(on_postgres: bool) -> Update:
        return _unconditional(
            {
                "status": Status.PROCESSING.value,
                "finalize_stage": None,
                "lease_token": bound(runs.c.lease_token),
                "lease_expires_at": clock("_lease_end", on_postgres=on_postgres),
                "started_at": clock("_now", on_postgres=on_postgres),
            }
        )

    with mock.patch.object(leases, "_start", start):
        yield


@contextlib.contextmanager
def keeper_with_its_own_clock() -> Iterator[None]:
    """Keepers compare leases and ages with the clock of their own machine instead of the ledger's."""
    original = SqlLedger._clock_skew_us

    def skew_us(self: SqlLedger) -> int:
        return 0 if CURRENT.get().name.startswith("keeper") else original(self)

    with mock.patch.object(SqlLedger, "_clock_skew_us", skew_us):
        yield


class _NotYet(Exception):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


@contextlib.contextmanager
def answer_before_the_commit() -> Iterator[None]:
    """Transactions of a gateway are answered at once, and committed a little later."""
    original, committing = SqlLedger.transact, set[asyncio.Task[None]]()

    async def commit(ledger: SqlLedger, work: Callable[[LedgerTx], Any]) -> None:
        with contextlib.suppress(PyocoError):
            await original(ledger, work)

    async def transact(self: SqlLedger, work: Callable[[LedgerTx], Any]) -> Any:
        if not CURRENT.get().name.startswith("gateway"):
            return await original(self, work)

        def try_out(tx: LedgerTx) -> None:
            raise _NotYet(work(tx))

        try:
            await original(self, try_out)
        except _NotYet as done:
            committing.add(asyncio.get_running_loop().create_task(commit(self, work)))
            return done.value

    with mock.patch.object(SqlLedger, "transact", transact):
        yield


@contextlib.contextmanager
def missing_refund_in_journal() -> Iterator[None]:
    """Refunds are not written into the journal."""
    original = SqlJournal.post

    def post(self: SqlJournal, fact: Txn) -> bool:
        return True if fact.kind is Kind.REFUND else original(self, fact)

    with mock.patch.object(SqlJournal, "post", post):
        yield


@contextlib.contextmanager
def sweeper_that_sends_nothing_again() -> Iterator[None]:
    """A run whose gateway died before it was sent is not sent again: it waits until it is given up."""

    async def send_again(priced: Priced, run: PricedRun) -> bool:
        return False

    with mock.patch.object(sweeper, "send_again", send_again):
        yield


@contextlib.contextmanager
def reconciler_that_does_nothing() -> Iterator[None]:
    """An end that was claimed and not committed is never completed."""

    async def turn(self: Reconciler) -> None:
        """Nothing."""

    with mock.patch.object(Reconciler, "turn", turn):
        yield


@contextlib.contextmanager
def key_without_its_payload() -> Iterator[None]:
    """A used key is answered with its run, whatever the request is."""
    original = same_key.look_at_same_key

    def look(existing: PricedRun, ask: Any, now_us: int) -> Any:
        return original(existing, mock.Mock(payload_hash=existing.payload_hash), now_us)

    with (
        mock.patch.object(place_joint, "look_at_same_key", look),
        mock.patch.object(place_split, "look_at_same_key", look),
    ):
        yield


#: By name.
DEFECTS: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    each.__name__: each
    for each in (
        settle_without_its_condition,
        finalize_without_its_claim,
        claim_without_its_condition,
        refund_after_a_lost_claim,
        refund_without_a_claim,
        start_without_its_condition,
        keeper_with_its_own_clock,
        answer_before_the_commit,
        missing_refund_in_journal,
        sweeper_that_sends_nothing_again,
        reconciler_that_does_nothing,
        key_without_its_payload,
    )
}
