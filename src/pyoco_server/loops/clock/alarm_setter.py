"""Sets the alarms of delayed runs, from their records."""

from __future__ import annotations

import asyncio

from pyoco_server.core.holds import Holds
from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.alarms.port import Alarm, AlarmKind
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.index.port import DelayedRun, Index
from pyoco_server.ports.runs.port import Changes, Stored

__all__ = ["AlarmSetter"]

log = get_logger(__name__)

_EVERY_SECONDS = 5.0
_TURN_SECONDS_MAX = 300.0
_AT_ONCE = 256
_PAGE = 5_000
_FOR_EVER = 1e12


class AlarmSetter(Loop):
    """Receives every change of a run, and sets an alarm for each run that waits for its time.

    So a process that records a delayed run, such as a gateway, a door or a worker, needs no access to the clock.

    At its start, and after the stream of alarms was created anew or restored, it compares the alarms with the records,
    and sets those that are missing. Any number of keepers may do this: a second alarm replaces the first.

    What it cannot do: set an alarm while NATS is unavailable. Runs whose time comes meanwhile are found by the
    `DelaySweeper`.
    """

    def __init__(
        self, backend: Backend, index: Index, feeder: IndexFeeder, *, every_seconds: float = _EVERY_SECONDS
    ) -> None:
        super().__init__(every_seconds=every_seconds, turn_seconds_max=_TURN_SECONDS_MAX)
        self._backend, self._index, self._feeder, self._alarms = backend, index, feeder, backend.alarms
        #: The due times of runs whose alarms are to be set.
        self._wanted: dict[str, float] = {}
        #: When the stream of alarms was created that has been compared with the records.
        self._compared: float | None = None

    def hear(self, changes: Changes) -> None:
        for item in changes.items:
            if isinstance(item, Stored) and item.run.waits_for_time and item.run.due_at is not None:
                self._wanted[item.run.run_id] = item.run.due_at
        if self._wanted:
            self.nudge()

    async def turn(self) -> None:
        await self._set_wanted()
        if await self._feeder.caught_up(0):
            await self._compare()

    async def _set_wanted(self) -> None:
        while self._wanted:
            batch = [self._wanted.popitem() for _ in range(min(_AT_ONCE, len(self._wanted)))]
            try:
                async with asyncio.TaskGroup() as tasks:
                    for run_id, due_at in batch:
                        tasks.create_task(self._alarms.put(Alarm(AlarmKind.RUN, run_id, due_at)))
            except* Unavailable as failed:
                self._wanted = dict(batch) | self._wanted
                raise Unavailable("cannot set the alarms of delayed runs") from failed

    async def _compare(self) -> None:
        begun_at = await self._backend.resources.begun_at(Holds.ALARMS)
        if begun_at is None or begun_at == self._compared:
            return
        known = await self._alarms.known(AlarmKind.RUN)
        last: DelayedRun | None = None
        number = 0
        while True:
            page = await self._index.delayed(last, _FOR_EVER, _PAGE)
            missing = {each.run_id: each.due_at for each in page if each.run_id not in known}
            number += len(missing)
            self._wanted |= missing
            await self._set_wanted()
            if len(page) < _PAGE:
                break
            last = page[-1]
        self._compared = begun_at
        if number:
            log.warning("set the missing alarms of delayed runs", runs=number)
