"""Rows of runs: the first steps of a submit, reading, and what keepers look for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    null,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from pyoco_server.core.names import is_run_id
from pyoco_server.core.priced.canonical import canonical_json
from pyoco_server.core.priced.run import NewRun, PricedRun
from pyoco_server.core.states.priced import STEPS, At, Money, Stage, Status
from pyoco_server.errors import Corrupt, KeyBusy
from pyoco_server.logs import get_logger
from pyoco_server.ports.ledger.dialect import Sql, clock, statement_clock
from pyoco_server.ports.ledger.faults import waiting_for_key
from pyoco_server.ports.ledger.port import Exists, Lost, Scan, Spans
from pyoco_server.ports.ledger.quick import keep
from pyoco_server.ports.ledger.rows import COLUMNS, NEW_COLUMNS, new_row, run_of
from pyoco_server.ports.ledger.schema import RETAINED, UNSENT, run_inputs, runs
from pyoco_server.ports.ledger.steps import is_at, step_update, take
from pyoco_server.ports.ledger.tenants import SqlTenants
from pyoco_server.ports.ledger.types import Instant, RunId

__all__ = ["SqlRunRows"]

log = get_logger(__name__)

#: T1 makes a row where T2 and T3 find it.
(_BEGINNING,) = STEPS["T2"].sources
_RESERVED = STEPS["T2"].changes[0].of(_BEGINNING)
#: A key that is released, or a row that is deleted, between two looks: each time somebody else has got on.
_LOOKS: Final = 5
#: How much further a look goes for the sake of rows that can be read.
_DAMAGED_FACTOR: Final = 16
#: Before every run's id.
_FIRST: Final = "00000000-0000-0000-0000-000000000000"
_RUN = bindparam("_run", type_=RunId())


@cache
def _create(on_postgres: bool) -> Any:
    start = postgresql.insert if on_postgres else sqlite.insert
    instants = {
        name: statement_clock(f"_{name}", on_postgres=on_postgres)
        for name in ("created_at", "updated_at", "retention_until")
    }
    told = {name: bindparam(name, type_=runs.c[name].type) for name in NEW_COLUMNS}
    return keep(
        start(runs)
        .values(**told, **instants)
        .on_conflict_do_nothing(index_elements=["tenant_id", "idempotency_key"])
        .returning(*COLUMNS)
    )


@cache
def _mark_reserved(on_postgres: bool) -> Any:
    return step_update("T2", on_postgres=on_postgres)


@cache
def _mark_enqueued(on_postgres: bool) -> Any:
    # The first time counts. Not before T2: who looks for abandoned submits trusts that nothing was sent for them.
    return keep(
        update(runs)
        .where(runs.c.run_id == _RUN, runs.c.enqueued_at.is_(None), runs.c.money_state != Money.NONE.value)
        .values(enqueued_at=clock("_now", on_postgres=on_postgres))
    )


_FORGET_SENT = (
    update(runs)
    .where(text(f"status = '{Status.QUEUED}'"), runs.c.enqueued_at < bindparam("_before", type_=Instant()))
    .values(enqueued_at=null())
)
_DELETE = delete(runs).where(is_at("T3"), runs.c.version == 0)
_GET = keep(select(*COLUMNS).where(runs.c.run_id == _RUN))
_GET_OWNED = keep(_GET.where(runs.c.tenant_id == bindparam("_tenant")))
_BY_KEY = keep(
    select(*COLUMNS).where(runs.c.tenant_id == bindparam("_tenant"), runs.c.idempotency_key == bindparam("_key"))
)
_ADD_INPUTS = keep(insert(run_inputs).values({column.name: bindparam(column.name) for column in run_inputs.c}))
_INPUTS = keep(select(run_inputs.c.inputs_json).where(run_inputs.c.run_id == _RUN))
_UNSETTLED = (
    select(*COLUMNS)
    .where(
        # Both have not ended, and only such a run has its money open (PRICED-9).
        text(f"status IN ('{Status.QUEUED}', '{Status.PROCESSING}')"),
        text(f"money_state IN ('{Money.NONE}', '{Money.RESERVED}', '{Money.DISPUTED}')"),
        # Not by an index of tenants: it would lead to all runs there ever were.
        func.coalesce(runs.c.tenant_id, "") == bindparam("_tenant"),
    )
    .order_by(runs.c.created_at)
)
_CHANGED = (
    select(*COLUMNS)
    .where(
        tuple_(runs.c.updated_at, runs.c.run_id)
        > tuple_(bindparam("_updated_at", type_=Instant()), bindparam("_run", type_=RunId()))
    )
    .order_by(runs.c.updated_at, runs.c.run_id)
    .limit(bindparam("_limit", type_=Integer))
)


@cache
def _scan(kind: Scan, on_postgres: bool) -> Select[Any]:
    """Walks one index from its old end. Each `_a` and `_b` is an instant of `_ages`."""
    a, b = (statement_clock(name, on_postgres=on_postgres) for name in ("_a", "_b"))
    row = runs.c
    is_open = func.coalesce(row.finalize_stage, _word(Stage.OPEN)) == _word(Stage.OPEN)  # as in `schema.UNSENT`
    unsent, ended = text(UNSENT), text(RETAINED)
    where: tuple[Any, ...]
    by: ColumnElement[Any]
    match kind:
        case Scan.EXPIRED_LEASES | Scan.LONG_EXPIRED_LEASES:
            where, by = (
                (row.status == _word(Status.PROCESSING), row.lease_expires_at < a, is_open),
                row.lease_expires_at,
            )
        case Scan.AGED:
            where = (row.status == _word(Status.QUEUED), row.created_at <= a, _money(Money.RESERVED), is_open)
            by = row.created_at
        case Scan.ABANDONED:
            where, by = (unsent, row.created_at < a, _money(Money.NONE), is_open), row.created_at
        case Scan.UNSENT:
            where = (unsent, row.created_at <= a, row.created_at > b, _money(Money.RESERVED), is_open)
            by = row.created_at
        case Scan.STALE_CLAIMS:
            is_disputed = _money(Money.DISPUTED)
            where, by = (_is_claimed(), row.finalize_claimed_at < a, ~is_disputed), row.finalize_claimed_at
        case Scan.PAST_RETENTION:
            where, by = (ended, row.retention_until <= a), row.retention_until
        case Scan.DISPUTED:
            where, by = (_is_claimed(), _money(Money.DISPUTED)), row.finalize_claimed_at
    return select(*COLUMNS).where(*where).order_by(by).limit(bindparam("_limit", type_=Integer))


def _word(word: Status | Money | Stage) -> ColumnElement[str]:
    return literal_column(f"'{word.value}'")


def _money(money: Money) -> ColumnElement[bool]:
    return runs.c.money_state == _word(money)


def _is_claimed() -> ColumnElement[bool]:
    return runs.c.finalize_stage == _word(Stage.CLAIMED)


def _ages(kind: Scan, spans: Spans) -> tuple[int, ...]:
    """In seconds: how long ago is old enough and, for the last, too old."""
    return {
        Scan.EXPIRED_LEASES: (0,),
        Scan.AGED: (spans.reservation_seconds,),
        Scan.ABANDONED: (spans.submit_abandon_seconds,),
        Scan.UNSENT: (spans.resend_after_seconds, spans.reservation_seconds),
        Scan.STALE_CLAIMS: (spans.reconcile_after_seconds,),
        Scan.LONG_EXPIRED_LEASES: (spans.reconcile_after_seconds,),
        Scan.PAST_RETENTION: (0,),
        Scan.DISPUTED: (),
    }[kind]


class SqlRunRows:
    """See `port.RunRows`."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def create(self, ask: NewRun) -> PricedRun | Exists:
        return self._create(ask, _BEGINNING, 0)

    def create_reserved(self, ask: NewRun) -> PricedRun | Exists:
        return self._create(ask, _RESERVED, 1)

    def _create(self, ask: NewRun, at: At, version: int) -> PricedRun | Exists:
        SqlTenants(self._sql).add(ask.tenant_id)
        for _ in range(_LOOKS):
            made = self._insert(ask, at, version)
            if made is not None:
                return made
            found = self.find_by_key(ask.tenant_id, ask.idempotency_key)
            if found is not None:
                return Exists(found)
        raise KeyBusy("the same idempotency key is being submitted right now")

    def delete_unreserved(self, run_id: str) -> bool:
        return self._sql.connection.execute(_DELETE, {"_run": run_id}).rowcount == 1

    def mark_reserved(self, run_id: str, version: int) -> PricedRun | Lost:
        return take(self._sql, _mark_reserved(self._sql.is_postgres), run_id, version)

    def mark_enqueued(self, run_id: str) -> None:
        told = {"_run": run_id, "_now": self._sql.shift()}
        self._sql.connection.execute(_mark_enqueued(self._sql.is_postgres), told)

    def forget_sent(self, before: int) -> int:
        return self._sql.connection.execute(_FORGET_SENT, {"_before": before}).rowcount

    def get(self, run_id: str) -> PricedRun | None:
        return self._one(_GET, _run=run_id) if is_run_id(run_id) else None

    def get_owned(self, run_id: str, tenant_id: str) -> PricedRun | None:
        return self._one(_GET_OWNED, _run=run_id, _tenant=tenant_id) if is_run_id(run_id) else None

    def find_by_key(self, tenant_id: str, idempotency_key: str) -> PricedRun | None:
        return self._one(_BY_KEY, _tenant=tenant_id, _key=idempotency_key)

    def inputs(self, run_id: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self._sql.connection.execute(_INPUTS, {"_run": run_id}).scalar()
        if found is not None and not isinstance(found, dict):
            raise Corrupt(f"the inputs of the run {run_id} cannot be read")
        return found

    def scan(self, kind: Scan, limit: int) -> list[PricedRun]:
        sql = self._sql
        ages = zip(("_a", "_b"), _ages(kind, sql.spans), strict=False)
        told = {name: sql.shift(-age) for name, age in ages}
        return self._readable(_scan(kind, sql.is_postgres), told, limit)

    def unsettled(self, tenant_id: str) -> list[PricedRun]:
        return [run_of(row) for row in self._sql.connection.execute(_UNSETTLED, {"_tenant": tenant_id})]

    def changed_since(self, updated_at: int, run_id: str, limit: int) -> list[PricedRun]:
        told = {"_updated_at": updated_at, "_run": run_id if is_run_id(run_id) else _FIRST}
        return self._readable(_CHANGED, told, limit)

    def _insert(self, ask: NewRun, at: At, version: int) -> PricedRun | None:
        sql = self._sql
        told = new_row(ask, at, version) | {
            "_created_at": sql.shift(),
            "_updated_at": sql.shift(),
            "_retention_until": sql.shift(sql.spans.retention_seconds),
        }
        with waiting_for_key():
            row = sql.connection.execute(_create(sql.is_postgres), told).first()
        if row is None:
            return None
        stored = canonical_json(dict(ask.inputs))
        sql.connection.execute(
            _ADD_INPUTS,
            {
                "run_id": ask.run_id,
                "inputs_json": ask.inputs,
                "inputs_bytes": len(stored),
                "inputs_sha256": hashlib.sha256(stored).hexdigest(),
            },
        )
        return run_of(row)

    def _readable(self, question: Select[Any], told: dict[str, Any], limit: int) -> list[PricedRun]:
        """The first `limit` that can be read: those that cannot would keep all others of a duty from their money."""
        asked = limit
        while True:
            rows = self._sql.connection.execute(question, told | {"_limit": asked}).all()
            found, damaged = _sorted_out(rows)
            if not damaged or len(found) >= limit or len(rows) < asked or asked >= limit * _DAMAGED_FACTOR:
                break
            asked *= 2
        for error in damaged:
            log.error("a row of the ledger is left out", alarm="unreadable_row", error=error)
        return found[:limit]

    def _one(self, question: Select[Any], **told: str) -> PricedRun | None:
        row = self._sql.connection.execute(question, told).first()
        return run_of(row) if row is not None else None


def _sorted_out(rows: Sequence[Any]) -> tuple[list[PricedRun], list[Corrupt]]:
    found, damaged = list[PricedRun](), list[Corrupt]()
    for row in rows:
        try:
            found.append(run_of(row))
        except Corrupt as error:
            damaged.append(error)
    return found, damaged
