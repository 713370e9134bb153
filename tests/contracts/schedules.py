"""What every store of schedules promises."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from typing import Any, Protocol

from pyoco_server.core.schedules.progress import added, entry_of, settled
from pyoco_server.core.schedules.record import Definition, Outcome, Schedule, Source
from pyoco_server.ports.schedules.port import Kept, Schedules
from support.waiting import eventually

__all__ = ["MakeSchedules", "SchedulesContract", "a_schedule"]

NOW = 1_800_000_000.0


class MakeSchedules(Protocol):
    """The test's one store of schedules, as another process would open it."""

    def __call__(self) -> Schedules: ...


def a_schedule(name: str = "nightly", tenant_id: str | None = None, **more: Any) -> Schedule:
    values: dict[str, Any] = {"what": {"kind": "flow", "flow_name": "f", "params": {"a": None}}, "when": {"every": 60}}
    definition = Definition(name=name, **(values | more))
    return added(Schedule(id=str(uuid.uuid4()), tenant_id=tenant_id, definition=definition), NOW)


async def made(schedules: Schedules, schedule: Schedule) -> Kept:
    kept = await schedules.create(schedule)
    assert kept is not None
    return kept


class SchedulesContract:
    """An adapter passes all of it or does not ship."""

    async def test_a_name_belongs_to_one_schedule_of_a_tenant(self, make_schedules: MakeSchedules) -> None:
        schedules = make_schedules()
        kept = await made(schedules, a_schedule())
        assert await schedules.create(a_schedule()) is None
        await made(schedules, a_schedule(tenant_id="a"))
        assert await make_schedules().find("=nightly") == kept
        assert await schedules.find("=other") is None

    async def test_of_many_changes_over_one_record_one_wins(self, make_schedules: MakeSchedules) -> None:
        schedules = make_schedules()
        kept = await made(schedules, a_schedule())
        changes = [replace(kept.schedule, version=number) for number in range(10)]
        written = await asyncio.gather(*(make_schedules().replace(each, kept) for each in changes))
        (winner,) = [each for each in written if each is not None]
        assert await schedules.find("=nightly") == winner

    async def test_the_history_is_complete_and_bounded(self, make_schedules: MakeSchedules) -> None:
        """SCHED-19"""
        schedules = make_schedules()
        kept = await made(schedules, a_schedule())
        for tick in range(250):
            entry = replace(entry_of(kept.schedule, tick, Source.TICK, Outcome.RUN, NOW + tick), run_id=str(tick))
            other = await schedules.replace(settled(kept.schedule, entry), kept)
            assert other is not None
            kept = other
        tail, spilled = kept.schedule.tail, kept.schedule.spilled
        assert len(tail) + spilled == 250
        chunk = await make_schedules().chunk(kept.schedule.id, spilled // 10 - 1)
        assert chunk is not None
        assert [each.tick for each in (*chunk.entries, *tail)] == list(range(spilled - 10, 250))
        assert await schedules.chunk(kept.schedule.id, 0) is None
        assert await schedules.delete(kept)
        assert await schedules.chunk(kept.schedule.id, spilled // 10 - 1) is None

    async def test_deleting_names_the_record_that_was_read(self, make_schedules: MakeSchedules) -> None:
        schedules = make_schedules()
        old = await made(schedules, a_schedule())
        new = await schedules.replace(replace(old.schedule, version=2), old)
        assert new is not None
        assert not await schedules.delete(old)
        assert await schedules.delete(new)
        assert await schedules.find("=nightly") is None
        again = await made(schedules, a_schedule())
        assert await make_schedules().find("=nightly") == again

    async def test_all_processes_hear_of_every_change(self, make_schedules: MakeSchedules) -> None:
        here, there = make_schedules(), make_schedules()
        heard: list[tuple[str, int]] = []
        there.listen(lambda schedule: heard.append((schedule.key, schedule.version)))
        await there.start()
        try:
            kept = await made(here, a_schedule())
            await eventually(lambda: there.look("=nightly") == kept.schedule)
            other = await here.replace(replace(kept.schedule, version=2), kept)
            assert other is not None
            await eventually(lambda: heard == [("=nightly", 1), ("=nightly", 2)])
            assert there.is_fresh
            await here.delete(other)
            await eventually(lambda: there.known() == [])
        finally:
            await there.stop()
