"""The deployment of a testing block: gateway, worker and clock in one thread, on the memory adapters."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from pyoco_server.actions.release_run import release_due
from pyoco_server.actions.rescue import end_cancelled
from pyoco_server.actions.schedules.handle import handle_schedule
from pyoco_server.actions.schedules.write import create_schedule
from pyoco_server.config import AwsSettings, GridConfig, NatsBackendConfig, PricedConfig
from pyoco_server.core.flow_offers import FlowOffer
from pyoco_server.core.offered_flow import OfferedFlow
from pyoco_server.core.run import Caller, Owner, Run
from pyoco_server.core.schedules.of_apps import declared_schedule
from pyoco_server.core.schedules.record import Schedule
from pyoco_server.core.states import RunState
from pyoco_server.doors.http.app import Gateway, build_app
from pyoco_server.loops.flow_lane import FlowLane
from pyoco_server.loops.log_sender import LogSender
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.nats.memory.server import drop_server
from pyoco_server.testing.clock import VirtualClock
from pyoco_server.testing.ports import HeardQueue, HeardRuns, UnusedAlarms
from pyoco_server.wiring import backend as wiring
from pyoco_server.wiring.logs import open_log_sender

if TYPE_CHECKING:
    from pyoco_server.app.app import App

__all__ = ["TestingSite"]

T = TypeVar("T")

_numbers = itertools.count(1)
#: Runs that are executed at once. Those that wait for a next try do not count.
_SLOTS = 8
#: How often is looked for runs that wait: their threads do not report it.
_LOOK_SECONDS = 0.01
#: Heartbeats are not read here, because a cancel request reaches the run at once.
_HEARTBEAT_SECONDS = 5.0
#: How long tasks may go on after the block, at its end.
_DRAIN_SECONDS = 5.0


class TestingSite:
    """Everything but `clock`, `start`, `stop` and `begin` is called in its own thread."""

    def __init__(self, app: App, directory: Path) -> None:
        self.clock = VirtualClock(time.time())
        self._app = app
        self._config = NatsBackendConfig(
            nats_url=f"memory://testing-{os.getpid()}-{next(_numbers)}",
            data_dir=str(directory),
            run_heartbeat_interval_sec=_HEARTBEAT_SECONDS,
        )
        self._thread = threading.Thread(target=self._serve, name="pyoco testing", daemon=True)
        self._opened: Future[None] = Future()
        #: Flows that have not ended and do not wait for a time in their record.
        self._active: dict[str, None] = {}
        #: Flows that wait for a time in their record.
        self._due: dict[str, float] = {}
        self._ends = 0
        self._tasks: set[asyncio.Task[Run | None]] = set()
        #: The number of ends at the last pause at which nothing was going on.
        self._rested_at: int | None = None
        self._is_over = False

    # Called by any thread.

    def start(self) -> None:
        """Return once runs are accepted."""
        self._thread.start()
        if (error := self._opened.exception()) is not None:
            self._thread.join()
            raise error

    def stop(self) -> None:
        """Return once everything has ended, but for tasks that do not."""
        self._is_over = True
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the thread of this site. Raises httpx.ConnectError after the end of the block."""
        if self._is_over:
            work.close()
            raise httpx.ConnectError("the testing block has ended")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    # Starting and ending.

    def _serve(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop, self._stopping, self._changed = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        self._turn, self._lanes_gate = asyncio.Lock(), asyncio.Lock()
        try:
            async with self._open():
                self._opened.set_result(None)
                await self._stopping.wait()
        except BaseException as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)
        finally:
            drop_server(self._config.nats_url)

    @contextlib.asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        self.gateway: Gateway = build_app(self._open_backend, self._config.http_api_key_header)
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self.gateway.router.lifespan_context(self.gateway))
            backend: GatewayBackend = self.gateway.state.gateway.backend
            self._backend, self._me = backend, Owner("testing", backend.new_id())
            self._lines: LogSender | None = await stack.enter_async_context(open_log_sender(backend))
            self._executor = wiring.paced_executor(self._config, self._app.resolve, self._lines, self.clock)
            self._lanes: dict[str, FlowLane] = {}
            stack.push_async_callback(self._stop_lanes)
            for flow in self._app.offered():
                if flow.schedule is not None:
                    await create_schedule(backend, Caller(), declared_schedule(self._offer_of(flow), self.clock()))
            yield

    def _offer_of(self, flow: OfferedFlow) -> FlowOffer:
        tag = next(iter(flow.tags), self._config.default_tag)
        return FlowOffer(flow=flow, tag=tag, workers=(self._me.worker_id,), conflict=False)

    @contextlib.asynccontextmanager
    async def _open_backend(self) -> AsyncIterator[GatewayBackend]:
        priced = PricedConfig(priced_enabled=False), AwsSettings()
        async with wiring.open_gateway_backend(self._config, priced, GridConfig()) as backend:
            yield replace(
                backend,
                runs=HeardRuns(backend.runs, self._on_run, self._on_withdrawn),
                queue=HeardQueue(backend.queue, self._serve_tag),
                clock=self.clock,
                chance=self.clock.chance,
                alarms=UnusedAlarms(),
            )

    async def _serve_tag(self, tag: str) -> None:
        """Start a lane for the tag, unless there is one."""
        async with self._lanes_gate:
            if tag not in self._lanes:
                lane = FlowLane(self._backend, self._executor, self._me, [tag], _SLOTS)
                await lane.start()
                self._lanes[tag] = lane

    async def _stop_lanes(self) -> None:
        for run_id in self._active:
            self._executor.ask_cancel(run_id)
        await asyncio.gather(*(lane.stop(_DRAIN_SECONDS) for lane in self._lanes.values()))
        await self._executor.stop()

    # What happens to runs.

    def _on_run(self, run: Run) -> None:
        if not run.is_flow:
            return
        self._due.pop(run.run_id, None)
        self._active.pop(run.run_id, None)
        if run.is_terminal:
            self._ends += 1
        elif run.waits_for_time:
            self._due[run.run_id] = run.due_at or 0.0
        else:
            self._active[run.run_id] = None
            if run.status is RunState.CANCELLING:
                self._end_soon(run)
        self._changed.set()

    def _end_soon(self, run: Run) -> None:
        if run.attempt_id is not None:
            self._executor.ask_cancel(run.run_id)
            return
        # At once: the store stamps records with the time of this machine, which is not that of the block.
        ending = end_cancelled(self._backend, run.run_id, -math.inf)
        task = self._loop.create_task(ending, name="end cancelled run")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_withdrawn(self, run_id: str) -> None:
        self._active.pop(run_id, None)
        self._due.pop(run_id, None)
        self._changed.set()

    # Waiting.

    async def wait(self, run_id: str, seconds: float) -> str:
        """Wait until a run has ended or waits for a time, at most for these real seconds. Returns why it may not have
        ended."""
        try:
            async with asyncio.timeout(None if math.isinf(seconds) else max(0.0, seconds)):
                await self._until(lambda: run_id not in self._active or self._waits_until(run_id) is not None)
        except TimeoutError:
            return f"after {seconds:g} s"
        until = self._due.get(run_id) or self._waits_until(run_id)
        if until is None:
            return "it has changed meanwhile"
        return f"it waits until {datetime.fromtimestamp(until, UTC).isoformat()}, and time passes in advance() only"

    async def pause(self, seconds: float) -> None:
        """Wait until something changes, at most for these real seconds. Raises TimeoutError if nothing can: nothing has
        ended since the last pause, at whose end nothing was going on either."""
        if self._is_at_rest():
            if self._rested_at == self._ends:
                raise TimeoutError("the runs wait, and time passes in advance() only")
            self._rested_at = self._ends
            return
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    async def lines_stored(self) -> None:
        """Wait until the lines of all runs that have ended are stored."""
        await self._executor.lines_passed_on()
        if self._lines is not None:
            await self._lines.stored()

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._changed.wait()

    def _waits_until(self, run_id: str) -> float | None:
        """Return when a run goes on that waits for the next try of a task. None: it is executed, or will be soon."""
        until = self._executor.waits_until(run_id)
        if until is None or until <= self.clock.now():
            return None
        self._executor.free(run_id)
        return until

    def _is_at_rest(self) -> bool:
        # All are looked at, so that each one that waits makes room.
        executing = [run_id for run_id in self._active if self._waits_until(run_id) is None]
        return not executing

    async def _rest(self) -> None:
        """Wait until nothing can happen before time passes."""
        while True:
            await self._until(self._is_at_rest)
            for schedule in self._schedules():
                if schedule.waiting or schedule.starting:  # for the end of a run
                    await handle_schedule(self._backend, schedule.key, fired=False)
            if self._is_at_rest():
                return

    # Time.

    async def advance(self, seconds: float) -> None:
        async with self._turn:
            end = self.clock.now() + seconds
            await self._rest()
            while (due := min(self._times(), default=math.inf)) <= end:
                self.clock.move(due)
                await self._start_due()
                await self._rest()
            self.clock.move(end)

    def _schedules(self) -> list[Schedule]:
        scheduling = self._backend.scheduling
        return [] if scheduling is None else scheduling.schedules.known()

    def _times(self) -> Iterator[float]:
        yield from self._due.values()
        for run_id in self._active:
            until = self._executor.waits_until(run_id)
            if until is not None:
                yield until
        for schedule in self._schedules():
            if schedule.next_at is not None:
                yield schedule.next_at

    async def _start_due(self) -> None:
        now = self.clock.now()
        for _, run_id in sorted((due, run_id) for run_id, due in self._due.items() if due <= now):
            await release_due(self._backend, run_id)
        for schedule in sorted(self._schedules(), key=lambda each: each.key):
            if schedule.next_at is not None and schedule.next_at <= now:
                await handle_schedule(self._backend, schedule.key)
