"""Hints in memory: the contract, and expiry by the clock."""

from __future__ import annotations

import pytest

from contracts.idempotency_locks import AT_US, FIRST, HintsContract
from pyoco_server.core.priced.constants import (
    IDEM_LOCK_TTL_SECONDS,
    IDEMPOTENCY_MAPPING_TTL_SECONDS,
    LEASE_TTL_SECONDS,
)
from pyoco_server.ports.idempotency_locks.memory import MemoryIdempotencyLocks, MemoryIdempotencyLocksStore
from pyoco_server.ports.idempotency_locks.port import IdempotencyLocks


class Clock:
    def __init__(self) -> None:
        self.ms = AT_US // 1000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> MemoryIdempotencyLocksStore:
    return MemoryIdempotencyLocksStore()


@pytest.fixture
def idempotency_locks(store: MemoryIdempotencyLocksStore, clock: Clock) -> IdempotencyLocks:
    return MemoryIdempotencyLocks(store, now_ms=clock)


class TestMemoryHints(HintsContract):
    @pytest.fixture
    def other(self, store: MemoryIdempotencyLocksStore, clock: Clock) -> IdempotencyLocks:
        return MemoryIdempotencyLocks(store, now_ms=clock)


async def test_a_lock_expires(idempotency_locks: IdempotencyLocks, clock: Clock) -> None:
    assert await idempotency_locks.lock("t", "k", "mine")
    clock.ms += IDEM_LOCK_TTL_SECONDS * 1000 - 1
    assert not await idempotency_locks.lock("t", "k", "another")
    clock.ms += 1
    assert await idempotency_locks.lock("t", "k", "another")


async def test_a_mapping_expires(idempotency_locks: IdempotencyLocks, clock: Clock) -> None:
    await idempotency_locks.remember("t", "k", FIRST, AT_US)
    clock.ms += IDEMPOTENCY_MAPPING_TTL_SECONDS * 1000 - 1
    assert await idempotency_locks.mapped("t", "k") == FIRST
    clock.ms += 1
    assert await idempotency_locks.mapped("t", "k") is None


async def test_a_lease_belongs_to_the_first_token_until_it_expires(
    idempotency_locks: IdempotencyLocks, store: MemoryIdempotencyLocksStore, clock: Clock
) -> None:
    """PRICED-113"""
    await idempotency_locks.lease("run-1", "mine")
    await idempotency_locks.lease("run-1", "another")
    assert store.leases.get("run-1", clock.ms) == "mine"
    clock.ms += LEASE_TTL_SECONDS * 1000 - 1
    await idempotency_locks.extend_lease("run-1", "another")
    await idempotency_locks.extend_lease("run-1", "mine")
    clock.ms += LEASE_TTL_SECONDS * 1000 - 1
    assert store.leases.get("run-1", clock.ms) == "mine"
    clock.ms += 1
    await idempotency_locks.extend_lease("run-1", "mine")
    assert store.leases.get("run-1", clock.ms) is None


async def test_a_bucket_fills_with_time(idempotency_locks: IdempotencyLocks, clock: Clock) -> None:
    """PRICED-172"""
    rates = [await idempotency_locks.take("t", "get", 6) for _ in range(7)]
    assert [rate.allowed for rate in rates] == [True] * 6 + [False]
    assert rates[-1].reset_at == clock.ms // 1000 + 60
    for passed_ms, gained in ((20_000, 2), (119_999, 6), (3_600_000, 6), (-60_000, 0)):
        clock.ms += passed_ms
        rates = [await idempotency_locks.take("t", "get", 6) for _ in range(7)]
        assert sum(rate.allowed for rate in rates) == gained


async def test_a_refused_request_does_not_delay_the_next_token(
    idempotency_locks: IdempotencyLocks, clock: Clock
) -> None:
    assert (await idempotency_locks.take("t", "get", 1)).allowed
    for _ in range(59):
        clock.ms += 1000
        assert not (await idempotency_locks.take("t", "get", 1)).allowed
    clock.ms += 1000
    assert (await idempotency_locks.take("t", "get", 1)).allowed


async def test_entries_expire_by_the_clock_of_the_store(store: MemoryIdempotencyLocksStore, clock: Clock) -> None:
    store.now_ms = clock
    idempotency_locks = MemoryIdempotencyLocks(store)
    assert await idempotency_locks.lock("anna", "key", "first")
    assert not await idempotency_locks.lock("anna", "key", "second")
    clock.ms += IDEM_LOCK_TTL_SECONDS * 1000
    assert await idempotency_locks.lock("anna", "key", "second")
