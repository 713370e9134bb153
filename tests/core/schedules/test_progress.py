"""What becomes of ticks: missed ones, overlaps, pauses and changes (SCHED-16 to SCHED-20)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.core.schedules.history import CHUNK, full_chunks, newest_chunks, slot_of, without_chunks
from pyoco_server.core.schedules.ids import jitter_of, schedule_key, tick_id, trigger_id
from pyoco_server.core.schedules.progress import (
    added,
    advance,
    edited,
    ended,
    entry_of,
    is_overdue,
    next_ticks,
    paused,
    placed,
    previous_tick,
    release_waiting,
    resumed,
    started,
)
from pyoco_server.core.schedules.record import (
    CatchUp,
    Definition,
    Outcome,
    Overlap,
    Schedule,
    Source,
    etag_of,
)

ID = "3c1f9a52-8f0e-4b7e-9a55-0d6b3f1c2e11"
NOW = 1_800_000_030.0
MINUTE = 1_800_000_060


def a_schedule(now: float = NOW, **more: Any) -> Schedule:
    values: dict[str, Any] = {"name": "nightly", "what": {"kind": "flow", "flow_name": "f"}, "when": {"every": 60}}
    return added(Schedule(id=ID, definition=Definition(**(values | more))), now)


def happened(schedule: Schedule) -> list[tuple[int, str, str | None]]:
    return [(each.tick, each.outcome.value, each.reason) for each in schedule.tail]


def starts(schedule: Schedule) -> list[tuple[int, str]]:
    return [(each.tick, each.source.value) for each in schedule.starting]


def test_ids_follow_from_schedule_and_tick() -> None:
    """SCHED-13, SCHED-27"""
    assert tick_id(ID, 1796101200) == "2973531a-935c-5176-9963-23fc83c37ea1"
    assert trigger_id(ID, "deploy-42") == "44083dea-b5f5-5507-8637-d674999eaf95"
    assert schedule_key("a", "b") != schedule_key(None, "b")
    delays = {jitter_of(ID, tick, 10.0) for tick in range(100)}
    assert len(delays) > 90
    assert all(0 <= each <= 10 for each in delays)


def test_a_tick_is_run_at_its_time_and_not_twice() -> None:
    schedule = a_schedule()
    assert schedule.next_at == MINUTE
    assert advance(schedule, MINUTE - 0.001, 5) is schedule
    after = advance(schedule, MINUTE + 0.001, 5)
    assert starts(after) == [(MINUTE, "tick")]
    assert advance(after, MINUTE + 0.002, 5) is after
    assert after.next_at == MINUTE + 60


@pytest.mark.parametrize(
    ("policy", "window", "run"),
    [
        (CatchUp.NONE, 86_400.0, []),
        (CatchUp.LAST, 86_400.0, [MINUTE + 540]),
        (CatchUp.ALL, 86_400.0, [MINUTE + 60 * n for n in range(10)]),
        (CatchUp.ALL, 130.0, [MINUTE + 480, MINUTE + 540]),
        (CatchUp.LAST, 10.0, []),
    ],
)
def test_missed_ticks_follow_the_policy(policy: CatchUp, window: float, run: list[int]) -> None:
    """SCHED-16"""
    schedule = a_schedule(catch_up=policy, window=window, overlap=Overlap.ALLOW)
    after = advance(schedule, MINUTE + 590, 5)
    assert starts(after) == [(tick, "catch_up") for tick in run]
    skipped = [tick for tick, outcome, reason in happened(after) if (outcome, reason) == ("skipped", "missed")]
    assert sorted([*skipped, *run]) == [MINUTE + 60 * n for n in range(10)]


def test_a_tick_on_time_is_run_besides_the_newest_missed_one() -> None:
    """SCHED-16: exactly the grace is not late."""
    after = advance(a_schedule(overlap=Overlap.ALLOW), MINUTE + 125, 5)
    assert starts(after) == [(MINUTE + 60, "catch_up"), (MINUTE + 120, "tick")]
    assert happened(after) == [(MINUTE, "skipped", "missed")]


@pytest.mark.parametrize("when", [{"every": 60}, {"cron": "* * * * *"}])
def test_many_missed_ticks_are_one_entry_however_many_steps_it_takes(when: dict[str, Any]) -> None:
    """SCHED-19"""
    schedule, now = a_schedule(when=when, catch_up=CatchUp.NONE), MINUTE + 60 * 4999.5
    while True:
        after = advance(schedule, now, 5)
        if after is schedule:
            break
        schedule = after
    (entry,) = schedule.tail
    assert (entry.tick, entry.count, entry.last_tick) == (MINUTE, 5000, MINUTE + 60 * 4999)
    exact = advance(a_schedule(when=when, catch_up=CatchUp.NONE), MINUTE + 60 * 99.5, 5)
    assert len(exact.tail) == 100


def test_overlap_policies() -> None:
    """SCHED-17"""
    busy = replace(a_schedule(), active=("r1",))
    at = [MINUTE, MINUTE + 60, MINUTE + 120]

    def all_placed(policy: Overlap) -> Schedule:
        schedule = busy
        for tick in at:
            schedule = placed(schedule, tick, Source.TICK, policy, NOW)
        return schedule

    assert happened(all_placed(Overlap.SKIP)) == [(tick, "skipped", "overlap") for tick in at]
    one = all_placed(Overlap.QUEUE_ONE)
    assert [each.tick for each in one.waiting] == at[:1]
    assert happened(one) == [(tick, "skipped", "overlap") for tick in at[1:]]
    assert [each.tick for each in all_placed(Overlap.QUEUE_ALL).waiting] == at
    newest = all_placed(Overlap.CANCEL_OLD)
    assert [(each.tick, each.cancels) for each in newest.waiting] == [(at[2], True)]
    assert happened(newest) == [(tick, "skipped", "overlap") for tick in at[:2]]
    assert [tick for tick, _ in starts(all_placed(Overlap.ALLOW))] == at


def test_a_full_line_of_waiting_ticks_skips_further_ones() -> None:
    """SCHED-17"""
    schedule = replace(a_schedule(), active=("r1",))
    for tick in range(1001):
        schedule = placed(schedule, tick, Source.TICK, Overlap.QUEUE_ALL, NOW)
    assert len(schedule.waiting) == 1000
    assert happened(schedule) == [(1000, "skipped", "queue_full")]


def test_waiting_ticks_start_one_after_another() -> None:
    schedule = replace(a_schedule(), active=("r1",))
    for tick in (1, 2):
        schedule = placed(schedule, tick, Source.TICK, Overlap.QUEUE_ALL, NOW)
    assert release_waiting(schedule) is schedule
    schedule = release_waiting(ended(schedule, {"r1"}))
    assert starts(schedule) == [(1, "tick")]
    entry = replace(entry_of(schedule, 1, Source.TICK, Outcome.RUN, NOW), run_id="r2")
    schedule = release_waiting(started(schedule, schedule.starting[0], entry))
    assert (schedule.starting, schedule.active, len(schedule.waiting)) == ((), ("r2",), 1)


def test_what_two_keepers_note_of_one_start_is_one_entry() -> None:
    schedule = advance(a_schedule(), MINUTE, 5)
    (start,) = schedule.starting
    refused = entry_of(schedule, MINUTE, Source.TICK, Outcome.REFUSED, NOW)
    run = replace(entry_of(schedule, MINUTE, Source.TICK, Outcome.RUN, NOW), run_id="r1")
    noted = started(schedule, start, run)
    assert started(noted, start, run) is noted
    assert started(noted, start, refused) is noted
    late = started(started(schedule, start, refused), start, run)
    assert [each.outcome for each in late.tail] == [Outcome.REFUSED, Outcome.RUN]
    assert late.active == ("r1",)


def test_a_paused_schedule_has_no_ticks_and_does_not_catch_up() -> None:
    """SCHED-18, SCHED-26"""
    schedule = paused(a_schedule(), "maintenance", NOW)
    assert (schedule.next_at, next_ticks(schedule, 5, NOW)) == (None, [])
    assert paused(schedule, "again", NOW + 1) is schedule
    assert advance(schedule, NOW + 3600, 5) is schedule
    assert not is_overdue(schedule, NOW + 3600)
    back = resumed(schedule, NOW + 3600)
    assert back.next_at == MINUTE + 3600
    assert advance(back, NOW + 3600, 5) is back
    assert resumed(back, NOW + 3601) is back


def test_a_change_of_times_acts_from_now_and_keeps_what_waits() -> None:
    """SCHED-18, SCHED-31"""
    schedule = replace(placed(replace(a_schedule(), active=("r",)), MINUTE, Source.TICK, Overlap.QUEUE_ALL, NOW))
    assert edited(schedule, schedule.definition, None, NOW + 600) is schedule
    changed = edited(schedule, replace(schedule.definition, when={"every": 3600}), None, NOW + 600)
    assert changed.next_at == 1_800_003_600
    assert changed.waiting == schedule.waiting
    assert etag_of(changed) != etag_of(schedule)
    assert etag_of(advance(schedule, MINUTE, 5)) == etag_of(schedule)
    other = edited(schedule, replace(schedule.definition, jitter=5.0), None, NOW + 600)
    assert other.next_at == MINUTE  # a tick that is due already is not lost


def test_ticks_lie_between_start_and_end() -> None:
    """SCHED-5: start included, end excluded."""
    schedule = a_schedule(start_at=float(MINUTE + 600), end_at=float(MINUTE + 720))
    assert next_ticks(schedule, 5, NOW) == [MINUTE + 600, MINUTE + 660]
    over = advance(schedule, MINUTE + 720, 3600)
    assert over.next_at is None
    assert previous_tick(schedule.definition, MINUTE + 600) is None
    assert previous_tick(schedule.definition, MINUTE + 660) == MINUTE + 600


def test_a_tick_that_is_not_handled_for_a_minute_is_overdue() -> None:
    """SCHED-20"""
    schedule = a_schedule()
    assert not is_overdue(schedule, MINUTE + 60.0)
    assert is_overdue(schedule, MINUTE + 60.1)


def test_the_history_moves_to_chunks_without_losing_an_entry() -> None:
    """SCHED-19"""
    schedule, stored = a_schedule(), {}
    for tick in range(137):
        read = schedule
        entry = entry_of(read, tick, Source.TICK, Outcome.RUN, NOW + tick)
        changed = replace(read, tail=(*read.tail, entry))
        for chunk in full_chunks(read, 50):
            stored[slot_of(chunk.number, 50)] = chunk
        tail, spilled = without_chunks(read, changed.tail)
        schedule = replace(changed, tail=tail, spilled=spilled)
        assert len(schedule.tail) <= 2 * CHUNK
    kept = [each.tick for each in reversed(schedule.tail)]
    for number in newest_chunks(schedule, 50):
        chunk = stored[slot_of(number, 50)]
        assert chunk.number == number
        kept += [each.tick for each in reversed(chunk.entries)]
    assert kept == list(range(136, 136 - len(kept), -1))
    assert len(kept) >= 50
