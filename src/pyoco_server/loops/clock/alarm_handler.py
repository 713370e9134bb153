"""Takes due alarms, and starts the runs they are for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

from pyoco_server.errors import Corrupt, PyocoError, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.alarms.port import AlarmKind, Alarms, DueAlarm, DueAlarms

__all__ = ["AlarmHandler", "Handle"]

log = get_logger(__name__)

_TICK_SECONDS = 1.0
#: Alarms that one keeper has at once. How many of a kind it works on is for their handlers to say.
_AT_ONCE = 1024
#: A shorter wait is waited for here, because NATS redelivers only after tens of milliseconds.
_HELD_SECONDS = 2.0
#: The handling failed: another try follows.
_AGAIN_SECONDS = 2.0
#: An operator may repair an unreadable record.
_CORRUPT_SECONDS = 60.0

#: Handles the alarm of one run or schedule, by its id. Returns for how many seconds it has to be put off.
Handle = Callable[[str], Awaitable[float]]


class AlarmHandler(Loop):
    """Shares the due alarms with all other keepers, and handles many concurrently.

    What it cannot do: handle an alarm that was never set, or was lost with its stream: sweeps find those.
    """

    def __init__(self, alarms: Alarms, handlers: Mapping[AlarmKind, Handle], clock: Callable[[], float]) -> None:
        super().__init__(every_seconds=_TICK_SECONDS)
        self._alarms, self._handlers, self._clock = alarms, handlers, clock
        self._due: DueAlarms | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def turn(self) -> None:
        if self._due is None:
            self._due = await self._alarms.open_due(self._take)
            await self._want()
        await self._due.tick()

    async def _want(self) -> None:
        if self._due is not None and not self._stopping.is_set():
            await self._due.want(max(0, _AT_ONCE - len(self._tasks)))

    def _take(self, alarm: DueAlarm) -> None:
        task = asyncio.create_task(self._deal_with(alarm), name="alarm")
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:  # otherwise the last ones together would leave no request behind
            self.nudge()

    async def _deal_with(self, alarm: DueAlarm) -> None:
        handle = next((found for kind, found in self._handlers.items() if kind == alarm.kind), None)
        if handle is None:  # written by a newer version, whose keepers handle it
            await alarm.put_off(_CORRUPT_SECONDS)
        else:
            await self._answer(alarm, handle)
        await self._want()

    async def _answer(self, alarm: DueAlarm, handle: Handle) -> None:
        try:
            if 0 < (early := alarm.due_at - self._clock()) <= _HELD_SECONDS:
                await asyncio.sleep(early)
            seconds = await handle(alarm.id)
            while 0 < seconds <= _HELD_SECONDS and not self._stopping.is_set():
                await asyncio.sleep(seconds)
                seconds = await handle(alarm.id)
        except PyocoError as error:
            self.outage.failed("could not handle an alarm; retrying", error, kind=alarm.kind, id=alarm.id)
            seconds = _CORRUPT_SECONDS if isinstance(error, Corrupt) else _AGAIN_SECONDS
        with contextlib.suppress(Unavailable):
            await (alarm.put_off(seconds) if seconds > 0 else alarm.settle())

    async def stop(self) -> None:
        await super().stop()
        due, self._due = self._due, None
        if due is not None:
            await due.want(0)
            await due.close()
        if self._tasks:
            await asyncio.wait(self._tasks)
