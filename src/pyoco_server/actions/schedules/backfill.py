"""Run the ticks of a range that have no run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pyoco_server.actions.schedules.handle import check_active, complete_starts
from pyoco_server.actions.schedules.reach import find_schedule, scheduling_of
from pyoco_server.actions.schedules.start_tick import has_run
from pyoco_server.core.rounds import Rounds
from pyoco_server.core.run import Caller
from pyoco_server.core.schedules import progress
from pyoco_server.core.schedules.record import Outcome, Overlap, Schedule, Source
from pyoco_server.errors import Problem, Refused
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.schedules.port import Kept

__all__ = ["TICKS_MAX", "Backfilled", "backfill_schedule"]

#: SCHED-28
TICKS_MAX = 10_000
#: Ticks that are decided by one write.
_BATCH = 100
_AT_ONCE = 64


@dataclass(frozen=True)
class Backfilled:
    """What became of the ticks (SCHED-28)."""

    matched: int
    created: int
    waiting: int
    existing: int
    skipped: int
    refused: int


async def backfill_schedule(
    backend: GatewayBackend, caller: Caller, name: str, begin: float, end: float, overlap: Overlap
) -> Backfilled:
    """Run the ticks in [begin, end), oldest first. A tick that has a run is left alone, so it may be repeated.

    Ticks are decided and recorded in batches, and each decision leads to its run whatever happens: a keeper completes
    what this process has begun. O(ticks): a read for each, and the submission of each run. Raises ScheduleNotFound,
    Refused, Unavailable.
    """
    kept = await find_schedule(backend, caller, name)
    ticks = _ticks(kept.schedule, begin, end, backend.clock())
    room = asyncio.Semaphore(_AT_ONCE)

    async def exists(tick: int) -> bool:
        async with room:
            return await has_run(backend, kept.schedule, tick)

    existing = await asyncio.gather(*(exists(tick) for tick in ticks))
    wanted = [tick for tick, has in zip(ticks, existing, strict=True) if not has]
    counts: Counter[str] = Counter()
    schedule = kept.schedule
    for at in range(0, len(wanted), _BATCH):
        batch = wanted[at : at + _BATCH]
        schedule = await _place(backend, caller, name, batch, overlap, counts)
    waiting = {start.tick for start in schedule.waiting} & set(wanted)
    counts["skipped"] += counts["waiting"] - len(waiting) if overlap is Overlap.CANCEL_OLD else 0
    if overlap is Overlap.CANCEL_OLD:
        counts["waiting"] = len(waiting)
    return Backfilled(
        matched=len(ticks),
        existing=sum(existing),
        **{each: counts[each] for each in ("created", "waiting", "skipped", "refused")},
    )


def _ticks(schedule: Schedule, begin: float, end: float, now: float) -> list[int]:
    if end > now:
        raise _refused("to", "must not be after now")
    ticks = progress.ticks_between(schedule.definition, begin, end, TICKS_MAX + 1)
    if len(ticks) > TICKS_MAX:
        raise _refused("to", f"there are more than {TICKS_MAX} ticks in this range")
    return ticks


def _refused(member: str, message: str) -> Refused:
    return Refused(message, problems=(Problem(("body", member), message, "value"),))


async def _place(
    backend: GatewayBackend, caller: Caller, name: str, ticks: Sequence[int], overlap: Overlap, counts: Counter[str]
) -> Schedule:
    """Decide these ticks, submit what is to be run, and count what became of them."""
    rounds = Rounds(f"the schedule {name}")
    while True:
        rounds.begin()
        kept: Kept | None = await find_schedule(backend, caller, name)
        if kept is not None and kept.schedule.starting:
            kept = await complete_starts(backend, kept)
        if kept is None:
            continue
        now = backend.clock()
        changed = await check_active(backend, kept.schedule, overlap, is_due=True)
        for tick in ticks:
            changed = progress.placed(changed, tick, Source.BACKFILL, overlap, now)
        written = await scheduling_of(backend).schedules.replace(changed, kept)
        if written is not None:
            break
    starting = {start.tick for start in changed.starting} & set(ticks)
    waiting = {start.tick for start in changed.waiting} & set(ticks)
    counts["waiting"] += len(waiting)
    counts["skipped"] += len(ticks) - len(starting) - len(waiting)
    completed = await complete_starts(backend, written) if starting else written
    refused = await _refused_of(backend, completed, changed, starting)
    counts["refused"] += refused
    counts["created"] += len(starting) - refused
    return (completed or written).schedule


async def _refused_of(backend: GatewayBackend, completed: Kept | None, schedule: Schedule, ticks: set[int]) -> int:
    """Return how many of the ticks were refused: by their entries, or else by their runs."""
    if completed is None:
        return sum([not await has_run(backend, schedule, tick) for tick in ticks])
    entries = {each.tick: each.outcome for each in completed.schedule.tail if each.source is Source.BACKFILL}
    return sum(entries.get(tick) is Outcome.REFUSED for tick in ticks)
