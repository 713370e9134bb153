"""Real `pyoco-grid nworker` processes, and a `pyoco-worker` that runs programs beside flows."""

from __future__ import annotations

import asyncio
import os
import signal
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.run import Run
from pyoco_server.core.run_log.line import Line
from pyoco_server.core.states import RunState, WorkerState
from pyoco_server.doors.cli.grid.group import cli
from pyoco_server.doors.cli.shell import outcome
from pyoco_server.ports.backend import Backend
from support.collected_lines import stored_lines
from support.gateways import environment
from support.grid.processes import SAMPLES, Grid, GridProcess, grid
from support.grid.program_stage import a_store, cap, recorded_run, submitted
from support.servers import unique
from support.waiting import eventually

#: A busy test machine is no reason to wait, and a lease need not be long.
SHORT = {"WORKER_CPU_WAIT_SEC": "0.1", "EXEC_RUN_HEARTBEAT_SEC": "0.4", "EXEC_LEASE_FRESH_SEC": "2"}

#: What a worker offers that was not told what: the programs that lie there.
SAMPLE_PATTERNS = tuple(f"job.assign.{each.stem}" for each in sorted(SAMPLES.glob("*.sh")))


@pytest.fixture
def group() -> str:
    return unique("g")


@pytest.fixture
def config(nats_url: str) -> NatsBackendConfig:
    """With the names that users have: those of buckets are no variables of a process."""
    return NatsBackendConfig(
        nats_url=nats_url,
        ack_progress_interval_sec=0.5,
        consumer_ack_wait_sec=3.0,
        worker_heartbeat_interval_sec=0.5,
    )


@pytest.fixture
def processes(nats_url: str, config: NatsBackendConfig, group: str, tmp_path: Path) -> Iterator[Grid]:
    with grid(nats_url, tmp_path, config, group, **SHORT) as processes:
        yield processes


@pytest.fixture
async def backend(config: NatsBackendConfig, group: str) -> AsyncIterator[Backend]:
    async with a_store(config, group, exec_lease_fresh_sec=2.0, exec_run_heartbeat_sec=0.4) as backend:
        yield backend


async def ended(backend: Backend, run_id: str, seconds: float = 60.0) -> Run:
    async def has_ended() -> bool:
        return (await recorded_run(backend, run_id)).is_terminal

    await eventually(has_ended, seconds)
    return await recorded_run(backend, run_id)


async def running(backend: Backend, run_id: str) -> Run:
    async def runs() -> bool:
        return (await recorded_run(backend, run_id)).status is RunState.RUNNING

    await eventually(runs)
    return await recorded_run(backend, run_id)


def metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


def programs_below(process: GridProcess) -> list[psutil.Process]:
    return [each for each in psutil.Process(process.pid).children(recursive=True) if "sleep" in each.name()]


def a_program(place: Path, name: str, first: str) -> Path:
    """Return a directory with a program that says its attempt and leaves its process id in `began`. It does `first` in
    its first attempt only."""
    own = place / "exe"
    own.mkdir()
    text = f'#!/bin/sh\necho "attempt $ATTEMPT"\n[ -e {place}/began ] && exit 0\n'
    (own / name).write_text(f"{text}echo $$ > {place}/began\n{first}\n")
    (own / name).chmod(0o755)
    return own


class TestANativeWorker:
    async def test_says_that_it_is_ready_runs_programs_and_says_goodbye(
        self, backend: Backend, processes: Grid
    ) -> None:
        """GRID-116, GRID-119, GRID-190, GRID-113: `READY nworker ID`, exit code 0, nothing left"""
        worker = processes.nworker("job.assign.calcA", "--id", "native-1", "--metrics-port", 0)
        assert worker.address == "native-1"
        run = await ended(backend, await submitted(backend, args=("one", "two")))
        assert run.program is not None
        assert (run.status, run.worker_id, run.program.stdout_tail) == (RunState.COMPLETED, "native-1", "one\ntwo\n")
        assert [each.name for each in run.program.artifacts] == ["output.zip"]
        record = await backend.registry.find("native-1")
        assert record is not None
        assert (record.kind, record.patterns, record.max_parallel) == ("exec-native", ("job.assign.calcA",), 4)
        (port,) = [line["port"] for line in worker.log if line["message"] == "metrics endpoint started"]
        counted = f'pyoco_exec_jobs_total{{exec="calcA",group="{processes.group}",status="COMPLETED"}} 1.0'

        async def is_counted() -> bool:
            return counted in await asyncio.to_thread(metrics, port)

        await eventually(is_counted)
        assert worker.stop() == 0
        record = await backend.registry.find("native-1")
        assert record is not None
        assert (record.state, record.stop_reason) == (WorkerState.STOPPED_GRACEFUL, "sigterm")
        programs = programs_of(backend)
        await eventually(lambda: not programs.slots.all_held(programs.config.exec_group))

    async def test_that_sleeps_past_its_lease_drops_its_result_and_acks_nothing(
        self, backend: Backend, processes: Grid
    ) -> None:
        """GRID-10, GRID-56, P28: SIGSTOP, taken over by another, SIGCONT; one terminal result"""
        await cap(backend, "clientA", 2)
        first = processes.nworker("--id", "sleeper")
        run_id = await submitted(backend, "sleepn", args=("600",))
        attempt = await running(backend, run_id)
        first.signal(signal.SIGSTOP)
        try:
            processes.nworker("--id", "other")

            async def is_taken_over() -> bool:
                return (await recorded_run(backend, run_id)).attempt == 2

            await eventually(is_taken_over)
        finally:
            first.signal(signal.SIGCONT)
        await eventually(lambda: programs_below(first) == [])
        run = await recorded_run(backend, run_id)
        assert (attempt.worker_id, run.status, run.attempt, run.worker_id) == (
            "sleeper",
            RunState.RUNNING,
            2,
            "other",
        )
        programs = programs_of(backend)
        (client_queue,) = programs.queue.client_queues(programs.config.exec_group)
        counts = await programs.queue.counts(client_queue)
        assert counts is not None
        assert counts.unacked == 1

    async def test_that_is_stopped_twice_stops_at_once_and_its_job_is_run_elsewhere(
        self, backend: Backend, processes: Grid, tmp_path: Path
    ) -> None:
        """GRID-98, section 25.3: exit code 130; no program outlives it"""
        own = a_program(tmp_path, "longfirst", "exec sleep 600")  # and short the second time
        worker = processes.nworker("--id", "hasty", env={"EXEC_DIR": str(own)})
        run_id = await submitted(backend, "longfirst")
        await running(backend, run_id)
        await eventually(lambda: bool(programs_below(worker)))
        left = programs_below(worker)
        worker.signal(signal.SIGINT)
        await eventually(lambda: "worker stopping" in worker.stdout)
        worker.signal(signal.SIGINT)
        assert worker.wait() == 130
        await eventually(lambda: not any(each.is_running() for each in left))
        processes.nworker("--id", "heir", env={"EXEC_DIR": str(own)})
        assert (await ended(backend, run_id)).status is RunState.COMPLETED

    async def test_that_is_killed_leaves_the_lines_that_were_stored_and_a_mark(
        self, backend: Backend, processes: Grid, tmp_path: Path
    ) -> None:
        """LOG-3, LOG-5, LOG-7, LOG-9: kill -9 while its program prints. The program ends, too; what it had printed
        beyond is a gap, and the lines of the next attempt are its own."""
        own = a_program(tmp_path, "chatty", 'n=0; while :; do n=$((n + 1)); echo "line $n"; sleep 0.01; done')
        worker = processes.nworker("--id", "victim", env={"EXEC_DIR": str(own)})
        run_id = await submitted(backend, "chatty")

        async def lines(attempt: int) -> list[Line]:
            return [line for line in await stored_lines(backend, run_id) if line.attempt == attempt]

        async def goes_on() -> bool:
            return len(await lines(1)) > 5

        await eventually(goes_on)
        program = psutil.Process(int((tmp_path / "began").read_text()))
        seen = await lines(1)
        worker.kill()
        await eventually(lambda: not program.is_running())
        processes.nworker("--id", "heir", env={"EXEC_DIR": str(own)})
        assert (await ended(backend, run_id)).status is RunState.COMPLETED

        async def is_over() -> bool:
            return bool(await lines(2))

        await eventually(is_over)
        *first, gap = await lines(1)
        assert len(first) >= len(seen)
        assert [(line.task, line.seq, line.text) for line in first] == [
            ("exec", number, "attempt 1" if number == 1 else f"line {number - 1}")
            for number in range(1, len(first) + 1)
        ]
        assert gap.gap is not None
        assert (gap.gap.why, gap.seq) == ("lost", len(first) + 1)
        assert [(line.task, line.seq, line.text) for line in await lines(2)] == [("exec", 1, "attempt 2")]


async def test_a_pyoco_worker_runs_programs_beside_flows(
    backend: Backend, processes: Grid, config: NatsBackendConfig, tmp_path: Path
) -> None:
    """GRID-117: `--exec-dir`; its record tells of both"""
    variables = {**environment(config), **SHORT, "EXEC_GROUP": programs_of(backend).config.exec_group}
    variables |= {"WORK_ROOT": str(tmp_path / "jobs"), "PYOCO_PRICED_ENABLED": "0"}
    options = ["--worker-id", "both", "--slots", "1", "--exec-dir", str(SAMPLES), "--exec-slots", "2"]
    worker = GridProcess("worker", options, variables, tmp_path, says_ready=False)
    worker.module = "pyoco_server.doors.cli.worker"
    processes.processes.append(worker)
    worker.start()
    run = await ended(backend, await submitted(backend, args=("x",)))
    assert (run.status, run.worker_id) == (RunState.COMPLETED, "both")

    async def is_known() -> bool:
        record = await backend.registry.find("both")
        return record is not None and record.last_run_status == "COMPLETED"

    await eventually(is_known)
    record = await backend.registry.find("both")
    assert record is not None
    assert (record.kind, record.patterns, record.max_parallel, record.slots) == (None, SAMPLE_PATTERNS, 2, 1)
    assert worker.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["job.assign.calc*"], "'job.assign.calc*'"),
        (["--id", "a.b"], "--id"),
        (["--group", "a b"], "EXEC_GROUP"),
        (["--metrics-port", "-1"], "--metrics-port"),
        ([f"job.assign.p{n}" for n in range(33)], "32 patterns"),
    ],
)
def test_a_bad_command_line_ends_with_1_and_shows_a_good_one(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """GRID-190, GRID-30"""
    assert outcome(cli, "pyoco-grid", ["nworker", *arguments]) == 1
    said = capsys.readouterr().err
    assert words in said
    assert "example:" in said


def test_a_bad_setting_ends_with_1_and_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-193, GRID-56"""
    for name, value in (("WORKER_MAX_PAR", "0"), ("EXEC_RUN_HEARTBEAT_SEC", "19")):
        with monkeypatch.context() as patch:
            patch.setitem(os.environ, name, value)
            assert outcome(cli, "pyoco-grid", ["nworker"]) == 1
            assert name in capsys.readouterr().err
