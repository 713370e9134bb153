"""The right to end a run, and its use (contract 5.4). One conditional UPDATE each; money and journal are in other
modules."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Update, bindparam, delete, func, literal_column

from pyoco_server.core.priced.run import Intent, MoneyOp, PricedRun
from pyoco_server.core.states.priced import STEPS, Actor, Basis, Money, StateChange, Status
from pyoco_server.ports.ledger.dialect import Sql, clock
from pyoco_server.ports.ledger.port import LOST, Final, Lost
from pyoco_server.ports.ledger.rows import pointer_columns
from pyoco_server.ports.ledger.schema import run_inputs, runs
from pyoco_server.ports.ledger.steps import bound, step_update, take
from pyoco_server.ports.ledger.types import RunId

__all__ = ["SqlEnds"]

_COMMITS = frozenset({"T7", "T8", "T10", "T14"})
_IS_MINE = runs.c.finalize_token == bound(runs.c.finalize_token)
_WRITTEN = (
    runs.c.actual_cost_usd_micros,
    runs.c.tokens_consumed,
    runs.c.last_error_reason_code,
    runs.c.last_error_detail,
    runs.c.result_bucket,
    runs.c.result_key,
    runs.c.result_sha256,
    runs.c.result_bytes,
    runs.c.result_artifacts_json,
)


def _ground(basis: Basis, on_postgres: bool) -> tuple[ColumnElement[bool], ...]:
    """The condition for a claim besides the run's state; evaluated in the UPDATE itself (PRICED-153)."""
    limit = clock("_limit", on_postgres=on_postgres)
    match basis:
        case Basis.LEASE:
            return (runs.c.lease_token == bound(runs.c.lease_token),)
        case Basis.LEASE_EXPIRED:
            return (runs.c.lease_expires_at < limit,)
        case Basis.AGED:
            return (func.coalesce(runs.c.not_before, runs.c.created_at) <= limit,)
        case Basis.ABANDONED:
            return (runs.c.created_at < limit,)
        case Basis.SEND_FAILED:
            return ()
        case Basis.NOT_DUE:
            return (runs.c.not_before > limit,)


@cache
def _claim(basis: Basis, on_postgres: bool) -> Update:
    held = {
        "finalize_token": bound(runs.c.finalize_token),
        "finalize_claimed_at": clock("_now", on_postgres=on_postgres),
        "finalize_actor": bound(runs.c.finalize_actor),
        "finalize_intent": bound(runs.c.finalize_intent),
    }
    return step_update(basis.value, *_ground(basis, on_postgres), on_postgres=on_postgres, also=held)


@cache
def _take_over(on_postgres: bool) -> Update:
    return step_update(
        "T15",
        runs.c.finalize_claimed_at < clock("_limit", on_postgres=on_postgres),
        on_postgres=on_postgres,
        also={
            "finalize_token": bindparam("_token", type_=runs.c.finalize_token.type),
            "finalize_claimed_at": clock("_now", on_postgres=on_postgres),
            "finalize_actor": bound(runs.c.finalize_actor),
        },
    )


@cache
def _replace_intent(on_postgres: bool) -> Update:
    intended = (
        runs.c.finalize_intent.op("->>")(literal_column("'status'"))
        if on_postgres
        else func.json_extract(runs.c.finalize_intent, literal_column("'$.status'"))
    )
    return step_update(
        "T19",
        _IS_MINE,
        intended == literal_column(f"'{Status.COMPLETED}'"),
        on_postgres=on_postgres,
        also={"finalize_intent": bound(runs.c.finalize_intent)},
    )


@cache
def _dispute(on_postgres: bool) -> Update:
    return step_update("T17", _IS_MINE, on_postgres=on_postgres)


@cache
def _end(step: str, change: StateChange, releases_key: bool, on_postgres: bool) -> Update:
    also: dict[str, Any] = {column.name: bound(column) for column in _WRITTEN}
    also |= {"idempotency_key": None} if releases_key else {}
    if step in _COMMITS:
        return step_update(step, _IS_MINE, on_postgres=on_postgres, change=change, also=also)
    also |= {"finalize_actor": Actor.OPERATOR.value}
    return step_update(step, on_postgres=on_postgres, change=change, also=also)


@cache
def _expire(on_postgres: bool) -> Update:
    # The intent repeats the result's location and the error.
    erased = {**pointer_columns(None), "last_error_detail": None, "idempotency_key": None, "finalize_intent": None}
    limit = clock("_now", on_postgres=on_postgres)
    return step_update("T16", runs.c.retention_until <= limit, on_postgres=on_postgres, also=erased)


_FORGET_INPUTS = delete(run_inputs).where(run_inputs.c.run_id == bindparam("_run", type_=RunId()))


class SqlEnds:
    """See `port.Ends`."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def claim(
        self,
        run_id: str,
        version: int,
        basis: Basis,
        token: str,
        actor: Actor,
        intent: Intent,
        lease_token: str | None = None,
    ) -> PricedRun | Lost:
        assert (basis is Basis.LEASE) == (lease_token is not None), "a lease is claimed with its token, nothing else is"
        sql, spans = self._sql, self._sql.spans
        ages = {
            Basis.LEASE_EXPIRED: 0,
            Basis.NOT_DUE: 0,
            Basis.AGED: spans.reservation_seconds,
            Basis.ABANDONED: spans.submit_abandon_seconds,
        }
        ground = {"limit": sql.shift(-ages[basis])} if basis in ages else {}
        if lease_token is not None:
            ground = {"lease_token": lease_token}
        return take(
            sql,
            _claim(basis, sql.is_postgres),
            run_id,
            version,
            finalize_token=token,
            finalize_actor=actor.value,
            finalize_intent=intent.document(),
            **ground,
        )

    def take_over(self, run_id: str, version: int, token: str, actor: Actor) -> PricedRun | Lost:
        sql = self._sql
        limit = sql.shift(-sql.spans.reconcile_after_seconds)
        statement = _take_over(sql.is_postgres)
        return take(sql, statement, run_id, version, limit=limit, token=token, finalize_actor=actor.value)

    def replace_intent(self, run_id: str, version: int, token: str, intent: Intent) -> PricedRun | Lost:
        statement = _replace_intent(self._sql.is_postgres)
        return take(self._sql, statement, run_id, version, finalize_token=token, finalize_intent=intent.document())

    def commit(self, run_id: str, version: int, token: str, final: Final) -> PricedRun | Lost:
        assert final.step in _COMMITS
        return self._finish(run_id, version, final, finalize_token=token)

    def dispute(self, run_id: str, version: int, token: str) -> PricedRun | Lost:
        return take(self._sql, _dispute(self._sql.is_postgres), run_id, version, finalize_token=token)

    def resolve(self, run_id: str, version: int, final: Final) -> PricedRun | Lost:
        assert final.step == "T18"
        return self._finish(run_id, version, final)

    def expire(self, run_id: str, version: int) -> PricedRun | Lost:
        expired = take(self._sql, _expire(self._sql.is_postgres), run_id, version)
        if expired is not LOST:
            self._sql.connection.execute(_FORGET_INPUTS, {"_run": run_id})
        return expired

    def _finish(self, run_id: str, version: int, final: Final, **token: str) -> PricedRun | Lost:
        intent = final.intent
        statement = _end(final.step, _change_of(final), final.releases_key, self._sql.is_postgres)
        return take(
            self._sql,
            statement,
            run_id,
            version,
            actual_cost_usd_micros=final.charge_usd_micros,
            tokens_consumed=intent.tokens_consumed,
            last_error_reason_code=intent.reason_code,
            last_error_detail=intent.error_detail,
            **pointer_columns(intent.result),
            **token,
        )


def _change_of(final: Final) -> StateChange:
    """Return the one change of the step that matches the intent. A step without one is a defect of the caller."""
    money = Money.SETTLED if final.intent.money_op is MoneyOp.SETTLE else Money.REFUNDED
    (found,) = (
        change for change in STEPS[final.step].changes if (change.status, change.money) == (final.intent.status, money)
    )
    assert money is Money.SETTLED or final.charge_usd_micros == 0
    return found
