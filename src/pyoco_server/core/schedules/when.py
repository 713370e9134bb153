"""When a schedule ticks (SCHED-10 to SCHED-13): instants in whole unix seconds, from wall times or an interval.

A wall time that occurs twice ticks once, at the first. One that a clock change skips ticks at the instant that the
offset before the change gives. So near a change the instants of wall times are not in their order.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from pyoco_server.core.schedules.cron import Cron, walls

__all__ = ["At", "Every", "Tick", "When", "instant_of_wall", "last_tick", "local_text", "next_tick", "ticks"]

_DAY_SECONDS: Final = 86_400
#: A zone may have skipped a complete day (Apia in 2011).
_CHANGE_SECONDS: Final = _DAY_SECONDS + 3_600
#: Two days before the end of the year 9999. Later ticks do not exist: some zone could not name them.
_END: Final = 253_402_128_000
_SPANS: Final = (60, 3_600, _DAY_SECONDS, 32 * _DAY_SECONDS, 366 * _DAY_SECONDS, 8 * 366 * _DAY_SECONDS)


@dataclass(frozen=True)
class Every:
    """An interval in whole seconds. It counts elapsed time, and knows no zone."""

    seconds: int
    offset: int = 0
    anchor: int = 0


@dataclass(frozen=True)
class At:
    """Listed instants, sorted, without duplicates."""

    instants: tuple[int, ...]


When = Cron | Every | At


@dataclass(frozen=True)
class Tick:
    at: int
    #: `gap`: its wall time does not exist. `fold`: it occurs twice.
    dst: str | None = None


def instant_of_wall(wall: datetime, zone: tzinfo) -> int:
    """Return the instant of a wall time: the first one, or that of the offset before the change (RFC 5545)."""
    return math.floor(wall.replace(tzinfo=zone, fold=0).timestamp())


def _wall_of(instant: float, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(instant, zone).replace(tzinfo=None)


def _dst_of(wall: datetime, instant: int, zone: tzinfo) -> str | None:
    if _wall_of(instant, zone) != wall:
        return "gap"
    aware = wall.replace(tzinfo=zone)
    return "fold" if aware.utcoffset() != aware.replace(fold=1).utcoffset() else None


def next_tick(when: When, zone: tzinfo, after: float, end: float | None = None) -> Tick | None:
    """Return the first tick after an instant, and before `end`. None: there is none."""
    if after >= _END:
        return None
    match when:
        case Every():
            base = when.anchor + when.offset
            tick = Tick(base + (math.floor(after - base) // when.seconds + 1) * when.seconds)
        case At():
            index = bisect_right(when.instants, after)
            if index == len(when.instants):
                return None
            tick = Tick(when.instants[index])
        case Cron():
            found = _next_of_cron(when, zone, after)
            if found is None:
                return None
            tick = found
    return tick if tick.at < (_END if end is None else min(end, _END)) else None


def _next_of_cron(cron: Cron, zone: tzinfo, after: float) -> Tick | None:
    """Return the earliest instant after `after` among the wall times that may have it.

    After a clock was put forward, the wall times that it has skipped have later instants: the scan begins that much
    earlier. It continues until no wall time can have an earlier instant than the best one.
    """
    begin = _wall_of(math.floor(after), zone) - timedelta(seconds=_skipped(zone, after))
    best: Tick | None = None
    limit: datetime | None = None
    for wall in walls(cron, begin):
        if limit is not None and wall > limit:
            break
        instant = instant_of_wall(wall, zone)
        if instant <= after or (best is not None and instant > best.at):
            continue
        dst = _dst_of(wall, instant, zone)
        if best is None or instant < best.at or dst is None:  # a wall time that exists explains the instant better
            best, limit = Tick(instant, dst), _wall_of(instant, zone)
    return best


def _skipped(zone: tzinfo, instant: float) -> int:
    """Return by how many seconds the clock was put forward within the last day."""
    now, before = (datetime.fromtimestamp(at, zone).utcoffset() for at in (instant, instant - _CHANGE_SECONDS))
    return max(0, int(((now or timedelta()) - (before or timedelta())).total_seconds()))


def ticks(when: When, zone: tzinfo, after: float, end: float | None = None) -> Iterator[Tick]:
    """Yield the ticks after an instant, and before `end`."""
    tick = next_tick(when, zone, after, end)
    while tick is not None:
        yield tick
        tick = next_tick(when, zone, tick.at, end)


def last_tick(when: When, zone: tzinfo, since: float, until: float) -> Tick | None:
    """Return the last tick with since < tick <= until. Looks back in growing steps, and halves the one that hits: some
    ticks may be followed by months without any, and a season may have millions of them."""
    for span in _SPANS:
        begin = max(since, until - span)
        found = next_tick(when, zone, begin, math.floor(until) + 1)
        if found is not None:
            return _newest(when, zone, found, math.floor(until))
        if begin == since:
            return None
    return None


def _newest(when: When, zone: tzinfo, found: Tick, until: int) -> Tick:
    """Return the last tick up to `until`, where `found` is one of those."""
    while found.at < until:
        middle = (found.at + until) // 2
        later = next_tick(when, zone, middle, until + 1)
        if later is None:
            until = middle
        else:
            found = later
    return found


def local_text(instant: float, zone: tzinfo) -> str:
    """Return the instant as RFC 3339 text in the zone."""
    moment = datetime.fromtimestamp(instant, zone)
    text = moment.isoformat(timespec="seconds")
    return text if zone is not UTC else text.replace("+00:00", "Z")
