"""The examples do what they say: the files are read, built and run, the programs work against real servers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx
import pytest
from examples import flows, run_worker, submit_and_wait

from pyoco_server import NatsBackendConfig
from pyoco_server.core.job import Job
from pyoco_server.core.outcome import Completed, Outcome
from pyoco_server.executors.flow.build import FlowBuilder
from pyoco_server.executors.flow.engine import EngineRun
from pyoco_server.executors.flow.reader import YamlFlowFiles
from support.gateways import gateway_process
from support.servers import NatsServer

ROOT = Path(__file__).parents[2]
FILES = YamlFlowFiles(262_144)
YAML = sorted((ROOT / "examples").glob("*.yaml"))


def execute(text: str) -> Outcome:
    """As a worker with the example flows would: the gateway's reader, the worker's builder, the engine."""
    file = FILES.read(text.encode())
    job = Job(
        run_id="00000000-0000-4000-8000-000000000001",
        flow_name="an-example",
        tag="default",
        submitted_at=0.0,
        params=file.defaults,
        workflow_yaml=file.text,
    )
    return EngineRun(job, FlowBuilder(flows.resolve, FILES)).execute()


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine makes a folder `artifacts` where it runs."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_a_yaml_example_runs_to_its_end(path: Path) -> None:
    outcome = execute(path.read_text())
    assert isinstance(outcome, Completed), outcome.error
    assert set(outcome.progress.tasks.values()) == {"SUCCEEDED"}


def test_the_pipeline_goes_through_every_kind_of_step() -> None:
    text = (ROOT / "examples" / "pipeline.yaml").read_text()
    results = execute(text).progress.task_records["report"]["output"]["results"]
    assert results == {"greet": "Hello, you!", "shout": "HELLO, YOU!", "count": 3, "rest": None}


def until_ready(url: str, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if httpx.get(f"{url}/ready", timeout=20).status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline, "the gateway did not become ready"
        time.sleep(0.05)


async def test_the_programs_work_together(
    own_nats_server: NatsServer,
    unused_port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """FLOW-547: a worker as a small program, and a client that submits by name and from a file."""
    config = NatsBackendConfig(nats_url=own_nats_server.url, data_dir=str(tmp_path / "data"))
    stop = asyncio.Event()
    with gateway_process(config, unused_port, tmp_path / "gateway.log") as url:
        await asyncio.to_thread(until_ready, url)
        working = asyncio.create_task(run_worker.work(config, stop))
        monkeypatch.setenv("PYOCO_SERVER_URL", url)
        try:
            by_name = await asyncio.to_thread(submit_and_wait.main, ["hello", "name=Anna"])
            from_file = await asyncio.to_thread(submit_and_wait.main, [str(ROOT / "examples" / "hello.yaml")])
            broken = await asyncio.to_thread(submit_and_wait.main, ["broken"])
        finally:
            stop.set()
            handled = await working
    assert (by_name, from_file, broken, handled) == (0, 0, 1, 3)
    shown = capsys.readouterr().out
    assert "'HELLO, ANNA!'" in shown
    assert "'HELLO, YOU!'" in shown
    assert "FAILED on example RuntimeError: this flow fails on purpose" in shown
