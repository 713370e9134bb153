"""The lane of flows: takes as many jobs as it has slots, and passes them to the delivery processor."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

from pyoco_server.actions.put_back import put_back_run
from pyoco_server.core.flow_announcement import NOTHING_ANNOUNCED, Announcement, Announcer
from pyoco_server.core.run import Owner
from pyoco_server.core.worker_description import LaneMembers, LaneReport, LastEnd
from pyoco_server.core.worker_record import FLOWS
from pyoco_server.errors import Unavailable, UsageError
from pyoco_server.executors.port import Executor
from pyoco_server.logs import get_logger
from pyoco_server.logs.outages import Outage
from pyoco_server.loops.delivery_processor import DeliveryProcessor, Worked
from pyoco_server.loops.pulse import Pulse
from pyoco_server.loops.wheel_sync import WheelSync
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.queue.port import Delivery, Intake, Reply

__all__ = ["FlowLane", "flow_members"]

log = get_logger(__name__)

#: While runs are shorter than this, some are claimed ahead, so that no host waits for the network.
_SHORT_SECONDS = 0.02
#: How many runs are claimed ahead. More brings no benefit: they only have to bridge two round trips.
_AHEAD_MAX = 8
#: A job that hit a defect in our code is redelivered after this; it is ended after too many deliveries.
_DEFECT_SECONDS = 10.0
#: An intake of several tags may deliver more than was requested: a job that cannot begin within this time is released.
_AT_HAND_SECONDS = 0.5
#: How often the intake checks its connection, and the lane checks the deliveries that wait in memory.
_TICK_SECONDS = 0.5
#: While wheels are being installed that may contain the resolver, the start is retried this often.
_WAIT_FOR_WHEELS_SECONDS = 0.5
#: How long processes killed at the end of a drain may take to exit.
_KILLED_SECONDS = 10.0


def flow_members(
    now: float, intake: Intake | None, wheels: WheelSync | None, announced: Announcement = NOTHING_ANNOUNCED
) -> LaneMembers:
    """Return the members of the record that only workers of flows set; the result of the last wheel sync (FLOW-243)
    is None for a worker that installs no wheels."""
    report = None if wheels is None else wheels.report
    return {
        "last_pull_at": None if intake is None else now - (time.monotonic() - intake.heard_at),
        "wheel_sync": None if report is None else report.document(),
        "flows": announced.flows,
        "flows_complete": announced.complete,
    }


class FlowLane:
    """Executes up to `slots` flows at once until it is stopped.

    It requests exactly as many jobs as it has room for. While runs are short it claims a few more, so that the next one
    begins the moment a slot frees; as soon as one takes longer, the extra jobs are released for other workers.

    With `wheels` it reads the wheel registry before its first host starts, and then periodically, alongside the runs.
    """

    def __init__(
        self,
        backend: Backend,
        executor: Executor,
        me: Owner,
        tags: Sequence[str],
        slots: int,
        wheels: WheelSync | None = None,
    ) -> None:
        self._backend, self._executor, self._me, self._tags, self._slots = backend, executor, me, tags, slots
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
        self._pulse = Pulse()
        self._processor: DeliveryProcessor | None = None
        self._last_end: LastEnd | None = None
        self._announcer = Announcer()
        self.when_changed: Callable[[], None] = lambda: None

    def report(self) -> LaneReport:
        return LaneReport(
            lane=FLOWS,
            slots=self._slots,
            running=() if self._processor is None else self._processor.running,
            last_end=self._last_end,
            restarts=self._executor.restarts,
            members=flow_members(
                self._backend.clock(), self._intake, self._wheels, self._announcer.of(self._executor.offered)
            ),
        )

    async def start(self) -> None:
        await self._start_hosts()
        self._intake = await self._backend.queue.open_intake(self._tags, self._on_delivery)
        self._processor = DeliveryProcessor(
            self._backend, self._executor, self._me, self._pulse, self._intake, self._notify
        )
        await self._pulse.start()
        self._asker = asyncio.create_task(self._ask(self._intake), name="request flows")
        self._changed.set()
        if self._wheels is not None:
            self._wheels.when_changed = self._notify
            await self._wheels.start()

    def _notify(self) -> None:
        self.when_changed()

    async def _start_hosts(self) -> None:
        """Start the hosts with the installed wheels: a resolver may live in one (FLOW-229). A registry that does not
        respond, or a slow installation, is waited for only a limited time, unless no host starts without it."""
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

    async def stop(self, drain_seconds: float | None) -> None:
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
            await asyncio.wait(set(self._tasks), timeout=drain_seconds)
        if self._tasks:
            await self._put_back()
        await self._pulse.stop()
        await self._executor.stop()

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
            self._last_end = LastEnd(worked.ended, time.monotonic())
        self.when_changed()

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

    async def _put_back(self) -> None:
        """Put back the runs still in progress after the drain: they are stopped here, and start again elsewhere."""
        assert self._processor is not None
        self._processor.is_closing = True
        for live in self._processor.lives:
            if live.attempt is None or live.execution is None:
                continue
            log.warning("run did not finish in time; putting it back", run_id=live.run_id)
            try:
                await put_back_run(self._backend, live.attempt)
            except Unavailable as error:
                log.warning("could not put the run back; it will be redelivered later", error=error)
                live.is_fenced = True
            live.execution.kill()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=_KILLED_SECONDS)
        for live in self._processor.lives:  # however its host ends, that does not end the run
            live.is_fenced = True
