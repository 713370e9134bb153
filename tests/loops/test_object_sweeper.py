"""What broken uploads left leaves the object stores; nothing else does."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from contracts.objects import put, read_all
from pyoco_server.config import NatsBackendConfig
from pyoco_server.loops import object_sweeper
from pyoco_server.loops.object_sweeper import ObjectSweeper
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link, Patience, open_link
from pyoco_server.ports.objects.writer import IDLE_SECONDS_MAX
from support.backends import fields_of, opened_backend
from support.faulty_ports import AFTER, BEFORE, Trouble, with_trouble
from support.memory_nats import MemoryServer
from support.servers import config_for
from support.waiting import eventually

pytestmark = pytest.mark.virtual_time

#: Whatever is there is older than that: clocks of one machine differ by less.
ANY_AGE = -60.0


@pytest.fixture
async def backend(config: NatsBackendConfig) -> AsyncIterator[Backend]:
    async with opened_backend(config) as backend:
        yield backend


async def leave(link: Link, bucket: str, object_id: str = "left", size: int = 1000) -> None:
    await link.store(f"$O.{bucket}.C.{object_id}", bytes(size))


async def left(backend: Backend) -> int:
    return len(await backend.wheels.strays(ANY_AGE)) + len(await backend.workflows.strays(ANY_AGE))


async def test_it_removes_what_it_has_found_twice_from_both_stores(
    backend: Backend, link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    """A clock that jumps ahead makes anything old, once."""
    wheels, workflows = backend.config.wheel_object_store_bucket, backend.config.workflow_object_store_bucket
    kept = [await put(store, "one", bytes(200_000)) for store in (backend.wheels, backend.workflows)]
    await leave(link, wheels, "left", 1000)
    await leave(link, workflows, "left", 500)
    sweeper = ObjectSweeper(backend, older_than_seconds=ANY_AGE)
    await sweeper.turn()
    assert (await left(backend), sweeper.removed_bytes) == (2, 0)
    with caplog.at_level(logging.INFO):
        await sweeper.turn()
    assert (await left(backend), sweeper.removed_bytes) == (0, 1500)
    told = [fields_of(record) for record in caplog.records if record.message == "removed bytes of interrupted upload"]
    assert [(line["bucket"], line["object_id"], line["size_bytes"]) for line in told] == [
        (wheels, "left", 1000),
        (workflows, "left", 500),
    ]
    for store, info in zip((backend.wheels, backend.workflows), kept, strict=True):
        assert len(await read_all(store, info)) == 200_000


async def test_it_leaves_alone_what_is_not_an_hour_old(backend: Backend, link: Link) -> None:
    await leave(link, backend.config.wheel_object_store_bucket)
    sweeper = ObjectSweeper(backend)
    for _ in range(3):
        await sweeper.turn()
    assert await left(backend) == 1


@pytest.mark.parametrize("is_admitted", [True, False], ids=["wheel", "flow.yaml"])
async def test_a_put_that_goes_on_slowly_survives_any_number_of_turns(backend: Backend, is_admitted: bool) -> None:
    sweeper = ObjectSweeper(backend, older_than_seconds=ANY_AGE)
    store = backend.wheels if is_admitted else backend.workflows

    async def slow() -> AsyncIterator[bytes]:
        stored = 0
        for _ in range(5):
            yield bytes(128 * 1024)
            while not (found := await store.strays(ANY_AGE)) or found[0].last_sequence == stored:
                await asyncio.sleep(0.005)  # until the piece is there: a turn must meet it
            stored = found[0].last_sequence
            await sweeper.turn()

    async with asyncio.timeout(200):
        if is_admitted:
            made = await store.put_admitted("one", slow(), 10**6, None, lambda _: None)
        else:
            made = await store.put("one", slow(), 10**6)
    await sweeper.turn()
    assert len(await read_all(store, made)) == 5 * 128 * 1024
    assert sweeper.removed_bytes == 0


def test_between_two_turns_a_put_that_rests_has_failed() -> None:
    """The half minute is for its last write: 15 s of patience for an answer, 15 s for a connection."""
    assert IDLE_SECONDS_MAX + 30 < object_sweeper._EVERY_SECONDS


async def test_a_store_that_cannot_be_read_keeps_the_other_one_from_nothing(
    backend: Backend, link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = backend.config.wheel_object_store_bucket
    await leave(link, bucket)
    await leave(link, backend.config.workflow_object_store_bucket)
    await link.store(f"$O.{bucket}.M.b2Rk", b"not json")
    sweeper = ObjectSweeper(backend, older_than_seconds=ANY_AGE)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await sweeper.turn()
    assert await backend.workflows.strays(ANY_AGE) == ()
    request = {"last_by_subj": f"$O.{bucket}.C.left"}
    assert await link.api(f"STREAM.MSG.GET.OBJ_{bucket}", request, dict[str, Any])
    # CLI-2: logged once, then counted.
    told = [fields_of(record)["bucket"] for record in caplog.records if "could not sweep" in record.message]
    assert told == [bucket]


@pytest.mark.parametrize("fate", [BEFORE, AFTER])
@pytest.mark.parametrize("call", ["wheels.strays", "wheels.sweep"])
async def test_a_turn_that_fails_half_way_is_made_good_by_the_next(
    backend: Backend, link: Link, call: str, fate: str
) -> None:
    for number in range(3):
        await leave(link, backend.config.wheel_object_store_bucket, f"left{number}")
    trouble = Trouble({call: [fate]})
    sweeper = ObjectSweeper(with_trouble(backend, trouble, "wheels"), older_than_seconds=ANY_AGE)
    for _ in range(3):
        await sweeper.turn()
    assert await left(backend) == 0


async def test_several_keepers_remove_each_stray_once(config: NatsBackendConfig, link: Link) -> None:
    async with AsyncExitStack() as open_ones:
        backends = [await open_ones.enter_async_context(opened_backend(config)) for _ in range(3)]
        for number in range(20):
            await leave(link, config.wheel_object_store_bucket, f"left{number}")
        sweepers = [ObjectSweeper(backend, older_than_seconds=ANY_AGE) for backend in backends]
        for _ in range(2):
            await asyncio.gather(*(sweeper.turn() for sweeper in sweepers))
        assert sum(sweeper.removed_bytes for sweeper in sweepers) == 20_000
        assert await left(backends[0]) == 0


async def test_it_goes_on_after_an_outage_of_nats(memory_nats_server: MemoryServer) -> None:
    config = config_for(memory_nats_server.url)
    link = await open_link(memory_nats_server.url, "tests", Patience(down_seconds=20.0))
    async with opened_backend(config) as backend:
        sweeper = ObjectSweeper(backend, every_seconds=0.02, older_than_seconds=ANY_AGE)
        await sweeper.start()
        await leave(link, config.wheel_object_store_bucket)
        await eventually(lambda: sweeper.removed_bytes == 1000)
        memory_nats_server.kill()
        await eventually(lambda: not backend.is_up())
        memory_nats_server.start()
        await eventually(lambda: link.is_up, 20)
        await leave(link, config.workflow_object_store_bucket)
        await eventually(lambda: sweeper.removed_bytes == 2000, 20)
        await sweeper.stop()
    await link.close()


async def test_ten_tasks_start_and_stop_it_at_random_and_then_nothing_runs(backend: Backend) -> None:
    """DESIGN 6"""
    sweeper = ObjectSweeper(backend, every_seconds=0.001)
    chance = random.Random(7)

    async def meddle() -> None:
        for _ in range(10):
            await (sweeper.start() if chance.random() < 0.5 else sweeper.stop())

    await asyncio.gather(*(meddle() for _ in range(10)))
    await sweeper.stop()
    assert "ObjectSweeper" not in {task.get_name() for task in asyncio.all_tasks()}
