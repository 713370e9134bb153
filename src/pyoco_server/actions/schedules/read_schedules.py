"""Read schedules and their histories."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from pyoco_server.actions.schedules.reach import find_schedule, scheduling_of
from pyoco_server.core.run import Caller
from pyoco_server.core.schedules import progress
from pyoco_server.core.schedules.history import newest_chunks
from pyoco_server.core.schedules.record import Entry, Outcome, Schedule
from pyoco_server.errors import RecordUnreadable, Unavailable
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.runs.port import Stored

__all__ = ["HistoryPosition", "ScheduleFilter", "TickFilter", "last_entry", "list_schedules", "read_ticks", "statuses"]

#: How long a list waits for the watch to catch up.
_FRESH_SECONDS = 2.0
_CHUNKS_AT_ONCE = 10


@dataclass(frozen=True)
class ScheduleFilter:
    label: str | None = None
    paused: bool | None = None
    kind: str | None = None
    flow: str | None = None

    def fits(self, schedule: Schedule) -> bool:
        definition = schedule.definition
        return (
            (self.label is None or self.label in definition.labels)
            and (self.paused is None or self.paused == definition.paused)
            and (self.kind is None or self.kind == definition.kind)
            and (self.flow is None or self.flow == definition.what.get("flow_name"))
        )


async def list_schedules(
    backend: GatewayBackend, caller: Caller, wanted: ScheduleFilter, limit: int, after: str
) -> tuple[list[Schedule], bool]:
    """Return a page by name, after a name, and whether there is more. From memory. Raises Unavailable."""
    schedules = scheduling_of(backend).schedules
    try:
        async with asyncio.timeout(_FRESH_SECONDS):
            while not schedules.is_fresh:
                if not backend.is_up():
                    raise Unavailable("lists stand still while there is no connection to NATS")
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise Unavailable("what is known of the schedules may be out of date") from None
    own = (each for each in schedules.known() if each.tenant_id == caller.tenant_id)
    found = sorted((each for each in own if each.name > after and wanted.fits(each)), key=lambda each: each.name)
    return found[:limit], len(found) > limit


def last_entry(schedule: Schedule) -> Entry | None:
    """Return the newest entry of the history."""
    waiting = _waiting(schedule)[:1]
    found = [*waiting, *schedule.tail[-1:]]
    return max(found, key=lambda each: each.handled_at, default=None)


def _waiting(schedule: Schedule) -> list[Entry]:
    """Return the entries of waiting ticks, newest first."""
    entries = []
    for start in schedule.waiting:
        entry = progress.entry_of(schedule, start.tick, start.source, Outcome.WAITING, start.at)
        entries.append(Entry(**(vars(entry) | {"handled_at": start.at})))
    return sorted(entries, key=_order, reverse=True)


@dataclass(frozen=True)
class TickFilter:
    outcome: str | None = None
    #: Ticks in [begin, end).
    begin: float | None = None
    end: float | None = None

    def fits(self, entry: Entry) -> bool:
        last = entry.tick if entry.last_tick is None else entry.last_tick
        return (
            (self.outcome is None or entry.outcome == self.outcome)
            and (self.begin is None or last >= self.begin)
            and (self.end is None or entry.tick < self.end)
        )


@dataclass(frozen=True, order=True)
class HistoryPosition:
    """The position of an entry in a history."""

    handled_at: float
    tick: int


def _order(entry: Entry) -> HistoryPosition:
    return HistoryPosition(entry.handled_at, entry.tick)


async def read_ticks(
    backend: GatewayBackend, caller: Caller, name: str, wanted: TickFilter, limit: int, after: HistoryPosition | None
) -> tuple[list[Entry], HistoryPosition | None]:
    """Return a page of the history, newest first, and the position of the next one.

    One read, and one for each ten entries that are looked at. Raises ScheduleNotFound, Unavailable.
    """
    schedule = (await find_schedule(backend, caller, name)).schedule

    def counts(entry: Entry) -> bool:
        return wanted.fits(entry) and (after is None or _order(entry) < after)

    found = [entry for entry in _waiting(schedule) if counts(entry)][: limit + 1]
    number = 0
    async for entry in _newest(backend, schedule):
        if counts(entry):
            found.append(entry)
            number += 1
            if number > limit:
                break
    found.sort(key=_order, reverse=True)
    page = found[:limit]
    return page, _order(page[-1]) if len(found) > limit else None


async def _newest(backend: GatewayBackend, schedule: Schedule) -> AsyncIterator[Entry]:
    keep, schedules = backend.config.schedule_history, scheduling_of(backend).schedules
    left = keep
    for entry in reversed(schedule.tail):
        left -= 1
        yield entry
    numbers = list(newest_chunks(schedule, keep))
    for at in range(0, len(numbers), _CHUNKS_AT_ONCE):
        wanted = numbers[at : at + _CHUNKS_AT_ONCE]
        for chunk in await asyncio.gather(*(schedules.chunk(schedule.id, number) for number in wanted)):
            for entry in reversed(() if chunk is None else chunk.entries):
                if left <= 0:
                    return
                left -= 1
                yield entry


async def statuses(backend: GatewayBackend, entries: list[Entry]) -> dict[str, str]:
    """Return the status of each run by its id; those that are no longer stored are missing. A read for each."""

    async def status(run_id: str) -> tuple[str, str | None]:
        try:
            found = await backend.runs.find(run_id)
        except RecordUnreadable:
            return run_id, None
        return run_id, found.run.status.value if isinstance(found, Stored) else None

    found = await asyncio.gather(*(status(each.run_id) for each in entries if each.run_id is not None))
    return {run_id: text for run_id, text in found if text is not None}
