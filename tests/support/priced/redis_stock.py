"""Writes budgets in Redis directly, past every rule: any number, any reservation, any text."""

from __future__ import annotations

from typing import Any

from pyoco_server.ports.budget.port import Budget, OpenReservation
from pyoco_server.ports.budget.redis import RedisBudget, _balance_key, _reserve_key

__all__ = ["damage_balance", "damage_reservation", "drop_reservation", "put_reservation", "set_balance"]


def _client(budget: Budget) -> Any:
    assert isinstance(budget, RedisBudget)
    return budget._link._client


async def set_balance(budget: Budget, tenant_id: str, usd_micros: int) -> None:
    await _client(budget).set(_balance_key(tenant_id), usd_micros)


async def damage_balance(budget: Budget, tenant_id: str, word: str = "7.5e5") -> None:
    await _client(budget).set(_balance_key(tenant_id), word)


async def put_reservation(budget: Budget, reservation: OpenReservation) -> None:
    fields = {
        "reserved_usd_micros": reservation.reserved_usd_micros,
        "tenant_id": reservation.tenant_id,
        "created_at_ms": reservation.created_at_ms,
    }
    await _client(budget).delete(_reserve_key(reservation.run_id))
    await _client(budget).hset(_reserve_key(reservation.run_id), mapping=fields)


async def damage_reservation(budget: Budget, run_id: str, word: str = "2.5e5") -> None:
    await _client(budget).hset(_reserve_key(run_id), "reserved_usd_micros", word)


async def drop_reservation(budget: Budget, run_id: str) -> None:
    await _client(budget).delete(_reserve_key(run_id))
