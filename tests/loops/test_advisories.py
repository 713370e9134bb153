"""The keeper's ear for what the queue gives up: it outlives outages, and other keepers."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.actions.submit import submit
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.run import Caller
from pyoco_server.core.states import RunState
from pyoco_server.errors import PyocoError
from pyoco_server.loops import advisories as loop
from pyoco_server.loops.advisories import Advisories
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link, Patience
from pyoco_server.ports.queue.port import Reply
from pyoco_server.wiring import backend as wiring
from support.backends import a_submission, a_world, dead_letters, has_ended, jobs_left, opened_backend, run_now
from support.faulty_ports import AFTER, BEFORE, Trouble, with_trouble
from support.memory_nats import MemoryServer
from support.servers import config_for
from support.waiting import eventually

pytestmark = pytest.mark.virtual_time

QUICK: dict[str, Any] = {"consumer_ack_wait_sec": 0.3, "ack_progress_interval_sec": 0.1, "consumer_max_deliver": 2}


def quick(config: NatsBackendConfig) -> NatsBackendConfig:
    return replace(config, **QUICK)


@pytest.fixture
async def backend(config: NatsBackendConfig) -> AsyncIterator[Backend]:
    async with opened_backend(quick(config)) as backend:
        yield backend


async def given_up(backend: Backend, count: int = 1) -> list[str]:
    """Runs whose jobs were delivered as often as they may be."""
    run_ids = [(await submit(backend, Caller(), a_submission())).run.run_id for _ in range(count)]
    intake = await backend.queue.open_intake(["default"], lambda _: None)
    for _ in range(2 * count):
        delivery = await intake.take(30)
        assert delivery is not None
        if delivery.count == 1:
            await delivery.answer(Reply.LATER)
    await intake.close()
    return run_ids


async def all_ended(backend: Backend, run_ids: list[str]) -> bool:
    return all([await has_ended(backend, run_id, RunState.FAILED) for run_id in run_ids])


async def none_left(link: Link, backend: Backend) -> bool:
    return await jobs_left(link, backend.config) == []


async def test_forty_at_once_are_ended_each_with_one_letter(link: Link, backend: Backend) -> None:
    run_ids = await given_up(backend, 40)
    keeper = Advisories(backend, wait_seconds=0.2)
    await keeper.start()
    await eventually(lambda: all_ended(backend, run_ids), 20.0)
    await eventually(lambda: none_left(link, backend))
    await keeper.stop()
    letters = [letter["body"]["run_id"] for letter in await dead_letters(link, backend.config)]
    assert sorted(letters) == sorted(run_ids)


async def test_trouble_at_any_step_is_met_again_and_overcome(
    link: Link, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in a world of its own, and all at the same time."""
    monkeypatch.setattr(loop, "_AGAIN_SECONDS", 0.2)
    calls = ("runs.find", "runs.replace", "queue.bury", "queue.remove", "queue.open_notices")

    async def case(call: str, fate: str) -> None:
        async with a_world(link, nats_url, **QUICK) as backend:
            try:
                await _met_and_overcome(link, backend, call, fate)
            except AssertionError as error:
                raise AssertionError(f"{call}, {fate}: {error}") from error

    async with asyncio.TaskGroup() as cases:
        for call, fate in itertools.product(calls, (BEFORE, AFTER)):
            cases.create_task(case(call, fate))


async def _met_and_overcome(link: Link, backend: Backend, call: str, fate: str) -> None:
    [run_id] = await given_up(backend)
    trouble = Trouble({call: [fate]})
    keeper = Advisories(with_trouble(backend, trouble), wait_seconds=0.2)
    await keeper.start()
    await eventually(lambda: all_ended(backend, [run_id]))
    await eventually(lambda: none_left(link, backend))
    await keeper.stop()
    assert not trouble.plan[call]
    letters = [letter["body"]["run_id"] for letter in await dead_letters(link, backend.config)]
    assert letters == [run_id]  # the job is kept until its letter is


async def test_a_record_that_cannot_be_read_hides_no_other(
    link: Link, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    broken, other = await given_up(backend, 2)
    await link.store(f"$KV.{backend.config.runs_kv_bucket}.{broken}", b"broken")
    keeper = Advisories(backend, wait_seconds=0.2)
    with caplog.at_level(logging.WARNING):
        await keeper.start()
        await eventually(lambda: all_ended(backend, [other]))
        await eventually(lambda: "could not process a job" in caplog.text)
        await keeper.stop()
    assert len(await jobs_left(link, backend.config)) == 1


async def test_it_goes_on_after_an_outage_of_nats(memory_nats_server: MemoryServer) -> None:
    config = quick(config_for(memory_nats_server.url))
    patience = Patience(down_seconds=0.2, unanswered_seconds=1.0, answer_seconds=0.5)
    async with wiring.open_backend(config, "keeper", patience) as hasty, opened_backend(config) as backend:
        keeper = Advisories(hasty, wait_seconds=0.2)
        await keeper.start()
        [first] = await given_up(backend)
        await eventually(lambda: all_ended(backend, [first]))
        memory_nats_server.restart()
        await eventually(lambda: hasty.is_up() and backend.is_up())
        run_ids: list[str] = []

        async def accepted() -> bool:
            try:
                run_ids.extend(await given_up(backend))
            except (PyocoError, AssertionError):
                return False
            return True

        await eventually(accepted)
        await eventually(lambda: all_ended(backend, run_ids), 15.0)
        await keeper.stop()


async def test_ten_tasks_start_and_stop_it_at_random_and_then_nothing_runs(link: Link, backend: Backend) -> None:
    keeper = Advisories(backend, wait_seconds=0.02)
    chance = random.Random(7)

    async def meddle() -> None:
        for _ in range(8):
            await (keeper.start() if chance.random() < 0.5 else keeper.stop())

    await asyncio.gather(*(meddle() for _ in range(10)))
    await keeper.stop()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "Advisories"]
    [run_id] = await given_up(backend)
    await asyncio.sleep(60)
    assert (await run_now(backend, run_id)).status is RunState.PENDING
    await keeper.start()
    await eventually(lambda: all_ended(backend, [run_id]))
    await keeper.stop()

    async def nobody_waits() -> bool:
        name = f"CONSUMER.INFO.{backend.config.advisory_stream}.pyoco_keeper"
        return bool((await link.api(name, {}, dict[str, Any]))["num_waiting"] == 0)

    await eventually(nobody_waits)
