"""Workers with real hosts on a real NATS, for tests."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.run import Owner, Run
from pyoco_server.core.states import RunState
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.loops.worker import Worker
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.queue.jetstream import JetStreamQueue
from pyoco_server.wiring import backend as wiring
from support.backends import (
    has_ended,
    jobs_left,
    opened_backend,
    run_now,
)
from support.flow_workers import a_worker
from support.waiting import eventually

__all__ = [
    "TESTS",
    "Team",
    "all_ended",
    "backend",
    "ended",
    "helpers_on_path",
    "none_left",
    "running",
    "slower",
    "working",
]

TESTS = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def helpers_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))


@pytest.fixture
async def backend(config: NatsBackendConfig) -> AsyncIterator[Backend]:
    """The gateway's view, with timers short enough to wait for."""
    quick = replace(config, run_heartbeat_interval_sec=0.2, worker_heartbeat_interval_sec=0.4)
    async with opened_backend(quick) as backend:
        yield backend


def slower(backend: Backend, **settings: Any) -> Backend:
    """The same deployment, for a process with other settings."""
    config = replace(backend.config, **settings)
    assert isinstance(backend.queue, JetStreamQueue)
    return replace(backend, config=config, queue=JetStreamQueue(backend.queue._link, config))


@dataclass
class Team:
    """One worker and what it runs on."""

    worker: Worker
    backend: Backend
    executor: Any

    async def registered(self) -> WorkerRecord:
        found = await self.backend.registry.find("w")
        assert found is not None
        return found


@contextlib.asynccontextmanager
async def working(
    backend: Backend, slots: int = 1, worker_id: str = "w", tags: tuple[str, ...] = ("default",)
) -> AsyncIterator[Team]:
    executor = wiring.host_executor(backend.config, "support.naughty:resolve", slots)
    worker = a_worker(backend, executor, Owner(worker_id, backend.new_id()), tags, slots)
    await worker.start()
    try:
        yield Team(worker, backend, executor)
    finally:
        await worker.stop("test", 0.1)


async def ended(backend: Backend, run_id: str, seconds: float = 40.0) -> Run:
    await eventually(lambda: has_ended(backend, run_id), seconds)
    return await run_now(backend, run_id)


async def all_ended(backend: Backend, run_ids: list[str], seconds: float = 40.0) -> list[Run]:
    return [await ended(backend, run_id, seconds) for run_id in run_ids]


async def running(backend: Backend, run_id: str, task: str | None = None) -> Run:
    """Returns once the run executes, and its record shows the task RUNNING if one is named."""

    async def is_so() -> bool:
        run = await run_now(backend, run_id)
        assert not run.is_terminal, run
        return run.status is RunState.RUNNING and (task is None or run.tasks.get(task) == "RUNNING")

    await eventually(is_so)
    return await run_now(backend, run_id)


async def none_left(link: Link, config: NatsBackendConfig) -> bool:
    return await jobs_left(link, config) == []
