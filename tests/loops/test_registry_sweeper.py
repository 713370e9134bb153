"""Long dead workers are removed from the registry; live ones never are."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from contracts.registry import a_worker
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import WorkerRecord, stopped
from pyoco_server.errors import Unavailable
from pyoco_server.loops.registry_sweeper import RegistrySweeper
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from support.backends import Clock, opened_backend
from support.faulty_ports import AFTER, BEFORE, Trouble, with_trouble
from support.memory_nats import MemoryServer
from support.servers import config_for
from support.waiting import eventually

pytestmark = pytest.mark.virtual_time

RETENTION = 1000.0
CLOCK = Clock()


@pytest.fixture
async def backend(config: NatsBackendConfig) -> AsyncIterator[Backend]:
    async with opened_backend(replace(config, workers_retention_sec=RETENTION)) as backend:
        yield replace(backend, clock=CLOCK)
        await backend.registry.stop()


def seen(worker_id: str, age: float, state: WorkerState = WorkerState.IDLE, **more: object) -> WorkerRecord:
    record = a_worker(worker_id, state=state, last_seen_at=CLOCK.now - age, **more)
    return stopped(record, "sigterm", record.last_seen_at) if state is WorkerState.STOPPED_GRACEFUL else record


async def left(backend: Backend) -> list[str]:
    await backend.registry.start()
    return sorted(record.worker_id for record in await backend.registry.all())


async def test_it_removes_who_has_been_gone_for_longer_than_is_kept(backend: Backend) -> None:
    """FLOW-194"""
    records = [
        seen("stopped-long-ago", RETENTION + 1, WorkerState.STOPPED_GRACEFUL),
        seen("lost-long-ago", RETENTION + 1, WorkerState.RUNNING),
        seen("hidden-and-lost", RETENTION * 9, hidden=True),
        seen("stopped-lately", RETENTION - 1, WorkerState.STOPPED_GRACEFUL),
        seen("lost-lately", RETENTION - 1),
        seen("alive", 1),
        seen("ahead", -RETENTION * 9),
    ]
    for record in records:
        await backend.registry.announce(record)
    sweeper = RegistrySweeper(backend)
    await sweeper.turn()
    await sweeper.turn()
    assert await left(backend) == ["ahead", "alive", "lost-lately", "stopped-lately"]
    assert sweeper.removed == 3


async def test_it_keeps_everybody_when_the_time_is_0(backend: Backend) -> None:
    for_ever = replace(backend, config=replace(backend.config, workers_retention_sec=0.0))
    await backend.registry.announce(seen("w", 1e9))
    trouble = Trouble()
    await RegistrySweeper(with_trouble(for_ever, trouble, "registry")).turn()
    assert trouble.calls == []  # it does not even look
    assert await left(backend) == ["w"]


async def test_a_worker_that_comes_back_at_that_moment_stays(backend: Backend) -> None:
    """FLOW-28"""
    await backend.registry.announce(seen("w", RETENTION + 1))
    trouble = Trouble()

    async def come_back() -> None:
        async with opened_backend(backend.config) as other:
            await other.registry.announce(seen("w", 0, instance_id="i2"))

    trouble.meanwhile["registry.all"] = come_back
    sweeper = RegistrySweeper(with_trouble(backend, trouble, "registry"))
    await sweeper.turn()
    assert "registry.remove" in trouble.calls
    assert (await left(backend), sweeper.removed) == (["w"], 0)


async def test_a_worker_that_was_away_for_as_long_makes_its_record_anew(backend: Backend) -> None:
    """FLOW-28, FLOW-196: its next heartbeat does, whatever it remembers"""
    async with opened_backend(backend.config) as worker:
        await worker.registry.announce(seen("w", RETENTION + 1))
        sweeper = RegistrySweeper(backend)
        await sweeper.turn()
        assert await left(backend) == []
        await worker.registry.announce(seen("w", 0))

        async def is_back() -> bool:
            return await left(backend) == ["w"]

        await eventually(is_back)
        await sweeper.turn()
        assert await left(backend) == ["w"]


async def test_several_keepers_remove_each_record_once(config: NatsBackendConfig) -> None:
    async with AsyncExitStack() as open_ones:
        kept = replace(config, workers_retention_sec=RETENTION)
        backends = [replace(await open_ones.enter_async_context(opened_backend(kept)), clock=CLOCK) for _ in range(3)]
        for n in range(50):
            await backends[0].registry.announce(seen(f"w{n}", RETENTION + 1))
        sweepers = [RegistrySweeper(backend) for backend in backends]
        await asyncio.gather(*(sweeper.turn() for sweeper in sweepers))
        assert sum(sweeper.removed for sweeper in sweepers) == 50
        assert await left(backends[0]) == []
        for backend in backends:
            await backend.registry.stop()


@pytest.mark.parametrize("fate", [BEFORE, AFTER])
@pytest.mark.parametrize("call", ["registry.start", "registry.all", "registry.remove"])
async def test_a_turn_that_fails_half_way_is_made_good_by_the_next(backend: Backend, call: str, fate: str) -> None:
    for n in range(3):
        await backend.registry.announce(seen(f"w{n}", RETENTION + 1))
    trouble = Trouble({call: [fate]})
    sweeper = RegistrySweeper(with_trouble(backend, trouble, "registry"))
    with pytest.raises(Unavailable):
        await sweeper.turn()
    await sweeper.turn()
    assert await left(backend) == []


async def test_a_record_nobody_can_read_is_told_of_and_stays(
    backend: Backend, link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = backend.config.workers_kv_bucket
    await link.store(f"$KV.{bucket}.odd", b"not json")
    await backend.registry.announce(seen("w", RETENTION + 1))
    with caplog.at_level(logging.WARNING):
        await RegistrySweeper(backend).turn()
    assert [record for record in caplog.records if "unreadable record" in record.message]
    assert await left(backend) == []
    assert await link.api(f"STREAM.MSG.GET.KV_{bucket}", {"last_by_subj": f"$KV.{bucket}.odd"}, dict[str, object])


async def test_it_goes_on_after_an_outage_of_nats(memory_nats_server: MemoryServer) -> None:
    config = config_for(memory_nats_server.url, workers_retention_sec=RETENTION)
    async with opened_backend(config) as opened:
        backend = replace(opened, clock=CLOCK)
        sweeper = RegistrySweeper(backend, every_seconds=0.02)
        await sweeper.start()
        await backend.registry.announce(seen("w1", RETENTION + 1))
        await eventually(lambda: sweeper.removed == 1)
        memory_nats_server.kill()
        await eventually(lambda: not backend.is_up())
        memory_nats_server.start()
        await backend.registry.announce(seen("w2", RETENTION + 1))
        await eventually(lambda: sweeper.removed == 2)
        await sweeper.stop()


async def test_ten_tasks_start_and_stop_it_at_random_and_then_nothing_runs(backend: Backend) -> None:
    """DESIGN 6"""
    sweeper = RegistrySweeper(backend, every_seconds=0.001)
    chance = random.Random(7)

    async def meddle() -> None:
        for _ in range(10):
            await (sweeper.start() if chance.random() < 0.5 else sweeper.stop())

    await asyncio.gather(*(meddle() for _ in range(10)))
    await sweeper.stop()
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert "RegistrySweeper" not in names
    assert f"mirror {backend.config.workers_kv_bucket}" not in names
