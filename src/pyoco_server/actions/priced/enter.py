"""The common start of every request under `/v1`: read the tenant, take a rate-limit token, read the balance."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from pyoco_server.core.priced.instants import SECOND_US
from pyoco_server.core.priced.run import Tenant, TenantStatus
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.idempotency_locks.port import IdempotencyLocks
from pyoco_server.ports.ledger.port import LedgerTx, Rate
from pyoco_server.ports.priced import Priced

__all__ = ["Admission", "enter"]

log = get_logger(__name__)


@dataclass(frozen=True)
class Admission:
    #: None: not in the ledger yet. The request is allowed, and the balance is 0.
    tenant: Tenant | None
    balance_usd_micros: int
    #: Meaningless for a suspended tenant: a request refused because of its key takes no token (PRICED-174).
    rate: Rate


async def enter(priced: Priced, tenant_id: str, bucket: str) -> Admission:
    """Take a token from the tenant's bucket, `get` or `post`, and read its balance: once per request.

    Joint: one transaction that need not be on disk. Split: one read and two calls to Redis. If the rate limiter does
    not answer, the request passes: the limit only protects, and decides nothing about money. Raises
    DependencyUnavailable if the tenant or the balance cannot be read.
    """
    if priced.idempotency_locks is None:
        return await priced.ledger.transact_softly(lambda tx: _joint(tx, priced, tenant_id, bucket))
    (tenant, now_us), balance = await asyncio.gather(
        priced.ledger.read(lambda tx: (tx.tenants.get(tenant_id), tx.now_us())), priced.budget.balance(tenant_id)
    )
    limit = _limit(priced, tenant)
    if _is_suspended(tenant):
        return Admission(tenant, balance, _untouched(limit, now_us))
    return Admission(tenant, balance, await _take(priced.idempotency_locks, tenant_id, bucket, limit, now_us))


def _joint(tx: LedgerTx, priced: Priced, tenant_id: str, bucket: str) -> Admission:
    tenant, balance = tx.tenants.with_balance(tenant_id)
    limit = _limit(priced, tenant)
    if _is_suspended(tenant):
        return Admission(tenant, balance, _untouched(limit, tx.now_us()))
    return Admission(tenant, balance, tx.rates.take(tenant_id, bucket, limit))


async def _take(idempotency_locks: IdempotencyLocks, tenant_id: str, bucket: str, limit: int, now_us: int) -> Rate:
    try:
        return await idempotency_locks.take(tenant_id, bucket, limit)
    except DependencyUnavailable as error:
        log.warning("rate limiter unavailable; the request passes", tenant_id=tenant_id, error=error)
        return Rate(allowed=True, limit=limit, remaining=limit, reset_at=now_us // SECOND_US)


def _limit(priced: Priced, tenant: Tenant | None) -> int:
    if tenant is None or tenant.rate_limit_per_min is None:
        return priced.config.priced_rate_limit_per_min
    return tenant.rate_limit_per_min


def _is_suspended(tenant: Tenant | None) -> bool:
    return tenant is not None and tenant.status is TenantStatus.SUSPENDED


def _untouched(limit: int, now_us: int) -> Rate:
    return Rate(allowed=False, limit=limit, remaining=0, reset_at=now_us // SECOND_US)
