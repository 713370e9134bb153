"""The worker: takes as many jobs as it has slots, and passes them to the delivery processor."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pyoco_server.actions.beat import give_back
from pyoco_server.core.run import Owner
from pyoco_server.core.states import WorkerState
from pyoco_server.core.wheel_sync import SyncReport
from pyoco_server.core.worker_record import WorkerRecord, stopped
from pyoco_server.errors import Unavailable, UsageError
from pyoco_server.executors.port import Executor
from pyoco_server.logs import get_logger
from pyoco_server.logs.outages import Outage
from pyoco_server.loops.delivery_processor import DeliveryProcessor, Worked
from pyoco_server.loops.pulse import Pulse
from pyoco_server.loops.wheel_sync import WheelSync
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.queue.port import Delivery, Intake, Reply

__all__ = ["Lane", "Worker", "WorkerDescription"]

log = get_logger(__name__)

#: While runs are shorter than this, some are claimed ahead, so that no host waits for the network.
_SHORT_SECONDS = 0.02
#: How many runs are claimed ahead. More brings no benefit: they only have to bridge two round trips.
_AHEAD_MAX = 8
#: A job that hit a defect in our code is redelivered after this; it is ended after too many deliveries.
_DEFECT_SECONDS = 10.0
#: An intake of several tags may deliver more than was requested: a job that cannot begin within this time is released.
_AT_HAND_SECONDS = 0.5
#: How often the intake checks its connection, and the worker checks the deliveries that wait in memory.
_TICK_SECONDS = 0.5
#: While wheels are being installed that may contain the resolver, the start is retried this often.
_WAIT_FOR_WHEELS_SECONDS = 0.5
#: How long processes killed at the end of a drain may take to exit.
_KILLED_SECONDS = 10.0


class Lane(Protocol):
    """Another kind of work that runs in this worker and is part of its registry record."""

    #: Called whenever one of the properties below has changed.
    when_changed: Callable[[], None]
    last_status: str | None

    @property
    def running(self) -> tuple[str, ...]: ...

    @property
    def restarts(self) -> int: ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """Fields of the worker's record that only this lane sets."""


class WorkerDescription:
    """Builds the worker's registry record."""

    def __init__(
        self, backend: Backend, me: Owner, tags: Sequence[str], slots: int, versions: Mapping[str, str]
    ) -> None:
        self._backend, self.me, self._tags, self._slots, self._versions = backend, me, tuple(tags), slots, versions
        self.running: tuple[str, ...] = ()
        self.last_status: str | None = None
        self.host_restarts = 0
        #: Fields contributed by the lanes.
        self.facts: Mapping[str, Any] = {}
        self.intake: Intake | None = None
        #: The result of the last wheel sync (FLOW-243); None: this worker installs no wheels.
        self.wheels: SyncReport | None = None

    def describe(self) -> WorkerRecord:
        now = self._backend.clock()
        running = self.running
        facts = {"packs": (), **self.facts}
        return WorkerRecord(
            worker_id=self.me.worker_id,
            instance_id=self.me.instance_id,
            state=WorkerState.RUNNING if running else WorkerState.IDLE,
            tags=self._tags,
            last_seen_at=now,
            last_heartbeat_at=now,
            current_run_id=running[0] if running else None,
            last_run_status=self.last_status,
            slots=self._slots,
            running=running,
            host_restarts=self.host_restarts,
            last_pull_at=None if self.intake is None else now - (time.monotonic() - self.intake.heard_at),
            versions=self._versions,
            wheel_sync=None if self.wheels is None else self.wheels.document(),
            **facts,
        )


class Worker:
    """Runs up to `slots` jobs at once until it is stopped.

    It requests exactly as many jobs as it has room for. While runs are short it claims a few more, so that the next one
    begins the moment a slot frees; as soon as one takes longer, the extra jobs are released for other workers.

    With `wheels` it reads the wheel registry before its first host starts, and then periodically, alongside the runs.
    """

    def __init__(
        self,
        backend: Backend,
        executor: Executor,
        description: WorkerDescription,
        tags: Sequence[str],
        slots: int,
        wheels: WheelSync | None = None,
    ) -> None:
        self._backend, self._executor, self._description, self._tags, self._slots = (
            backend,
            executor,
            description,
            tags,
            slots,
        )
        self._wheels = wheels
        self._at_hand: deque[tuple[Delivery, float]] = deque()
        self._busy = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._usual_seconds = 1.0
        self._outage = Outage(log)
        self._changed = asyncio.Event()
        self._ticker: asyncio.TimerHandle | None = None
        self._stopping = False
        self._asker: asyncio.Task[None] | None = None
        self._intake: Intake | None = None
        self._pulse: Pulse | None = None
        self._processor: DeliveryProcessor | None = None
        self._lanes: list[Lane] = []

    def add_lane(self, lane: Lane) -> None:
        """Include the lane's runs and facts in the registry record."""
        self._lanes.append(lane)
        lane.when_changed = lambda: self._on_lane(lane)
        self._on_lane(lane)

    def _on_lane(self, lane: Lane) -> None:
        if lane.last_status is not None:
            self._description.last_status = lane.last_status
        if self._pulse is not None:
            self._pulse.touch()

    async def start(self) -> None:
        """Return once the worker takes jobs. Raises UsageError or Unavailable if it cannot start."""
        await self._start_hosts()
        self._intake = await self._backend.queue.open_intake(self._tags, self._on_delivery)
        self._description.intake = self._intake
        self._pulse = Pulse(self._backend, self._describe, self._intake.ack_wait_seconds)
        self._processor = DeliveryProcessor(
            self._backend, self._executor, self._description.me, self._pulse, self._intake.max_deliver
        )
        await self._backend.registry.announce(self._describe())
        await self._pulse.start()
        self._asker = asyncio.create_task(self._ask(self._intake), name="worker asks")
        self._changed.set()
        if self._wheels is not None:
            self._wheels.when_changed = self._pulse.touch
            await self._wheels.start()

    async def _start_hosts(self) -> None:
        """Start the hosts with the installed wheels: a resolver may live in one (FLOW-229). A registry that does not
        respond, or a slow installation, is waited for only a limited time, unless no host starts without it. The worker
        is registered after that: a record promises that jobs are taken.
        """
        if self._wheels is None:
            return await self._executor.start()
        await self._wheels.first_sync()
        while True:
            is_all = not self._wheels.is_installing
            try:
                return await self._executor.start()
            except UsageError as error:
                if is_all:
                    raise
                log.warning("no host starts yet; wheels are being installed", cause=error)
            while self._wheels.is_installing:
                await asyncio.sleep(_WAIT_FOR_WHEELS_SECONDS)
                await self._wheels.sync()

    async def stop(self, reason: str, drain_seconds: float) -> None:
        """Take no more jobs, let running ones finish, record the stop. After `drain_seconds` (0: no limit) runs still
        in progress are released to the queue. Cancelling this call leaves everything to redelivery."""
        self._stopping = True
        self._changed.set()
        if self._wheels is not None:
            await self._wheels.stop()
        if self._asker is not None:
            await self._asker
        if self._ticker is not None:
            self._ticker.cancel()
        if self._intake is not None:
            await self._intake.close()
        await self._return_at_hand()
        if self._tasks:
            log.info("draining: waiting for running jobs", running=len(self._tasks))
            await asyncio.wait(set(self._tasks), timeout=drain_seconds or None)
        if self._tasks:
            await self._hand_back()
        if self._pulse is not None:
            await self._pulse.stop()
        await self._executor.stop()
        try:
            await self._backend.registry.retire(stopped(self._describe(), reason, self._backend.clock()))
        except Unavailable as error:
            log.warning("could not record the orderly stop", error=error)

    def _describe(self) -> WorkerRecord:
        self._description.host_restarts = self._executor.restarts + sum(lane.restarts for lane in self._lanes)
        self._description.running = self._pulse.run_ids if self._pulse is not None else ()
        for lane in self._lanes:
            self._description.running += lane.running
            self._description.facts = {**self._description.facts, **lane.facts}
        self._description.wheels = self._wheels.report if self._wheels is not None else None
        return self._description.describe()

    def _on_delivery(self, delivery: Delivery) -> None:
        self._at_hand.append((delivery, time.monotonic()))
        self._fill()

    @property
    def _room(self) -> int:
        return self._slots + (_AHEAD_MAX if self._usual_seconds < _SHORT_SECONDS else 0)

    def _fill(self) -> None:
        while self._at_hand and self._busy < self._room and not self._stopping:
            delivery, _ = self._at_hand.popleft()
            self._busy += 1
            task = asyncio.create_task(self._work(delivery))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._changed.set()

    async def _work(self, delivery: Delivery) -> None:
        assert self._processor is not None
        began = time.monotonic()

        def freed() -> None:
            self._busy -= 1
            seconds = time.monotonic() - began
            # One long run is enough to stop claiming ahead; it takes several short ones to resume.
            weight = 0.1 if seconds < self._usual_seconds else 1.0
            self._usual_seconds += (seconds - self._usual_seconds) * weight
            self._fill()

        try:
            worked = await self._processor.work(delivery, freed)
        except Exception:  # top level for one delivery: a defect in our code must not end the worker
            log.exception("processing a delivery failed; it will be redelivered")
            await delivery.answer(Reply.LATER, _DEFECT_SECONDS)
            worked = Worked(None)
        if worked.ended is not None:
            self._description.last_status = worked.ended
        if self._pulse is not None:
            self._pulse.touch()

    async def _ask(self, intake: Intake) -> None:
        """Request as many jobs as there is room for, whenever that number changes."""
        while not self._stopping:
            try:
                await self._ask_once(intake)
                self._outage.worked()
            except Exception as error:  # noqa: BLE001 - top level: a worker that stops requesting would be alive but idle
                self._outage.crashed("requesting jobs failed; retrying", error, loop=type(self).__name__)
                await asyncio.sleep(1)

    async def _ask_once(self, intake: Intake) -> None:
        await self._changed.wait()
        self._changed.clear()
        if self._ticker is None:
            # One timer for all waits instead of one per wait: every run causes two of them.
            self._ticker = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)
            await intake.tick()
        await self._return_what_waits()
        # Without a host every job would be taken and released until it reached max deliveries.
        room = self._room if self._executor.is_able else 0
        await intake.want(max(0, room - self._busy - len(self._at_hand)))

    def _tick(self) -> None:
        self._ticker = None
        self._changed.set()

    async def _return_what_waits(self) -> None:
        now = time.monotonic()
        while self._at_hand and now - self._at_hand[0][1] > _AT_HAND_SECONDS:
            delivery, _ = self._at_hand.popleft()
            await delivery.answer(Reply.LATER)

    async def _return_at_hand(self) -> None:
        while self._at_hand:
            delivery, _ = self._at_hand.popleft()
            await delivery.answer(Reply.LATER)

    async def _hand_back(self) -> None:
        """Release the runs still in progress after the drain: they are stopped here and restarted by another worker."""
        assert self._pulse is not None
        assert self._processor is not None
        self._processor.is_closing = True
        for live in self._pulse.lives:
            if live.held is None or live.execution is None:
                continue
            log.warning("run did not finish in time; releasing it", run_id=live.held.run.run_id)
            try:
                await give_back(self._backend, live.held)
            except Unavailable as error:
                log.warning("could not release the run; it will be redelivered later", error=error)
                live.fenced = True
            live.execution.kill()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=_KILLED_SECONDS)
        for live in self._pulse.lives:  # however its host ends, that does not end the run
            live.fenced = True
