"""Schedules in tests: how they are made, and what became of their ticks."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator
from typing import Any

from pyoco_server.actions.schedules.reach import scheduling_of
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.flow_moves import claim, conclude
from pyoco_server.core.outcome import Completed
from pyoco_server.core.run import Owner, Run
from pyoco_server.core.schedules.ids import schedule_key, tick_id
from pyoco_server.core.schedules.progress import added
from pyoco_server.core.schedules.record import Definition, Schedule
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Patience
from pyoco_server.ports.runs.port import Stored
from pyoco_server.wiring import backend as wiring

__all__ = ["end_run", "keeping_backend", "make_schedule", "outcomes", "run_of_tick", "schedule_now"]


@contextlib.asynccontextmanager
async def keeping_backend(config: NatsBackendConfig) -> AsyncIterator[Backend]:
    """The backend of a keeper."""
    async with wiring.open_backend(config, "tests-keeper", Patience(down_seconds=5.0), keeps=True) as backend:
        yield backend


async def make_schedule(backend: Backend, name: str = "nightly", tenant_id: str | None = None, **more: Any) -> Schedule:
    """Store a schedule as a gateway does."""
    values: dict[str, Any] = {"what": {"kind": "flow", "flow_name": "f"}, "when": {"every": 60}}
    definition = Definition(name=name, **(values | more))
    schedule = added(Schedule(id=str(uuid.uuid4()), tenant_id=tenant_id, definition=definition), backend.clock())
    kept = await scheduling_of(backend).schedules.create(schedule)
    assert kept is not None
    return kept.schedule


async def schedule_now(backend: Backend, name: str = "nightly", tenant_id: str | None = None) -> Schedule:
    kept = await scheduling_of(backend).schedules.find(schedule_key(tenant_id, name))
    assert kept is not None
    return kept.schedule


async def outcomes(backend: Backend, name: str = "nightly") -> list[tuple[int, str, str | None]]:
    """Tick, outcome and reason of the newest entries of the history, oldest first."""
    return [(each.tick, each.outcome.value, each.reason) for each in (await schedule_now(backend, name)).tail]


async def run_of_tick(backend: Backend, schedule: Schedule, tick: int) -> Run | None:
    found = await backend.runs.find(tick_id(schedule.id, tick))
    return found.run if isinstance(found, Stored) else None


async def end_run(backend: Backend, run_id: str) -> None:
    """Let a worker execute the run."""
    found = await backend.runs.find(run_id)
    assert isinstance(found, Stored)
    running = claim(found.run, Owner("anna", "a1"), str(uuid.uuid4()), backend.clock())
    claimed = await backend.runs.replace(running, found.revision)
    assert isinstance(claimed, Stored)
    ended = await backend.runs.replace(conclude(claimed.run, Completed(), backend.clock()), claimed.revision)
    assert isinstance(ended, Stored)
