"""What every worker registry promises."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Protocol

import pytest

from pyoco_server.core.offered_flow import OfferedFlow
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import WorkerRecord, stopped
from pyoco_server.errors import Unavailable
from pyoco_server.ports.registry.port import Registry
from support.waiting import eventually

__all__ = ["MakeRegistry", "RegistryContract", "a_worker", "started"]


class MakeRegistry(Protocol):
    """A registry over the test's one store, as another process would open it."""

    def __call__(self) -> Registry: ...


def a_worker(worker_id: str = "w1", **more: object) -> WorkerRecord:
    now = time.time()
    record = WorkerRecord(
        worker_id=worker_id,
        instance_id="i1",
        state=WorkerState.IDLE,
        tags=("a", "b"),
        last_seen_at=now,
        last_heartbeat_at=now,
        versions={"pyoco": "0.8"},
    )
    return replace(record, **more)  # type: ignore[arg-type]  # any of its fields


@asynccontextmanager
async def started(registry: Registry) -> AsyncIterator[Registry]:
    await registry.start()
    try:
        yield registry
    finally:
        await registry.stop()


class RegistryContract:
    """An adapter passes all of it or does not ship."""

    async def test_what_a_worker_announces_is_found(self, make_registry: MakeRegistry) -> None:
        record = a_worker(running=("r1",), slots=4, wheel_sync={"ok": True})
        assert await make_registry().announce(record) == record
        assert await make_registry().find("w1") == record
        assert await make_registry().find("w2") is None

    async def test_what_is_known_is_there_without_waiting(self, make_registry: MakeRegistry) -> None:
        """APP-10"""
        flow = OfferedFlow(name="measure", app="reports", params={"type": "object"})
        record = a_worker(flows=(flow,), flows_complete=True)
        assert make_registry().known() == []
        await make_registry().announce(record)
        async with started(make_registry()) as registry:
            assert registry.known() == [record]

    async def test_a_worker_writes_its_record_again_and_again(self, make_registry: MakeRegistry) -> None:
        registry = make_registry()
        for n in range(5):
            await registry.announce(a_worker(last_seen_at=float(n)))
        found = await make_registry().find("w1")
        assert found is not None
        assert found.last_seen_at == 4.0

    async def test_the_operators_word_survives_the_workers(self, make_registry: MakeRegistry) -> None:
        """FLOW-148"""
        worker, operator = make_registry(), make_registry()
        await worker.announce(a_worker())
        assert await operator.hide("w1", True, 7.0) is not None
        written = await worker.announce(a_worker(state=WorkerState.RUNNING))
        assert (written.hidden, written.updated_at, written.state) == (True, 7.0, WorkerState.RUNNING)
        assert await operator.find("w1") == written
        restarted = await make_registry().announce(a_worker(instance_id="i2"))
        assert (restarted.hidden, restarted.updated_at) == (True, 7.0)
        assert await make_registry().retire(stopped(a_worker(instance_id="i2"), "sigterm", 9.0))
        found = await operator.find("w1")
        assert found is not None
        assert (found.hidden, found.updated_at, found.state) == (True, 7.0, WorkerState.STOPPED_GRACEFUL)

    async def test_hiding_changes_nothing_else_and_nothing_twice(self, make_registry: MakeRegistry) -> None:
        """FLOW-144, FLOW-146, FLOW-147, FLOW-355"""
        registry = make_registry()
        record = await registry.announce(a_worker(running=("r1",), slots=4, wheel_sync={"ok": True}))
        hidden = replace(record, hidden=True, updated_at=7.0)
        assert await registry.hide("w1", True, 7.0) == hidden
        assert await registry.hide("w1", True, 8.0) == hidden
        assert await registry.find("w1") == hidden
        assert await registry.hide("w1", False, 9.0) == replace(record, updated_at=9.0)

    async def test_a_worker_nobody_knows_cannot_be_hidden(self, make_registry: MakeRegistry) -> None:
        """FLOW-145"""
        assert await make_registry().hide("w1", True, 7.0) is None
        assert await make_registry().find("w1") is None

    async def test_a_word_is_not_lost_however_fast_the_worker_writes(self, make_registry: MakeRegistry) -> None:
        """FLOW-148: neither the operator's nor the worker's"""
        worker, operator = make_registry(), make_registry()
        await worker.announce(a_worker(slots=1))
        done = asyncio.Event()
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while not done.is_set():
                beats += 1
                await worker.announce(a_worker(slots=beats))
                await asyncio.sleep(0.001)  # a thousand times as fast as any worker, and yet no endless loop

        beating = asyncio.create_task(beat())
        for n in range(1, 61):
            seen = beats
            await eventually(lambda seen=seen: beats > seen)  # type: ignore[misc]  # it writes between any two words
            word = await operator.hide("w1", bool(n % 2), float(n))
            assert word is not None
            assert (word.hidden, word.updated_at) == (bool(n % 2), float(n))
            said = await make_registry().find("w1")
            assert said is not None
            assert (said.hidden, said.updated_at) == (bool(n % 2), float(n))
        done.set()
        await beating
        last = await operator.find("w1")
        assert last is not None
        assert (last.hidden, last.updated_at, last.slots) == (False, 60.0, beats)

    async def test_who_hides_reads_it_at_once(self, make_registry: MakeRegistry) -> None:
        worker, other = make_registry(), make_registry()
        await worker.announce(a_worker())
        async with started(make_registry()) as registry:
            for n in range(1, 20):
                await registry.hide("w1", bool(n % 2), float(n))
                assert [record.hidden for record in await registry.all()] == [bool(n % 2)]
            await other.hide("w1", False, 50.0)
            said = await registry.hide("w1", False, 60.0)  # said already, elsewhere
            assert said is not None
            assert said.updated_at == 50.0
            assert await registry.all() == [said]

    async def test_a_record_is_removed_only_as_it_was_seen(self, make_registry: MakeRegistry) -> None:
        """FLOW-28: a worker that comes back at that moment wins"""
        worker, keeper = make_registry(), make_registry()
        seen = await worker.announce(a_worker())
        back = await worker.announce(a_worker(last_seen_at=seen.last_seen_at + 1))
        assert not await keeper.remove(seen)
        assert await keeper.find("w1") == back
        assert await keeper.remove(back)
        assert await keeper.find("w1") is None
        assert not await keeper.remove(back)

    async def test_of_many_who_remove_a_record_one_does(self, make_registry: MakeRegistry) -> None:
        seen = await make_registry().announce(a_worker())
        answers = await asyncio.gather(*(make_registry().remove(seen) for _ in range(5)))
        assert sorted(answers) == [False, False, False, False, True]

    async def test_a_worker_makes_a_removed_record_anew(self, make_registry: MakeRegistry) -> None:
        """FLOW-28, FLOW-148: it still knows what the operator had said"""
        worker, keeper = make_registry(), make_registry()
        await worker.announce(a_worker())
        await keeper.hide("w1", True, 7.0)
        for n in range(3):
            seen = await worker.announce(a_worker(last_seen_at=float(n)))
            assert await keeper.remove(seen)
            again = await worker.announce(a_worker(last_seen_at=float(n + 1)))
            assert (again.hidden, again.last_seen_at) == (True, float(n + 1))
            assert await keeper.find("w1") == again
        assert await make_registry().retire(stopped(again, "sigterm", 9.0))

    async def test_a_removed_worker_leaves_a_started_registry_within_a_second(
        self, make_registry: MakeRegistry
    ) -> None:
        keeper = make_registry()
        seen = await keeper.announce(a_worker())
        async with started(make_registry()) as registry, started(make_registry()) as other:
            assert await registry.all() == [seen]
            assert await registry.remove(seen)
            assert await registry.all() == []

            async def is_gone() -> bool:
                return await other.all() == [] and await other.find("w1") is None

            await eventually(is_gone, 5)

    async def test_another_instance_takes_the_record_over(self, make_registry: MakeRegistry) -> None:
        """FLOW-200"""
        old, new = make_registry(), make_registry()
        await old.announce(a_worker())
        await new.announce(a_worker(instance_id="i2"))
        found = await old.find("w1")
        assert found is not None
        assert found.instance_id == "i2"

    async def test_an_instance_that_lost_the_id_does_not_retire_it(self, make_registry: MakeRegistry) -> None:
        """FLOW-200"""
        old, new = make_registry(), make_registry()
        first = await old.announce(a_worker())
        second = await new.announce(a_worker(instance_id="i2"))
        assert not await old.retire(stopped(first, "SIGTERM", 9.0))
        assert await old.find("w1") == second
        assert await new.retire(stopped(second, "SIGTERM", 9.0))
        found = await old.find("w1")
        assert found is not None
        assert (found.state, found.stop_reason) == (WorkerState.STOPPED_GRACEFUL, "SIGTERM")

    async def test_two_instances_that_fight_both_get_through(self, make_registry: MakeRegistry) -> None:
        one, two = make_registry(), make_registry()
        for n in range(10):
            await asyncio.gather(
                one.announce(a_worker(last_seen_at=float(n))),
                two.announce(a_worker(instance_id="i2", last_seen_at=float(n))),
            )
        found = await one.find("w1")
        assert found is not None
        assert found.last_seen_at == 9.0

    async def test_a_started_registry_knows_all_that_was_there(self, make_registry: MakeRegistry) -> None:
        for n in range(20):
            await make_registry().announce(a_worker(f"w{n}"))
        async with started(make_registry()) as registry:
            assert {record.worker_id for record in await registry.all()} == {f"w{n}" for n in range(20)}

    async def test_a_started_registry_is_empty_when_the_store_is(self, make_registry: MakeRegistry) -> None:
        async with started(make_registry()) as registry:
            assert await registry.all() == []

    async def test_a_started_registry_follows_within_a_second(self, make_registry: MakeRegistry) -> None:
        writer = make_registry()
        async with started(make_registry()) as registry:
            for state in (WorkerState.IDLE, WorkerState.RUNNING):
                record = await writer.announce(a_worker(state=state))

                async def shows(record: WorkerRecord = record) -> bool:
                    return await registry.find("w1") == record and await registry.all() == [record]

                await eventually(shows, 5)

    async def test_a_registry_that_does_not_follow_lists_nothing(self, make_registry: MakeRegistry) -> None:
        """FLOW-47: an unknown answer is not an empty one"""
        registry = make_registry()
        for _ in range(2):
            with pytest.raises(Unavailable):
                await registry.all()
            await registry.start()
            await registry.start()
            assert await registry.all() == []
            await registry.stop()

    async def test_stopping_is_harmless_at_any_time(self, make_registry: MakeRegistry) -> None:
        registry = make_registry()
        await registry.stop()
        await registry.start()
        await registry.stop()
        await registry.stop()
        assert await registry.find("w1") is None
