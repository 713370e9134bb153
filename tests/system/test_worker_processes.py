"""Real `pyoco-worker` processes, real signals, kill -9. One oracle: an accepted run ends once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState, WorkerState
from pyoco_server.errors import Unavailable
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.runs.port import Stored
from support.backends import consumer_state, dead_letters, jobs_left, opened_backend, run_now, submitted
from support.servers import NatsServer, config_for
from support.surroundings import variables_without
from support.timers import variables_of
from support.waiting import eventually
from support.warm_processes import begun, ran

ROOT = Path(__file__).parents[2]
#: A run whose heartbeat is this old may be taken over: 2 s for clocks that differ (5 s when no test waits), and three
#: intervals.
HEARTBEAT_SECONDS = 0.2
SKEW_SECONDS = 2.0
STALE_SECONDS = SKEW_SECONDS + 3 * HEARTBEAT_SECONDS
#: A little more, so that the redelivery finds the heartbeat stale.
ACK_WAIT_SECONDS = STALE_SECONDS + 0.6


def settings_of(config: NatsBackendConfig) -> NatsBackendConfig:
    return replace(
        config,
        consumer_ack_wait_sec=ACK_WAIT_SECONDS,
        ack_progress_interval_sec=1.0,
        run_heartbeat_interval_sec=HEARTBEAT_SECONDS,
        worker_heartbeat_interval_sec=0.5,
        worker_disconnect_timeout_sec=3.0,
    )


class WorkerProcess:
    """One `pyoco-worker`, seen from outside."""

    def __init__(self, config: NatsBackendConfig, folder: Path, worker_id: str, *options: str) -> None:
        self.worker_id = worker_id
        self._out, self._err = folder / f"{worker_id}.out", folder / f"{worker_id}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            command = [sys.executable, "-c", _start(config), "--worker-id", worker_id, *options]
            self.process = begun(command, stdout=out, stderr=err, cwd=ROOT, env=_environment(config))

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What it has logged: whole lines, as the last one may be half written."""
        whole = self._out.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    @property
    def said(self) -> str:
        return self._err.read_text()

    def has_logged(self, words: str) -> bool:
        return any(words in line["message"] for line in self.lines)

    async def ready(self) -> WorkerProcess:
        def is_ready() -> bool:
            assert self.process.poll() is None, self.said
            return self.has_logged("worker started")

        await eventually(is_ready, 60.0)
        return self

    def hosts(self) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in children if child.is_running()]

    async def left(self, seconds: float = 40.0) -> int:
        await eventually(lambda: self.process.poll() is not None, seconds)
        return int(self.process.returncode)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)


def _start(config: NatsBackendConfig) -> str:
    """The command, with a work stream of its own: that name has no variable (FLOW-388)."""
    return (
        "import functools, sys\n"
        "from pyoco_server.config import NatsBackendConfig as C\n"
        f"C.from_env = functools.partial(C.from_env, work_stream={config.work_stream!r})\n"
        "sys.argv[0] = 'pyoco-worker'\n"
        "from pyoco_server.actions import claim\n"
        f"claim._SKEW_SECONDS = {SKEW_SECONDS}\n"
        "from pyoco_server.doors.cli.worker import main\n"
        "main()\n"
    )


def _environment(config: NatsBackendConfig) -> dict[str, str]:
    clean = variables_without("PYOCO_")
    clean["PYOCO_LOAD_DOTENV"] = "false"
    clean["PYTHONPATH"] = str(ROOT / "tests")
    return clean | variables_of(config)


class Crowd:
    """Workers that are gone when the test is."""

    def __init__(self, config: NatsBackendConfig, folder: Path) -> None:
        self._config, self._folder = config, folder
        self.workers: list[WorkerProcess] = []

    async def start(self, worker_id: str, *options: str, resolver: str = "examples.flows:resolve") -> WorkerProcess:
        worker = WorkerProcess(
            self._config, self._folder, worker_id, "--flow-resolver", resolver, "--slots", "1", *options
        )
        self.workers.append(worker)
        return await worker.ready()

    def kill(self) -> None:
        for worker in self.workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.process.send_signal(signal.SIGCONT)
            worker.kill()


@pytest.fixture
async def backend(config: NatsBackendConfig) -> AsyncIterator[Backend]:
    async with opened_backend(settings_of(config)) as backend:
        yield backend


@pytest.fixture
def crowd(backend: Backend, tmp_path: Path) -> Iterator[Crowd]:
    crowd = Crowd(backend.config, tmp_path)
    yield crowd
    crowd.kill()


class History:
    """Every state of every run that the store has gone through while this was open."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._follows = asyncio.Event()
        self.seen: dict[str, list[Run]] = {}

    async def __aenter__(self) -> History:
        self._task = asyncio.create_task(self._follow())
        await self._follows.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _follow(self) -> None:
        async with aclosing(self._backend.runs.changes()) as changes:
            async for change in changes:
                for item in change.items:
                    if isinstance(item, Stored):
                        self.seen.setdefault(item.run.run_id, []).append(item.run)
                if change.caught_up:
                    self._follows.set()

    async def ended_once(self, run_id: str, seconds: float = 30.0) -> Run:
        """FLOW-19: one terminal state, and nothing after it."""
        await eventually(lambda: any(run.is_terminal for run in self.seen.get(run_id, [])), seconds)
        states = self.seen[run_id]
        assert [run.is_terminal for run in states].count(True) == 1, states
        assert states[-1].is_terminal
        assert await run_now(self._backend, run_id) == states[-1]
        return states[-1]


async def _is_running(backend: Backend, run_id: str) -> bool:
    run = await run_now(backend, run_id)
    return run.status is RunState.RUNNING and "RUNNING" in run.tasks.values()


class TestAWorkerThat:
    async def test_is_killed_in_the_middle_of_a_run_has_it_finished_by_another(
        self, link: Link, backend: Backend, crowd: Crowd, tmp_path: Path
    ) -> None:
        """FLOW-18, FLOW-199, FLOW-308"""
        async with History(backend) as history:
            first = await crowd.start("first", resolver="support.naughty:resolve")
            run_id = await submitted(backend, "sleeps_the_first_time", path=str(tmp_path / "note"), seconds=600.0)
            await eventually(lambda: _is_running(backend, run_id))
            hosts = first.hosts()
            assert hosts
            first.process.kill()
            await crowd.start("second", resolver="support.naughty:resolve")
            run = await history.ended_once(run_id)
        assert (run.status, run.worker_id, run.attempt) == (RunState.COMPLETED, "second", 2)
        by_attempt = [state.attempt for state in history.seen[run_id]]  # of quick changes some may not be told
        assert by_attempt == sorted(by_attempt)
        await eventually(lambda: not any(host.is_running() and host.status() != "zombie" for host in hosts))
        await eventually(lambda: _none_left(link, backend.config))
        assert await dead_letters(link, backend.config) == []

        async def is_disconnected() -> bool:
            record = await backend.registry.find("first")
            assert record is not None
            assert record.state is not WorkerState.STOPPED_GRACEFUL
            return record.derived_state(time.time(), 3.0) is WorkerState.DISCONNECTED

        await eventually(is_disconnected)

    async def test_sleeps_past_its_ack_timer_wakes_up_fenced(
        self, link: Link, backend: Backend, crowd: Crowd, tmp_path: Path
    ) -> None:
        """FLOW-311: the other one ends the run; the one that woke up writes nothing and answers nothing."""
        async with History(backend) as history:
            sleeper = await crowd.start("sleeper", resolver="support.naughty:resolve")
            run_id = await submitted(backend, "sleeps_the_first_time", path=str(tmp_path / "note"), seconds=600.0)
            await eventually(lambda: _is_running(backend, run_id))
            frozen = psutil.Process(sleeper.process.pid)
            for process in (frozen, *sleeper.hosts()):
                process.send_signal(signal.SIGSTOP)
            await crowd.start("other", resolver="support.naughty:resolve")
            run = await history.ended_once(run_id)
            for process in (*sleeper.hosts(), frozen):
                process.send_signal(signal.SIGCONT)
            await eventually(lambda: sleeper.has_logged("has a new owner"))
            assert await history.ended_once(run_id) == run
            assert (run.status, run.worker_id, run.attempt) == (RunState.COMPLETED, "other", 2)
            by_attempt = [state.attempt for state in history.seen[run_id]]
            assert by_attempt == sorted(by_attempt)  # nothing of the first attempt after the second began
            await eventually(lambda: _none_left(link, backend.config))
            # It is of use again.
            again = await submitted(backend, "fine")
            assert (await history.ended_once(again)).status is RunState.COMPLETED
        await eventually(lambda: _nothing_waits(link, backend.config))


async def _nothing_waits(link: Link, config: NatsBackendConfig) -> bool:
    return bool((await consumer_state(link, config))["num_ack_pending"] == 0)


async def _none_left(link: Link, config: NatsBackendConfig) -> bool:
    return await jobs_left(link, config) == []


class TestASignal:
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
    async def test_lets_the_run_finish_and_says_goodbye(
        self, backend: Backend, crowd: Crowd, tmp_path: Path, number: signal.Signals, code: int
    ) -> None:
        """FLOW-425, FLOW-469, FLOW-198"""
        worker = await crowd.start("w", resolver="support.naughty:resolve")
        run_id = await submitted(backend, "waits_for", path=str(tmp_path / "gate"))
        await eventually(lambda: _is_running(backend, run_id))
        waiting = await submitted(backend, "fine")
        worker.process.send_signal(number)
        await eventually(lambda: worker.has_logged("draining: waiting for running jobs"))
        (tmp_path / "gate").touch()
        assert await worker.left() == code
        assert (await run_now(backend, run_id)).status is RunState.COMPLETED
        assert (await run_now(backend, waiting)).status is RunState.PENDING
        record = await backend.registry.find("w")
        assert record is not None
        assert (record.state, record.stop_reason) == (WorkerState.STOPPED_GRACEFUL, number.name.lower())

    async def test_that_comes_twice_ends_it_at_once(self, link: Link, backend: Backend, crowd: Crowd) -> None:
        """FLOW-469: the job is left to redelivery."""
        worker = await crowd.start("w", resolver="support.naughty:resolve")
        run_id = await submitted(backend, "sleeps", seconds=600.0)
        await eventually(lambda: _is_running(backend, run_id))
        hosts = worker.hosts()
        worker.process.send_signal(signal.SIGTERM)
        await eventually(lambda: worker.has_logged("worker stopping"))
        worker.process.send_signal(signal.SIGTERM)
        await worker.left()  # the run takes longer
        assert (await run_now(backend, run_id)).status is RunState.RUNNING
        assert len(await jobs_left(link, backend.config)) == 1
        await eventually(lambda: not any(host.is_running() and host.status() != "zombie" for host in hosts))

    async def test_with_a_time_limit_hands_the_run_back(self, backend: Backend, crowd: Crowd, tmp_path: Path) -> None:
        """DESIGN 6: --drain-timeout-sec"""
        first = await crowd.start("first", "--drain-timeout-sec", "0.3", resolver="support.naughty:resolve")
        run_id = await submitted(backend, "sleeps_the_first_time", path=str(tmp_path / "note"), seconds=600.0)
        await eventually(lambda: _is_running(backend, run_id))
        await crowd.start("second", resolver="support.naughty:resolve")
        async with History(backend) as history:
            first.process.terminate()
            assert await first.left() == 0
            run = await history.ended_once(run_id, 60.0)
        assert (run.status, run.worker_id) == (RunState.COMPLETED, "second")


async def test_no_accepted_run_is_lost_when_nats_is_killed_under_load(
    own_nats_server: NatsServer, tmp_path: Path
) -> None:
    """FLOW-73, FLOW-468, DESIGN 6"""
    config = settings_of(config_for(own_nats_server.url))
    crowd = Crowd(config, tmp_path)
    accepted: list[str] = []
    refused = 0
    stopping = asyncio.Event()

    async def load(backend: Backend) -> None:
        nonlocal refused
        while not stopping.is_set():
            try:
                accepted.append(await submitted(backend, "hello"))
            except Unavailable:
                refused += 1
            await asyncio.sleep(0.01)

    try:
        async with opened_backend(config) as backend:
            await crowd.start("one")
            await crowd.start("two", "--slots", "2")
            loads = [asyncio.create_task(load(backend)) for _ in range(3)]
            for _ in range(2):
                had = len(accepted)
                await eventually(lambda had=had: len(accepted) > had + 40)  # type: ignore[misc]
                own_nats_server.restart()
            had = len(accepted)
            await eventually(lambda: len(accepted) > had + 20)
            stopping.set()
            await asyncio.gather(*loads)

            async def all_done() -> bool:
                for run_id in accepted:
                    if not (await run_now(backend, run_id)).is_terminal:
                        return False
                return True

            await eventually(all_done, 3 * ACK_WAIT_SECONDS + 30)
            runs = [await run_now(backend, run_id) for run_id in accepted]
            assert {run.status for run in runs} == {RunState.COMPLETED}
    finally:
        stopping.set()
        crowd.kill()


class TestABadCommandLine:
    @pytest.mark.parametrize(
        "options",
        [
            ["--flow-resolver", "no_such_module:resolve"],
            ["--flow-resolver", "examples.flows:nothing"],
            ["--flow-resolver", "examples.flows:FLOWS"],
            ["--flow-resolver", "examples.flows"],
            ["--tags", "a.b"],
            ["--tags", ""],
            ["--tags", "a,,b"],
            ["--worker-id", "a b"],
            ["--worker-id", ""],
            ["--slots", "many"],
            ["--slots", "-1"],
            ["--drain-timeout-sec", "soon"],
            ["--nats-url", "not an address"],
            ["--no-such-option"],
            ["too", "many"],
        ],
        ids=" ".join,
    )
    def test_ends_with_1_and_says_what_is_wrong(self, nats_url: str, tmp_path: Path, options: list[str]) -> None:
        """FLOW-424, FLOW-426, FLOW-429, FLOW-470"""
        config = config_for(nats_url)
        command = [sys.executable, "-c", _start(config), *options]
        done = ran(command, cwd=ROOT, env=_environment(config), timeout=120)
        assert done.returncode == 1, done.stderr
        assert done.stderr.startswith("ERR-PYOCO-0018: ")
        assert "example:" in done.stderr
        assert "Traceback" not in done.stderr

    def test_without_nats_ends_with_1_and_says_where_it_looked(self, unused_port: int) -> None:
        """FLOW-286, FLOW-424"""
        done = subprocess.run(
            [sys.executable, "-m", "pyoco_server.doors.cli.worker", "--nats-url", f"nats://127.0.0.1:{unused_port}"],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=_environment(NatsBackendConfig()),
            timeout=120,
            check=False,
        )
        assert done.returncode == 1
        assert done.stderr.startswith("ERR-PYOCO-0003: ")
        assert str(unused_port) in done.stderr
        assert "Traceback" not in done.stderr
