"""What every store of API keys promises."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Protocol

import pytest

from pyoco_server.core.api_key import KeyRecord
from pyoco_server.ports.keys.port import Keys
from support.waiting import eventually

__all__ = ["KeysContract", "MakeKeys", "a_key", "started"]


class MakeKeys(Protocol):
    """The test's one store of keys, as another process would open it."""

    def __call__(self) -> Keys: ...


def a_key(key_id: str = "k1", created_at: float = 1.0) -> KeyRecord:
    return KeyRecord(key_id=key_id, tenant_id="t", key_hash="0" * 64, created_at=created_at)


@asynccontextmanager
async def started(keys: Keys) -> AsyncIterator[Keys]:
    await keys.start()
    try:
        yield keys
    finally:
        await keys.stop()


class KeysContract:
    """An adapter passes all of it or does not ship."""

    async def test_a_key_that_was_added_is_found(self, make_keys: MakeKeys) -> None:
        keys = make_keys()
        assert await keys.add(a_key())
        assert await keys.find("k1") == a_key()
        assert await make_keys().find("k1") == a_key()
        assert await keys.find("k2") is None

    async def test_an_id_is_taken_once(self, make_keys: MakeKeys) -> None:
        keys = make_keys()
        answers = await asyncio.gather(*(keys.add(a_key(created_at=float(n))) for n in range(5)))
        assert sorted(answers) == [False, False, False, False, True]

    async def test_a_key_is_revoked_for_good_and_the_first_time_counts(self, make_keys: MakeKeys) -> None:
        """FLOW-474"""
        keys = make_keys()
        await keys.add(a_key())
        revoked = replace(a_key(), revoked_at=5.0)
        assert await keys.revoke("k1", 5.0) == revoked
        assert await keys.revoke("k1", 9.0) == revoked
        assert await keys.find("k1") == revoked
        assert not await keys.add(a_key())

    async def test_of_many_revocations_one_counts(self, make_keys: MakeKeys) -> None:
        keys = make_keys()
        await keys.add(a_key())
        answers = await asyncio.gather(*(keys.revoke("k1", float(n)) for n in range(5)))
        assert len(set(answers)) == 1

    async def test_a_key_that_is_not_there_cannot_be_revoked(self, make_keys: MakeKeys) -> None:
        assert await make_keys().revoke("k1", 5.0) is None

    async def test_the_latest_use_is_kept_whoever_tells_of_it_last(self, make_keys: MakeKeys) -> None:
        keys = make_keys()
        await keys.add(a_key())
        for at, known in ((5.0, 5.0), (9.0, 9.0), (7.0, 9.0)):
            await make_keys().used("k1", at)
            assert await keys.find("k1") == replace(a_key(), last_used_at=known)
        await asyncio.gather(*(make_keys().used("k1", float(n)) for n in range(10, 15)))
        assert await keys.find("k1") == replace(a_key(), last_used_at=14.0)

    async def test_the_first_pepper_is_kept(self, make_keys: MakeKeys) -> None:
        """FIND-11"""
        assert await make_keys().pepper() is None
        answers = await asyncio.gather(*(make_keys().keep_pepper(f"{n:016x}") for n in range(5)))
        assert len(set(answers)) == 1
        assert await make_keys().pepper() == answers[0]
        assert await make_keys().keep_pepper("f" * 16) == answers[0]

    async def test_the_pepper_can_be_replaced(self, make_keys: MakeKeys) -> None:
        """FIND-12"""
        for fingerprint in ("a" * 16, "b" * 16, "b" * 16):
            await make_keys().replace_pepper(fingerprint)
            assert await make_keys().keep_pepper("c" * 16) == fingerprint

    async def test_the_pepper_is_not_taken_for_a_damaged_key(
        self, make_keys: MakeKeys, caplog: pytest.LogCaptureFixture
    ) -> None:
        await make_keys().keep_pepper("a" * 16)
        await make_keys().add(a_key())
        async with started(make_keys()) as keys:
            assert await keys.all() == [a_key()]
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []

    async def test_a_use_of_a_key_that_is_not_there_makes_none(self, make_keys: MakeKeys) -> None:
        await make_keys().used("k1", 5.0)
        assert await make_keys().find("k1") is None

    async def test_a_use_never_undoes_a_revocation(self, make_keys: MakeKeys) -> None:
        """FLOW-265, FLOW-474: at whatever moment the two meet"""
        for n in range(30):
            key_id = f"k{n}"
            await make_keys().add(a_key(key_id))
            await asyncio.gather(
                *(make_keys().used(key_id, float(at)) for at in range(1, 4)), make_keys().revoke(key_id, 5.0)
            )
            found = await make_keys().find(key_id)
            assert found is not None
            assert (found.revoked_at, found.last_used_at) == (5.0, 3.0)

    async def test_a_label_and_an_expiry_are_kept_through_all_changes(self, make_keys: MakeKeys) -> None:
        keys, record = make_keys(), replace(a_key(), label="nightly", expires_at=50.0)
        await keys.add(record)
        await keys.used("k1", 5.0)
        assert await keys.revoke("k1", 9.0) == replace(record, last_used_at=5.0, revoked_at=9.0)

    async def test_a_started_store_lists_all_oldest_first(self, make_keys: MakeKeys) -> None:
        """FLOW-472"""
        keys = make_keys()
        for key_id, created_at in (("b", 3.0), ("c", 1.0), ("a", 3.0)):
            await keys.add(a_key(key_id, created_at))
        await keys.revoke("c", 9.0)
        async with started(make_keys()) as reader:
            assert [record.key_id for record in await reader.all()] == ["c", "a", "b"]

    async def test_a_started_store_reads_what_it_wrote_at_once(self, make_keys: MakeKeys) -> None:
        async with started(make_keys()) as keys:
            await keys.add(a_key())
            assert await keys.find("k1") == a_key()
            await keys.revoke("k1", 5.0)
            assert await keys.find("k1") == replace(a_key(), revoked_at=5.0)

    async def test_a_key_revoked_elsewhere_stops_within_a_second(self, make_keys: MakeKeys) -> None:
        """FLOW-265, as DESIGN 9.5 reads it"""
        other = make_keys()
        async with started(make_keys()) as keys:
            await other.add(a_key())

            async def is_found() -> bool:
                return await keys.find("k1") is not None

            await eventually(is_found, 5)
            await other.revoke("k1", 5.0)

            async def is_revoked() -> bool:
                found = await keys.find("k1")
                return found is not None and found.revoked_at == 5.0

            await eventually(is_revoked, 5)

    async def test_stopping_is_harmless_at_any_time(self, make_keys: MakeKeys) -> None:
        keys = make_keys()
        await keys.stop()
        await keys.start()
        await keys.stop()
        await keys.stop()
        assert await keys.find("k1") is None
