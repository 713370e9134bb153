"""How a schedule moves on: which ticks are run, skipped or wait (SCHED-16 to SCHED-19). Pure functions over records."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Final

from pyoco_server.core.schedules.ids import jitter_of
from pyoco_server.core.schedules.record import (
    ACTIVE_MAX,
    CatchUp,
    Definition,
    Entry,
    Outcome,
    Overlap,
    Schedule,
    Source,
    Start,
    compiled,
)
from pyoco_server.core.schedules.when import Every, Tick, last_tick, next_tick, ticks
from pyoco_server.core.schedules.zones import zone_of

__all__ = [
    "OVERDUE_SECONDS",
    "WAITING_MAX",
    "added",
    "advance",
    "edited",
    "ended",
    "entry_of",
    "is_overdue",
    "next_ticks",
    "paused",
    "placed",
    "preview",
    "previous_tick",
    "release_waiting",
    "resumed",
    "settled",
    "started",
    "ticks_between",
    "upcoming",
]

#: SCHED-17
WAITING_MAX: Final = 1000
#: SCHED-20
OVERDUE_SECONDS: Final = 60.0
#: A longer series of missed ticks is one entry.
_MISSED_EACH: Final = 100
#: Handled in one step, so that a step takes milliseconds: ticks, and runs to be started.
_TICKS_MAX: Final = 1000
_STARTS_MAX: Final = 100
_LOOK_BACK_SECONDS: Final = 8 * 366 * 86_400

OVERLAP, QUEUE_FULL, MISSED = "overlap", "queue_full", "missed"


# Times


def _floor(definition: Definition, cursor: int) -> int:
    """Return the instant after which ticks count (SCHED-5)."""
    return cursor if definition.start_at is None else max(cursor, math.ceil(definition.start_at) - 1)


def upcoming(definition: Definition, cursor: float) -> int | None:
    """Return the first tick after an instant."""
    after = _floor(definition, math.floor(cursor))
    tick = next_tick(compiled(definition), zone_of(definition.timezone), after, definition.end_at)
    return None if tick is None else tick.at


def next_ticks(schedule: Schedule, count: int, now: float) -> list[int]:
    """Return the next ticks; none while it is paused."""
    if schedule.is_paused or schedule.next_at is None:
        return []
    definition = schedule.definition
    after = _floor(definition, max(schedule.cursor, math.floor(now)))
    when, zone = compiled(definition), zone_of(definition.timezone)
    return [tick.at for tick in islice(ticks(when, zone, after, definition.end_at), count)]


def ticks_between(definition: Definition, begin: float, end: float, most: int) -> list[int]:
    """Return the ticks in [begin, end), at most so many."""
    after = _floor(definition, math.ceil(begin) - 1)
    until = end if definition.end_at is None else min(end, definition.end_at)
    when, zone = compiled(definition), zone_of(definition.timezone)
    return [tick.at for tick in islice(ticks(when, zone, after, until), most)]


def preview(definition: Definition, begin: float, count: int) -> list[Tick]:
    """Return the ticks from an instant on, whether it is paused or not (SCHED-29)."""
    after = _floor(definition, math.ceil(begin) - 1)
    when, zone = compiled(definition), zone_of(definition.timezone)
    return list(islice(ticks(when, zone, after, definition.end_at), count))


def previous_tick(definition: Definition, tick: float) -> int | None:
    """Return the tick before an instant; None if there is none since `start_at`, or for eight years (SCHED-15)."""
    when, zone = compiled(definition), zone_of(definition.timezone)
    until = math.ceil(tick) - 1
    since = _floor(definition, until - _LOOK_BACK_SECONDS)
    if isinstance(when, Every):
        at = when.anchor + when.offset + (until - when.anchor - when.offset) // when.seconds * when.seconds
        return at if at > since else None
    found = last_tick(when, zone, since, until)
    return None if found is None else found.at


def is_overdue(schedule: Schedule, now: float) -> bool:
    """SCHED-20"""
    if schedule.is_paused or schedule.next_at is None:
        return False
    return now - schedule.next_at > OVERDUE_SECONDS


# Changes by people


def added(schedule: Schedule, now: float) -> Schedule:
    """Return a new record: ticks before its creation are never missed (SCHED-16)."""
    cursor = math.ceil(now) - 1
    next_at = None if schedule.is_paused else upcoming(schedule.definition, cursor)
    return replace(schedule, cursor=cursor, next_at=next_at, created_at=now, updated_at=now)


_TIMES: Final = ("when", "timezone", "start_at", "end_at")


def edited(schedule: Schedule, definition: Definition, api_key_id: str | None, now: float) -> Schedule:
    """Replace the definition. A change of its times acts from now on (SCHED-18). Unchanged: the same record."""
    if definition == schedule.definition and api_key_id == schedule.api_key_id:
        return schedule
    old = schedule.definition
    is_moved = any(getattr(old, name) != getattr(definition, name) for name in _TIMES)
    cursor = schedule.cursor
    if is_moved or (old.paused and not definition.paused):
        cursor = max(cursor, math.floor(now))
    return replace(
        schedule,
        definition=definition,
        api_key_id=api_key_id,
        version=schedule.version + 1,
        updated_at=now,
        cursor=cursor,
        next_at=None if definition.paused else upcoming(definition, cursor),
    )


def paused(schedule: Schedule, reason: str | None, now: float) -> Schedule:
    """SCHED-26: repeating changes nothing. Whose rights its runs have stays as it is."""
    if schedule.is_paused:
        return schedule
    definition = replace(schedule.definition, paused=True, pause_reason=reason)
    return edited(schedule, definition, schedule.api_key_id, now)


def resumed(schedule: Schedule, now: float) -> Schedule:
    """It does not catch up (SCHED-18). Repeating changes nothing."""
    if not schedule.is_paused:
        return schedule
    definition = replace(schedule.definition, paused=False, pause_reason=None)
    return edited(schedule, definition, schedule.api_key_id, now)


# Ticks


def entry_of(schedule: Schedule, tick: int, source: Source, outcome: Outcome, now: float) -> Entry:
    return Entry(
        tick=tick,
        due_at=tick + jitter_of(schedule.id, tick, schedule.definition.jitter),
        handled_at=_not_before_last(schedule, now),
        source=source,
        outcome=outcome,
    )


def _not_before_last(schedule: Schedule, now: float) -> float:
    """Keep the history sorted, whatever the clocks of its writers say."""
    return max(now, schedule.tail[-1].handled_at) if schedule.tail else now


def _with(schedule: Schedule, *entries: Entry) -> Schedule:
    return replace(schedule, tail=(*schedule.tail, *entries))


def _skipped(schedule: Schedule, tick: int, source: Source, reason: str, now: float) -> Schedule:
    entry = entry_of(schedule, tick, source, Outcome.SKIPPED, now)
    return _with(schedule, replace(entry, reason=reason))


def placed(schedule: Schedule, tick: int, source: Source, overlap: Overlap, now: float) -> Schedule:
    """Apply the overlap policy to one tick (SCHED-17). A tick that is decided already stays as it is."""
    if any(start.tick == tick for start in (*schedule.starting, *schedule.waiting)):
        return schedule
    start = Start(tick, source, now, overlap is Overlap.CANCEL_OLD)
    is_busy = bool(schedule.active or schedule.starting or schedule.waiting)
    if overlap is Overlap.ALLOW or not is_busy:
        return replace(schedule, starting=(*schedule.starting, start))
    if overlap is Overlap.CANCEL_OLD:
        for replaced in schedule.waiting:
            schedule = _skipped(schedule, replaced.tick, replaced.source, OVERLAP, now)
        return replace(schedule, waiting=(start,))
    if overlap is Overlap.SKIP or (overlap is Overlap.QUEUE_ONE and schedule.waiting):
        return _skipped(schedule, tick, source, OVERLAP, now)
    if len(schedule.waiting) >= WAITING_MAX:
        return _skipped(schedule, tick, source, QUEUE_FULL, now)
    return replace(schedule, waiting=(*schedule.waiting, start))


def advance(schedule: Schedule, now: float, grace: float) -> Schedule:
    """Handle due ticks (SCHED-16): all of them, or as many as fit into one step. Call it until nothing changes."""
    if schedule.is_paused or schedule.next_at is None or schedule.next_at > now:
        return schedule
    definition = schedule.definition
    when, zone = compiled(definition), zone_of(definition.timezone)
    after, late = _floor(definition, schedule.cursor), math.ceil(now - grace) - 1
    runs_late = _late_runs(definition, after, late, now)
    missed = _Missed(schedule.cursor)
    if isinstance(when, Every) and definition.catch_up is not CatchUp.ALL:
        after = missed.jump(when, after, late, definition)
    for tick in islice(ticks(when, zone, after, definition.end_at), _TICKS_MAX):
        if tick.at > now or len(schedule.starting) >= _STARTS_MAX:
            break
        if tick.at > late:
            schedule = missed.noted(schedule, now)
            schedule = placed(schedule, tick.at, Source.TICK, definition.overlap, now)
        elif runs_late(tick.at):
            schedule = missed.noted(schedule, now)
            schedule = placed(schedule, tick.at, Source.CATCH_UP, definition.overlap, now)
        else:
            missed.add(tick.at)
        after = tick.at
    schedule = missed.noted(schedule, now)
    cursor = max(schedule.cursor, after)
    return replace(schedule, cursor=cursor, next_at=upcoming(definition, cursor))


def _late_runs(definition: Definition, after: int, late: int, now: float) -> Callable[[int], bool]:
    """Return which of the missed ticks are run (SCHED-16). Missed are those up to `late`."""
    oldest = now - definition.window
    match definition.catch_up:
        case CatchUp.NONE:
            return lambda _: False
        case CatchUp.ALL:
            return lambda tick: tick >= oldest
        case CatchUp.LAST:
            since = max(after, math.ceil(oldest) - 1)
            if since >= late:
                return lambda _: False
            newest = cache(lambda: previous_tick(definition, late + 1))  # a search, which ticks in time do not need
            return lambda tick: tick > since and tick == newest()


class _Missed:
    """A series of missed ticks that are not run."""

    def __init__(self, cursor: int) -> None:
        self._each: list[int] = []
        self._count = 0
        self._cursor = cursor

    def add(self, tick: int) -> None:
        self._count += 1
        if self._count <= _MISSED_EACH:
            self._each.append(tick)
        else:
            self._each[1:] = [tick]

    def jump(self, when: Every, after: int, late: int, definition: Definition) -> int:
        """Count the missed ticks of an interval without looking at each, but for the newest. Return it."""
        until = late if definition.end_at is None else min(late, math.ceil(definition.end_at) - 1)
        base = when.anchor + when.offset
        first = base + ((after - base) // when.seconds + 1) * when.seconds
        last = base + (until - base) // when.seconds * when.seconds - when.seconds
        count = (last - first) // when.seconds + 1
        if count <= _MISSED_EACH:
            return after
        self._each, self._count = [first, last], count
        return last

    def noted(self, schedule: Schedule, now: float) -> Schedule:
        """Write the series to the history, and begin another one."""
        if not self._count:
            return schedule
        each, count = self._each, self._count
        self._each, self._count = [], 0
        entries = schedule.tail
        if entries and entries[-1].last_tick == self._cursor and entries[-1].reason == MISSED:  # the step before
            longer = replace(entries[-1], count=(entries[-1].count or 1) + count, last_tick=each[-1])
            return replace(schedule, tail=(*entries[:-1], longer))
        if count <= _MISSED_EACH:
            for tick in each:
                schedule = _skipped(schedule, tick, Source.TICK, MISSED, now)
            return schedule
        schedule = _skipped(schedule, each[0], Source.TICK, MISSED, now)
        longer = replace(schedule.tail[-1], count=count, last_tick=each[-1])
        return replace(schedule, tail=(*schedule.tail[:-1], longer))


def release_waiting(schedule: Schedule) -> Schedule:
    """Start the first waiting tick if no run is before it."""
    if not schedule.waiting or schedule.active or schedule.starting:
        return schedule
    return replace(schedule, waiting=schedule.waiting[1:], starting=(schedule.waiting[0],))


def ended(schedule: Schedule, run_ids: Collection[str]) -> Schedule:
    """Forget runs that have ended."""
    if not run_ids:
        return schedule
    return replace(schedule, active=tuple(each for each in schedule.active if each not in run_ids))


def started(schedule: Schedule, start: Start, entry: Entry) -> Schedule:
    """Note what became of a decided tick. A tick that another keeper has noted stays as it is, unless that one was
    refused and this one has a run."""
    if start not in schedule.starting:
        known = [each for each in schedule.tail if each.tick == start.tick and each.source == start.source]
        if entry.outcome is not Outcome.RUN or not known or known[-1].outcome is Outcome.RUN:
            return schedule
    starting = tuple(each for each in schedule.starting if each != start)
    schedule = replace(schedule, starting=starting)
    if entry.run_id is not None and entry.run_id not in schedule.active:
        schedule = replace(schedule, active=(*schedule.active, entry.run_id)[-ACTIVE_MAX:])
    return _with(schedule, replace(entry, handled_at=_not_before_last(schedule, entry.handled_at)))


def settled(schedule: Schedule, entry: Entry) -> Schedule:
    """Add an entry that needs no start, such as that of a trigger, once."""
    if any(each.run_id == entry.run_id and each.tick == entry.tick for each in schedule.tail):
        return schedule
    return _with(schedule, replace(entry, handled_at=_not_before_last(schedule, entry.handled_at)))
