"""Budgets in the ledger's own tables (joint mode): reserve, close and credit inside the caller's transaction.

Each locks the tenant's budget row first (PRICED-53): the holder of that lock has exclusive access to the tenant's
money.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Insert, Row, Update, bindparam, case, select, update
from sqlalchemy.dialects import postgresql, sqlite

from pyoco_server.core.priced import journal
from pyoco_server.core.priced.constants import MAX_AMOUNT_USD_MICROS
from pyoco_server.core.priced.journal import Closing, Txn
from pyoco_server.core.priced.money import AmountError, check_amount
from pyoco_server.core.states.priced import Actor
from pyoco_server.errors import Corrupt
from pyoco_server.ports.budget.port import (
    AlreadyApplied,
    AlreadyReserved,
    Closed,
    Credited,
    Insufficient,
    NoReserve,
    NotReserved,
    Open,
    OpenReservation,
    Outcome,
    Refunded,
    Reserved,
    Settled,
    TenantMismatch,
)
from pyoco_server.ports.ledger.dialect import Sql, clock
from pyoco_server.ports.ledger.journal_tables import SqlJournal
from pyoco_server.ports.ledger.quick import keep
from pyoco_server.ports.ledger.schema import budgets, ledger_txns, reservations
from pyoco_server.ports.ledger.tenants import SqlTenants

__all__ = ["SqlMoney"]

_OPEN: Final = "OPEN"
_SETTLED: Final = "SETTLED"
_REFUNDED: Final = "REFUNDED"
#: Range of BIGINT. SQLite would continue with floating point.
_BALANCE_MAX: Final = 2**63 - 1
_MS: Final = 1000

_B, _R = budgets.c, reservations.c

#: SQLite has locked the entire file at this point, and ignores FOR UPDATE.
_BALANCE = keep(select(_B.balance_usd_micros).where(_B.tenant_id == bindparam("tenant")))
_LOCK = keep(_BALANCE.with_for_update())
_LOOK = keep(
    select(_R.tenant_id, _R.state, _R.reserved_usd_micros, _R.charge_usd_micros, _R.refund_usd_micros).where(
        _R.run_id == bindparam("run")
    )
)


def _setting_aside(*, on_postgres: bool) -> Insert:
    insert = postgresql.insert if on_postgres else sqlite.insert
    return (
        insert(reservations)
        .values(
            run_id=bindparam("run"),
            tenant_id=bindparam("tenant"),
            reserved_usd_micros=bindparam("amount"),
            state=_OPEN,
            created_at=clock("now", on_postgres=on_postgres),
        )
        .on_conflict_do_nothing(index_elements=["run_id"])
        .returning(_R.run_id)
    )


def _writing_balance(*, on_postgres: bool) -> Update:
    return (
        update(budgets)
        .where(_B.tenant_id == bindparam("tenant"))
        .values(balance_usd_micros=bindparam("balance"), updated_at=clock("now", on_postgres=on_postgres))
    )


def _closing(*, on_postgres: bool) -> Update:
    """Charge at most what is reserved, and release the rest."""
    charge = bindparam("charge", type_=_R.charge_usd_micros.type)
    taken = case((charge < _R.reserved_usd_micros, charge), else_=_R.reserved_usd_micros)
    return (
        update(reservations)
        .where(_R.run_id == bindparam("run"), _R.tenant_id == bindparam("tenant"), _R.state == _OPEN)
        .values(
            state=bindparam("closed"),
            charge_usd_micros=taken,
            refund_usd_micros=_R.reserved_usd_micros - taken,
            closed_at=clock("now", on_postgres=on_postgres),
        )
        .returning(_R.reserved_usd_micros, _R.charge_usd_micros, _R.refund_usd_micros)
    )


_RESERVE = {on_postgres: keep(_setting_aside(on_postgres=on_postgres)) for on_postgres in (False, True)}
_WRITE_BALANCE = {on_postgres: keep(_writing_balance(on_postgres=on_postgres)) for on_postgres in (False, True)}
_CLOSE = {on_postgres: keep(_closing(on_postgres=on_postgres)) for on_postgres in (False, True)}


class SqlMoney:
    """`MoneyTables`, with at most five statements for each reserve and each closing."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql
        self._journal = SqlJournal(sql)

    def reserve(
        self, tenant_id: str, run_id: str, amount_usd_micros: int, trace_id: str | None = None
    ) -> Reserved | Insufficient | AlreadyReserved:
        amount = check_amount(amount_usd_micros, at_least=1)
        balance = self._lock(tenant_id) or 0
        if balance < amount:
            return Insufficient(balance) if self._look(run_id) is None else AlreadyReserved()
        values = {"run": run_id, "tenant": tenant_id, "amount": amount, "now": self._sql.shift()}
        if self._sql.connection.execute(_RESERVE[self._sql.is_postgres], values).first() is None:
            return AlreadyReserved()
        self._write_balance(tenant_id, balance - amount)
        self._note(journal.reserve(tenant_id, run_id, amount, Actor.API, trace_id))
        return Reserved(balance - amount)

    def settle(self, tenant_id: str, run_id: str, charge_usd_micros: int, by: Closing) -> Closed | NoReserve:
        charge = check_amount(charge_usd_micros, at_least=0)
        closed = self._close(tenant_id, run_id, _SETTLED, charge)
        if isinstance(closed, Closed):
            reserved = closed.charge_usd_micros + closed.refund_usd_micros
            self._note(journal.settle(tenant_id, run_id, reserved, closed.charge_usd_micros, by))
        return closed

    def refund_full(self, tenant_id: str, run_id: str, by: Closing) -> Closed | NoReserve:
        closed = self._close(tenant_id, run_id, _REFUNDED, 0)
        if isinstance(closed, Closed):
            self._note(journal.refund(tenant_id, run_id, closed.refund_usd_micros, by))
        return closed

    def outcome(self, run_id: str) -> Outcome:
        row = self._look(run_id)
        if row is None:
            return NotReserved()
        _, state, reserved, charge, refund = row
        if state == _OPEN:
            return Open(reserved)
        return Settled(charge, refund) if state == _SETTLED else Refunded(refund)

    def balance(self, tenant_id: str) -> int:
        return self._sql.connection.execute(_BALANCE, {"tenant": tenant_id}).scalar() or 0

    def credit(self, tenant_id: str, amount_usd_micros: int, ref: str) -> Credited | AlreadyApplied:
        """Apply a credit, unless it was applied before. Creates the tenant if necessary."""
        amount = check_amount(amount_usd_micros, at_least=1)
        fact = journal.topup(tenant_id, ref, amount)
        known = select(ledger_txns.c.txn_id).where(ledger_txns.c.op_key == fact.op_key)
        if self._sql.connection.execute(known).first() is not None:
            return AlreadyApplied()
        balance = self._lock_or_make(tenant_id) + amount
        if balance > _BALANCE_MAX:
            raise AmountError("no budget holds so much")
        if not self._journal.post(fact):  # another transaction applied it concurrently
            return AlreadyApplied()
        self._write_balance(tenant_id, balance)
        return Credited(balance)

    def adjust(self, tenant_id: str, amount_usd_micros: int) -> int:
        """Also raises AmountError if the balance would become negative."""
        if type(amount_usd_micros) is not int or abs(amount_usd_micros) > MAX_AMOUNT_USD_MICROS:
            raise AmountError("a correction is a whole number of micros within the bounds")
        balance = self._lock_or_make(tenant_id) + amount_usd_micros
        if not 0 <= balance <= _BALANCE_MAX:
            raise AmountError("a correction must leave a balance of nothing or more")
        self._write_balance(tenant_id, balance)
        return balance

    def force_close(self, run_id: str, charge_usd_micros: int) -> bool:
        """Returns False if it is not open. Raises AmountError for more than is reserved."""
        charge = check_amount(charge_usd_micros, at_least=0)
        row = self._look(run_id)
        if row is None or row.state != _OPEN:
            return False
        self._lock(row.tenant_id)
        if charge > row.reserved_usd_micros:
            raise AmountError("a charge is at most what is reserved")
        closed = self._close_row(row.tenant_id, run_id, _SETTLED if charge else _REFUNDED, charge)
        return closed is not None

    def open_reservations(self, older_than_us: int, limit: int) -> list[OpenReservation]:
        """Open reservations, oldest first, by an index: O(limit)."""
        question = (
            select(_R.run_id, _R.tenant_id, _R.reserved_usd_micros, _R.created_at)
            .where(_R.state == _OPEN, _R.created_at < older_than_us)
            .order_by(_R.created_at)
            .limit(limit)
        )
        return [
            OpenReservation(run_id=run, tenant_id=tenant, reserved_usd_micros=amount, created_at_ms=at_us // _MS)
            for run, tenant, amount, at_us in self._sql.connection.execute(question)
        ]

    def _lock(self, tenant_id: str) -> int | None:
        """Lock the budget until the end of the transaction and return the balance. None: the ledger has no such
        tenant."""
        return self._sql.connection.execute(_LOCK, {"tenant": tenant_id}).scalar()

    def _lock_or_make(self, tenant_id: str) -> int:
        balance = self._lock(tenant_id)
        if balance is None:
            SqlTenants(self._sql).ensure(tenant_id)
            balance = self._lock(tenant_id)
        assert balance is not None
        return balance

    def _look(self, run_id: str) -> Row[str, str, int, int, int] | None:
        return self._sql.connection.execute(_LOOK, {"run": run_id}).first()

    def _close(self, tenant_id: str, run_id: str, state: str, charge: int) -> Closed | NoReserve:
        balance = self._lock(tenant_id) or 0
        row = self._close_row(tenant_id, run_id, state, charge)
        if row is None:
            reservation = self._look(run_id)
            if reservation is not None and reservation.state == _OPEN:
                raise TenantMismatch("the reservation belongs to another tenant")
            return NoReserve()
        _, taken, refund = row
        if balance + refund > _BALANCE_MAX:
            raise AmountError("no budget holds so much")
        if refund:
            self._write_balance(tenant_id, balance + refund)
        return Closed(taken, refund, balance + refund)

    def _close_row(self, tenant_id: str, run_id: str, state: str, charge: int) -> Row[int, int, int] | None:
        values = {"run": run_id, "tenant": tenant_id, "closed": state, "charge": charge, "now": self._sql.shift()}
        return self._sql.connection.execute(_CLOSE[self._sql.is_postgres], values).first()

    def _write_balance(self, tenant_id: str, balance: int) -> None:
        """Only call this with the budget locked."""
        values = {"tenant": tenant_id, "balance": balance, "now": self._sql.shift()}
        self._sql.connection.execute(_WRITE_BALANCE[self._sql.is_postgres], values)

    def _note(self, fact: Txn) -> None:
        """Write a fact to the journal. Raises Corrupt if it exists already, which rolls the transaction back: the
        tables and the journal contradict each other."""
        if not self._journal.post(fact):
            raise Corrupt(f"the journal has {fact.op_key} already")
