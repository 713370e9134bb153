"""Hints of split mode: they save work, and decide nothing. If they contradict the ledger, the ledger wins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pyoco_server.ports.ledger.port import Rate

__all__ = ["IdempotencyLocks", "Mapped"]


@dataclass(frozen=True)
class Mapped:
    """The run that an idempotency key was last used for."""

    run_id: str
    payload_hash: str


class IdempotencyLocks(Protocol):
    """Hints. An outage raises DependencyUnavailable; except for `lock`, callers log it and continue."""

    async def lock(self, tenant_id: str, idempotency_key: str, token: str) -> bool:
        """Lock the key for one submission.

        False: another submission holds the lock right now. The lock expires by itself.
        """

    async def unlock(self, tenant_id: str, idempotency_key: str, token: str) -> None:
        """Release the lock if it still holds this token."""

    async def mapped(self, tenant_id: str, idempotency_key: str) -> Mapped | None: ...

    async def remember(self, tenant_id: str, idempotency_key: str, mapped: Mapped, at_us: int) -> None: ...

    async def forget(self, tenant_id: str, idempotency_key: str) -> None: ...

    async def lease(self, run_id: str, lease_token: str) -> None:
        """Record a lease unless the run already has one."""

    async def extend_lease(self, run_id: str, lease_token: str) -> None:
        """Extend the lease if it still holds this token."""

    async def take(self, tenant_id: str, bucket: str, per_minute: int) -> Rate:
        """Take one token from the bucket `get` or `post`, which all gateways share."""
