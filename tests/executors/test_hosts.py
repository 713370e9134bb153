"""Hosts: whatever a task does, it costs its own run and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
import pytest_asyncio

from pyoco_server.config import secret_variables
from pyoco_server.core.job import Job, encode_job
from pyoco_server.core.outcome import Cancelled, Completed, DeadReason, Died, Failed, Outcome, Progress, TimedOut
from pyoco_server.errors import UsageError
from pyoco_server.executors.host import wire
from pyoco_server.executors.host.child import Child
from pyoco_server.executors.host.host import Host
from pyoco_server.executors.host.pool import HostExecutor
from pyoco_server.executors.host.wire import Settings
from pyoco_server.executors.port import Execution, Work
from support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

TESTS = Path(__file__).parents[1]
MEMORY_BYTES_MAX = 2 << 30


def settings(resolver: str | None = "support.naughty:resolve", **more: Any) -> Settings:
    values: dict[str, Any] = {
        "callable_allow": (),
        "workflow_bytes_max": 262_144,
        "records_bytes_max": 65_536,
        "memory_bytes_max": MEMORY_BYTES_MAX,
    }
    return Settings(resolver=resolver, **{**values, **more})


def work(flow_name: str, **params: Any) -> Work:
    job = Job(run_id=str(uuid.uuid4()), flow_name=flow_name, tag="default", submitted_at=1.0, params=params)
    return Work(job, encode_job(job))


def yaml_work(text: str, **params: Any) -> Work:
    job = Job(
        run_id=str(uuid.uuid4()),
        flow_name="from a file",
        tag="default",
        submitted_at=1.0,
        params=params,
        workflow_yaml=textwrap.dedent(text),
    )
    return Work(job, encode_job(job))


@pytest.fixture(scope="module", autouse=True)
def _naughty() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS))
        yield


@contextlib.asynccontextmanager
async def executor(
    slots: int = 1, runs_max: int = 1000, timeout_seconds: float = 0.0, **more: Any
) -> AsyncIterator[HostExecutor]:
    hosts = HostExecutor(settings(**more), slots, runs_max, timeout_seconds)
    try:
        await hosts.start()
        yield hosts
    finally:
        await hosts.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[HostExecutor]:
    async with executor() as pool:
        yield pool


@pytest_asyncio.fixture(loop_scope="module")
async def hosts(pool: HostExecutor) -> AsyncIterator[HostExecutor]:
    """The same for all tests: two hosts, one of them the spare, that have nothing to do. Whoever loses some leaves it
    as it was when new ones have taken their place."""
    await eventually(lambda: is_whole(pool))
    pool.restarts = 0
    yield pool
    for host in filter(is_busy, pool._hosts):  # of a test that failed: the next one must not meet its run
        host.kill_now()
    await eventually(lambda: is_whole(pool))


def is_busy(host: Host) -> bool:
    answer = host._work_reader._waiting
    return host.runs > 0 and answer is not None and not answer.done()


def is_whole(pool: HostExecutor) -> bool:
    """What died while it had nothing to do is replaced when somebody looks for a host."""
    is_ready = pool._has_live_host() and not pool._tasks and len(pool._hosts) == pool._idle.qsize() == 2
    return is_ready and all(host.is_alive for host in pool._hosts)


def next_of(hosts: HostExecutor) -> Host:
    """Who gets the next run."""
    host = hosts._idle.get_nowait()
    hosts._idle.put_nowait(host)
    return host


async def begun(hosts: HostExecutor, what: Work) -> Execution:
    async with asyncio.timeout(100):
        while True:
            execution: Execution | None = await hosts.begin(what, lambda: None)
            if execution is not None:
                return execution


async def outcome_of(hosts: HostExecutor, what: Work) -> Outcome:
    async with asyncio.timeout(100):
        return await (await begun(hosts, what)).outcome()


async def still_works(hosts: HostExecutor) -> None:
    """The next runs are fine, on as many hosts as there are."""
    for n in range(3):
        outcome = await outcome_of(hosts, work("fine", n=n))
        assert isinstance(outcome, Completed), outcome
        assert outcome.progress.task_records["fine"]["output"] == n + 1


def _done(body: bytes) -> asyncio.Future[bytes | None]:
    answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
    answer.set_result(body)
    return answer


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def children_of_this_process() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True) if not is_gone(child.pid)}


def is_host(pid: int) -> bool:
    """And not, say, the NATS server of other tests."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return any("executors.host.child" in argument for argument in psutil.Process(pid).cmdline())
    return False


class TestATask:
    @pytest.mark.parametrize(
        ("flow", "how"),
        [
            ("leaves", "it left with exit status 3"),
            ("crashes", "killed by SIGSEGV"),
            ("is_killed", "killed by SIGKILL"),
        ],
    )
    async def test_that_takes_its_host_with_it_costs_its_own_run(
        self, hosts: HostExecutor, flow: str, how: str
    ) -> None:
        outcome = await outcome_of(hosts, work(flow))
        assert isinstance(outcome, Died)
        assert outcome.how.startswith(how)
        assert outcome.reason is DeadReason.HOST_KILLED
        await still_works(hosts)
        assert hosts.restarts == 1

    async def test_that_fails_in_any_way_keeps_its_host(self, hosts: HostExecutor) -> None:
        """FLOW-327, FLOW-382"""
        host = await outcome_of(hosts, work("who"))
        failures = {
            "fails": "ValueError: on purpose",
            "exits": "SystemExit: 4",
            "interrupts": "KeyboardInterrupt",
            "raises_the_unprintable": "",
            "raises_with_problems": "WithProblems: told",
        }
        for flow, message in failures.items():
            outcome = await outcome_of(hosts, work(flow))
            assert isinstance(outcome, Failed), (flow, outcome)
            assert outcome.reason is DeadReason.EXECUTION_ERROR
            assert message in outcome.message
            assert outcome.message
        await still_works(hosts)
        assert isinstance(host, Completed)
        assert hosts.restarts == 0

    async def test_that_eats_memory_meets_its_limit(self, hosts: HostExecutor) -> None:
        outcome = await outcome_of(hosts, work("eats_memory"))
        assert isinstance(outcome, Failed)
        assert "MemoryError" in outcome.message
        await still_works(hosts)

    async def test_that_returns_the_impossible_is_completed_and_its_record_is_strict_json(
        self, hosts: HostExecutor
    ) -> None:
        """FLOW-345"""
        shown = {
            "nan": {"a": "nan", "b": ["inf", "-inf"]},
            "bad key": "<dict that cannot be shown>",
            "bad value": ["<BadKey that cannot be shown>"],
            "large number": "<int that cannot be shown>",
            "surrogate": "\ud800",
            "ordered": {"a": [1, 2]},
            "bytes": "b'\\xff'",
        }
        for what in (*shown, "deep", "itself", "generator"):
            outcome = await outcome_of(hosts, work("returns", what=what))
            assert isinstance(outcome, Completed), (what, outcome)
            output = outcome.progress.task_records["returns"]["output"]
            json.dumps(output, allow_nan=False)
            assert output == shown.get(what, output)
        await still_works(hosts)
        assert hosts.restarts == 0

    async def test_with_a_huge_output_is_completed_and_its_record_is_cut(self, hosts: HostExecutor) -> None:
        """FLOW-359, FLOW-360"""
        outcome = await outcome_of(hosts, work("speaks_at_length"))
        assert isinstance(outcome, Completed)
        assert outcome.progress.truncated
        assert outcome.progress.tasks == {"speaks_at_length": "SUCCEEDED"}
        assert "output" not in outcome.progress.task_records["speaks_at_length"]

    @pytest.mark.parametrize("flow", ["prints", "closes_everything"])
    async def test_may_do_what_it_likes_with_the_standard_streams(self, hosts: HostExecutor, flow: str) -> None:
        for each in (flow, "prints"):  # the next run may do so, too
            outcome = await outcome_of(hosts, work(each))
            assert isinstance(outcome, Completed), (each, outcome)
        await still_works(hosts)

    @pytest.mark.parametrize("flow", ["goes_away", "sets_an_alarm"])
    async def test_leaves_to_the_next_run_what_it_found(self, hosts: HostExecutor, flow: str) -> None:
        found = [await outcome_of(hosts, work(each)) for each in ("finds", flow, "finds")]
        assert all(isinstance(outcome, Completed) for outcome in found), found
        assert _output(found[0], "finds") == _output(found[2], "finds") == [str(Path.cwd()), 0.0]
        assert hosts.restarts == 0

    async def test_that_writes_on_the_worker_s_own_lines_costs_its_own_run(self, hosts: HostExecutor) -> None:
        outcome = await outcome_of(hosts, work("scribbles"))
        assert isinstance(outcome, Died)
        await still_works(hosts)

    @pytest.mark.parametrize(
        "text", ["{}", "[]", "no JSON", '{"end":"what","tasks":{},"records":{},"truncated":false}']
    )
    async def test_that_forges_an_answer_nobody_can_read_costs_its_own_run(
        self, hosts: HostExecutor, text: str
    ) -> None:
        outcome = await outcome_of(hosts, work("forges", text=text))
        assert isinstance(outcome, Died)
        await still_works(hosts)

    @pytest.mark.parametrize("text", ["junk", "[]", "{}", '{"end": "completed", "tasks": 1}', "[" * 65_789, "NaN"])
    async def test_that_forges_its_own_answer_costs_its_own_run(self, hosts: HostExecutor, text: str) -> None:
        """What only looks like the answer to this very run is none, and its host gets no other run."""
        number = wire.number(next_of(hosts).runs + 1).decode()
        outcome = await outcome_of(hosts, work("forges", text=number + wire.MORE.decode() + text))
        assert isinstance(outcome, Died)
        assert "it sent what nobody had asked for or can read" in outcome.how
        assert hosts.restarts == 1
        await still_works(hosts)

    async def test_that_forges_its_progress_costs_its_own_run(
        self, hosts: HostExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        host = next_of(hosts)
        execution = await begun(hosts, work("sleeps"))
        monkeypatch.setattr(host._control_reader, "next", lambda: _done(b'{"tasks": [], "records": {}}'))
        assert await execution.progress() is None
        outcome = await execution.outcome()
        assert isinstance(outcome, Died)
        assert "it sent what nobody had asked for or can read" in outcome.how
        await still_works(hosts)

    async def test_that_forges_an_answer_does_not_answer_for_the_next_run(self, hosts: HostExecutor) -> None:
        forged = json.dumps({"end": "completed", "tasks": {"forged": "SUCCEEDED"}, "records": {}, "truncated": False})
        await outcome_of(hosts, work("forges", text=forged))
        for _ in range(3):
            outcome = await outcome_of(hosts, work("fine"))
            assert isinstance(outcome, Completed)
            assert set(outcome.progress.tasks) == {"fine"}

    @pytest.mark.parametrize("fork", [False, True], ids=["started", "forked"])
    async def test_that_dies_takes_with_it_what_it_has_started(
        self, hosts: HostExecutor, tmp_path: Path, fork: bool
    ) -> None:
        """What it has started holds the host's sockets open; the end of the host is seen all the same."""
        note = tmp_path / "pid"
        outcome = await outcome_of(hosts, work("dies_with_others_left", path=str(note), fork=fork))
        assert isinstance(outcome, Died)
        left = int(note.read_text().split()[0])
        await eventually(lambda: is_gone(left))
        await still_works(hosts)


class TestARunThatTakesTooLong:
    @pytest.mark.parametrize("flow", ["spins", "sleeps", "ignores_the_polite_word"])
    async def test_is_stopped_with_everything_it_has_started(
        self, hosts: HostExecutor, monkeypatch: pytest.MonkeyPatch, flow: str
    ) -> None:
        before, host = children_of_this_process(), next_of(hosts)
        monkeypatch.setattr(hosts, "_timeout", 0.5)
        began = time.monotonic()
        outcome = await outcome_of(hosts, work(flow))
        assert outcome == TimedOut(seconds=0.5)
        assert outcome.reason is DeadReason.TIMEOUT
        assert time.monotonic() - began < 50  # by itself none ends within a minute
        monkeypatch.undo()  # also on a busy machine
        await still_works(hosts)
        assert hosts.restarts == 1
        await eventually(lambda: is_gone(host.pid))
        await eventually(lambda: {pid for pid in children_of_this_process() if not is_host(pid)} <= before)


class TestACancelledRun:
    async def test_that_looks_stops_by_itself(self, hosts: HostExecutor) -> None:
        """FLOW-180, FLOW-181"""
        execution = await begun(hosts, work("watches_for_a_cancel"))
        await eventually(lambda: _runs(execution, "watches_for_a_cancel"))
        execution.ask_cancel()
        execution.ask_cancel()
        async with asyncio.timeout(50):
            outcome = await execution.outcome()
        assert isinstance(outcome, Cancelled)
        assert outcome.progress.task_records["watches_for_a_cancel"]["output"] == "stopped"
        await still_works(hosts)
        assert hosts.restarts == 0

    async def test_that_does_not_look_is_killed(self, hosts: HostExecutor) -> None:
        """DESIGN 9.3"""
        execution = await begun(hosts, work("spins"))
        await eventually(lambda: _runs(execution, "spins"))
        execution.ask_cancel()
        assert execution.kill()
        async with asyncio.timeout(100):
            outcome = await execution.outcome()
        assert isinstance(outcome, Cancelled)
        assert (outcome.error or "").startswith("ERR-PYOCO-0021")
        await still_works(hosts)

    async def test_that_is_over_gives_its_fate_to_nobody(self, hosts: HostExecutor) -> None:
        """A cancel or a kill that comes too late must not meet the next run of the same host."""
        over = await begun(hosts, work("who"))
        assert isinstance(await over.outcome(), Completed)
        for _ in range(4):  # on each of the two hosts
            following = await begun(hosts, work("watches_for_a_cancel", seconds=0.3))
            over.ask_cancel()
            over.kill()
            assert await over.progress() is None
            assert _output(await following.outcome(), "watches_for_a_cancel") == "not asked"
        assert hosts.restarts == 0


async def _runs(execution: Execution, task: str) -> bool:
    progress = await execution.progress()
    return progress is not None and progress.tasks.get(task) == "RUNNING"


async def _is_silent(work: Execution | Host) -> bool:
    return await work.progress() is None


async def _held(pipe: Path) -> int:
    """Returns when `holds_the_interpreter` has opened the pipe, with our end of it: it holds until that is closed."""
    return await asyncio.to_thread(os.open, pipe, os.O_WRONLY)


async def _shows(host: Host, graph: dict[str, list[str]]) -> bool:
    progress = await host.progress()
    return progress is not None and progress.graph == graph


def _output(outcome: Outcome, task: str) -> Any:
    assert isinstance(outcome, Completed), outcome
    return outcome.progress.task_records[task]["output"]


class TestProgress:
    async def test_is_told_while_the_work_goes_on(self, hosts: HostExecutor, tmp_path: Path) -> None:
        """FLOW-375"""
        gate, seen = tmp_path / "gate", list[Progress]()
        execution = await begun(hosts, work("steps", gate=str(gate)))

        async def shows_the_second() -> bool:
            seen.extend([progress] if (progress := await execution.progress()) is not None else [])
            return bool(seen) and seen[-1].tasks.get("second") == "RUNNING"

        await eventually(shows_the_second)
        assert seen[-1].tasks == {"first": "SUCCEEDED", "second": "RUNNING"}
        assert seen[-1].task_records["first"]["output"] == "first"
        gate.touch()
        assert isinstance(await execution.outcome(), Completed)

    async def test_shows_what_follows_what_and_the_graph_is_sent_once(
        self, hosts: HostExecutor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """A graph never changes: a heartbeat must not pay for it again."""
        graph: dict[str, list[str]] = {"first": [], "second": ["first"]}
        host = next_of(hosts)
        sent: list[bool] = []
        unpack = wire.unpack_progress

        def noted(data: bytes) -> Progress:
            progress = unpack(data)
            sent.append(bool(progress.graph))
            return progress

        monkeypatch.setattr(wire, "unpack_progress", noted)
        gate, seen = tmp_path / "gate", []
        running = host.run(work("steps", gate=str(gate)).data)
        while not running.done():
            progress = await host.progress()
            if progress is not None and progress.tasks:
                seen.append(progress.graph)
            if len(seen) > 10:
                gate.touch()
            await asyncio.sleep(0.02)
        assert all(each == graph for each in seen)
        assert sent.count(True) == 1
        outcome = host.read_outcome(await running or b"")
        assert outcome is not None
        assert outcome.progress.graph == graph
        running = host.run(work("waits_for", path=str(tmp_path / "other")).data)  # another run, another graph
        await eventually(lambda: _shows(host, {"waits_for": []}))
        (tmp_path / "other").touch()
        await running

    async def test_is_not_waited_for_when_the_work_holds_the_interpreter(
        self, hosts: HostExecutor, tmp_path: Path
    ) -> None:
        """FLOW-208: the work goes on until it has been asked for twice in vain."""
        os.mkfifo(tmp_path / "pipe")
        execution = await begun(hosts, work("holds_the_interpreter", pipe=str(tmp_path / "pipe")))
        held = await _held(tmp_path / "pipe")
        await eventually(lambda: _is_silent(execution))
        assert await execution.progress() is None
        os.close(held)
        assert isinstance(await execution.outcome(), Completed)

    async def test_of_one_run_is_never_told_of_another(self, hosts: HostExecutor, tmp_path: Path) -> None:
        """An answer that came too late for its own run belongs to nobody."""
        host = next_of(hosts)
        os.mkfifo(tmp_path / "pipe")
        running = host.run(work("holds_the_interpreter", pipe=str(tmp_path / "pipe")).data)
        held = await _held(tmp_path / "pipe")
        await eventually(lambda: _is_silent(host))
        os.close(held)
        assert await running is not None
        running = host.run(work("sleeps", seconds=0.5).data)
        while not running.done():
            progress = await host.progress()
            assert progress is None or set(progress.tasks) <= {"sleeps"}, progress
            await asyncio.sleep(0.01)


class TestThePool:
    async def test_replaces_a_host_after_so_many_runs(self) -> None:
        async with executor(runs_max=2) as hosts:
            pids = [_output(await outcome_of(hosts, work("who")), "who") for _ in range(8)]
            assert max(map(pids.count, pids)) == 2
            assert len(set(pids)) >= 4
            assert hosts.restarts == 0
            await eventually(lambda: is_gone(pids[0]))

    async def test_replaces_a_host_that_died_while_it_had_nothing_to_do(self, hosts: HostExecutor) -> None:
        """Nobody's run may fail for it."""
        pid = _output(await outcome_of(hosts, work("who")), "who")
        await eventually(lambda: len(list(filter(is_host, children_of_this_process()))) == 2)  # the spare is there, too
        for child in filter(is_host, children_of_this_process()):
            os.kill(child, signal.SIGKILL)
        await eventually(lambda: is_gone(pid))
        await asyncio.sleep(0.1)
        await still_works(hosts)

    async def test_leaves_nothing_behind_when_it_stops(self, tmp_path: Path) -> None:
        before = children_of_this_process()
        async with executor(slots=2) as hosts:
            note = tmp_path / "pid"
            await begun(hosts, work("stays_with_others", path=str(note)))
            await begun(hosts, work("spins"))
            await eventually(note.exists)
            await eventually(lambda: note.read_text().strip() != "")
            assert len(children_of_this_process() - before) >= 3
        await eventually(lambda: children_of_this_process() <= before)

    async def test_may_be_stopped_at_any_moment_of_its_start(self) -> None:
        before = children_of_this_process()
        for seconds in (0.0, 0.05, 0.1, 0.2):
            hosts = HostExecutor(settings(), 2, 1000, 0.0)
            await hosts.start()
            await asyncio.sleep(seconds)
            await hosts.stop()
            await hosts.stop()
        await eventually(lambda: children_of_this_process() <= before)

    @pytest.mark.parametrize(
        "resolver",
        [
            "no_such_module:resolve",
            "support.naughty:no_such_name",
            "support.naughty:FLOWS",
            "support.naughty",
            ":resolve",
            "support.naughty:",
        ],
    )
    async def test_does_not_start_with_a_resolver_that_cannot_be_loaded(self, resolver: str) -> None:
        """FLOW-470"""
        before = children_of_this_process()
        hosts = HostExecutor(settings(resolver), 1, 1000, 0.0)
        with pytest.raises(UsageError, match="resolver"):
            await hosts.start()
        await hosts.stop()
        assert children_of_this_process() <= before

    async def test_does_not_start_with_a_module_that_ends_the_process(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """FLOW-470"""
        (tmp_path / "ends_it.py").write_text("import os\nos._exit(9)\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        hosts = HostExecutor(settings("ends_it:resolve"), 1, 1000, 0.0)
        with pytest.raises(UsageError, match="exit status 9"):
            await hosts.start()
        await hosts.stop()


class TestAFlowThatCannotBeBuilt:
    async def test_is_an_outcome_with_its_reason(self, hosts: HostExecutor) -> None:
        """FLOW-323, FLOW-325, FLOW-326"""
        cases = [
            (work("unknown"), DeadReason.FLOW_NOT_FOUND),
            (work("resolver fails"), DeadReason.EXECUTION_ERROR),
            (yaml_work("flow: {graph: a >> b, wrong: 1}"), DeadReason.INVALID_JOB),
            (yaml_work("flow: {graph: a >> b}"), DeadReason.FLOW_NOT_FOUND),
            (yaml_work("x: " + "y" * 300_000), DeadReason.INVALID_JOB),
        ]
        for what, reason in cases:
            outcome = await outcome_of(hosts, what)
            assert isinstance(outcome, Failed), outcome
            assert outcome.reason is reason, outcome
        await still_works(hosts)

    async def test_by_name_on_a_worker_without_a_resolver(self) -> None:
        """FLOW-324"""
        async with executor(resolver=None) as hosts:
            outcome = await outcome_of(hosts, work("fine"))
            assert isinstance(outcome, Failed)
            assert outcome.reason is DeadReason.FLOW_NOT_FOUND


SECRET = "of-the-worker-alone"
#: Reads our settings, as whoever logs with our help does.
READS_SETTINGS = """
from pyoco_server.config import LogSettings

LogSettings.from_env()

def tell(**given):
    return given

def resolve(name):
    raise KeyError(name)
"""


def _told(word: str, graph: str = "it") -> Work:
    return yaml_work(f"""
        tasks: {{it: {{callable: 'reads_settings:tell', inputs: {{word: '{word}'}}}}}}
        flow: {{graph: '{graph}'}}
    """)


class TestTheWorkersSecrets:
    """FLOW-537: whoever may submit a file may read variables; these are not there to be read."""

    @pytest.fixture(params=["environment", "dotenv file"])
    def secrets(self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "reads_settings.py").write_text(READS_SETTINGS)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setenv("WORDS_TOKEN", "of the flow itself")
        monkeypatch.setenv("PYOCO_DISCOVERY_MODULES", "reads_settings")
        if request.param == "environment":
            for name in secret_variables():
                monkeypatch.setenv(name, SECRET)
        else:
            (tmp_path / "env").write_text("".join(f"{name}={SECRET}\n" for name in secret_variables()))
            monkeypatch.setenv("PYOCO_LOAD_DOTENV", "true")
            monkeypatch.setenv("PYOCO_ENV_FILE", str(tmp_path / "env"))

    @pytest.mark.usefixtures("secrets")
    async def test_cannot_be_read_by_a_flow_and_all_else_can(self) -> None:
        async with executor(resolver="reads_settings:resolve") as hosts:
            for name in ("PYOCO_NATS_URL", "PYOCO_RESULTS_SECRET", "PYOCO_API_KEY"):
                for what in (_told(f"$env.{name}"), _told("", f"switch(on={{{{ $env.{name} }}}}){{ default: it; }}")):
                    outcome = await outcome_of(hosts, what)
                    assert isinstance(outcome, Failed), outcome
                    assert name in outcome.message
                    assert "not found" in outcome.message
                    assert SECRET not in repr(outcome)
            outcome = await outcome_of(hosts, _told("$env.WORDS_TOKEN"))
            assert _output(outcome, "it") == {"word": "of the flow itself"}
            for host in hosts._hosts:
                assert SECRET not in str(psutil.Process(host.pid).environ())


PLUG_IN = """
from pyoco import task
from pyoco.core.models import Task

def _look(ctx, **seen):
    return seen

@task
def shared(ctx, word="unset"):
    return {"word": word, "params": dict(ctx.params), "scratch": dict(ctx.scratch), "results": dict(ctx.results)}

PLUGGED = Task(func=shared.task.func, name="plugged")

def register(registry):
    registry.add(PLUGGED)

def resolve(name):
    raise KeyError(name)
"""

FIRST = """
    tasks:
      shared: {inputs: {word: secret}, outputs: [scratch.kept, params.kept]}
      plugged: {inputs: {word: secret}, outputs: [scratch.also]}
    flow: {graph: shared >> plugged, defaults: {}}
"""


class TestTwoRunsInOneHost:
    @pytest.fixture
    def package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A task package that is installed, with tasks at module level and an entry point."""
        (tmp_path / "plug_in.py").write_text(PLUG_IN)
        info = tmp_path / "plug_in-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-in\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[pyoco.tasks]\nplug_in = plug_in:register\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setenv("PYOCO_DISCOVERY_MODULES", "plug_in")

    @pytest.mark.usefixtures("package")
    async def test_see_nothing_of_each_other(self) -> None:
        """FLOW-377, ENG-53: inputs, outputs, dependencies and params of module-level tasks and of plug-ins."""
        async with executor(resolver="plug_in:resolve") as hosts:
            first = await outcome_of(hosts, yaml_work(FIRST, own=1))
            assert isinstance(first, Completed), first
            assert first.progress.task_records["shared"]["output"]["word"] == "secret"
            for name in ("plugged", "shared") * 2:  # both hosts, one of them with the first run behind it
                outcome = await outcome_of(hosts, yaml_work(f"flow: {{graph: {name}, defaults: {{}}}}"))
                assert isinstance(outcome, Completed), outcome
                assert outcome.progress.tasks == {name: "SUCCEEDED"}
                assert outcome.progress.task_records[name]["output"] == {
                    "word": "unset",
                    "params": {},
                    "scratch": {},
                    "results": {},
                }


PARENT = """
import asyncio, sys
from pyoco_server.core.job import Job, encode_job
from pyoco_server.executors.host.host import Host
from pyoco_server.executors.host.wire import Settings

async def main():
    host = await Host.spawn(Settings("support.naughty:resolve", (), 262144, 65536, 0))
    await host.ready()
    job = Job(run_id="0b0e9a52-6b1f-4c3c-9d0a-3c1a7d2f9a11", flow_name=sys.argv[1], tag="t", submitted_at=1.0,
              params={"path": sys.argv[2]})
    print(await host.run(encode_job(job)))
    await asyncio.sleep(300)

asyncio.run(main())
"""


@pytest.mark.parametrize("flow", ["stays_with_others", "starts_others"], ids=["at work", "idle"])
async def test_a_host_dies_with_its_worker_and_takes_its_children_along(tmp_path: Path, flow: str) -> None:
    note = tmp_path / "pid"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, flow, str(note)], stdout=subprocess.DEVNULL)
    try:
        await eventually(lambda: note.exists() and len(note.read_text().split()) == 2)
        grandchild, host = map(int, note.read_text().split())
        assert not is_gone(grandchild)
        assert not is_gone(host)
    finally:
        parent.kill()
        parent.wait()
    await eventually(lambda: is_gone(host) and is_gone(grandchild))


class _Questions:
    """A control line with these questions on it, whose other end may be gone when they are answered."""

    def __init__(self, *questions: bytes, is_cut: bool = False) -> None:
        self._questions, self._is_cut = [question + wire.number(0) for question in questions], is_cut
        self.answers: list[bytes] = []

    def receive(self) -> bytes | None:
        return self._questions.pop(0) if self._questions else None

    def send(self, body: bytes) -> None:
        if self._is_cut:
            raise BrokenPipeError
        self.answers.append(body)


class _Hungry:
    """A run that has left no memory for telling of it."""

    is_cancelled = False

    def progress(self) -> Progress:
        raise MemoryError

    def ask_cancel(self) -> None:
        self.is_cancelled = True


@pytest.mark.parametrize("is_cut", [False, True])
async def test_a_host_hears_its_worker_to_the_end(monkeypatch: pytest.MonkeyPatch, is_cut: bool) -> None:
    """Also when the worker dies before it is answered, and when an answer cannot be made: who no longer listens would
    neither stop when it is told to nor go with its worker."""
    ends = list[bool]()
    monkeypatch.setattr("pyoco_server.executors.host.child.end_all", lambda: ends.append(True))
    control, run = _Questions(wire.PROGRESS, wire.CANCEL, is_cut=is_cut), _Hungry()
    listener: Any = Child(cast(Any, None), cast(Any, control))
    listener._run = run
    with contextlib.suppress(BrokenPipeError):
        listener._listen()
    assert ends == [True]
    assert (control.answers, run.is_cancelled) == (([], False) if is_cut else ([b""], True))


async def test_a_failed_run_gives_its_memory_back(hosts: HostExecutor) -> None:
    """What a task held hangs on the traceback of its exception: the next run must not pay for it."""
    host = next_of(hosts)
    before = host.runs
    for _ in range(3):
        ended = await outcome_of(hosts, work("holds_much_and_fails"))
        assert isinstance(ended, Failed)
        assert "300 MB in hand" in ended.message
    assert host.runs == before + 3
    # The answer comes first, then the host tidies up.
    await eventually(lambda: psutil.Process(host.pid).memory_info().rss < 200 << 20)


async def test_a_host_that_holds_too_much_after_a_failed_run_takes_no_other_along() -> None:
    """It says that it goes, and the run that waits for it goes to another."""
    async with executor(memory_bytes_max=600 << 20) as hosts:
        await eventually(lambda: is_whole(hosts))
        failing = await begun(hosts, work("keeps_much_and_fails", megabytes=300))
        waiting = asyncio.create_task(outcome_of(hosts, work("who")))
        failed, ended = await failing.outcome(), await waiting
    assert isinstance(failed, Failed)
    assert "still in hand" in failed.message
    assert isinstance(ended, Completed), ended
    assert hosts.restarts == 1


async def test_a_host_that_cannot_be_started_is_tried_again(
    hosts: HostExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is out of processes or memory for a moment must not leave a worker without hosts for ever."""
    spawn, failures = Host.spawn, 2

    async def hesitant(settings: Settings) -> Host:
        nonlocal failures
        if failures:
            failures -= 1
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return await spawn(settings)

    was_able = hosts.is_able
    monkeypatch.setattr(Host, "spawn", hesitant)
    for host in list(hosts._hosts):
        host.kill_now()
    await eventually(lambda: not any(host.is_alive for host in hosts._hosts))
    assert (was_able, hosts.is_able) == (True, False)
    assert await hosts.begin(work("fine"), lambda: None) is None or failures == 0
    await eventually(lambda: failures == 0 and any(host.is_alive for host in hosts._hosts))
    assert isinstance(await outcome_of(hosts, work("fine")), Completed)
