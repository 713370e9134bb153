"""Rows of runs: the first steps of a submit, reading, and the scans of keepers."""

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
from pyoco_server.ports.ledger.port import LOST, Exists, Lost, Scan, Spans
from pyoco_server.ports.ledger.quick import keep
from pyoco_server.ports.ledger.rows import COLUMNS, NEW_COLUMNS, new_row, run_of
from pyoco_server.ports.ledger.schema import RETAINED, UNSENT, run_inputs, runs
from pyoco_server.ports.ledger.steps import is_at, step_update, take
from pyoco_server.ports.ledger.tenants import SqlTenants
from pyoco_server.ports.ledger.types import InstantColumn, RunId

__all__ = ["SqlRunRows"]

log = get_logger(__name__)

#: T1 creates a row in the state in which T2 and T3 expect it.
(_BEGINNING,) = STEPS["T2"].sources
_RESERVED = STEPS["T2"].changes[0].of(_BEGINNING)
#: Number of attempts: a key may be released, or a row deleted, between insert and read. Each time another transaction
#: made progress.
_LOOKS: Final = 5
#: How many times more rows than requested a scan reads to find readable ones.
_DAMAGED_FACTOR: Final = 16
#: Sorts before every run id.
_FIRST: Final = "00000000-0000-0000-0000-000000000000"
_RUN = bindparam("_run", type_=RunId())


@cache
def _create(on_postgres: bool) -> Any:
    start = postgresql.insert if on_postgres else sqlite.insert
    instants = {
        name: statement_clock(f"_{name}", on_postgres=on_postgres)
        for name in ("created_at", "updated_at", "retention_until")
    }
    parameters = {name: bindparam(name, type_=runs.c[name].type) for name in NEW_COLUMNS}
    return keep(
        start(runs)
        .values(**parameters, **instants)
        .on_conflict_do_nothing(index_elements=["tenant_id", "idempotency_key"])
        .returning(*COLUMNS)
    )


@cache
def _mark_reserved(on_postgres: bool) -> Any:
    return step_update("T2", on_postgres=on_postgres)


@cache
def _mark_enqueued(on_postgres: bool) -> Any:
    # Only the first time counts. Not before T2: the scan for abandoned submits relies on nothing having been sent for
    # them.
    return keep(
        update(runs)
        .where(runs.c.run_id == _RUN, runs.c.enqueued_at.is_(None), runs.c.money_state != Money.NONE.value)
        .values(enqueued_at=clock("_now", on_postgres=on_postgres))
    )


@cache
def _mark_sent(on_postgres: bool) -> Any:
    now = clock("_now", on_postgres=on_postgres)
    return keep(
        update(runs)
        .where(is_at("T4"), runs.c.run_id == _RUN, runs.c.enqueued_at.is_(None))
        .values(enqueued_at=now, updated_at=now, version=runs.c.version + 1)
        .returning(*COLUMNS)
    )


@cache
def _release(on_postgres: bool) -> Any:
    now = clock("_now", on_postgres=on_postgres)
    return keep(
        update(runs)
        .where(is_at("T4"), runs.c.run_id == _RUN, runs.c.not_before > now)
        .values(not_before=now, updated_at=now, version=runs.c.version + 1)
        .returning(*COLUMNS)
    )


_FORGET_SENT = (
    update(runs)
    .where(text(f"status = '{Status.QUEUED}'"), runs.c.enqueued_at < bindparam("_before", type_=InstantColumn()))
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
        # Only runs that have not ended have open money (PRICED-9).
        text(f"status IN ('{Status.QUEUED}', '{Status.PROCESSING}')"),
        text(f"money_state IN ('{Money.NONE}', '{Money.RESERVED}', '{Money.DISPUTED}')"),
        # Not by the index of tenants: it would read all runs the tenant ever had.
        func.coalesce(runs.c.tenant_id, "") == bindparam("_tenant"),
    )
    .order_by(runs.c.created_at)
)
_CHANGED = (
    select(*COLUMNS)
    .where(
        tuple_(runs.c.updated_at, runs.c.run_id)
        > tuple_(bindparam("_updated_at", type_=InstantColumn()), bindparam("_run", type_=RunId()))
    )
    .order_by(runs.c.updated_at, runs.c.run_id)
    .limit(bindparam("_limit", type_=Integer))
)


@cache
def _scan(kind: Scan, on_postgres: bool) -> Select[Any]:
    """Scan one index from its oldest entry. `_a` and `_b` are the instants computed from `_ages`."""
    a, b = (statement_clock(name, on_postgres=on_postgres) for name in ("_a", "_b"))
    row = runs.c
    is_open = func.coalesce(row.finalize_stage, _literal(Stage.OPEN)) == _literal(Stage.OPEN)  # as in `schema.UNSENT`
    unsent, ended = text(UNSENT), text(RETAINED)
    due_at = func.coalesce(row.not_before, row.created_at)  # a delayed run waits from its time on (DELAY-7)
    where: tuple[Any, ...]
    by: ColumnElement[Any]
    match kind:
        case Scan.EXPIRED_LEASES | Scan.LONG_EXPIRED_LEASES:
            where, by = (
                (row.status == _literal(Status.PROCESSING), row.lease_expires_at < a, is_open),
                row.lease_expires_at,
            )
        case Scan.AGED:
            where = (row.status == _literal(Status.QUEUED), row.created_at <= a, due_at <= a, _money(Money.RESERVED))
            where = (*where, is_open)
            by = row.created_at
        case Scan.ABANDONED:
            where, by = (unsent, row.created_at < a, _money(Money.NONE), is_open), row.created_at
        case Scan.UNSENT:
            where = (unsent, row.created_at <= a, due_at <= a, due_at > b, _money(Money.RESERVED), is_open)
            by = row.created_at
        case Scan.STALE_CLAIMS:
            is_disputed = _money(Money.DISPUTED)
            where, by = (_is_claimed(), row.finalize_claimed_at < a, ~is_disputed), row.finalize_claimed_at
        case Scan.PAST_RETENTION:
            where, by = (ended, row.retention_until <= a), row.retention_until
        case Scan.DISPUTED:
            where, by = (_is_claimed(), _money(Money.DISPUTED)), row.finalize_claimed_at
    return select(*COLUMNS).where(*where).order_by(by).limit(bindparam("_limit", type_=Integer))


def _literal(member: Status | Money | Stage) -> ColumnElement[str]:
    return literal_column(f"'{member.value}'")


def _money(money: Money) -> ColumnElement[bool]:
    return runs.c.money_state == _literal(money)


def _is_claimed() -> ColumnElement[bool]:
    return runs.c.finalize_stage == _literal(Stage.CLAIMED)


def _ages(kind: Scan, spans: Spans) -> tuple[int, ...]:
    """Minimum age in seconds and, for UNSENT, also the maximum age."""
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
        parameters = {"_run": run_id, "_now": self._sql.shift()}
        self._sql.connection.execute(_mark_enqueued(self._sql.is_postgres), parameters)

    def mark_sent(self, run_id: str) -> PricedRun | Lost:
        parameters = {"_run": run_id, "_now": self._sql.shift()}
        row = self._sql.connection.execute(_mark_sent(self._sql.is_postgres), parameters).first()
        return LOST if row is None else run_of(row)

    def release(self, run_id: str) -> PricedRun | Lost:
        parameters = {"_run": run_id, "_now": self._sql.shift()}
        row = self._sql.connection.execute(_release(self._sql.is_postgres), parameters).first()
        return LOST if row is None else run_of(row)

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
        parameters = {name: sql.shift(-age) for name, age in ages}
        return self._readable(_scan(kind, sql.is_postgres), parameters, limit)

    def unsettled(self, tenant_id: str) -> list[PricedRun]:
        return [run_of(row) for row in self._sql.connection.execute(_UNSETTLED, {"_tenant": tenant_id})]

    def changed_since(self, updated_at: int, run_id: str, limit: int) -> list[PricedRun]:
        parameters = {"_updated_at": updated_at, "_run": run_id if is_run_id(run_id) else _FIRST}
        return self._readable(_CHANGED, parameters, limit)

    def _insert(self, ask: NewRun, at: At, version: int) -> PricedRun | None:
        sql = self._sql
        parameters = new_row(ask, at, version) | {
            "_created_at": sql.shift(),
            "_updated_at": sql.shift(),
            "_retention_until": sql.shift(sql.spans.retention_seconds),
        }
        with waiting_for_key():
            row = sql.connection.execute(_create(sql.is_postgres), parameters).first()
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

    def _readable(self, question: Select[Any], parameters: dict[str, Any], limit: int) -> list[PricedRun]:
        """Return the first `limit` readable rows: unreadable ones must not block a duty for all other runs."""
        asked = limit
        while True:
            rows = self._sql.connection.execute(question, parameters | {"_limit": asked}).all()
            found, damaged = _sorted_out(rows)
            if not damaged or len(found) >= limit or len(rows) < asked or asked >= limit * _DAMAGED_FACTOR:
                break
            asked *= 2
        for error in damaged:
            log.error("skipping an unreadable ledger row", alarm="unreadable_row", error=error)
        return found[:limit]

    def _one(self, question: Select[Any], **parameters: str) -> PricedRun | None:
        row = self._sql.connection.execute(question, parameters).first()
        return run_of(row) if row is not None else None


def _sorted_out(rows: Sequence[Any]) -> tuple[list[PricedRun], list[Corrupt]]:
    found, damaged = list[PricedRun](), list[Corrupt]()
    for row in rows:
        try:
            found.append(run_of(row))
        except Corrupt as error:
            damaged.append(error)
    return found, damaged
