"""Flows in threads of this process: the library's way."""

from __future__ import annotations

import asyncio
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.job import Job, encode_job
from pyoco_server.core.outcome import Cancelled, Completed, DeadReason, Failed, Outcome
from pyoco_server.core.wheel_sync import NO_WHEELS, Environment
from pyoco_server.executors.flow.build import FlowBuilder
from pyoco_server.executors.flow.reader import YamlFlowFiles
from pyoco_server.executors.port import Execution, Work
from pyoco_server.executors.threads import ThreadExecutor
from pyoco_server.wiring.backend import thread_executor
from support import naughty
from support.waiting import eventually


@pytest.fixture
def threads() -> ThreadExecutor:
    return ThreadExecutor(FlowBuilder(naughty.resolve, YamlFlowFiles(1000)))


def work(flow_name: str, text: str | None = None, **params: Any) -> Work:
    job = Job(
        run_id=str(uuid.uuid4()), flow_name=flow_name, tag="t", submitted_at=1.0, params=params, workflow_yaml=text
    )
    return Work(job, encode_job(job))


async def outcome_of(threads: ThreadExecutor, what: Work) -> Outcome:
    async with asyncio.timeout(100):
        return await (await threads.begin(what, lambda: None)).outcome()


async def test_a_flow_runs_beside_the_event_loop(threads: ThreadExecutor, tmp_path: Path) -> None:
    """FLOW-370"""
    freed: list[str] = []
    what = work("waits_for", path=str(tmp_path / "gate"))
    execution = await threads.begin(what, lambda: freed.append(threading.current_thread().name))
    outcome = asyncio.ensure_future(execution.outcome())
    for _ in range(5):
        await asyncio.sleep(0.01)
        assert not outcome.done()
    (tmp_path / "gate").touch()
    assert isinstance(await outcome, Completed)
    assert freed == [threading.main_thread().name]


async def test_whatever_a_task_throws_or_returns_is_an_outcome(threads: ThreadExecutor) -> None:
    """FLOW-327, FLOW-345, FLOW-382"""
    for flow in ("fails", "exits", "interrupts", "raises_the_unprintable", "raises_with_problems"):
        outcome = await outcome_of(threads, work(flow))
        assert isinstance(outcome, Failed), flow
        assert outcome.reason is DeadReason.EXECUTION_ERROR
        assert outcome.message
    for what in naughty.RETURNS:
        assert isinstance(await outcome_of(threads, work("returns", what=what)), Completed), what


async def test_what_follows_what_is_told_with_the_progress_and_the_end(threads: ThreadExecutor, tmp_path: Path) -> None:
    graph = {"first": (), "second": ("first",)}
    execution = await threads.begin(work("steps", gate=str(tmp_path / "gate")), lambda: None)

    async def is_told() -> bool:
        progress = await execution.progress()
        return progress is not None and progress.graph == graph

    await eventually(is_told)
    (tmp_path / "gate").touch()
    assert (await execution.outcome()).progress.graph == graph
    failed = await outcome_of(threads, work("fails"))
    assert failed.progress.graph == {"fails": ()}
    assert (await outcome_of(threads, work("unknown"))).progress.graph == {}


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (work("unknown"), DeadReason.FLOW_NOT_FOUND),
        (work("resolver fails"), DeadReason.EXECUTION_ERROR),
        (work("f", "flows: {}"), DeadReason.INVALID_JOB),
        (work("f", "x: " + "y" * 1000), DeadReason.INVALID_JOB),
        (work("f", "flow: {graph: unknown}"), DeadReason.FLOW_NOT_FOUND),
        (work("f", "tasks: {a: {callable: 'os:getpid'}}\nflow: {graph: a}"), DeadReason.FLOW_NOT_FOUND),
    ],
    ids=["unknown", "resolver", "policy", "too large", "graph", "callable"],
)
async def test_a_flow_that_cannot_be_built_is_an_outcome(
    threads: ThreadExecutor, what: Work, reason: DeadReason
) -> None:
    """FLOW-323, FLOW-325, FLOW-326"""
    outcome = await outcome_of(threads, what)
    assert isinstance(outcome, Failed)
    assert outcome.reason is reason


async def test_what_a_task_does_to_its_params_is_not_seen_outside(threads: ThreadExecutor) -> None:
    """FLOW-351, ENG-7"""
    what = work("changes_params", nested={"list": [1]})
    assert isinstance(await outcome_of(threads, what), Completed)
    assert what.job.params == {"nested": {"list": [1]}}


async def test_a_cancel_is_asked_for_and_a_kill_is_not_possible(threads: ThreadExecutor) -> None:
    """FLOW-180, FLOW-187, ENG-20"""
    execution: Execution = await threads.begin(work("watches_for_a_cancel"), lambda: None)

    async def runs() -> bool:
        progress = await execution.progress()
        return progress is not None and progress.tasks == {"watches_for_a_cancel": "RUNNING"}

    await eventually(runs)
    assert not execution.kill()
    execution.ask_cancel()
    async with asyncio.timeout(50):
        assert isinstance(await execution.outcome(), Cancelled)


async def test_a_cancel_before_the_engine_has_begun_is_not_lost(threads: ThreadExecutor) -> None:
    """FLOW-180, ENG-19"""
    for _ in range(20):
        execution = await threads.begin(work("steps", pause=0.01), lambda: None)
        execution.ask_cancel()
        assert isinstance(await execution.outcome(), Cancelled)


async def test_a_wheel_with_a_namespace_in_a_namespace_is_renewed(threads: ThreadExecutor, tmp_path: Path) -> None:
    """FLOW-241: the parts of a package without `__init__.py` ask each other where they are."""
    space = f"space_{uuid.uuid4().hex[:8]}"
    environments = []
    for version in "12":
        (tmp_path / version / space / "tasks" / "deep").mkdir(parents=True)
        (tmp_path / version / space / "tasks" / "deep" / "mail.py").write_text(f"def tell():\n    return {version}\n")
        environments.append(Environment((str(tmp_path / version),), (space,)))
    text = f"tasks: {{it: {{callable: '{space}.tasks.deep.mail:tell'}}}}\nflow: {{graph: it}}"
    for number, environment in enumerate(environments, 1):
        await threads.renew(environment)
        outcome = await outcome_of(threads, work("f", text))
        assert isinstance(outcome, Completed), outcome
        assert outcome.progress.task_records["it"]["output"] == number
    del sys.modules[space]  # as somebody may have done
    await threads.renew(NO_WHEELS)
    assert isinstance(await outcome_of(threads, work("f", text)), Failed)
    await threads.stop()


@pytest.mark.parametrize(
    ("given", "graph"),
    [
        ("{n: $env.PYOCO_API_KEY}", "it"),
        ("{}", "switch(on={{ $env.PYOCO_API_KEY }}){ default: it; }"),
        ("{}", "foreach(over={{ env.PYOCO_API_KEY }}, item=x){ it }"),
        ("{}", "pipe(hidden)"),
    ],
)
async def test_a_file_may_not_name_the_secrets_of_the_process(
    monkeypatch: pytest.MonkeyPatch, given: str, graph: str
) -> None:
    """FLOW-537: they stay in the environment, which is the program's own."""
    monkeypatch.setenv("PYOCO_API_KEY", "0123456789")
    text = (
        f"tasks: {{it: {{callable: 'support.naughty:speaks_at_length', inputs: {given}}}}}\n"
        f"pipes: {{hidden: 'until(cond={{{{ $env.PYOCO_API_KEY == 1 }}}}, max_iter=1){{ it }}'}}\n"
        f"flow: {{graph: '{graph}'}}"
    )
    threads = thread_executor(NatsBackendConfig(), naughty.resolve)
    outcome = await outcome_of(threads, work("f", text))
    assert isinstance(outcome, Failed), outcome
    assert outcome.message == "this worker keeps PYOCO_API_KEY from flows"
    assert outcome.reason is DeadReason.FLOW_NOT_FOUND


async def test_a_file_may_name_the_variables_of_its_author(monkeypatch: pytest.MonkeyPatch) -> None:
    """ENG-45"""
    monkeypatch.setenv("OWN_API_KEY", "on purpose")
    text = "tasks: {it: {callable: 'support.naughty:fails', inputs: {text: $env.OWN_API_KEY}}}\nflow: {graph: it}"
    outcome = await outcome_of(thread_executor(NatsBackendConfig(), naughty.resolve), work("f", text))
    assert isinstance(outcome, Failed), outcome
    assert outcome.progress.task_records["it"]["inputs"] == {"text": "on purpose"}


async def test_a_plug_in_that_hangs_costs_the_run_that_met_it(threads: ThreadExecutor, tmp_path: Path) -> None:
    """A thread cannot be killed; the next run does not wait for it."""
    (tmp_path / "hanging_plug_in.py").write_text(
        "import threading\n"
        "def tell(): return 1\n"
        "def hang(registry): threading.Event().wait()\n"
        "def help(registry): registry.task(tell)\n"
    )
    info = tmp_path / "hanging_plug_in-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hanging-plug-in\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pyoco.tasks]\na = hanging_plug_in:hang\nb = hanging_plug_in:help\n")
    await threads.renew(Environment((str(tmp_path),), ()))
    try:
        text = "tasks: {it: {use: tell}}\nflow: {graph: it}"
        execution = await threads.begin(work("f", text), lambda: None)
        await eventually(lambda: "hanging_plug_in" in sys.modules)
        assert isinstance(await outcome_of(threads, work("f", text)), Completed)
        assert not execution._ended.done()
    finally:
        threads._see(NO_WHEELS)
