"""What a flow in a host sees of its worker and of other runs, and flows that cannot be built."""

from __future__ import annotations

import textwrap
import uuid
from pathlib import Path
from typing import Any

import psutil
import pytest

from pyoco_server.config import secret_variables
from pyoco_server.core.job import Job, encode_job
from pyoco_server.core.outcome import Completed, DeadReason, Failed
from pyoco_server.executors.host.pool import HostExecutor
from pyoco_server.executors.port import Work
from support.host_scenes import (
    executor,
    helpers_on_path,
    hosts,
    inner,
    outcome_of,
    output_text,
    pool,
    still_works,
    work,
)
from support.waiting import eventually

__all__ = ["helpers_on_path", "hosts", "pool"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


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
            assert output_text(outcome, "it") == {"word": "of the flow itself"}
            await eventually(lambda: all(host.is_warm for host in hosts._pool._processes))
            for host in hosts._pool._processes:
                for process in (psutil.Process(host.pid), inner(host)):
                    assert SECRET not in str(process.environ())


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
