"""What every worker registry promises."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Protocol

from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import WorkerRecord, stopped
from pyoco_server.ports.registry.port import Registry
from waiting import eventually

__all__ = ["MakeRegistry", "RegistryContract", "a_worker"]


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
        hide = await operator.find("w1")
        assert hide is not None
        await self.hide(replace(hide, hidden=True, updated_at=7.0))
        written = await worker.announce(a_worker(state=WorkerState.RUNNING))
        assert (written.hidden, written.updated_at, written.state) == (True, 7.0, WorkerState.RUNNING)
        assert await operator.find("w1") == written

    async def hide(self, record: WorkerRecord) -> None:
        """Write over the record as an operator does. The adapter's test says how."""
        raise NotImplementedError

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

                await eventually(shows, 1)

    async def test_stopping_is_harmless_at_any_time(self, make_registry: MakeRegistry) -> None:
        registry = make_registry()
        await registry.stop()
        await registry.start()
        await registry.stop()
        await registry.stop()
        assert await registry.find("w1") is None
