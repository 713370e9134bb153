"""When a key was last used is written down now and then, and never at the cost of anything else."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.api_key import KeyRecord, make_key
from pyoco_server.loops.key_uses import KeyUses
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.wiring import backend as wiring
from support.backends import Clock
from support.faulty_ports import AFTER, BEFORE, UNHEARD, Trouble, with_trouble
from support.memory_nats import MemoryServer
from support.servers import config_for
from support.waiting import eventually

pytestmark = pytest.mark.virtual_time

CLOCK = Clock()


@pytest.fixture
async def backend(config: NatsBackendConfig, tmp_path: Path) -> AsyncIterator[GatewayBackend]:
    async with wiring.open_gateway_backend(replace(config, data_dir=str(tmp_path))) as backend:
        yield replace(backend, clock=CLOCK)


async def a_key(backend: GatewayBackend, **more: object) -> KeyRecord:
    _, made = make_key("a", "", 1.0, secrets.token_hex, secrets.token_urlsafe)
    record = replace(made, **more)  # type: ignore[arg-type]  # any of its fields
    assert await backend.keys.add(record)
    return record


async def last_use(backend: GatewayBackend, record: KeyRecord) -> float | None:
    found = await backend.keys.find(record.key_id)
    assert found is not None
    return found.last_used_at


async def test_only_the_newest_use_of_each_key_is_written_and_only_once(backend: GatewayBackend) -> None:
    trouble = Trouble()
    uses = KeyUses(with_trouble(backend, trouble, "keys"))
    one, other, unused = [await a_key(backend, label=name) for name in ("one", "other", "unused")]
    for moment in range(1000):
        CLOCK.now += 1
        uses.note(one.key_id)
        if moment < 500:
            uses.note(other.key_id)
    assert trouble.calls == []  # nothing happens on the way of a request
    await uses.turn()
    assert trouble.calls == ["keys.used"] * 2
    assert await backend.keys.find(one.key_id) == replace(one, last_used_at=CLOCK.now)
    assert await last_use(backend, other) == CLOCK.now - 500
    assert await last_use(backend, unused) is None
    await uses.turn()
    assert trouble.calls == ["keys.used"] * 2


@pytest.mark.parametrize("fate", [BEFORE, AFTER, UNHEARD])
async def test_what_could_not_be_written_is_written_later(
    backend: GatewayBackend, fate: str, caplog: pytest.LogCaptureFixture
) -> None:
    uses = KeyUses(with_trouble(backend, Trouble({"keys.used": [fate, fate]}), "keys"))
    records = [await a_key(backend) for _ in range(3)]
    for record in records:
        uses.note(record.key_id)
    with caplog.at_level(logging.WARNING):
        await uses.turn()
    assert "retrying later" in caplog.text
    await uses.turn()
    await uses.turn()
    assert [await last_use(backend, record) for record in records] == [CLOCK.now] * 3


async def test_a_use_during_the_write_is_not_forgotten(backend: GatewayBackend) -> None:
    trouble = Trouble()
    uses = KeyUses(with_trouble(backend, trouble, "keys"))
    record = await a_key(backend)

    async def use_again() -> None:
        CLOCK.now += 5
        uses.note(record.key_id)

    uses.note(record.key_id)
    trouble.meanwhile["keys.used"] = use_again
    await uses.turn()
    assert await last_use(backend, record) == CLOCK.now - 5
    await uses.turn()
    assert await last_use(backend, record) == CLOCK.now


async def test_a_key_revoked_meanwhile_stays_revoked(backend: GatewayBackend) -> None:
    """FLOW-265, FLOW-474"""
    uses = KeyUses(backend)
    record = await a_key(backend)
    uses.note(record.key_id)
    await backend.keys.revoke(record.key_id, 5.0)
    await uses.turn()
    assert await backend.keys.find(record.key_id) == replace(record, revoked_at=5.0, last_used_at=CLOCK.now)


async def test_the_last_uses_are_written_at_the_end(backend: GatewayBackend) -> None:
    uses = KeyUses(backend, every_seconds=300.0)
    record = await a_key(backend)
    await uses.start()
    uses.note(record.key_id)
    await uses.stop()
    assert await last_use(backend, record) == CLOCK.now


async def test_an_outage_neither_holds_up_the_end_nor_loses_a_use(
    memory_nats_server: MemoryServer, tmp_path: Path
) -> None:
    async with wiring.open_gateway_backend(config_for(memory_nats_server.url, data_dir=str(tmp_path))) as backend:
        record = await a_key(backend)
        uses = KeyUses(backend, every_seconds=0.05)
        await uses.start()
        memory_nats_server.kill()
        await eventually(lambda: not backend.is_up())
        uses.note(record.key_id)
        async with asyncio.timeout(200):
            await uses.stop()
        memory_nats_server.start()
        await eventually(backend.is_up)
        await uses.start()

        async def is_written() -> bool:
            return await last_use(backend, record) is not None

        await eventually(is_written)
        await uses.stop()


async def test_ten_tasks_start_and_stop_it_at_random_and_then_nothing_runs(backend: GatewayBackend) -> None:
    """DESIGN 6"""
    uses = KeyUses(backend, every_seconds=0.001)
    records = [await a_key(backend) for _ in range(3)]
    chance = random.Random(7)

    async def meddle() -> None:
        for _ in range(20):
            uses.note(chance.choice(records).key_id)
            await (uses.start() if chance.random() < 0.5 else uses.stop())

    await asyncio.gather(*(meddle() for _ in range(10)))
    await uses.stop()
    assert "KeyUses" not in {task.get_name() for task in asyncio.all_tasks()}
    assert [await last_use(backend, record) for record in records] == [CLOCK.now] * 3
