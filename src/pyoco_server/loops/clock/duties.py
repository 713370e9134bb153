"""The loops that a keeper runs for delayed runs and schedules."""

from __future__ import annotations

import asyncio

from pyoco_server.actions.release_run import release_due
from pyoco_server.loops.clock.alarm_handler import AlarmHandler, Handle
from pyoco_server.loops.clock.alarm_setter import AlarmSetter
from pyoco_server.loops.clock.app_schedules import AppSchedules
from pyoco_server.loops.clock.delay_sweeper import DelaySweeper
from pyoco_server.loops.clock.schedule_keeper import ScheduleKeeper
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.alarms.port import AlarmKind
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.index.port import Index

__all__ = ["clock_duties"]

#: Delayed runs that one keeper starts concurrently: more at once would only make all of them wait for the last.
_RUNS_AT_ONCE = 128


def clock_duties(backend: Backend, index: Index, feeder: IndexFeeder) -> list[Loop]:
    """Return the loops, not started. The feeder must not be started yet: it tells them of every change of a run."""
    setter = AlarmSetter(backend, index, feeder)
    feeder.listen(setter.hear)
    room = asyncio.Semaphore(_RUNS_AT_ONCE)

    async def start_run(run_id: str) -> float:
        async with room:
            return await release_due(backend, run_id)

    handlers: dict[AlarmKind, Handle] = {AlarmKind.RUN: start_run}
    duties: list[Loop] = [
        setter,
        AlarmHandler(backend.alarms, handlers, backend.clock),
        DelaySweeper(backend, index, feeder),
    ]
    if backend.scheduling is not None:
        keeper = ScheduleKeeper(backend, backend.scheduling)
        handlers[AlarmKind.SCHEDULE] = keeper.handle_alarm
        feeder.listen(keeper.hear_runs)
        backend.scheduling.schedules.listen(keeper.hear_schedule)
        duties += [keeper, AppSchedules(backend)]
    return duties
