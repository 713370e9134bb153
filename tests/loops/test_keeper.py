"""The keeper's heartbeat."""

from __future__ import annotations

import asyncio
import random

from pyoco_server import wiring
from pyoco_server.config import NatsBackendConfig
from pyoco_server.loops.keeper import KeeperHeartbeat
from pyoco_server.ports.nats.link import Patience
from servers import NatsServer
from waiting import eventually


async def test_it_beats_through_an_outage_of_nats(own_nats_server: NatsServer) -> None:
    patience = Patience(down_seconds=0.1, unanswered_seconds=0.2, answer_seconds=0.1)
    config = NatsBackendConfig(nats_url=own_nats_server.url)
    async with wiring.open_backend(config, "keeper", patience) as backend:
        keeper = KeeperHeartbeat(backend, every_seconds=0.02)
        await keeper.start()
        await eventually(lambda: keeper.beats > 1)
        own_nats_server.kill()
        await eventually(lambda: keeper.misses > 1)
        own_nats_server.start()
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
        await asyncio.sleep(0.02)
        assert keeper.beats + keeper.misses == beats
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "KeeperHeartbeat"]
