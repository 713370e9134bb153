"""Handle what is due of a schedule: decide, submit, note (SCHED-13, SCHED-16, SCHED-17)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.schedules.reach import scheduling_of
from pyoco_server.actions.schedules.start_tick import Cause, may_succeed_later, start_tick
from pyoco_server.core.rounds import Rounds
from pyoco_server.core.run import Caller
from pyoco_server.core.schedules import progress
from pyoco_server.core.schedules.record import Entry, Outcome, Overlap, Schedule, Start
from pyoco_server.errors import NotOfThisKind, PyocoError, RunNotFound
from pyoco_server.logs import get_logger
from pyoco_server.ports.alarms.port import Alarm, AlarmKind
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.runs.port import Stored
from pyoco_server.ports.schedules.port import Kept

__all__ = ["advance_schedule", "check_active", "complete_starts", "handle_schedule", "refusal"]

log = get_logger(__name__)

_AT_ONCE = 32
#: Runs of a schedule that allows overlaps are checked a few at a time.
_UNCHECKED_MAX, _CHECKED_EACH = 8, 2
#: A catch-up of many ticks takes many rounds; each of them makes progress.
_ROUNDS_MAX = 100_000


async def handle_schedule(
    backend: Backend, key: str, *, fired: bool = True, room: asyncio.Semaphore | None = None
) -> bool:
    """Handle everything that is due, then set the next alarm. Returns whether anything was due.

    `room`: how many schedules may submit at once. Decisions do not wait for it, so that of very many schedules that are
    due in the same second none is missed because of the runs of the others.

    Any keeper may call it at any time and any number of times; `fired`: because of its alarm. Three steps for a tick:
    the decision is recorded, then the run is submitted, then what became of it is recorded. Each is safe to repeat: the
    record changes by compare-and-set, and the id of the run follows from the tick. So a crash between any two of them
    leaves what the next keeper continues. A round trip for each step, and those of the submission. Raises Unavailable,
    Corrupt.
    """
    before, kept = await advance_schedule(backend, key, room)
    if before is None or kept is None:
        return False
    next_at = kept.schedule.next_at
    if next_at is not None and (fired or before.schedule.alarm_at != next_at):
        await backend.alarms.put(Alarm(AlarmKind.SCHEDULE, key, next_at))
    return kept is not before


async def advance_schedule(
    backend: Backend, key: str, room: asyncio.Semaphore | None = None
) -> tuple[Kept | None, Kept | None]:
    """Return the schedule as it was found, and as it is after everything that is due. None: there is none."""
    schedules = scheduling_of(backend).schedules
    rounds = Rounds(f"the schedule {key}", most=_ROUNDS_MAX)
    remembered = schedules.recall(key)
    first = kept = remembered or await schedules.find(key)
    while kept is not None:
        rounds.begin()
        if kept.schedule.starting:
            async with room or contextlib.nullcontext():
                written = await complete_starts(backend, kept)
        else:
            changed = await _decided(backend, kept.schedule)
            if changed != kept.schedule:
                written = await schedules.replace(replace(changed, alarm_at=changed.next_at), kept)
            elif kept is remembered:  # what is stored may have changed a moment ago
                written = None
            else:
                return first, kept
        kept = written or await schedules.find(key)
    return None, None


async def _decided(backend: Backend, schedule: Schedule) -> Schedule:
    now = backend.clock()
    is_due = schedule.next_at is not None and schedule.next_at <= now
    schedule = await check_active(backend, schedule, schedule.definition.overlap if is_due else Overlap.ALLOW, is_due)
    schedule = progress.advance(schedule, now, backend.config.schedule_grace_sec)
    schedule = progress.release_waiting(schedule)
    if any(start.cancels for start in schedule.waiting):
        await _cancel(backend, schedule)
    return schedule


async def check_active(backend: Backend, schedule: Schedule, overlap: Overlap, is_due: bool) -> Schedule:
    """Forget runs that have ended, where that decides something."""
    active = schedule.active
    if schedule.waiting or overlap is not Overlap.ALLOW:
        return progress.ended(schedule, await _ended(backend, active))
    if is_due and len(active) > _UNCHECKED_MAX:
        oldest = active[:_CHECKED_EACH]
        schedule = replace(schedule, active=(*active[_CHECKED_EACH:], *oldest))
        return progress.ended(schedule, await _ended(backend, oldest))
    return schedule


async def _ended(backend: Backend, run_ids: Iterable[str]) -> set[str]:
    room = asyncio.Semaphore(_AT_ONCE)

    async def ended(run_id: str) -> str | None:
        async with room:
            return run_id if await _has_ended(backend, run_id) else None

    found = await asyncio.gather(*(ended(run_id) for run_id in run_ids))
    return {run_id for run_id in found if run_id is not None}


async def _has_ended(backend: Backend, run_id: str) -> bool:
    """The record of a priced run follows its row by moments: the row decides."""
    found = await backend.runs.find(run_id)
    if isinstance(found, Stored) and not found.run.is_pack:
        return found.run.is_terminal
    if backend.priced is None:
        return not isinstance(found, Stored) or found.run.is_terminal
    row = await backend.priced.ledger.read(lambda tx: tx.runs.get(run_id))
    return row is None or row.has_ended


async def _cancel(backend: Backend, schedule: Schedule) -> None:
    """Request the end of the runs before the one that waits. They may have ended, or be priced after an edit."""
    for run_id in schedule.active:
        with contextlib.suppress(RunNotFound, NotOfThisKind):
            await cancel(backend, Caller(), run_id, f"replaced by a later tick of schedule {schedule.name}")


async def complete_starts(backend: Backend, kept: Kept) -> Kept | None:
    """Submit the runs that were decided, and record what became of each. None: the record has changed meanwhile.

    If a store fails, what has succeeded is recorded first. Raises Unavailable, Corrupt.
    """
    schedule = kept.schedule
    room = asyncio.Semaphore(_AT_ONCE)

    async def start(each: Start) -> Entry | PyocoError:
        async with room:
            return await _start(backend, schedule, each)

    results = await asyncio.gather(*(start(each) for each in schedule.starting))
    written = await _note(backend, kept, schedule.starting, results)
    for result in results:
        if isinstance(result, PyocoError):
            raise result
    return written


async def _start(backend: Backend, schedule: Schedule, start: Start) -> Entry | PyocoError:
    """Return what became of the tick, or the error of an outage."""
    cause = Cause.of_tick(schedule, start.tick, start.source)
    entry = progress.entry_of(schedule, start.tick, start.source, Outcome.RUN, backend.clock())
    try:
        return replace(entry, run_id=await start_tick(backend, schedule, cause))
    except PyocoError as error:
        if may_succeed_later(error):
            return error
        log.info("refused a tick", schedule=schedule.name, tick=start.tick, err_id=error.text.err_id)
        return refusal(entry, error)


def refusal(entry: Entry, error: PyocoError) -> Entry:
    text = error.text
    detail = "; ".join(f"{'.'.join(map(str, each.loc))} {each.msg}" for each in error.problems[:5]) or str(error)
    return replace(
        entry,
        outcome=Outcome.REFUSED,
        reason=type(error).__name__,
        err_id=text.err_id,
        message=f"{text.en} {detail}"[:500],
        message_ja=text.ja,
    )


async def _note(
    backend: Backend, kept: Kept, starts: Sequence[Start], results: Sequence[Entry | PyocoError]
) -> Kept | None:
    """Add the entries to the record as it is now. None: the schedule was deleted."""
    schedules = scheduling_of(backend).schedules
    rounds = Rounds(f"the schedule {kept.schedule.key}")
    current: Kept | None = kept
    while current is not None and current.schedule.id == kept.schedule.id:
        rounds.begin()
        changed = current.schedule
        for start, entry in zip(starts, results, strict=True):
            if isinstance(entry, Entry):
                changed = progress.started(changed, start, entry)
        if changed is current.schedule:
            return current
        written = await schedules.replace(changed, current)
        if written is not None:
            return written
        current = await schedules.find(kept.schedule.key)
    return None
