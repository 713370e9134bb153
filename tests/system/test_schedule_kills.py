"""Three real keepers, killed in a loop, over a tick each second and delayed runs."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyoco_server.actions.schedules.reach import scheduling_of
from pyoco_server.actions.submit import submit
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.delays import Delay
from pyoco_server.core.run import Caller
from pyoco_server.core.schedules.history import newest_chunks
from pyoco_server.core.schedules.ids import tick_id
from pyoco_server.core.schedules.progress import paused
from pyoco_server.core.schedules.record import CatchUp, Entry, Overlap, Schedule
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.runs.port import Stored
from support.backends import a_submission, jobs_left, run_now
from support.gateways import environment
from support.schedules import keeping_backend, make_schedule, schedule_now
from support.servers import NatsServer
from support.waiting import eventually
from support.warm_processes import begun

_START = "import sys; sys.argv = ['pyoco-keeper']; from pyoco_server.doors.cli.keeper import main; main()"
_KEEPERS = 3
_BETWEEN_KILLS = 1.0, 3.0
_BETWEEN_DELAYED, _DELAY_SECONDS_MAX = 0.4, 15.0


class Keeper:
    def __init__(self, config: NatsBackendConfig, folder: Path, number: int) -> None:
        self._log = folder / f"keeper{number}.log"
        with self._log.open("wb") as log:
            self.process = begun(
                [sys.executable, "-c", _START],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **environment(config),
                    "PYOCO_NATS_URL": config.nats_url,
                    "PYOCO_DATA_DIR": str(folder / f"data{number}"),
                    "PYOCO_PRICED_ENABLED": "0",
                    "PYOCO_LOAD_DOTENV": "0",
                },
            )

    async def ready(self) -> Keeper:
        await eventually(lambda: "keeper started" in self._log.read_text(), 60.0)
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)


@pytest.fixture
def nats_url(own_nats_server: NatsServer) -> str:
    return own_nats_server.url


@pytest.fixture
async def backend(own_nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Backend]:
    config = NatsBackendConfig(nats_url=own_nats_server.url, data_dir=str(tmp_path / "test"), logs_max_bytes=2**24)
    async with keeping_backend(config) as backend:
        yield backend


async def _history(backend: Backend, schedule: Schedule) -> list[Entry]:
    entries = list(schedule.tail)
    for number in newest_chunks(schedule, backend.config.schedule_history):
        chunk = await scheduling_of(backend).schedules.chunk(schedule.id, number)
        assert chunk is not None
        entries += chunk.entries
    return entries


async def _play(link: Link, backend: Backend, folder: Path, seconds: float) -> None:
    dice, number = random.Random(1), 0
    keepers: list[Keeper] = []
    delayed: list[str] = []
    enough = asyncio.Event()
    submitting = asyncio.create_task(_delay_runs(backend, delayed, enough))
    try:
        for number in range(_KEEPERS):
            keepers.append(await Keeper(backend.config, folder, number).ready())
        # `all`: what nobody handled in time, while all of them start at once, is made up for.
        schedule = await make_schedule(backend, when={"every": 1}, overlap=Overlap.ALLOW, catch_up=CatchUp.ALL)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(dice.uniform(*_BETWEEN_KILLS))
            keepers.pop(dice.randrange(len(keepers))).kill()
            number += 1
            keepers.append(Keeper(backend.config, folder, number))
        enough.set()
        await submitting
        for keeper in keepers:
            await keeper.ready()
        last = int(backend.clock())

        async def is_handled() -> bool:
            found = await schedule_now(backend)
            return found.cursor >= last and not found.starting

        await eventually(is_handled, 60.0)
        await _pause(backend)
        found = await schedule_now(backend)
        entries = await _judge(backend, schedule, found)
        await eventually(lambda: _all_released(backend, delayed), 60.0)
        jobs = Counter(each["body"]["run_id"] for each in await jobs_left(link, backend.config))
        assert jobs == dict.fromkeys([*delayed, *(each.run_id for each in entries)], 1)
        print(f"{number + 1 - _KEEPERS} keepers killed, {len(entries)} ticks, {len(delayed)} delayed runs")
    finally:
        submitting.cancel()
        for keeper in keepers:
            with contextlib.suppress(ProcessLookupError):
                keeper.kill()


async def _delay_runs(backend: Backend, run_ids: list[str], enough: asyncio.Event) -> None:
    dice = random.Random(2)
    while not enough.is_set():
        delay = Delay(seconds=dice.uniform(0.1, _DELAY_SECONDS_MAX))
        run_ids.append((await submit(backend, Caller(), a_submission(delay=delay))).run.run_id)
        await asyncio.sleep(dice.uniform(0.0, 2 * _BETWEEN_DELAYED))


async def _all_released(backend: Backend, run_ids: list[str]) -> bool:
    """DELAY-4: none before its time."""
    for run_id in run_ids:
        run = await run_now(backend, run_id)
        if run.waits_for_time:
            return False
        assert run.not_before is not None
        assert run.updated_at >= run.not_before
    return True


async def _pause(backend: Backend) -> None:
    schedules = scheduling_of(backend).schedules

    async def is_paused() -> bool:
        kept = await schedules.find("=nightly")
        assert kept is not None
        if kept.schedule.is_paused:
            return not kept.schedule.starting
        await schedules.replace(paused(kept.schedule, None, backend.clock()), kept)
        return False

    await eventually(is_paused, 60.0)


async def _judge(backend: Backend, first: Schedule, schedule: Schedule) -> list[Entry]:
    """Each tick has one entry and one run."""
    assert first.next_at is not None
    entries = await _history(backend, schedule)
    wanted = list(range(first.next_at, schedule.cursor + 1))
    assert sorted(each.tick for each in entries) == [tick for tick in wanted if tick <= max(e.tick for e in entries)]
    assert {each.outcome.value for each in entries} == {"run"}
    for each in entries:
        assert each.run_id == tick_id(schedule.id, each.tick)
        assert isinstance(await backend.runs.find(each.run_id), Stored)
    return entries


@pytest.mark.thorough
async def test_keepers_that_are_killed_leave_nothing_out_and_run_nothing_twice(
    link: Link, backend: Backend, tmp_path: Path
) -> None:
    """SCHED-13, DELAY-4"""
    await _play(link, backend, tmp_path, 12.0)


@pytest.mark.thorough
@pytest.mark.timeout(1200)
async def test_keepers_that_are_killed_for_ten_minutes(link: Link, backend: Backend, tmp_path: Path) -> None:
    """SCHED-13, DELAY-4"""
    await _play(link, backend, tmp_path, 600.0)
