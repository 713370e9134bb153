"""Hints in Redis: the contract, and keys that end by themselves."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
import redis.asyncio as redis

from contracts.idempotency_locks import AT_US, FIRST, HintsContract
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.ports.idempotency_locks.port import IdempotencyLocks
from pyoco_server.ports.idempotency_locks.redis import RedisIdempotencyLocks
from pyoco_server.ports.redis.link import RedisLink
from support.priced.servers import ValkeyServer


@pytest.fixture
async def idempotency_locks(redis_url: str) -> AsyncIterator[IdempotencyLocks]:
    link = RedisLink(redis_url)
    yield RedisIdempotencyLocks(link)
    await link.close()


@pytest.fixture
async def keys(redis_url: str) -> AsyncIterator[redis.Redis]:
    """Redis as another program sees it."""
    client: redis.Redis = redis.Redis.from_url(redis_url, decode_responses=True)
    yield client
    await client.aclose()


class TestRedisHints(HintsContract):
    @pytest.fixture
    async def other(self, redis_url: str) -> AsyncIterator[IdempotencyLocks]:
        link = RedisLink(redis_url)
        yield RedisIdempotencyLocks(link)
        await link.close()


async def test_the_keys_are_those_of_the_contract_and_each_ends(
    idempotency_locks: IdempotencyLocks, keys: redis.Redis
) -> None:
    """PRICED-41"""
    await idempotency_locks.lock("t", "k:1", "token")
    assert await keys.get("idem_lock:t:k:1") == "token"
    assert 4 <= await keys.ttl("idem_lock:t:k:1") <= 5
    await idempotency_locks.remember("t", "k:1", FIRST, AT_US + 999)
    assert await keys.hgetall("idem:t:k:1") == {
        "run_id": "run-1",
        "payload_hash": "a" * 64,
        "created_at_ms": "1900000000000",
    }
    assert 2_591_995 <= await keys.ttl("idem:t:k:1") <= 2_592_000
    await idempotency_locks.lease("run-1", "token")
    assert await keys.get("lease:run-1") == "token"
    assert 115 <= await keys.ttl("lease:run-1") <= 120
    await idempotency_locks.take("t", "post", 60)
    assert set(await keys.hgetall("rl:t:post")) == {"tokens", "updated_ms"}
    assert 115 <= await keys.ttl("rl:t:post") <= 120
    assert await keys.dbsize() == 4


async def test_a_lease_stays_with_who_was_first(idempotency_locks: IdempotencyLocks, keys: redis.Redis) -> None:
    """PRICED-113"""
    await idempotency_locks.lease("run-1", "mine")
    await idempotency_locks.lease("run-1", "another")
    assert await keys.get("lease:run-1") == "mine"


async def test_a_lease_is_extended_by_its_owner_alone(idempotency_locks: IdempotencyLocks, keys: redis.Redis) -> None:
    """PRICED-113: and one that has ended is not made again"""
    await idempotency_locks.lease("run-1", "mine")
    await keys.expire("lease:run-1", 10)
    await idempotency_locks.extend_lease("run-1", "another")
    assert await keys.ttl("lease:run-1") <= 10
    await idempotency_locks.extend_lease("run-1", "mine")
    assert await keys.ttl("lease:run-1") > 100
    await idempotency_locks.extend_lease("run-2", "mine")
    assert not await keys.exists("lease:run-2")


async def test_a_bucket_fills_by_the_time_that_passes(idempotency_locks: IdempotencyLocks, keys: redis.Redis) -> None:
    """PRICED-172: Redis' own clock; it is the bucket that is moved"""
    began = int(time.time())
    rates = [await idempotency_locks.take("t", "get", 6) for _ in range(7)]
    assert [rate.allowed for rate in rates] == [True] * 6 + [False]
    assert began + 58 <= rates[-1].reset_at <= int(time.time()) + 62
    for back_ms, gained in ((20_000, 2), (3_600_000, 6), (-3_600_000, 0)):
        await keys.hincrby("rl:t:get", "updated_ms", -back_ms)
        rates = [await idempotency_locks.take("t", "get", 6) for _ in range(7)]
        assert sum(rate.allowed for rate in rates) == gained


async def test_a_bucket_is_never_more_than_full_and_loses_nothing_to_a_clock(
    idempotency_locks: IdempotencyLocks, keys: redis.Redis
) -> None:
    """PRICED-172"""
    assert (await idempotency_locks.take("t", "get", 6)).remaining == 5
    for back_ms, left in ((3_600_000, 5), (-3_600_000, 4), (-3_600_000, 3)):
        await keys.hincrby("rl:t:get", "updated_ms", -back_ms)
        assert (await idempotency_locks.take("t", "get", 6)).remaining == left


async def test_asking_in_vain_does_not_put_off_the_next_token(
    idempotency_locks: IdempotencyLocks, keys: redis.Redis
) -> None:
    assert (await idempotency_locks.take("t", "get", 1)).allowed
    for _ in range(59):
        await keys.hincrby("rl:t:get", "updated_ms", -1000)
        assert not (await idempotency_locks.take("t", "get", 1)).allowed
    await keys.hincrby("rl:t:get", "updated_ms", -1000)
    assert (await idempotency_locks.take("t", "get", 1)).allowed


async def test_a_redis_that_is_gone_is_an_outage_for_every_hint(own_redis_server: ValkeyServer) -> None:
    link = RedisLink(own_redis_server.url)
    idempotency_locks = RedisIdempotencyLocks(link)
    own_redis_server.kill()
    for call in (
        idempotency_locks.lock("t", "key", "mine"),
        idempotency_locks.unlock("t", "key", "mine"),
        idempotency_locks.mapped("t", "key"),
        idempotency_locks.remember("t", "key", FIRST, AT_US),
        idempotency_locks.forget("t", "key"),
        idempotency_locks.lease("run-1", "mine"),
        idempotency_locks.extend_lease("run-1", "mine"),
        idempotency_locks.take("t", "get", 60),
    ):
        with pytest.raises(DependencyUnavailable):
            await call
    await link.close()
