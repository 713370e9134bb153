"""A worker's lease of a run: T4 takes it, T5 extends it. By the ledger's clock, at the moment the row is evaluated."""

from __future__ import annotations

from functools import cache

from sqlalchemy import Update, func, or_

from pyoco_server.core.priced.run import PricedRun
from pyoco_server.ports.ledger.dialect import Sql, clock
from pyoco_server.ports.ledger.port import LOST, Lost
from pyoco_server.ports.ledger.schema import runs
from pyoco_server.ports.ledger.steps import bound, step_update, take

__all__ = ["SqlLeases"]


@cache
def _start(on_postgres: bool) -> Update:
    # PRICED-50: a run that the sweeper may give up is never started. DELAY-7: nor one that is not due.
    return step_update(
        "T4",
        func.coalesce(runs.c.not_before, runs.c.created_at) > clock("_oldest", on_postgres=on_postgres),
        or_(runs.c.not_before.is_(None), runs.c.not_before <= clock("_now", on_postgres=on_postgres)),
        on_postgres=on_postgres,
        also={
            "lease_token": bound(runs.c.lease_token),
            "lease_expires_at": clock("_lease_end", on_postgres=on_postgres),
            "started_at": clock("_now", on_postgres=on_postgres),
        },
    )


@cache
def _heartbeat(on_postgres: bool) -> Update:
    # PRICED-27: a lease that ends exactly now is still valid; an expired lease cannot be renewed.
    return step_update(
        "T5",
        runs.c.lease_token == bound(runs.c.lease_token),
        runs.c.lease_expires_at >= clock("_now", on_postgres=on_postgres),
        on_postgres=on_postgres,
        also={"lease_expires_at": clock("_lease_end", on_postgres=on_postgres)},
    )


class SqlLeases:
    """See `port.Leases`."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def start(self, run_id: str, version: int, lease_token: str) -> PricedRun | Lost:
        sql, spans = self._sql, self._sql.spans
        return take(
            sql,
            _start(sql.is_postgres),
            run_id,
            version,
            oldest=sql.shift(-spans.reservation_seconds),
            lease_token=lease_token,
            lease_end=sql.shift(spans.lease_seconds),
        )

    def heartbeat(self, run_id: str, version: int, lease_token: str) -> bool:
        sql = self._sql
        beaten = take(
            sql,
            _heartbeat(sql.is_postgres),
            run_id,
            version,
            lease_token=lease_token,
            lease_end=sql.shift(sql.spans.lease_seconds),
        )
        return beaten is not LOST
