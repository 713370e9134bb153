"""The journal in SQL: every money fact once, and what can be derived from the facts alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Executable,
    Insert,
    Integer,
    Interval,
    Select,
    bindparam,
    func,
    select,
    type_coerce,
    union_all,
)
from sqlalchemy.dialects import postgresql, sqlite

from pyoco_server.core.priced.journal import CORRECTION, FUNDING, REVENUE, Kind, Txn, available, held
from pyoco_server.ports.ledger.audit import audit
from pyoco_server.ports.ledger.dialect import Sql, clock
from pyoco_server.ports.ledger.port import AuditReport, Balances, CreditNote, JournalLine, Spend
from pyoco_server.ports.ledger.quick import keep
from pyoco_server.ports.ledger.schema import credit_confirmations, ledger_entries, ledger_txns
from pyoco_server.ports.ledger.sums import combined, halves
from pyoco_server.ports.ledger.types import InstantColumn

__all__ = ["SqlJournal"]

_T, _E, _C = ledger_txns.c, ledger_entries.c, credit_confirmations.c
_CLOSINGS: Final = (Kind.SETTLE.value, Kind.REFUND.value)
_COLUMNS = (_T.txn_id, _T.op_key, _T.kind, _T.tenant_id, _T.run_id, _T.actor, _T.memo, _T.created_at)


def _writing(*, on_postgres: bool) -> Insert:
    """Inserting a fact that exists is no error: on PostgreSQL an error would abort the entire transaction."""
    insert = postgresql.insert if on_postgres else sqlite.insert
    facts = ("op_key", "kind", "tenant_id", "run_id", "actor", "finalize_token", "trace_id", "memo")
    return (
        insert(ledger_txns)
        .values({name: bindparam(name) for name in facts} | {"created_at": clock("now", on_postgres=on_postgres)})
        .on_conflict_do_nothing(index_elements=["op_key"])
        .returning(_T.txn_id)
    )


_WRITE = {on_postgres: keep(_writing(on_postgres=on_postgres)) for on_postgres in (False, True)}
_WRITE_ENTRIES = keep(
    ledger_entries.insert().values({name: bindparam(name) for name in ("txn_id", "account", "amount_usd_micros")})
)

#: The entries on the tenant's own accounts, of any fact, and on the platform's accounts, of the tenant's facts.
_BALANCES = union_all(
    select(_E.account, *halves(_E.amount_usd_micros))
    .where(_E.account.in_([bindparam("available"), bindparam("held")]))
    .group_by(_E.account),
    select(_E.account, *halves(_E.amount_usd_micros))
    .join_from(ledger_txns, ledger_entries, _E.txn_id == _T.txn_id)
    .where(_T.tenant_id == bindparam("tenant"), _E.account.in_([REVENUE, FUNDING, CORRECTION]))
    .group_by(_E.account),
)

_UNCONFIRMED = (
    select(_T.op_key, _E.amount_usd_micros)
    .join_from(ledger_txns, ledger_entries, (_E.txn_id == _T.txn_id) & (_E.account == bindparam("account")))
    .where(
        _T.tenant_id == bindparam("tenant"),
        _T.kind == Kind.TOPUP.value,
        ~select(_C.op_key).where(_C.op_key == _T.op_key).exists(),
    )
    .order_by(_T.txn_id)
)


def _confirming(*, on_postgres: bool) -> Insert:
    insert = postgresql.insert if on_postgres else sqlite.insert
    return (
        insert(credit_confirmations)
        .values(op_key=bindparam("op_key"), confirmed_at=clock("now", on_postgres=on_postgres))
        .on_conflict_do_nothing()
    )


_CONFIRM = {on_postgres: _confirming(on_postgres=on_postgres) for on_postgres in (False, True)}


class SqlJournal:
    """Append-only. For the cost of reading see the port."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def post(self, txn: Txn) -> bool:
        """Two statements. Waits for another transaction that is writing the same fact."""
        connection = self._sql.connection
        values = {
            "op_key": txn.op_key,
            "kind": txn.kind.value,
            "tenant_id": txn.tenant_id,
            "run_id": txn.run_id,
            "actor": txn.actor.value,
            "finalize_token": txn.finalize_token,
            "trace_id": txn.trace_id,
            "memo": txn.memo,
            "now": self._sql.shift(),
        }
        txn_id = connection.execute(_WRITE[self._sql.is_postgres], values).scalar()
        if txn_id is None:
            return False
        connection.execute(
            _WRITE_ENTRIES,
            [
                {"txn_id": txn_id, "account": entry.account, "amount_usd_micros": entry.amount_usd_micros}
                for entry in txn.entries
            ],
        )
        return True

    def confirm(self, op_keys: Sequence[str]) -> None:
        if op_keys:
            parameters = [{"op_key": op_key, "now": self._sql.shift()} for op_key in op_keys]
            self._sql.connection.execute(_CONFIRM[self._sql.is_postgres], parameters)

    def is_confirmed(self, op_key: str) -> bool:
        return self._sql.connection.execute(select(_C.op_key).where(_C.op_key == op_key)).first() is not None

    def unconfirmed_credits(self, tenant_id: str) -> list[CreditNote]:
        """Reads the tenant's facts by their index, rather than all entries of the account."""
        given = self._sql.connection.execute(_UNCONFIRMED, {"tenant": tenant_id, "account": available(tenant_id)})
        return [CreditNote(op_key, amount) for op_key, amount in given]

    def balances(self, tenant_id: str) -> Balances:
        names = {"tenant": tenant_id, "available": available(tenant_id), "held": held(tenant_id)}
        rows = self._sql.connection.execute(_BALANCES, names)
        sums = {account: combined(high, low) for account, high, low in rows}
        return Balances(
            tenant_id=tenant_id,
            available_usd_micros=sums.get(names["available"], 0),
            held_usd_micros=sums.get(names["held"], 0),
            charged_usd_micros=sums.get(REVENUE, 0),
            credited_usd_micros=-sums.get(FUNDING, 0),
            corrected_usd_micros=-sums.get(CORRECTION, 0),
        )

    def lines(self, tenant_id: str | None, before: int | None, limit: int) -> list[JournalLine]:
        page = select(*_COLUMNS).order_by(_T.txn_id.desc()).limit(limit)
        if tenant_id is not None:
            page = page.where(_T.tenant_id == tenant_id)
        if before is not None:
            page = page.where(_T.txn_id < before)
        return self._shown(page)

    def find(self, op_key: str) -> JournalLine | None:
        return next(iter(self._shown(select(*_COLUMNS).where(_T.op_key == op_key))), None)

    def _shown(self, page: Select[Any]) -> list[JournalLine]:
        txns = self._sql.connection.execute(page).all()
        legs = self._legs(txn.txn_id for txn in txns)
        return [
            JournalLine(
                **txn._asdict(),
                available_usd_micros=legs[txn.txn_id, available(txn.tenant_id)],
                held_usd_micros=legs[txn.txn_id, held(txn.tenant_id)],
                charged_usd_micros=legs[txn.txn_id, REVENUE],
            )
            for txn in txns
        ]

    def spend(self, tenant_id: str | None, since_us: int, step_us: int) -> list[Spend]:
        start = self._step(since_us, step_us).label("start")
        question = (
            select(start, func.coalesce(func.sum(_E.amount_usd_micros), 0), func.count())
            .join_from(ledger_txns, ledger_entries, (_E.txn_id == _T.txn_id) & (_E.account == REVENUE), isouter=True)
            .where(_T.created_at >= since_us, _T.kind.in_(_CLOSINGS))
            .group_by("start")
            .order_by("start")
        )
        if tenant_id is not None:
            question = question.where(_T.tenant_id == tenant_id)
        return [
            Spend(start_at=int(at), charged_usd_micros=int(charged), runs=runs)
            for at, charged, runs in self._sql.connection.execute(question)
        ]

    def audit(self, joins_ledger: bool = True) -> AuditReport:
        return audit(self._sql.connection, joins_ledger=joins_ledger)

    def _legs(self, txn_ids: Iterable[int]) -> defaultdict[tuple[int, str], int]:
        found: defaultdict[tuple[int, str], int] = defaultdict(int)
        question: Executable = select(_E.txn_id, _E.account, _E.amount_usd_micros).where(_E.txn_id.in_(list(txn_ids)))
        for txn_id, account, amount in self._sql.connection.execute(question):
            found[txn_id, account] += amount
        return found

    def _step(self, since_us: int, step_us: int) -> ColumnElement[Any]:
        """Start of the time step that contains a fact."""
        since = bindparam("since", since_us, type_=InstantColumn())
        if self._sql.is_postgres:
            step = bindparam("step", timedelta(microseconds=step_us), type_=Interval())
            return type_coerce(func.date_bin(step, _T.created_at, since), InstantColumn())
        width = bindparam("step", step_us, type_=Integer())
        passed = type_coerce(_T.created_at, Integer()) - type_coerce(since, Integer())
        return type_coerce(type_coerce(since, Integer()) + passed // width * width, InstantColumn())
