"""Processes that dispatch programs, without any program: worker slots that a test fills and empties as it likes."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.finish import Settlement
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.set_cap import set_cap
from pyoco_server.actions.programs.submit import Inline, submit_job
from pyoco_server.config import NatsBackendConfig
from pyoco_server.config.grid import GridConfig
from pyoco_server.core.programs.job import JobAsk
from pyoco_server.core.programs.report import Report
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.states import RunState
from pyoco_server.loops.programs.client_slots import ClientSlots
from pyoco_server.loops.programs.dispatcher import Dispatcher, WorkerLost
from pyoco_server.loops.programs.in_flight import InFlight
from pyoco_server.loops.programs.in_flight_events import AttemptLost, CancelRequested, InFlightEvent, QuorumChanged
from pyoco_server.loops.programs.meter import ProgramMeter
from pyoco_server.loops.programs.quorum import Quorum
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Patience
from pyoco_server.ports.runs.port import Stored
from pyoco_server.wiring import backend as wiring

__all__ = ["DONE", "Stage", "Tally", "Workers", "a_stage", "a_store", "cap", "recorded_run", "submitted"]

DONE = Report(status=RunState.COMPLETED, exit_code=0, stdout=b"done\n")


@contextlib.asynccontextmanager
async def a_store(config: NatsBackendConfig, group: str, **settings: Any) -> AsyncIterator[Backend]:
    """What one process reaches."""
    grid = GridConfig(exec_group=group, **settings)
    async with wiring.open_backend(config, "tests", Patience(down_seconds=1.0), grid=grid) as backend:
        yield backend


async def submitted(backend: Backend, exec_name: str = "calcA", client_id: str = "clientA", **more: Any) -> str:
    group = programs_of(backend).config.exec_group
    ask = JobAsk(job_id=str(uuid.uuid4()), group=group, client_id=client_id, exec_name=exec_name, **more)
    return (await submit_job(backend, Caller(), ask, Inline({}))).run.run_id


async def cap(backend: Backend, client_id: str, most: int) -> None:
    await set_cap(backend, programs_of(backend).config.exec_group, client_id, most, "http")


async def recorded_run(backend: Backend, run_id: str) -> Run:
    found = await backend.runs.find(run_id)
    assert isinstance(found, Stored), found
    return found.run


class _Seat:
    def __init__(self, workers: Workers) -> None:
        self._workers, self.worker_id = workers, "w1"

    def return_unused(self) -> None:
        self._workers.credits += 1

    async def start(self, attempt: ProgramAttempt) -> None:
        self._workers.assigned(attempt)


@dataclass
class Tally:
    """What is in flight of each client, over all workers that share it, and the most there ever was."""

    now: Counter[str] = field(default_factory=Counter)
    most: Counter[str] = field(default_factory=Counter)

    def add(self, client_id: str, count: int) -> None:
        self.now[client_id] += count
        self.most[client_id] = max(self.most[client_id], self.now[client_id])


class Workers:
    """One worker with so many credits, and what it was given. Nothing is ever finished by itself."""

    def __init__(self, count: int = 0, execs: str = "*", tally: Tally | None = None) -> None:
        self.credits, self._execs, self.tally = count, execs, tally or Tally()
        #: Tenants whose jobs it may have. None: all.
        self.tenants: set[str | None] | None = None
        self.started: list[ProgramAttempt] = []
        self.running: dict[str, ProgramAttempt] = {}
        self.most = 0
        self.is_lost = False
        self.on_start: Callable[[ProgramAttempt], None] = lambda _: None

    def serves(self, exec_name: str) -> bool:
        return self._execs == "*" or exec_name in self._execs.split(",")

    def reserve_credit(self, exec_name: str, tenant: str | None) -> _Seat | None:
        if not self.credits or not self.serves(exec_name) or (self.tenants is not None and tenant not in self.tenants):
            return None
        self.credits -= 1
        assert self.credits >= 0
        return _Seat(self)

    def assigned(self, attempt: ProgramAttempt) -> None:
        if self.is_lost:
            raise WorkerLost("gone")
        self.started.append(attempt)
        self.running[attempt.run.run_id] = attempt
        self.tally.add(attempt.job.client_id, 1)
        self.most = max(self.most, len(self.running))
        self.on_start(attempt)

    def ended(self, attempt: ProgramAttempt) -> None:
        """Its program has ended, and that is not reported yet."""
        if self.running.pop(attempt.run.run_id, None) is not None:
            self.tally.add(attempt.job.client_id, -1)

    @property
    def order(self) -> str:
        return "".join(attempt.job.exec_name for attempt in self.started)


class Clock:
    """The monotonic clock of one process, which may have been stopped for a while."""

    def __init__(self) -> None:
        self.slept = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.slept


class Stage:
    """A dispatcher with its holdings, as a door or a native worker has them."""

    def __init__(self, backend: Backend, workers: Workers, holder: str = "me") -> None:
        self.backend, self.workers = backend, workers
        self.cancelled: list[ProgramAttempt] = []
        self.gone: list[ProgramAttempt] = []
        programs = programs_of(backend)
        # An outage of a moment is as good as one of five seconds.
        self.quorum = Quorum(programs, wall=backend.clock, every_seconds=0.05, lost_seconds=0.3)
        self.clock = Clock()
        self.quorate: list[bool] = []
        self.meter = ProgramMeter(programs.config.exec_group)
        self.slots = ClientSlots(backend, holder)
        self.in_flight = InFlight(backend, self.slots, self.meter, quorum=self.quorum, clock=self.clock)
        self.dispatcher = Dispatcher(backend, workers, self.in_flight, self.slots)
        self._reader: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def _take_event(self, event: InFlightEvent) -> None:
        match event:
            case CancelRequested(attempt):
                self.cancelled.append(attempt)
            case AttemptLost(attempt):
                self.gone.append(attempt)
            case QuorumChanged(is_quorate):
                self.quorate.append(is_quorate)

    async def start(self) -> None:
        self._reader = asyncio.create_task(self.in_flight.events.read(self._take_event))
        await self.in_flight.start()
        await self.dispatcher.start()

    async def stop(self) -> None:
        await self.dispatcher.stop()
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        await self.in_flight.stop()
        if self._reader is not None:
            await self._reader

    def give(self, count: int) -> None:
        self.workers.credits += count
        self.dispatcher.nudge()

    def runs_everything(self, seconds: float = 0.0, before_end: Callable[[], Awaitable[object]] | None = None) -> None:
        """From now on every job takes `seconds`, awaits `before_end`, ends, and gives its credit back."""

        def begin(attempt: ProgramAttempt) -> None:
            task = asyncio.create_task(self._run(attempt, seconds, before_end))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self.workers.on_start = begin

    async def _run(
        self, attempt: ProgramAttempt, seconds: float, before_end: Callable[[], Awaitable[object]] | None
    ) -> None:
        await asyncio.sleep(seconds)
        if before_end is not None:
            await before_end()
        await self.finish(attempt)
        self.give(1)

    async def finish(self, attempt: ProgramAttempt, report: Report = DONE) -> Settlement:
        self.workers.ended(attempt)
        return await self.in_flight.finish(attempt, report, ())


@contextlib.asynccontextmanager
async def a_stage(backend: Backend, count: int = 0, execs: str = "*", holder: str = "me") -> AsyncIterator[Stage]:
    stage = Stage(backend, Workers(count, execs), holder)
    await stage.start()
    try:
        yield stage
    finally:
        await stage.stop()
