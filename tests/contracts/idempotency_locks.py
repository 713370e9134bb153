"""What every keeper of hints promises."""

from __future__ import annotations

import asyncio

from pyoco_server.ports.idempotency_locks.port import IdempotencyLocks, Mapped

__all__ = ["HintsContract"]

FIRST, SECOND = Mapped("run-1", "a" * 64), Mapped("run-2", "b" * 64)
AT_US = 1_900_000_000_000_000


class HintsContract:
    """An adapter passes all of it or does not ship. Fixtures: `hints`, and `other`, the same in another gateway."""

    async def test_one_of_many_has_the_lock(self, idempotency_locks: IdempotencyLocks, other: IdempotencyLocks) -> None:
        """PRICED-227"""
        both = [idempotency_locks, other] * 8
        answers = await asyncio.gather(*(each.lock("t", "key", str(n)) for n, each in enumerate(both)))
        assert sum(answers) == 1

    async def test_a_lock_is_opened_by_its_owner_alone(
        self, idempotency_locks: IdempotencyLocks, other: IdempotencyLocks
    ) -> None:
        assert await idempotency_locks.lock("t", "key", "mine")
        await other.unlock("t", "key", "another")
        assert not await other.lock("t", "key", "another")
        await idempotency_locks.unlock("t", "key", "mine")
        assert await other.lock("t", "key", "another")
        await idempotency_locks.unlock("t", "key", "mine")
        assert not await idempotency_locks.lock("t", "key", "mine")

    async def test_a_lock_is_for_one_key_of_one_tenant(self, idempotency_locks: IdempotencyLocks) -> None:
        assert await idempotency_locks.lock("t", "key", "mine")
        assert await idempotency_locks.lock("t", "key2", "mine")
        assert await idempotency_locks.lock("u", "key", "mine")

    async def test_a_mapping_is_remembered_replaced_and_forgotten(
        self, idempotency_locks: IdempotencyLocks, other: IdempotencyLocks
    ) -> None:
        """PRICED-93"""
        assert await idempotency_locks.mapped("t", "key") is None
        await idempotency_locks.remember("t", "key", FIRST, AT_US)
        assert await other.mapped("t", "key") == FIRST
        assert await other.mapped("u", "key") is None
        await other.remember("t", "key", SECOND, AT_US)
        assert await idempotency_locks.mapped("t", "key") == SECOND
        await idempotency_locks.forget("t", "key")
        assert await other.mapped("t", "key") is None
        await idempotency_locks.forget("t", "key")

    async def test_any_text_is_a_key(self, idempotency_locks: IdempotencyLocks) -> None:
        for key in ("a:b", "ключ 鍵 🔑", "x" * 200, "{}*?[]", " ", "\n"):
            assert await idempotency_locks.lock("t", key, "mine")
            await idempotency_locks.remember("t", key, FIRST, AT_US)
            assert await idempotency_locks.mapped("t", key) == FIRST

    async def test_a_bucket_is_shared_by_all(
        self, idempotency_locks: IdempotencyLocks, other: IdempotencyLocks
    ) -> None:
        """PRICED-172, PRICED-173, PRICED-175"""
        both = [idempotency_locks, other] * 8
        answers = await asyncio.gather(*(each.take("t", "get", 5) for each in both))
        assert sum(answer.allowed for answer in answers) == 5
        assert sorted(answer.remaining for answer in answers if answer.allowed) == [0, 1, 2, 3, 4]
        assert {answer.remaining for answer in answers if not answer.allowed} == {0}
        assert {answer.limit for answer in answers} == {5}

    async def test_reads_submits_and_tenants_have_buckets_of_their_own(
        self, idempotency_locks: IdempotencyLocks
    ) -> None:
        """PRICED-172"""
        assert (await idempotency_locks.take("t", "get", 1)).allowed
        assert not (await idempotency_locks.take("t", "get", 1)).allowed
        assert (await idempotency_locks.take("t", "post", 1)).allowed
        assert (await idempotency_locks.take("u", "get", 1)).allowed

    async def test_the_largest_limit_fits(self, idempotency_locks: IdempotencyLocks) -> None:
        assert (await idempotency_locks.take("t", "get", 10**9)).remaining == 10**9 - 1
