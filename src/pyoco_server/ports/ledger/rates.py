"""Rate limits of tenants: token buckets in the ledger, shared by all gateways (PRICED-172, PRICED-175)."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Text, TextualSelect, bindparam, text

from pyoco_server.core.priced.instants import SECOND_US
from pyoco_server.ports.ledger.dialect import Sql
from pyoco_server.ports.ledger.port import Rate
from pyoco_server.ports.ledger.quick import keep
from pyoco_server.ports.ledger.types import BigInt, InstantColumn

__all__ = ["SqlRates"]

#: Fractions of a token. Rounding to a whole fraction happens once per token taken, and never on a refusal.
_PARTS: Final = 1_000_000
_MINUTE_SECONDS: Final = 60

#: The differences: the clock, microseconds since `updated_at`, and the names of two functions.
_SQLITE: Final = {
    "now": ":now",
    "passed": "(:now - rate_buckets.updated_at)",
    "least": "min",
    "greatest": "max",
}
_POSTGRES: Final = {
    "now": "(clock_timestamp() + :now)",
    "passed": "CAST(extract(epoch FROM clock_timestamp() + :now - rate_buckets.updated_at) * 1000000 AS bigint)",
    "least": "least",
    "greatest": "greatest",
}

#: A minute fills any bucket; the cap prevents overflow. A clock that was set back adds nothing.
_TOKENS: Final = "{least}(:full, rate_buckets.tokens + {least}({greatest}({passed}, 0), 60000000) * :per_minute / 60)"
#: If refused, no row is returned and none was written.
_TAKE: Final = f"""
INSERT INTO rate_buckets (tenant_id, bucket, tokens, updated_at) VALUES (:tenant, :bucket, :first, {{now}})
ON CONFLICT (tenant_id, bucket) DO UPDATE SET tokens = {_TOKENS} - :token, updated_at = {{now}}
WHERE {_TOKENS} >= :token
RETURNING tokens, updated_at
"""  # noqa: S608  (words of our own)
_LOOK: Final = f"""
SELECT {_TOKENS} AS tokens, {{now}} AS updated_at FROM rate_buckets WHERE tenant_id = :tenant AND bucket = :bucket
"""  # noqa: S608


def _both(statement: str) -> dict[bool, TextualSelect]:
    """Key: whether it is PostgreSQL."""
    return {
        on_postgres: keep(
            text(statement.format_map(_POSTGRES if on_postgres else _SQLITE))
            .bindparams(bindparam("tenant", type_=Text), bindparam("bucket", type_=Text))
            .columns(tokens=BigInt, updated_at=InstantColumn)
        )
        for on_postgres in (False, True)
    }


_TAKE_BOTH = _both(_TAKE)
_LOOK_BOTH = _both(_LOOK)


class SqlRates:
    """One statement for an accepted request, two for a refused one."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def take(self, tenant_id: str, bucket: str, per_minute: int) -> Rate:
        """Take one token of the bucket `get` or `post`, which holds the tokens of one minute."""
        full = per_minute * _PARTS
        values = {
            "tenant": tenant_id,
            "bucket": bucket,
            "full": full,
            "first": full - _PARTS,
            "token": _PARTS,
            "per_minute": per_minute,
            "now": self._sql.shift(),
        }
        connection = self._sql.connection
        row = connection.execute(_TAKE_BOTH[self._sql.is_postgres], values).first()
        allowed = row is not None
        if row is None:
            row = connection.execute(_LOOK_BOTH[self._sql.is_postgres], values).one()
        tokens, now_us = int(row[0]), int(row[1])
        full_in_us = -(-(full - tokens) * _MINUTE_SECONDS // per_minute)
        return Rate(allowed, per_minute, tokens // _PARTS if allowed else 0, -(-(now_us + full_in_us) // SECOND_US))
