"""`pyoco-keeper` as it is started by an operator: several at once, one of them killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.submit import submit
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.run import Caller
from pyoco_server.core.states import RunState
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.queue.port import Reply
from support.backends import a_submission, consumer_state, dead_letters, has_ended, jobs_left, opened_backend, run_now
from support.gateways import environment
from support.servers import NatsServer
from support.waiting import eventually
from support.warm_processes import begun

ROOT = Path(__file__).parents[2]

START = """
import functools, sys
from pyoco_server.config import NatsBackendConfig as C
C.from_env = functools.partial(C.from_env, work_stream={stream!r})
sys.argv = ["pyoco-keeper"]
from pyoco_server.doors.cli.keeper import main
main()
"""


class Keeper:
    """One process, seen from outside."""

    def __init__(self, config: NatsBackendConfig, folder: Path, number: int) -> None:
        self._log = folder / f"keeper{number}.log"
        settings = environment(replace(config, data_dir=str(folder / "data")))
        with self._log.open("wb") as log:
            self.process = begun(
                [sys.executable, "-c", START.format(stream=config.work_stream)],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**settings, "PYOCO_LOAD_DOTENV": "false"},
            )

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What it has logged: whole lines, as the last one may be half written."""
        lines = self._log.read_text().rpartition("\n")[0].splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    async def ready(self) -> Keeper:
        await eventually(lambda: any("keeper started" in line["message"] for line in self.lines), 60.0)
        return self


class Keepers:
    def __init__(self, config: NatsBackendConfig, folder: Path) -> None:
        self._config, self._folder = config, folder
        self.all: list[Keeper] = []

    async def start(self) -> Keeper:
        self.all.append(Keeper(self._config, self._folder, len(self.all)))
        return await self.all[-1].ready()

    def kill(self) -> None:
        for keeper in self.all:
            keeper.process.kill()
            keeper.process.wait(60)


@pytest.fixture
def nats_url(own_nats_server: NatsServer) -> str:
    """Nobody else's: tests of programs share their buckets, and some leave things there that a keeper complains of."""
    return own_nats_server.url


@pytest.fixture
async def backend(config: NatsBackendConfig) -> AsyncIterator[Backend]:
    quick = replace(config, consumer_ack_wait_sec=1.0, ack_progress_interval_sec=0.5, consumer_max_deliver=2)
    async with opened_backend(quick) as backend:
        yield backend


@pytest.fixture
def keepers(backend: Backend, tmp_path: Path) -> Iterator[Keepers]:
    keepers = Keepers(backend.config, tmp_path)
    yield keepers
    keepers.kill()


async def test_it_says_which_duties_it_has(keepers: Keepers) -> None:
    keeper = await keepers.start()
    (line,) = [line for line in keeper.lines if "keeper started" in line["message"]]
    duties = [
        "KeeperHeartbeat",
        "ResourceKeeper",
        "Advisories",
        "Canceller",
        "Rescuer",
        "RegistrySweeper",
        "ObjectSweeper",
        "OutputSweeper",
        "AlarmSetter",
        "AlarmHandler",
        "DelaySweeper",
        "ScheduleKeeper",
        "AppSchedules",
        "ProgramSweeper",
    ]
    assert line["duties"] == duties


async def given_up(link: Link, backend: Backend, count: int) -> list[str]:
    """Runs whose jobs a worker took, as often as it could, and never answered for."""
    run_ids = [(await submit(backend, Caller(), a_submission())).run.run_id for _ in range(count)]
    intake = await backend.queue.open_intake(["default"], lambda _: None)

    async def all_came_twice() -> bool:
        """Of what comes late, the intake itself gives some back. So it is the queue that says how often they came."""
        delivery = await intake.take(1)
        if delivery is not None and delivery.count == 1:
            await delivery.answer(Reply.LATER)
        state = await consumer_state(link, backend.config)
        return bool(state["delivered"]["consumer_seq"] == 2 * count)

    await eventually(all_came_twice)
    await intake.close()
    return run_ids


async def all_ended(backend: Backend, run_ids: list[str], status: RunState) -> bool:
    return all([await has_ended(backend, run_id, status) for run_id in run_ids])


async def test_keepers_end_what_nobody_serves_though_one_of_them_is_killed(
    link: Link, backend: Backend, keepers: Keepers
) -> None:
    """DESIGN 6, DESIGN 9.8: with their own timers, nobody serves the tag, and nobody helps."""
    first, second = await keepers.start(), await keepers.start()
    cancelled = [(await submit(backend, Caller(), a_submission(tag="idle"))).run.run_id for _ in range(20)]
    for run_id in cancelled:
        await cancel(backend, Caller(), run_id, None)
    stuck = await given_up(link, backend, 10)
    first.process.kill()
    await eventually(lambda: all_ended(backend, cancelled, RunState.CANCELLED))
    await eventually(lambda: all_ended(backend, stuck, RunState.FAILED), 45.0)  # what it had in hand comes again
    assert {(await run_now(backend, run_id)).reason for run_id in stuck} == {"max_deliver"}

    async def only_cancelled_jobs_are_left() -> bool:
        return len(await jobs_left(link, backend.config)) == len(cancelled)

    await eventually(only_cancelled_jobs_are_left)
    letters = [letter["body"]["run_id"] for letter in await dead_letters(link, backend.config)]
    assert sorted(letters) == sorted(stuck)
    second.process.send_signal(signal.SIGTERM)
    assert second.process.wait(60) == 0
    assert not [line for line in second.lines if line["level"] == "ERROR"]
