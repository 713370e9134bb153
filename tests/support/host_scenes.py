"""A pool of hosts for tests, and flows to run in it."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from pyoco_server.core.job import Job, encode_job
from pyoco_server.core.outcome import Completed, Outcome
from pyoco_server.executors.host.host import Host
from pyoco_server.executors.host.pool import HostExecutor
from pyoco_server.executors.host.process import ChildProcess
from pyoco_server.executors.host.warm_pool import WarmPool
from pyoco_server.executors.host.wire import Settings
from pyoco_server.executors.port import Execution, Work
from support.waiting import eventually

__all__ = [
    "MEMORY_BYTES_MAX",
    "TESTS",
    "begun",
    "children_of_this_process",
    "executor",
    "helpers_on_path",
    "hosts",
    "inner",
    "is_busy",
    "is_full",
    "is_gone",
    "is_host",
    "is_whole",
    "next_of",
    "outcome_of",
    "output_text",
    "pool",
    "settings",
    "still_works",
    "work",
]

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


@pytest.fixture(scope="module", autouse=True)
def helpers_on_path() -> Iterator[None]:
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
    pool._pool.restarts = 0
    yield pool
    for host in filter(is_busy, pool._pool._processes):  # of a test that failed: the next one must not meet its run
        host.kill_now()
    await eventually(lambda: is_whole(pool))


def is_busy(host: Host) -> bool:
    answer = host._work_reader._waiting
    return host.runs > 0 and answer is not None and not answer.done()


def is_whole(pool: HostExecutor) -> bool:
    """An idle host that died is replaced when the next host is needed."""
    return is_full(pool._pool, 2)


def is_full(pool: WarmPool[Any, Any], count: int) -> bool:
    """So many processes with current settings, and all of them idle."""
    is_ready = pool.has_idle() and not pool._tasks and len(pool._processes) == len(pool._idle) == count
    return is_ready and all(each.is_alive and each.settings is pool.settings for each in pool._processes)


def next_of(hosts: HostExecutor) -> Host:
    """Who gets the next run."""
    return hosts._pool._idle[-1]


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


def inner(host: ChildProcess) -> psutil.Process:
    """The process that executes the run; its parent is the guard."""
    (process,) = psutil.Process(host.pid).children()
    return process


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


def output_text(outcome: Outcome, task: str) -> Any:
    assert isinstance(outcome, Completed), outcome
    return outcome.progress.task_records[task]["output"]
