"""When schedules tick: cron expressions, intervals, listed instants, and clock changes (SCHED-10 to SCHED-12)."""

from __future__ import annotations

import time
from calendar import isleap
from datetime import UTC, date, datetime
from itertools import islice

import pytest

from pyoco_server.core.schedules.cron import Cron, CronError, parse_cron
from pyoco_server.core.schedules.when import At, Every, Tick, When, last_tick, local_text, next_tick, ticks
from pyoco_server.core.schedules.zones import zone_of

#: Zone, a cron expression that ticks once on that day, the instant, and the kind of the clock change.
CLOCK_CHANGES = [
    ("America/New_York", "30 2 14 3 *", 1805009400, "gap"),
    ("America/New_York", "30 1 1 11 *", 1793511000, "fold"),
    ("Europe/Berlin", "30 2 28 3 *", 1806197400, "gap"),
    ("Europe/Berlin", "30 2 25 10 *", 1792888200, "fold"),
    ("Australia/Lord_Howe", "15 2 4 10 *", 1791042300, "gap"),
    ("Australia/Lord_Howe", "45 1 4 4 *", 1806763500, "fold"),
]


@pytest.mark.parametrize(("zone", "cron", "instant", "dst"), CLOCK_CHANGES)
def test_each_wall_time_near_a_clock_change_ticks_once(zone: str, cron: str, instant: int, dst: str) -> None:
    """SCHED-12"""
    found = list(ticks(parse_cron(cron), zone_of(zone), instant - 86_400, instant + 86_400))
    assert [(tick.at, tick.dst) for tick in found] == [(instant, dst)]
    assert last_tick(parse_cron(cron), zone_of(zone), 0, instant) == found[0]


def test_equal_instants_are_one_tick_and_none_is_skipped() -> None:
    """SCHED-12: 02:30 and 03:30 are the same instant in that night."""
    found = list(ticks(parse_cron("30 2,3 * * *"), zone_of("Europe/Berlin"), 1806197400 - 7200, 1806197400 + 7200))
    assert [tick.at for tick in found] == [1806197400]
    every_minute = [t.at for t in ticks(parse_cron("* * * * *"), UTC, 1806193800, 1806201000)]
    assert every_minute == list(range(1806193860, 1806201000, 60))


def _first(cron: str, count: int = 3) -> list[str]:
    after = datetime(2026, 11, 19, 10, 0, tzinfo=UTC).timestamp()
    found = islice(ticks(parse_cron(cron), UTC, after), count)
    return [datetime.fromtimestamp(tick.at, UTC).strftime("%a %m-%d %H:%M:%S") for tick in found]


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("0 6 * * *", ["Fri 11-20 06:00:00", "Sat 11-21 06:00:00", "Sun 11-22 06:00:00"]),
        ("*/20 * * * * *", ["Thu 11-19 10:00:20", "Thu 11-19 10:00:40", "Thu 11-19 10:01:00"]),
        ("0 0 * * FRI-SUN", ["Fri 11-20 00:00:00", "Sat 11-21 00:00:00", "Sun 11-22 00:00:00"]),
        ("0 0 1 * mon", ["Mon 11-23 00:00:00", "Mon 11-30 00:00:00", "Tue 12-01 00:00:00"]),
        ("0 0 */10 * mon", ["Mon 12-21 00:00:00", "Mon 01-11 00:00:00", "Mon 02-01 00:00:00"]),
        ("@hourly", ["Thu 11-19 11:00:00", "Thu 11-19 12:00:00", "Thu 11-19 13:00:00"]),
        ("0 0 31 12 *", ["Thu 12-31 00:00:00", "Fri 12-31 00:00:00", "Sun 12-31 00:00:00"]),
        ("0 0 1 2,9 *", ["Mon 02-01 00:00:00", "Wed 09-01 00:00:00", "Tue 02-01 00:00:00"]),
        ("5-15/5 9 * Nov-dec 7", ["Sun 11-22 09:05:00", "Sun 11-22 09:10:00", "Sun 11-22 09:15:00"]),
    ],
)
def test_expressions_tick_when_they_match(cron: str, expected: list[str]) -> None:
    """SCHED-10"""
    assert _first(cron) == expected


@pytest.mark.parametrize(
    ("cron", "field", "position"),
    [
        ("0 6 * *", None, 0),
        ("61 * * * *", "minute", 0),
        ("0 25 * * *", "hour", 2),
        ("0 6 * * MON-FRY", "day-of-week", 12),
        ("0 6 30-20 * *", "day-of-month", 4),
        ("*/0 * * * *", "minute", 2),
        ("5/10 * * * *", "minute", 0),
        ("0 0 L * *", "day-of-month", 4),
        ("0 0 * * 1#2", "day-of-week", 8),
        ("0 0 ? * *", "day-of-month", 4),
        ("0 1,,2 * * *", "hour", 4),
        ("@often", None, 0),
    ],
)
def test_a_bad_expression_names_field_and_position(cron: str, field: str | None, position: int) -> None:
    """SCHED-10, SCHED-31"""
    with pytest.raises(CronError) as refused:
        parse_cron(cron)
    assert (refused.value.field, refused.value.position) == (field, position)
    assert refused.value.message_ja


def test_an_expression_that_never_matches_has_no_tick() -> None:
    """SCHED-10"""
    assert next_tick(parse_cron("0 0 31 2 *"), UTC, 1_800_000_000) is None


@pytest.mark.parametrize(
    ("when", "after", "expected"),
    [
        (Every(900), 1000, [1800, 2700]),
        (Every(900, offset=100), 1000, [1900, 2800]),
        (Every(900, offset=0, anchor=50), 950, [1850, 2750]),
        (At((10, 20, 30)), 10, [20, 30]),
    ],
)
def test_intervals_count_from_their_anchor_and_lists_are_what_they_are(
    when: When, after: int, expected: list[int]
) -> None:
    """SCHED-11"""
    assert [tick.at for tick in islice(ticks(when, UTC, after), 2)] == expected


def test_the_last_tick_of_a_busy_season_is_found_without_looking_at_each() -> None:
    """SCHED-15, SCHED-16: two million ticks before ten months without any. Reading them all would take half a minute"""
    season = parse_cron("* * * 1-28 1 *")
    november = datetime(2026, 11, 19, tzinfo=UTC).timestamp()
    expected = datetime(2026, 1, 28, 23, 59, 59, tzinfo=UTC).timestamp()
    started = time.process_time()
    assert last_tick(season, UTC, 0, november) == Tick(int(expected))
    assert time.process_time() - started < 1.0
    assert last_tick(season, UTC, expected, november) is None


def test_days_of_other_months_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """SCHED-29: a preview of a thousand leap days looks at some days of each February, not at a million days"""
    looked: list[date] = []
    matches = Cron.matches_date

    def counted(cron: Cron, day: date) -> bool:
        looked.append(day)
        return matches(cron, day)

    monkeypatch.setattr(Cron, "matches_date", counted)
    found = list(islice(ticks(parse_cron("0 0 29 2 *"), UTC, 1_800_000_000), 1000))
    years = [datetime.fromtimestamp(tick.at, UTC).year for tick in found]
    assert years == [year for year in range(2028, 9999) if isleap(year)][:1000]
    assert len(looked) < 500_000


@pytest.mark.parametrize("when", [parse_cron("* * * * *"), Every(366 * 86_400), At((253_402_300_799,))])
@pytest.mark.parametrize("zone", ["UTC", "Etc/GMT-14", "America/New_York", "Asia/Tokyo"])
def test_there_are_no_ticks_beyond_the_year_9999(when: When, zone: str) -> None:
    """SCHED-5, SCHED-29: local times have four digits of years"""
    for after in (253_402_300_799 - days * 86_400 for days in range(5)):
        for tick in islice(ticks(when, zone_of(zone), after), 1000):
            assert local_text(tick.at, zone_of(zone)).startswith("9999-")
