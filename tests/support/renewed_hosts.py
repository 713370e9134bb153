"""Hosts whose set of wheels changes while they run, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import textwrap
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from pyoco_server.core.job import Job, encode_job
from pyoco_server.core.outcome import Completed, Outcome
from pyoco_server.core.wheel_sync import NO_WHEELS, Environment
from pyoco_server.executors.host.host import Host
from pyoco_server.executors.host.pool import HostExecutor
from pyoco_server.executors.host.wire import Settings
from pyoco_server.executors.port import Execution, Work
from support.host_scenes import is_full
from support.waiting import eventually

__all__ = [
    "MODULE",
    "TASKS",
    "Stage",
    "a_stage",
    "an_environment",
    "begun",
    "calling",
    "executor",
    "for_one",
    "for_two",
    "is_busy",
    "outcome_of",
    "output_of",
    "settings",
    "stage",
    "told",
    "using",
    "wide_stage",
    "work",
]

MODULE = "wheel_of_tests"
TASKS = """
import os, time
from pathlib import Path

VERSION = {version!r}

def tell():
    return VERSION

def who():
    return os.getpid()

def wait_for(path, began=""):
    if began:
        Path(began).touch()
    while not Path(path).exists():
        time.sleep(0.005)
    from {module}.late import VERSION as late  # what is imported late is of the same version
    return [VERSION, late]

def register(registry):
    registry.register_callable(tell, name="demo/tell")
"""


def settings(resolver: str | None = None, **more: Any) -> Settings:
    values: dict[str, Any] = {"callable_allow": (), "workflow_bytes_max": 262_144, "records_bytes_max": 65_536}
    return Settings(resolver=resolver, **{**values, "memory_bytes_max": 2 << 30, **more})


def an_environment(folder: Path, version: str, module: str = MODULE, **files: str) -> Environment:
    """What is left of a wheel when it is installed in a directory of its own."""
    home = folder / f"{module}-{version}-{uuid.uuid4().hex[:6]}"
    package, info = home / module, home / f"{module}-{version}.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").write_text(TASKS.format(version=version, module=module))
    (package / "late.py").write_text(f"VERSION = {version!r}\n")
    for name, text in files.items():
        (package / f"{name}.py").write_text(textwrap.dedent(text))
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[pyoco.tasks]\n{module} = {module}:register\n")
    return Environment((str(home),), (module,))


def calling(name: str, module: str = MODULE, **inputs: Any) -> Work:
    return work(f"tasks: {{it: {{callable: '{module}:{name}', inputs: {json.dumps(inputs)}}}}}\nflow: {{graph: it}}")


def using(name: str) -> Work:
    return work(f"tasks: {{it: {{use: '{name}'}}}}\nflow: {{graph: it}}")


def work(text: str) -> Work:
    job = Job(run_id=str(uuid.uuid4()), flow_name="f", tag="default", submitted_at=1.0, workflow_yaml=text)
    return Work(job, encode_job(job))


@contextlib.asynccontextmanager
async def executor(slots: int = 1, environment: Environment = NO_WHEELS, **more: Any) -> AsyncIterator[HostExecutor]:
    hosts = HostExecutor(settings(**more), slots, 1000, 0.0)
    try:
        await hosts.renew(environment)
        await hosts.start()
        yield hosts
    finally:
        await hosts.stop()


async def begun(hosts: HostExecutor, what: Work) -> Execution:
    async with asyncio.timeout(100):
        while True:
            execution: Execution | None = await hosts.begin(what, lambda: None)
            if execution is not None:
                return execution


async def outcome_of(hosts: HostExecutor, what: Work) -> Outcome:
    async with asyncio.timeout(100):
        return await (await begun(hosts, what)).outcome()


def output_of(outcome: Outcome) -> Any:
    assert isinstance(outcome, Completed), outcome
    return outcome.progress.task_records["it"]["output"]


async def told(hosts: HostExecutor) -> Any:
    return output_of(await outcome_of(hosts, calling("tell")))


class Stage:
    """Hosts that many tests share, one after another, and the wheel that their runs see."""

    def __init__(self, hosts: HostExecutor, folder: Path) -> None:
        self.hosts, self._folder = hosts, folder
        self._numbers, self._made = itertools.count(1001), dict[str, tuple[str, Environment]]()

    @property
    def version(self) -> str:
        return self._made[self.hosts._pool.settings.paths[0]][0]

    @property
    def environment(self) -> Environment:
        return self._made[self.hosts._pool.settings.paths[0]][1]

    def another(self) -> Environment:
        """A newer version, not installed yet."""
        version = f"{next(self._numbers)}.0"
        made = an_environment(self._folder, version)
        self._made[made.paths[0]] = version, made
        return made

    def is_whole(self) -> bool:
        """An idle host that died is replaced when the next host is needed."""
        return is_full(self.hosts._pool, self.hosts._pool._size.least)

    @contextlib.asynccontextmanager
    async def scene(self) -> AsyncIterator[Stage]:
        """For one test. All hosts are there at its beginning and have nothing to do."""
        await eventually(self.is_whole)
        self.hosts._pool.restarts = 0
        yield self
        # Of a test that failed: the next one must not meet its run.
        for host in filter(is_busy, self.hosts._pool._processes):
            host.kill_now()
        await eventually(self.is_whole)


def is_busy(host: Host) -> bool:
    answer = host._work_reader._waiting
    return host.runs > 0 and answer is not None and not answer.done()


@contextlib.asynccontextmanager
async def a_stage(slots: int, folder: Path) -> AsyncIterator[Stage]:
    hosts = HostExecutor(settings(), slots, 1000, 0.0)
    stage = Stage(hosts, folder)
    try:
        await hosts.renew(stage.another())
        await hosts.start()
        yield stage
    finally:
        await hosts.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def for_one(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with a_stage(1, tmp_path_factory.mktemp("one")) as stage:
        yield stage


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def for_two(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with a_stage(2, tmp_path_factory.mktemp("two")) as stage:
        yield stage


@pytest_asyncio.fixture(loop_scope="module")
async def stage(for_one: Stage) -> AsyncIterator[Stage]:
    """With one slot and the spare."""
    async with for_one.scene():
        yield for_one


@pytest_asyncio.fixture(loop_scope="module")
async def wide_stage(for_two: Stage) -> AsyncIterator[Stage]:
    """With two slots and the spare."""
    async with for_two.scene():
        yield for_two
