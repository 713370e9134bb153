"""Hints in memory: the contract, and expiry by the clock."""

from __future__ import annotations

import pytest

from contracts.hints import AT_US, FIRST, HintsContract
from pyoco_server.core.priced.constants import (
    IDEM_LOCK_TTL_SECONDS,
    IDEMPOTENCY_MAPPING_TTL_SECONDS,
    LEASE_TTL_SECONDS,
)
from pyoco_server.ports.hints.memory import MemoryHints, MemoryHintsStore
from pyoco_server.ports.hints.port import Hints


class Clock:
    def __init__(self) -> None:
        self.ms = AT_US // 1000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> MemoryHintsStore:
    return MemoryHintsStore()


@pytest.fixture
def hints(store: MemoryHintsStore, clock: Clock) -> Hints:
    return MemoryHints(store, now_ms=clock)


class TestMemoryHints(HintsContract):
    @pytest.fixture
    def other(self, store: MemoryHintsStore, clock: Clock) -> Hints:
        return MemoryHints(store, now_ms=clock)


async def test_a_lock_expires(hints: Hints, clock: Clock) -> None:
    assert await hints.lock("t", "k", "mine")
    clock.ms += IDEM_LOCK_TTL_SECONDS * 1000 - 1
    assert not await hints.lock("t", "k", "another")
    clock.ms += 1
    assert await hints.lock("t", "k", "another")


async def test_a_mapping_expires(hints: Hints, clock: Clock) -> None:
    await hints.remember("t", "k", FIRST, AT_US)
    clock.ms += IDEMPOTENCY_MAPPING_TTL_SECONDS * 1000 - 1
    assert await hints.mapped("t", "k") == FIRST
    clock.ms += 1
    assert await hints.mapped("t", "k") is None


async def test_a_lease_belongs_to_the_first_token_until_it_expires(
    hints: Hints, store: MemoryHintsStore, clock: Clock
) -> None:
    """PRICED-113"""
    await hints.lease("run-1", "mine")
    await hints.lease("run-1", "another")
    assert store.leases.get("run-1", clock.ms) == "mine"
    clock.ms += LEASE_TTL_SECONDS * 1000 - 1
    await hints.extend_lease("run-1", "another")
    await hints.extend_lease("run-1", "mine")
    clock.ms += LEASE_TTL_SECONDS * 1000 - 1
    assert store.leases.get("run-1", clock.ms) == "mine"
    clock.ms += 1
    await hints.extend_lease("run-1", "mine")
    assert store.leases.get("run-1", clock.ms) is None


async def test_a_bucket_fills_with_time(hints: Hints, clock: Clock) -> None:
    """PRICED-172"""
    rates = [await hints.take("t", "get", 6) for _ in range(7)]
    assert [rate.allowed for rate in rates] == [True] * 6 + [False]
    assert rates[-1].reset_at == clock.ms // 1000 + 60
    for passed_ms, gained in ((20_000, 2), (119_999, 6), (3_600_000, 6), (-60_000, 0)):
        clock.ms += passed_ms
        rates = [await hints.take("t", "get", 6) for _ in range(7)]
        assert sum(rate.allowed for rate in rates) == gained


async def test_a_refused_request_does_not_delay_the_next_token(hints: Hints, clock: Clock) -> None:
    assert (await hints.take("t", "get", 1)).allowed
    for _ in range(59):
        clock.ms += 1000
        assert not (await hints.take("t", "get", 1)).allowed
    clock.ms += 1000
    assert (await hints.take("t", "get", 1)).allowed


async def test_entries_expire_by_the_clock_of_the_store(store: MemoryHintsStore, clock: Clock) -> None:
    store.now_ms = clock
    hints = MemoryHints(store)
    assert await hints.lock("anna", "key", "first")
    assert not await hints.lock("anna", "key", "second")
    clock.ms += IDEM_LOCK_TTL_SECONDS * 1000
    assert await hints.lock("anna", "key", "second")
