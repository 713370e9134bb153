"""From an upload to the next run, with the worker that is used as a library (FLOW-562, the worker's half)."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pyoco_server import PyocoNatsWorker
from pyoco_server.core.job import Job, encode_job
from pyoco_server.core.outcome import Completed
from pyoco_server.core.wheel_sync import Environment
from pyoco_server.errors import UsageError
from pyoco_server.executors.flow.build import FlowBuilder
from pyoco_server.executors.flow.reader import YamlFlowFiles
from pyoco_server.executors.port import Work
from pyoco_server.executors.threads import ThreadExecutor
from pyoco_server.ports.nats.link import Link
from support.backends import fields_of
from support.gateways import Gateway, fresh_gateway, submit_yaml
from support.waiting import eventually
from support.wheel_doors import register

pytestmark = pytest.mark.usefixtures("warm_pip")

MODULE = "wheel_for_the_library"
SOURCE = """
import time
from pathlib import Path
VERSION = {version!r}
def tell():
    return VERSION
def wait_for(path):
    while not Path(path).exists():
        time.sleep(0.005)
    from {module}.late import VERSION as late
    return [VERSION, late]
"""


@pytest.fixture
async def gateway(link: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    settings = {
        "wheel_sync_enabled": True,
        "wheel_sync_dir": str(tmp_path / "wheels"),
        "wheel_sync_interval_sec": 0.01,
        "worker_heartbeat_interval_sec": 0.2,
    }
    async with fresh_gateway(link, nats_url, tmp_path / "gateway", **settings) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """A worker that is closed leaves the process as it found it."""
    before = list(sys.path)
    yield
    assert sys.path == before
    assert MODULE not in sys.modules


@asynccontextmanager
async def worker_of(gateway: Gateway, **more: Any) -> AsyncIterator[PyocoNatsWorker]:
    worker = await PyocoNatsWorker.connect(gateway.config, **more)
    try:
        yield worker
    finally:
        await worker.close()


def files_of(version: str, module: str = MODULE) -> dict[str, str | bytes]:
    return {
        f"{module}/__init__.py": SOURCE.format(version=version, module=module),
        f"{module}/late.py": f"VERSION = {version!r}\n",
    }


async def upload(gateway: Gateway, version: str, **more: Any) -> None:
    await register(gateway, MODULE, version, modules=files_of(version), **more)


async def report(gateway: Gateway, worker_id: str = "worker") -> dict[str, Any]:
    """As GET /workers shows it, as soon as it does."""
    found: dict[str, Any] = {}

    async def is_there() -> bool:
        answer = await gateway.client.get("/workers")
        workers = answer.json() if answer.status_code == 200 else []  # what is known might be out of date
        found.update(next((each["wheel_sync"] for each in workers if each["worker_id"] == worker_id), {}))
        return bool(found)

    await eventually(is_there)
    return found


async def told(gateway: Gateway, worker: PyocoNatsWorker) -> str:
    """What the next run says: its output, or its error."""
    answer = await submit_yaml(gateway, f"tasks: {{it: {{callable: '{MODULE}:tell'}}}}\nflow: {{graph: it}}")
    run_id = answer.json()["run_id"]
    async with asyncio.timeout(200):
        assert await worker.run_once(100.0) == run_id
    run = (await gateway.client.get(f"/runs/{run_id}", params={"include": "records"})).json()
    return str(run["task_records"]["it"]["output"] if run["status"] == "COMPLETED" else run["error"])


class TestTheLibraryWorker:
    async def test_has_the_newest_wheel_for_the_next_run(self, gateway: Gateway, tmp_path: Path) -> None:
        """FLOW-229, FLOW-240, FLOW-241, FLOW-364: at connect, then before each poll, when it is due."""
        await upload(gateway, "1.0")
        async with worker_of(gateway) as worker:
            assert await told(gateway, worker) == "1.0"
            await upload(gateway, "2.0")
            assert await told(gateway, worker) == "2.0"
            for version in ("1.0", "2.0"):
                await gateway.client.delete(f"/wheels/{MODULE}-{version}-py3-none-any.whl")
            assert (await told(gateway, worker)).startswith("ERR-PYOCO-0031")
            assert not [path for path in sys.path if path.startswith(str(tmp_path / "wheels"))]

    async def test_takes_the_newest_that_is_for_it_and_fits(self, gateway: Gateway) -> None:
        """FLOW-231 to FLOW-233, FLOW-243, FLOW-562"""
        await upload(gateway, "1.0", fields={"tags": "default,gpu"})
        await upload(gateway, "2.0", fields={"tags": "gpu"})
        await upload(gateway, "3.0", fields={"tags": "default"}, tag="cp39-cp39-win_amd64")
        await register(gateway, "for-all", "1.0")
        async with worker_of(gateway, worker_id="mine"), worker_of(gateway, worker_id="gpu", tags=["gpu"]):
            mine, gpu = await report(gateway, "mine"), await report(gateway, "gpu")
        assert mine["installed"] == ["for_all-1.0-py3-none-any.whl", f"{MODULE}-1.0-py3-none-any.whl"]
        assert [each["wheel_name"] for each in mine["skipped"]] == [f"{MODULE}-3.0-cp39-cp39-win_amd64.whl"]
        assert (mine["enabled"], mine["status"], mine["failed"]) == (True, "ok", [])
        assert time.time() - 300 < mine["last_sync_at"] < time.time() + 300
        assert gpu["installed"] == ["for_all-1.0-py3-none-any.whl", f"{MODULE}-2.0-py3-none-any.whl"]
        assert gpu["skipped"] == []

    async def test_looks_only_when_it_is_due(self, gateway: Gateway) -> None:
        """FLOW-229"""
        config = replace(gateway.config, wheel_sync_interval_sec=3600.0)
        async with worker_of(replace(gateway, config=config)) as worker:
            await upload(gateway, "1.0")
            assert (await told(gateway, worker)).startswith("ERR-PYOCO-0031")

    async def test_has_no_wheels_unless_told(self, gateway: Gateway) -> None:
        """FLOW-228, FLOW-243"""
        await upload(gateway, "1.0")
        config = replace(gateway.config, wheel_sync_enabled=False)
        async with worker_of(replace(gateway, config=config)) as worker:
            assert (await told(gateway, worker)).startswith("ERR-PYOCO-0031")
            records: list[dict[str, Any]] = []

            async def is_there() -> bool:
                answer = await gateway.client.get("/workers")
                records[:] = answer.json() if answer.status_code == 200 else []
                return bool(records)

            await eventually(is_there)
            assert [record["wheel_sync"] for record in records] == [None]

    async def test_goes_on_when_a_wheel_is_broken(self, gateway: Gateway) -> None:
        """FLOW-242"""
        await register(gateway, "lonely", "1.0", requires=["no-such-package"])
        await upload(gateway, "1.0")
        async with worker_of(gateway) as worker:
            assert await told(gateway, worker) == "1.0"
            found = await report(gateway)
            assert found["status"] == "error"
            assert [each["wheel_name"] for each in found["failed"]] == ["lonely-1.0-py3-none-any.whl"]

    async def test_does_not_connect_when_it_cannot_keep_them(self, gateway: Gateway, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        config = replace(gateway.config, wheel_sync_dir=str(tmp_path / "file" / "wheels"))
        with pytest.raises(UsageError, match="PYOCO_WHEEL_SYNC_DIR"):
            await PyocoNatsWorker.connect(config)


class TestThreads:
    @pytest.fixture
    async def threads(self) -> AsyncIterator[ThreadExecutor]:
        threads = ThreadExecutor(FlowBuilder(None, YamlFlowFiles(10_000)))
        yield threads
        await threads.stop()

    def an_environment(self, folder: Path, version: str) -> Environment:
        home = folder / f"{version}-{uuid.uuid4().hex[:6]}"
        for name, text in files_of(version).items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(str(text))
        return Environment((str(home),), (MODULE,))

    async def output_of(self, threads: ThreadExecutor, call: str, **inputs: str) -> Any:
        text = f"tasks: {{it: {{callable: '{MODULE}:{call}', inputs: {json.dumps(inputs)}}}}}\nflow: {{graph: it}}"
        job = Job(run_id=str(uuid.uuid4()), flow_name="f", tag="t", submitted_at=1.0, workflow_yaml=text)
        outcome = await (await threads.begin(Work(job, encode_job(job)), lambda: None)).outcome()
        assert isinstance(outcome, Completed), outcome
        return outcome.progress.task_records["it"]["output"]

    async def test_change_nothing_under_a_run(self, threads: ThreadExecutor, tmp_path: Path) -> None:
        """FLOW-230"""
        old, new, go = self.an_environment(tmp_path, "1.0"), self.an_environment(tmp_path, "2.0"), tmp_path / "go"
        await threads.renew(old)
        running = asyncio.ensure_future(self.output_of(threads, "wait_for", path=str(go)))
        await eventually(lambda: threads._running == 1)
        renewing = asyncio.ensure_future(threads.renew(new))
        await asyncio.sleep(0.05)
        assert not renewing.done()
        assert threads.paths_in_use == set(old.paths)
        go.touch()
        assert await running == ["1.0", "1.0"]
        await renewing
        assert threads.paths_in_use == set(new.paths)
        assert await self.output_of(threads, "tell") == "2.0"

    async def test_tell_that_a_restart_is_needed_for_loaded_extension_modules(
        self, threads: ThreadExecutor, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """FLOW-241"""
        old = self.an_environment(tmp_path, "1.0")
        await threads.renew(old)
        loaded = ModuleType(f"{MODULE}._fast")
        loaded.__file__ = f"{old.paths[0]}/{MODULE}/_fast{EXTENSION_SUFFIXES[0]}"
        sys.modules[loaded.__name__] = loaded
        with caplog.at_level(logging.WARNING):
            await threads.renew(self.an_environment(tmp_path, "2.0"))
        [record] = [each for each in caplog.records if "restart required" in each.message]
        assert fields_of(record)["modules"] == [loaded.__name__]
        assert loaded.__name__ not in sys.modules
        assert await self.output_of(threads, "tell") == "2.0"

    async def test_leave_modules_of_others_alone(self, threads: ThreadExecutor, tmp_path: Path) -> None:
        """FLOW-241: only what belongs to the wheel that changed is dropped."""
        one, two = self.an_environment(tmp_path, "1.0"), tmp_path / "two"
        two.mkdir()
        (two / "wheel_that_stays.py").write_text("def tell():\n    return 1\n")
        await threads.renew(Environment((*one.paths, str(two)), (MODULE, "wheel_that_stays")))
        import wheel_that_stays  # type: ignore[import-not-found]

        await self.output_of(threads, "tell")
        kept = set(sys.modules)
        new = self.an_environment(tmp_path, "2.0")
        await threads.renew(Environment((*new.paths, str(two)), (MODULE, "wheel_that_stays")))
        assert kept - set(sys.modules) == {MODULE}
        assert sys.modules["wheel_that_stays"] is wheel_that_stays
