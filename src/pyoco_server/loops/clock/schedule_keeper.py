"""Handles schedules whose alarm was lost or is not set yet, and starts ticks that wait for runs."""

from __future__ import annotations

import asyncio
import time

from pyoco_server.actions.schedules.handle import handle_schedule
from pyoco_server.core.schedules.ids import schedule_key
from pyoco_server.core.schedules.record import Schedule
from pyoco_server.errors import PyocoError
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.runs.port import Changes, Stored
from pyoco_server.ports.scheduling import Scheduling

__all__ = ["ScheduleKeeper"]

_EVERY_SECONDS = 1.0
#: An alarm that is handled normally is much faster than this. Below the grace, after which a tick is missed.
_LATE_SECONDS = 3.0
#: A decision whose keeper has crashed is completed after this time, and waiting ticks are looked at as often.
_LEFT_SECONDS = 5.0
#: Schedules whose ticks are decided concurrently, and those whose runs are submitted concurrently.
_AT_ONCE, _SUBMITS_AT_ONCE = 256, 64
#: An alarm whose schedule is being handled is looked at again after this time.
_BUSY_SECONDS = 0.05
#: Alarms that are early again and again are looked at so often.
_EARLY_SECONDS = 1.0


class ScheduleKeeper(Loop):
    """Hears every change of a schedule and every end of a run.

    - A schedule that a gateway has written needs an alarm: it sets one.
    - Ticks wait until a run has ended: it starts the next one then.
    - Nothing happens with a schedule whose tick is due: it handles the tick without its alarm.

    All of that is known in memory: a turn makes no request unless there is something to do. Any number of keepers may
    do this. What it cannot do: handle anything while NATS is unavailable; afterwards `catch_up` decides.
    """

    def __init__(self, backend: Backend, scheduling: Scheduling, *, every_seconds: float = _EVERY_SECONDS) -> None:
        super().__init__(every_seconds=every_seconds)
        self._backend, self._schedules = backend, scheduling.schedules
        self._wanted: set[str] = set()
        #: The instants for which this keeper has set an alarm, by key.
        self._alarms: dict[str, int | None] = {}
        #: When an alarm last came although nothing was due, by key.
        self._early: dict[str, float] = {}
        #: When this keeper last looked at schedules with waiting or unfinished ticks.
        self._looked_at = 0.0
        self._room, self._submits = asyncio.Semaphore(_AT_ONCE), asyncio.Semaphore(_SUBMITS_AT_ONCE)
        #: The schedules that this process is handling: a second try at the same time would only lose.
        self._busy: set[str] = set()

    async def handle_alarm(self, key: str) -> float:
        """Return for how many seconds the alarm has to be put off; 0: it is handled. Raises Unavailable, Corrupt."""
        if key in self._busy:
            return _BUSY_SECONDS
        if (seconds := self._early_by(key)) > 0:
            return min(seconds, _EARLY_SECONDS)
        self._busy.add(key)
        try:
            if await handle_schedule(self._backend, key, room=self._submits):
                self._early.pop(key, None)
            else:
                self._early[key] = time.monotonic()
            return 0.0
        finally:
            self._busy.discard(key)
            if key in self._wanted:
                self.nudge()

    def _early_by(self, key: str) -> float:
        """Return by how many seconds the alarm is early, if the last one was so a moment ago.

        While the clock of NATS is ahead of the one here, which is corrected twice a minute, each alarm that is set is
        due at once.
        """
        schedule = self._schedules.look(key)
        if schedule is None or schedule.next_at is None:
            return 0.0
        is_again = time.monotonic() - self._early.get(key, -_EARLY_SECONDS) < _EARLY_SECONDS
        return schedule.next_at - self._backend.clock() if is_again else 0.0

    def hear_schedule(self, schedule: Schedule) -> None:
        needs_alarm = schedule.next_at is not None and schedule.alarm_at != schedule.next_at
        if schedule.waiting or (needs_alarm and self._alarms.get(schedule.key) != schedule.next_at):
            self._want(schedule.key)

    def hear_runs(self, changes: Changes) -> None:
        for item in changes.items:
            if isinstance(item, Stored) and item.run.schedule is not None and item.run.is_terminal:
                key = schedule_key(item.run.tenant_id, str(item.run.schedule.get("name")))
                schedule = self._schedules.look(key)
                if schedule is not None and schedule.waiting:
                    self._want(key)

    def _want(self, key: str) -> None:
        self._wanted.add(key)
        self.nudge()

    async def start(self) -> None:
        for schedule in self._schedules.known():
            self.hear_schedule(schedule)
        await super().start()

    async def turn(self) -> None:
        self._sweep()
        wanted, self._wanted = self._wanted, set()
        await asyncio.gather(*(self._handle(key) for key in wanted))

    def _sweep(self) -> None:
        """Find what is late, in memory."""
        now = self._backend.clock()
        looks = not 0 <= now - self._looked_at < _LEFT_SECONDS
        if looks:
            self._looked_at = now
        known = self._schedules.known()
        for schedule in known:
            is_late = schedule.next_at is not None and now - schedule.next_at > _LATE_SECONDS
            is_left = any(abs(now - start.at) > _LEFT_SECONDS for start in schedule.starting)  # clocks may jump back
            if is_late or (looks and (is_left or schedule.waiting)):
                self._wanted.add(schedule.key)
        if len(self._alarms) > 2 * len(known) + _AT_ONCE:  # most of them are of deleted schedules
            self._alarms.clear()
            self._early.clear()

    async def _handle(self, key: str) -> None:
        async with self._room:
            if key in self._busy:
                self._wanted.add(key)  # it may have passed what this is about
                return
            self._busy.add(key)
            try:
                await handle_schedule(self._backend, key, fired=False, room=self._submits)
            except PyocoError as error:  # one bad schedule must not stop the others
                self.outage.failed("could not handle a schedule; retrying", error, schedule=key)
                return
            finally:
                self._busy.discard(key)
        schedule = self._schedules.look(key)
        if schedule is not None:
            self._alarms[key] = schedule.next_at
