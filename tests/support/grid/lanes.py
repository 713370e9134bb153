"""The native lane on a real NATS, with pretended programs, for tests."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.submit import Inline, submit_job
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.programs.job import InputFile, JobAsk
from pyoco_server.core.run import Caller, Run
from pyoco_server.loops.programs.cpu import CpuUse
from pyoco_server.loops.programs.lane import ProgramLane
from pyoco_server.ports.backend import Backend
from support.grid.pretended_programs import PretendedExecutor
from support.grid.program_stage import a_store, recorded_run
from support.servers import unique
from support.waiting import eventually

__all__ = [
    "SHORT",
    "Gauge",
    "a_lane",
    "backend",
    "config",
    "ended",
    "executor",
    "group",
    "has_ended",
    "slots_held",
    "with_files",
]

#: Heartbeats are waited for. A lease that ends is not, but where a test is about that.
SHORT: dict[str, Any] = {"exec_run_heartbeat_sec": 0.1, "exec_lease_fresh_sec": 60.0, "worker_drain_sec": 0.3}


class Gauge(CpuUse):
    """A machine that is as busy as a test says."""

    now = 0.0

    def share(self) -> float:
        return self.now


@pytest.fixture
def group() -> str:
    return unique("g")


@pytest.fixture
def config(config: NatsBackendConfig) -> NatsBackendConfig:
    return replace(config, ack_progress_interval_sec=0.2, consumer_ack_wait_sec=900.0)


@pytest.fixture
async def backend(config: NatsBackendConfig, group: str) -> AsyncIterator[Backend]:
    async with a_store(config, group, **SHORT) as backend:
        yield backend


@pytest.fixture
def executor() -> PretendedExecutor:
    return PretendedExecutor()


@contextlib.asynccontextmanager
async def a_lane(
    backend: Backend, executor: PretendedExecutor, *patterns: str, gauge: Gauge | None = None
) -> AsyncIterator[ProgramLane]:
    lane = ProgramLane(backend, executor, "w1", patterns or ("job.assign.*",), cpu=gauge or Gauge())
    await lane.start()
    try:
        yield lane
    finally:
        for program in executor.programs:
            program.end()
        await lane.stop()


async def has_ended(backend: Backend, run_id: str) -> bool:
    return (await recorded_run(backend, run_id)).is_terminal


async def ended(backend: Backend, run_id: str) -> Run:
    await eventually(lambda: has_ended(backend, run_id))
    return await recorded_run(backend, run_id)


def slots_held(backend: Backend) -> int:
    programs = programs_of(backend)
    return sum(map(len, programs.slots.all_held(programs.config.exec_group).values()))


async def with_files(backend: Backend, files: Mapping[str, bytes]) -> str:
    import hashlib

    inputs = tuple(InputFile(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items())
    ask = JobAsk(
        job_id=backend.new_id(),
        group=programs_of(backend).config.exec_group,
        client_id="clientA",
        exec_name="calcA",
        files=inputs,
    )
    return (await submit_job(backend, Caller(), ask, Inline(files))).run.run_id
