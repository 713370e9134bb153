"""Hints in this process's memory (split mode), for tests: nothing survives the process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pyoco_server.core.priced.constants import (
    IDEM_LOCK_TTL_SECONDS,
    IDEMPOTENCY_MAPPING_TTL_SECONDS,
    LEASE_TTL_SECONDS,
)
from pyoco_server.ports.idempotency_locks.port import Mapped
from pyoco_server.ports.ledger.port import Rate
from pyoco_server.ports.memory.expiring import Expiring
from pyoco_server.ports.memory.named import Named
from pyoco_server.ports.memory.network import Network

__all__ = ["LOCKS", "Bucket", "MemoryIdempotencyLocks", "MemoryIdempotencyLocksStore"]

_SECOND_MS: Final = 1000
#: After this long without use a bucket is full again.
_BUCKET_TTL_SECONDS: Final = 120
#: Parts per token. A bucket of n tokens per minute gains n parts per millisecond, so there are no fractions.
_PARTS: Final = 60_000


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Bucket:
    parts: int
    updated_ms: int


@dataclass
class MemoryIdempotencyLocksStore:
    """The data that a Redis server would hold. Shared by the adapters of all simulated processes."""

    #: By tenant and idempotency key.
    locks: Expiring[tuple[str, str], str] = field(default_factory=Expiring)
    mappings: Expiring[tuple[str, str], Mapped] = field(default_factory=Expiring)
    #: Lease tokens by run.
    leases: Expiring[str, str] = field(default_factory=Expiring)
    #: By tenant and name of the bucket.
    buckets: Expiring[tuple[str, str], Bucket] = field(default_factory=Expiring)
    network: Network = field(default_factory=Network)
    #: The server's clock, which may differ from those of its clients.
    now_ms: Callable[[], int] = _wall_ms


#: The stores of `memory://name`.
LOCKS: Final = Named(lambda _: MemoryIdempotencyLocksStore())


class MemoryIdempotencyLocks:
    """`ports/idempotency_locks` over a shared store, with the expiry times of the Redis adapter. O(1) per call."""

    def __init__(
        self,
        store: MemoryIdempotencyLocksStore,
        *,
        lease_seconds: int = LEASE_TTL_SECONDS,
        mapping_seconds: int = IDEMPOTENCY_MAPPING_TTL_SECONDS,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        """`now_ms`: overrides the clock of the store."""
        self._store, self._now_ms = store, now_ms or store.now_ms
        self._lease_seconds, self._mapping_seconds = lease_seconds, mapping_seconds

    async def lock(self, tenant_id: str, idempotency_key: str, token: str) -> bool:
        async with self._store.network.call("hints.lock"):
            key = (tenant_id, idempotency_key)
            if self._store.locks.get(key, self._now_ms()) is not None:
                return False
            self._store.locks.put(key, token, self._in(IDEM_LOCK_TTL_SECONDS))
            return True

    async def unlock(self, tenant_id: str, idempotency_key: str, token: str) -> None:
        async with self._store.network.call("hints.unlock"):
            key = (tenant_id, idempotency_key)
            if self._store.locks.get(key, self._now_ms()) == token:
                self._store.locks.drop(key)

    async def mapped(self, tenant_id: str, idempotency_key: str) -> Mapped | None:
        async with self._store.network.call("hints.mapped"):
            return self._store.mappings.get((tenant_id, idempotency_key), self._now_ms())

    async def remember(self, tenant_id: str, idempotency_key: str, mapped: Mapped, at_us: int) -> None:
        async with self._store.network.call("hints.remember"):
            self._store.mappings.put((tenant_id, idempotency_key), mapped, self._in(self._mapping_seconds))

    async def forget(self, tenant_id: str, idempotency_key: str) -> None:
        async with self._store.network.call("hints.forget"):
            self._store.mappings.drop((tenant_id, idempotency_key))

    async def lease(self, run_id: str, lease_token: str) -> None:
        async with self._store.network.call("hints.lease"):
            if self._store.leases.get(run_id, self._now_ms()) is None:
                self._store.leases.put(run_id, lease_token, self._in(self._lease_seconds))

    async def extend_lease(self, run_id: str, lease_token: str) -> None:
        async with self._store.network.call("hints.extend_lease"):
            if self._store.leases.get(run_id, self._now_ms()) == lease_token:
                self._store.leases.put(run_id, lease_token, self._in(self._lease_seconds))

    async def take(self, tenant_id: str, bucket: str, per_minute: int) -> Rate:
        async with self._store.network.call("hints.take"):
            return self._take((tenant_id, bucket), per_minute)

    def _take(self, key: tuple[str, str], per_minute: int) -> Rate:
        now, full = self._now_ms(), per_minute * _PARTS
        found, parts = self._store.buckets.get(key, now), full
        if found is not None:
            passed_ms = min(max(0, now - found.updated_ms), _PARTS)  # a clock that was set back adds nothing
            parts = min(full, found.parts + passed_ms * per_minute)
        allowed = parts >= _PARTS
        if allowed:
            parts -= _PARTS
        self._store.buckets.put(key, Bucket(parts, now), self._in(_BUCKET_TTL_SECONDS))
        full_in_ms = -(-(full - parts) // per_minute)
        return Rate(allowed, per_minute, parts // _PARTS, -(-(now + full_in_ms) // _SECOND_MS))

    def _in(self, seconds: int) -> int:
        return self._now_ms() + seconds * _SECOND_MS
