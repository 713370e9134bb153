"""Hints in Redis: the contract, and keys that end by themselves."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
import redis.asyncio as redis

from contracts.hints import AT_US, FIRST, HintsContract
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.ports.hints.port import Hints
from pyoco_server.ports.hints.redis import RedisHints
from pyoco_server.ports.redis.link import RedisLink
from support.priced.servers import ValkeyServer


@pytest.fixture
async def hints(redis_url: str) -> AsyncIterator[Hints]:
    link = RedisLink(redis_url)
    yield RedisHints(link)
    await link.close()


@pytest.fixture
async def keys(redis_url: str) -> AsyncIterator[redis.Redis]:
    """Redis as another program sees it."""
    client: redis.Redis = redis.Redis.from_url(redis_url, decode_responses=True)
    yield client
    await client.aclose()


class TestRedisHints(HintsContract):
    @pytest.fixture
    async def other(self, redis_url: str) -> AsyncIterator[Hints]:
        link = RedisLink(redis_url)
        yield RedisHints(link)
        await link.close()


async def test_the_keys_are_those_of_the_contract_and_each_ends(hints: Hints, keys: redis.Redis) -> None:
    """PRICED-41"""
    await hints.lock("t", "k:1", "token")
    assert await keys.get("idem_lock:t:k:1") == "token"
    assert 4 <= await keys.ttl("idem_lock:t:k:1") <= 5
    await hints.remember("t", "k:1", FIRST, AT_US + 999)
    assert await keys.hgetall("idem:t:k:1") == {
        "run_id": "run-1",
        "payload_hash": "a" * 64,
        "created_at_ms": "1900000000000",
    }
    assert 2_591_995 <= await keys.ttl("idem:t:k:1") <= 2_592_000
    await hints.lease("run-1", "token")
    assert await keys.get("lease:run-1") == "token"
    assert 115 <= await keys.ttl("lease:run-1") <= 120
    await hints.take("t", "post", 60)
    assert set(await keys.hgetall("rl:t:post")) == {"tokens", "updated_ms"}
    assert 115 <= await keys.ttl("rl:t:post") <= 120
    assert await keys.dbsize() == 4


async def test_a_lease_stays_with_who_was_first(hints: Hints, keys: redis.Redis) -> None:
    """PRICED-113"""
    await hints.lease("run-1", "mine")
    await hints.lease("run-1", "another")
    assert await keys.get("lease:run-1") == "mine"


async def test_a_lease_is_extended_by_its_owner_alone(hints: Hints, keys: redis.Redis) -> None:
    """PRICED-113: and one that has ended is not made again"""
    await hints.lease("run-1", "mine")
    await keys.expire("lease:run-1", 10)
    await hints.extend_lease("run-1", "another")
    assert await keys.ttl("lease:run-1") <= 10
    await hints.extend_lease("run-1", "mine")
    assert await keys.ttl("lease:run-1") > 100
    await hints.extend_lease("run-2", "mine")
    assert not await keys.exists("lease:run-2")


async def test_a_bucket_fills_by_the_time_that_passes(hints: Hints, keys: redis.Redis) -> None:
    """PRICED-172: Redis' own clock; it is the bucket that is moved"""
    began = int(time.time())
    rates = [await hints.take("t", "get", 6) for _ in range(7)]
    assert [rate.allowed for rate in rates] == [True] * 6 + [False]
    assert began + 58 <= rates[-1].reset_at <= int(time.time()) + 62
    for back_ms, gained in ((20_000, 2), (3_600_000, 6), (-3_600_000, 0)):
        await keys.hincrby("rl:t:get", "updated_ms", -back_ms)
        rates = [await hints.take("t", "get", 6) for _ in range(7)]
        assert sum(rate.allowed for rate in rates) == gained


async def test_a_bucket_is_never_more_than_full_and_loses_nothing_to_a_clock(hints: Hints, keys: redis.Redis) -> None:
    """PRICED-172"""
    assert (await hints.take("t", "get", 6)).remaining == 5
    for back_ms, left in ((3_600_000, 5), (-3_600_000, 4), (-3_600_000, 3)):
        await keys.hincrby("rl:t:get", "updated_ms", -back_ms)
        assert (await hints.take("t", "get", 6)).remaining == left


async def test_asking_in_vain_does_not_put_off_the_next_token(hints: Hints, keys: redis.Redis) -> None:
    assert (await hints.take("t", "get", 1)).allowed
    for _ in range(59):
        await keys.hincrby("rl:t:get", "updated_ms", -1000)
        assert not (await hints.take("t", "get", 1)).allowed
    await keys.hincrby("rl:t:get", "updated_ms", -1000)
    assert (await hints.take("t", "get", 1)).allowed


async def test_a_redis_that_is_gone_is_an_outage_for_every_hint(own_redis_server: ValkeyServer) -> None:
    link = RedisLink(own_redis_server.url)
    hints = RedisHints(link)
    own_redis_server.kill()
    for call in (
        hints.lock("t", "key", "mine"),
        hints.unlock("t", "key", "mine"),
        hints.mapped("t", "key"),
        hints.remember("t", "key", FIRST, AT_US),
        hints.forget("t", "key"),
        hints.lease("run-1", "mine"),
        hints.extend_lease("run-1", "mine"),
        hints.take("t", "get", 60),
    ):
        with pytest.raises(DependencyUnavailable):
            await call
    await link.close()
