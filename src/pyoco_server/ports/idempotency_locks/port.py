"""Hints of split mode: they save work, and decide nothing. Where they disagree with the ledger, the ledger wins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pyoco_server.ports.ledger.port import Rate

__all__ = ["IdempotencyLocks", "Mapped"]


@dataclass(frozen=True)
class Mapped:
    """Which run an idempotency key was last seen with."""

    run_id: str
    payload_hash: str


class IdempotencyLocks(Protocol):
    """An outage raises DependencyUnavailable; of all but `lock` the caller logs it and goes on."""

    async def lock(self, tenant_id: str, idempotency_key: str, token: str) -> bool:
        """False: somebody else submits under this key right now. Ends by itself."""

    async def unlock(self, tenant_id: str, idempotency_key: str, token: str) -> None:
        """Only if it still is mine."""

    async def mapped(self, tenant_id: str, idempotency_key: str) -> Mapped | None: ...

    async def remember(self, tenant_id: str, idempotency_key: str, mapped: Mapped, at_us: int) -> None: ...

    async def forget(self, tenant_id: str, idempotency_key: str) -> None: ...

    async def lease(self, run_id: str, lease_token: str) -> None:
        """Unless somebody has it."""

    async def extend_lease(self, run_id: str, lease_token: str) -> None:
        """Only if it still is mine."""

    async def take(self, tenant_id: str, bucket: str, per_minute: int) -> Rate:
        """Ask for one token of the bucket `get` or `post`, shared by all gateways."""
