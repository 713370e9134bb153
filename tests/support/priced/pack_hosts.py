"""A pool of pack processes for tests."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from pyoco_server.executors.packs.pool import PackHosts
from pyoco_server.executors.packs.port import Call, Executed, Execution, Outcome
from support.host_scenes import is_full
from support.priced.pack_scenes import naughty_hosts
from support.waiting import eventually

__all__ = ["TESTS", "begun", "call", "hosts", "is_whole", "naughty", "opened", "outcome_of", "pool", "still_works"]

TESTS = Path(__file__).parents[2]


def call(pack_type: str, inputs: dict[str, Any] | None = None, timebox_seconds: float = 200.0) -> Call:
    return Call(
        pack_type=pack_type,
        inputs=inputs or {},
        run_id=str(uuid.uuid4()),
        tenant_id="acme",
        trace_id="t_1",
        timebox_seconds=timebox_seconds,
        min_reliability_e4=8123,
        reserved_usd_micros=250_000,
        artifacts={"include_markdown": True},
    )


@pytest.fixture(scope="module", autouse=True)
def naughty() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS))
        yield


@contextlib.asynccontextmanager
async def opened(slots: int = 1, memory_bytes_max: int = 2 << 30) -> AsyncIterator[PackHosts]:
    hosts = naughty_hosts(slots, memory_bytes_max)
    try:
        await hosts.start()
        yield hosts
    finally:
        await hosts.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[PackHosts]:
    async with opened() as pool:
        yield pool


@pytest_asyncio.fixture(loop_scope="module")
async def hosts(pool: PackHosts) -> AsyncIterator[PackHosts]:
    """The same for all tests: two processes, one of them the spare, that have nothing to do. Whoever loses some leaves
    it as it was when new ones have taken their place."""
    await eventually(lambda: is_whole(pool))
    assert pool._shared is not None
    pool._shared.restarts = 0
    yield pool
    await eventually(lambda: is_whole(pool))


def is_whole(pool: PackHosts) -> bool:
    assert pool._shared is not None
    return is_full(pool._shared, 2)


@contextlib.asynccontextmanager
async def begun(hosts: PackHosts, what: Call) -> AsyncIterator[Execution]:
    async with asyncio.timeout(100):
        process = await hosts.reserve_process()
    execution = await process.begin(what)
    try:
        yield execution
    finally:
        process.leave()


async def outcome_of(hosts: PackHosts, what: Call) -> Outcome:
    async with asyncio.timeout(100), begun(hosts, what) as execution:
        return await execution.outcome()


async def still_works(hosts: PackHosts) -> None:
    for _ in range(2):
        assert isinstance(await outcome_of(hosts, call("tells")), Executed)
