"""What every store of logs promises."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import aclosing

import pytest

from pyoco_server.ports.run_logs.port import RunLogs, StoredBatch

__all__ = ["RunLogsContract", "stored_of"]


async def stored_of(logs: RunLogs, run_id: str) -> list[StoredBatch]:
    found: list[StoredBatch] = []
    async with asyncio.timeout(10), aclosing(logs.batches(run_id)) as batches:
        async for some in batches:
            found += some.items
            if some.caught_up:
                break
    return found


class RunLogsContract:
    """An adapter passes all of it or does not ship."""

    @pytest.fixture
    def run_id(self) -> str:
        return str(uuid.uuid4())

    async def test_batches_are_read_by_run_in_their_order(self, logs: RunLogs, run_id: str) -> None:
        """LOG-7: also those of another attempt, and none of another run"""
        first = await logs.append(run_id, 1, b"one", 0)
        await logs.append(str(uuid.uuid4()), 1, b"of another run", 0)
        second = await logs.append(run_id, 1, b"two", first)
        await logs.append(run_id, 2, b"three", 0)
        found = await stored_of(logs, run_id)
        assert [(each.attempt, each.payload) for each in found] == [(1, b"one"), (1, b"two"), (2, b"three")]
        assert [each.number for each in found[:2]] == [first, second]

    async def test_a_batch_that_is_sent_again_is_stored_once(self, logs: RunLogs, run_id: str) -> None:
        """After a lost response the sender does not know that it was stored"""
        first = await logs.append(run_id, 1, b"one", 0)
        assert await logs.append(run_id, 1, b"one", 0) == first
        second = await logs.append(run_id, 1, b"two", first)
        assert await logs.append(run_id, 1, b"two", first) == second
        assert [each.payload for each in await stored_of(logs, run_id)] == [b"one", b"two"]

    async def test_a_run_goes_on_though_its_earlier_batches_are_gone(self, logs: RunLogs, run_id: str) -> None:
        first = await logs.append(run_id, 1, b"one", 0)
        await logs.delete(first)
        await logs.delete(first)
        await logs.append(run_id, 1, b"two", first)
        assert [each.payload for each in await stored_of(logs, run_id)] == [b"two"]

    async def test_a_run_that_printed_nothing_is_read_at_once(self, logs: RunLogs, run_id: str) -> None:
        await logs.append(str(uuid.uuid4()), 1, b"of another run", 0)
        async with asyncio.timeout(0.9):
            assert await stored_of(logs, run_id) == []

    async def test_new_batches_reach_who_follows(self, logs: RunLogs, run_id: str) -> None:
        first = await logs.append(run_id, 1, b"one", 0)
        found = []
        async with asyncio.timeout(10), aclosing(logs.batches(run_id)) as batches:
            async for some in batches:
                found += [each.payload for each in some.items]
                if some.caught_up and len(found) == 1:
                    await logs.append(run_id, 1, b"two", first)
                elif len(found) == 2:
                    break
        assert found == [b"one", b"two"]

    async def test_it_knows_its_size_and_its_oldest_batch(self, logs: RunLogs, run_id: str) -> None:
        empty = await logs.state()
        assert (empty.first_at, empty.has_forgotten) == (None, False)
        first = await logs.append(run_id, 1, b"one", 0)
        await logs.append(run_id, 1, b"two", first)
        state = await logs.state()
        assert state.size > 0
        assert state.first_at is not None
        assert state.created_at <= state.first_at
        assert not state.has_forgotten
        await logs.delete(first)
        assert (await logs.state()).has_forgotten
