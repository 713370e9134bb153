"""The keeper's heartbeat."""

from __future__ import annotations

import asyncio
import random

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.doors.cli import keeper as cli_keeper
from pyoco_server.loops.keeper import KeeperHeartbeat
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.nats.link import Patience
from pyoco_server.wiring import backend as wiring
from support.memory_nats import MemoryServer
from support.waiting import eventually

pytestmark = pytest.mark.virtual_time


async def test_it_beats_through_an_outage_of_nats(memory_nats_server: MemoryServer) -> None:
    patience = Patience(down_seconds=0.1, unanswered_seconds=0.2, answer_seconds=0.1)
    config = NatsBackendConfig(nats_url=memory_nats_server.url)
    async with wiring.open_backend(config, "keeper", patience) as backend:
        keeper = KeeperHeartbeat(backend, every_seconds=0.02)
        await keeper.start()
        await eventually(lambda: keeper.beats > 1)
        memory_nats_server.kill()
        await eventually(lambda: keeper.misses > 1)
        memory_nats_server.start()
        beats = keeper.beats
        await eventually(lambda: keeper.beats > beats)
        await keeper.stop()


async def test_ten_tasks_start_and_stop_it_at_random_and_then_nothing_runs(config: NatsBackendConfig) -> None:
    async with wiring.open_backend(config, "keeper") as backend:
        keeper = KeeperHeartbeat(backend, every_seconds=0.001)
        chance = random.Random(7)

        async def meddle() -> None:
            for _ in range(20):
                await (keeper.start() if chance.random() < 0.5 else keeper.stop())

        await asyncio.gather(*(meddle() for _ in range(10)))
        await keeper.stop()
        beats = keeper.beats + keeper.misses
        await asyncio.sleep(600)
        assert keeper.beats + keeper.misses == beats
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "KeeperHeartbeat"]


async def test_a_keeper_that_is_to_stop_does_not_wait_for_a_turn_that_does_not_end() -> None:
    """DESIGN 6: found by a storm, in which NATS was away, and the keeper killed half a minute after SIGTERM"""

    class Stuck(Loop):
        async def turn(self) -> None:
            inside.set()
            await asyncio.Event().wait()

    inside = asyncio.Event()
    loops = [Stuck(every_seconds=1.0), Stuck(every_seconds=1.0)]
    for loop in loops:
        await loop.start()
    await inside.wait()
    await cli_keeper._end(*(loop.stop() for loop in loops), seconds=0.05)
    assert [task for task in asyncio.all_tasks() if task.get_name() == "Stuck"] == []
