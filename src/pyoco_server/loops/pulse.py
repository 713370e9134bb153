"""One ticker for all runs of a worker: in-progress acks, heartbeats, cancel requests, and the registry record."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from pyoco_server.actions.attempt import Standing
from pyoco_server.actions.beat import beat_run, report_overdue_cancel
from pyoco_server.actions.claim import FlowAttempt
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.errors import CATALOGUE, PyocoError, Unavailable
from pyoco_server.executors.port import Execution
from pyoco_server.logs import get_logger
from pyoco_server.logs.outages import Outage
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.queue.port import Delivery

__all__ = ["Live", "Pulse"]

log = get_logger(__name__)


@dataclass(eq=False)
class Live:
    """One delivery in flight, and its run once claimed."""

    delivery: Delivery
    #: Monotonic times of the last in-progress ack and the last heartbeat.
    held_at: float
    beaten_at: float
    held: FlowAttempt | None = None
    execution: Execution | None = None
    beating: asyncio.Task[None] | None = None
    cancel_seen_at: float | None = None
    overdue: bool = False
    fenced: bool = False

    def hold(self, held: FlowAttempt, execution: Execution) -> None:
        self.held, self.execution = held, execution
        self.beaten_at = time.monotonic()  # the claim was the first heartbeat


class Pulse(Loop):
    """Keeps all deliveries in flight alive. A turn does not wait for heartbeat writes: each run has its own heartbeat
    task.

    What it cannot do: write heartbeats while this process is suspended or starved of CPU. The heartbeats then become
    stale, the job is redelivered to another worker, and the first write after resuming reports that the run is fenced.
    """

    def __init__(self, backend: Backend, describe: Callable[[], WorkerRecord], ack_wait_seconds: float) -> None:
        config = backend.config
        # FLOW-313: an existing consumer may have a shorter timer than the settings say.
        self._hold_every = min(config.ack_progress_interval_sec, ack_wait_seconds / 2)
        shortest = min(config.run_heartbeat_interval_sec, config.worker_heartbeat_interval_sec, self._hold_every)
        # Four checks per interval: each task is late by at most a quarter of its interval, whatever the ratio of the
        # intervals.
        super().__init__(every_seconds=shortest / 4)
        self._shortest, self._early_seconds = shortest, shortest / 8
        self._backend, self._describe = backend, describe
        #: In order of their begin, so that a simulation is repeatable.
        self._lives: dict[Live, None] = {}
        self._announced_at = 0.0
        self._announcing: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._dirty = True
        # These writes happen outside of the turns, so they have their own outages.
        self._unwritten, self._unannounced = Outage(log), Outage(log)

    def begin(self, delivery: Delivery) -> Live:
        now = time.monotonic()
        live = Live(delivery, held_at=now, beaten_at=now)
        self._lives[live] = None
        return live

    def end(self, live: Live) -> None:
        self._lives.pop(live, None)

    @property
    def lives(self) -> tuple[Live, ...]:
        return tuple(self._lives)

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The runs that are being executed."""
        return tuple(live.held.run.run_id for live in self._lives if live.held and live.execution)

    def touch(self) -> None:
        """Mark the registry record as changed; the next turn writes it."""
        self._dirty = True

    async def turn(self) -> None:
        now = time.monotonic()
        for live in self.lives:
            if self._is_due(live.held_at, self._hold_every, now):
                await self._hold(live, now)
            if self._is_due(live.beaten_at, self._backend.config.run_heartbeat_interval_sec, now):
                self._beat_soon(live, now)
        every = self._shortest if self._dirty else self._backend.config.worker_heartbeat_interval_sec
        if self._is_due(self._announced_at, every, now):
            self._announce_soon()

    def _is_due(self, last: float, every_seconds: float, now: float) -> bool:
        return now - last >= every_seconds - self._early_seconds

    async def _hold(self, live: Live, now: float) -> None:
        if live.fenced:  # our ack would affect the new owner's delivery
            return
        try:
            await live.delivery.hold()
            live.held_at = now
        except Unavailable as error:
            live.held_at = now - self._hold_every + 1.0  # retry in a second, not at every tick
            text = CATALOGUE[9]
            log.error(text.en, run_id=_run_id(live), err_id=text.err_id, msg_id=text.msg_id, cause=error)

    def _beat_soon(self, live: Live, now: float) -> None:
        idle = live.beating is None or live.beating.done()
        if idle and live.execution is not None and not live.fenced:
            live.beaten_at = now
            live.beating = asyncio.create_task(self._beat(live))

    async def _beat(self, live: Live) -> None:
        held, execution = live.held, live.execution
        if held is None or execution is None:
            return
        try:
            standing = await beat_run(self._backend, held, await execution.progress())
            self._unwritten.worked()
            if standing is Standing.FENCED:
                self._fence(live, execution)
            elif standing is Standing.CANCEL_REQUESTED:
                await self._request_cancel(live, held, execution)
        except PyocoError as error:
            self._unwritten.failed("could not write a heartbeat", error, run_id=held.run.run_id)

    def _fence(self, live: Live, execution: Execution) -> None:
        """FLOW-311: stop the work, write nothing more, acknowledge nothing."""
        live.fenced = True
        log.warning("the run has a new owner; stopping its execution", run_id=_run_id(live))
        execution.ask_cancel()
        execution.kill()

    async def _request_cancel(self, live: Live, held: FlowAttempt, execution: Execution) -> None:
        """Request cancellation at every heartbeat (FLOW-180); after the grace period, kill the execution if
        possible."""
        now = time.monotonic()
        grace = self._backend.config.cancel_grace_period_sec
        if live.cancel_seen_at is None:
            live.cancel_seen_at = now
            log.info("stopping a run on request", run_id=held.run.run_id)
        execution.ask_cancel()
        if live.overdue or now - live.cancel_seen_at < grace:
            return
        live.overdue = True  # FLOW-185: once per run
        text = CATALOGUE[21]
        log.warning(text.en, run_id=held.run.run_id, err_id=text.err_id, msg_id=text.msg_id, grace_seconds=grace)
        if not execution.kill():
            await report_overdue_cancel(self._backend, held, grace)

    def _announce_soon(self) -> None:
        """Write outside of the turn: an unwritable registry must not delay acks and heartbeats (FLOW-208)."""
        if self._announcing is None or self._announcing.done():
            self._announcing = asyncio.create_task(self.announce())

    async def announce(self) -> None:
        """Write the registry record. Best effort: a failure never fails a run (FLOW-201)."""
        async with self._writing:
            self._dirty, self._announced_at = False, time.monotonic()
            try:
                await self._backend.registry.announce(self._describe())
                self._unannounced.worked()
            except PyocoError as error:
                self._dirty = True
                self._unannounced.failed("could not write to the worker registry", error)

    async def stop(self) -> None:
        await super().stop()
        self._unwritten.forget()
        self._unannounced.forget()
        under_way = {self._announcing, *(live.beating for live in self._lives)}
        waited = {task for task in under_way if task is not None and not task.done()}
        if waited:
            await asyncio.wait(waited, timeout=5)
        if self._announcing is not None:  # otherwise it would overwrite the record of the orderly stop
            self._announcing.cancel()


def _run_id(live: Live) -> str | None:
    return live.held.run.run_id if live.held is not None else None
