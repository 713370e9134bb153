"""Attempts that a process holds on a real NATS with short timers, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.run import Run
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.runs.port import Stored
from support.grid.program_stage import Stage, a_store, recorded_run, submitted
from support.servers import unique
from support.waiting import eventually

__all__ = [
    "SHORT",
    "ack_timers",
    "backend",
    "config",
    "group",
    "has_ended",
    "leases",
    "rewritten",
    "slots_held",
    "started",
]

#: Heartbeats are waited for. A lease that ends is not, but where a test is about that.
SHORT: dict[str, Any] = {"exec_run_heartbeat_sec": 0.1, "exec_lease_fresh_sec": 60.0}


def leases(scale: float) -> dict[str, Any]:
    """Short ones, too."""
    return {"exec_run_heartbeat_sec": 0.1 * scale, "exec_lease_fresh_sec": 0.5 * scale}


def ack_timers(config: NatsBackendConfig, scale: float) -> NatsBackendConfig:
    return replace(config, ack_progress_interval_sec=0.2 * scale, consumer_ack_wait_sec=scale)


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


async def started(stage: Stage) -> ProgramAttempt:
    """A job that a worker has."""
    run_id = await submitted(stage.backend)
    stage.give(1)
    await eventually(lambda: run_id in stage.workers.running)
    return stage.workers.running[run_id]


def slots_held(backend: Backend) -> int:
    programs = programs_of(backend)
    return sum(map(len, programs.slots.all_held(programs.config.exec_group).values()))


async def rewritten(backend: Backend, run_id: str, **changes: Any) -> Run:
    """Another process writes the record."""
    while True:
        found = await backend.runs.find(run_id)
        assert isinstance(found, Stored)
        program = found.run.program
        assert program is not None
        holder = changes.get("holder", program.holder)
        plain = {name: value for name, value in changes.items() if name != "holder"}
        written = await backend.runs.replace(
            replace(found.run, program=replace(program, holder=holder), **plain), found.revision
        )
        if isinstance(written, Stored):
            return written.run


async def has_ended(backend: Backend, run_id: str) -> bool:
    return (await recorded_run(backend, run_id)).is_terminal
