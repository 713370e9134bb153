"""The memory of the last hour: steps, percentiles, and a clock that does what it likes."""

from __future__ import annotations

import math
import sys
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.ring import Ring
from pyoco_server.core.states import RunState
from pyoco_server.core.trend import COUNTED, MEASURED, STEPS_MAX, Drain, FlowEnds, Sketch, Trend

NOW = 1_700_000_000.0
ENDS = (RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED)


def told(trend: Trend, now: float, after: float | None = None) -> dict[float, dict[str, Any]]:
    """Every point by its instant, without what is zero or null."""
    points = trend.points(now, after)
    lengths = {len(column) for column in points.columns.values()}
    assert points.columns.keys() == {*COUNTED, *MEASURED}
    assert len(lengths) == 1
    return {
        points.begin + 10 * at: {name: column[at] for name, column in points.columns.items() if column[at]}
        for at in range(lengths.pop())
    }


class TestSteps:
    def test_what_happens_is_told_once_its_step_is_over(self) -> None:
        trend = Trend()
        trend.submitted(NOW)
        trend.submitted(NOW + 9.9)
        trend.ended(NOW + 5, RunState.COMPLETED, 0.0, 0.0)
        trend.sample(NOW + 1, 7, 8, {})
        trend.sample(NOW + 6, 3, 4, {})
        assert told(trend, NOW + 9.99) == {}
        assert trend.points(NOW + 9.99).begin == NOW
        assert told(trend, NOW + 10) == {NOW: {"submitted": 2, "completed": 1, "in_flight": 3, "waiting": 4}}

    def test_every_end_is_counted_under_its_name(self) -> None:
        trend = Trend()
        for times, status in enumerate(ENDS, 1):
            for _ in range(times):
                trend.ended(NOW, status)
        assert told(trend, NOW + 10) == {NOW: {"completed": 1, "failed": 2, "cancelled": 3}}

    def test_a_run_that_never_began_has_no_times(self) -> None:
        trend = Trend()
        trend.ended(NOW, RunState.CANCELLED)
        (column,) = {tuple(trend.points(NOW + 10).columns[name]) for name in MEASURED}
        assert column == (None,)

    def test_only_the_last_hour_is_remembered(self) -> None:
        trend = Trend()
        for number in range(500):
            trend.submitted(NOW + 10 * number)
        points = trend.points(NOW + 5000)
        assert points.begin == NOW + 5000 - 3600
        assert points.columns["submitted"] == [1] * STEPS_MAX

    @pytest.mark.parametrize("slept", [30, 3590, 3600, 36_000, 10**9])
    def test_a_sleep_leaves_empty_steps(self, slept: int) -> None:
        """A laptop was closed: what nobody counted is zero, and what nobody measured is null."""
        trend = Trend()
        trend.submitted(NOW)
        trend.submitted(NOW + slept)
        points = trend.points(NOW + slept + 10)
        assert len(points.columns["submitted"]) == min(STEPS_MAX, slept // 10 + 1)
        assert points.columns["submitted"][1:] == [0] * (len(points.columns["submitted"]) - 2) + [1]
        assert set(points.columns["waiting"]) == {None}
        assert points.columns["submitted"][0] == (slept < 3600)

    def test_a_clock_that_is_set_back_far_takes_the_steps_with_it(self) -> None:
        trend = Trend()
        for at in (NOW - 600, NOW - 300, NOW):
            trend.submitted(at)
        trend.submitted(NOW - 300)
        assert told(trend, NOW - 290) == {
            NOW - 600 + 10 * number: {"submitted": 1 + (number == 30)} if number in (0, 30) else {}
            for number in range(31)
        }
        assert told(trend, NOW + 10)[NOW] == {}, "what was ahead of the clock is not told again when it comes there"

    @pytest.mark.parametrize(("seconds", "is_waited_for"), [(1, True), (60, True), (70, False), (300, False)])
    def test_a_setback_of_a_minute_is_waited_for_and_no_more(self, seconds: float, is_waited_for: bool) -> None:
        trend = Trend()
        trend.submitted(NOW)
        trend.submitted(NOW - seconds)
        assert told(trend, NOW + 10)[NOW] == ({"submitted": 2} if is_waited_for else {})

    def test_a_clock_from_before_everything_begins_anew(self) -> None:
        trend = Trend()
        trend.submitted(NOW)
        trend.submitted(5.0)
        assert told(trend, 10.0) == {0.0: {"submitted": 1}}

    @pytest.mark.parametrize(
        ("after", "first"),
        [(None, 0), (0, 0), (NOW - 1, 0), (NOW, 1), (NOW + 9, 1), (NOW + 10, 2), (NOW + 99, 10), (NOW + 1e300, 10)],
    )
    def test_after_brings_only_later_points(self, after: float | None, first: int) -> None:
        trend = Trend()
        trend.submitted(NOW)
        assert list(told(trend, NOW + 100, after)) == [NOW + 10 * number for number in range(first, 10)]
        assert trend.points(NOW + 100, after).begin == NOW + 10 * first


instants = st.floats(0, 4e9) | st.integers(0, 800).map(lambda tens: NOW + 10.0 * tens) | st.floats(NOW, NOW + 8000)


@given(st.lists(st.tuples(instants, st.sampled_from([*ENDS, "submitted", "sample", "read"])), max_size=60))
def test_whatever_the_clock_does_points_are_what_they_have_to_be(happened: list[tuple[float, Any]]) -> None:
    trend, seen = Trend(), Counter[str]()
    for now, what in happened:
        if what == "submitted":
            trend.submitted(now)
        elif what == "sample":
            trend.sample(now, 1, 2, {"a": 2})
        elif what != "read":
            trend.ended(now, what, 1.0, 2.0)
            trend.ended_of(now, what, "", "flow", "a")
        seen[str(what).lower()] += 1
        points = trend.points(now)
        many = len(points.columns["submitted"])
        assert {len(column) for column in points.columns.values()} == {many}
        assert many <= STEPS_MAX
        assert points.begin % 10 == 0
        assert points.begin + 10 * many <= now + 60, "only what is over is told; a setback of a minute is waited for"
        for name in COUNTED:
            assert 0 <= sum(points.columns[name]) <= seen[name]  # type: ignore[arg-type]  # counts are never null
        for at in range(many):
            ended = any(points.columns[name][at] for name in COUNTED[1:])
            assert all((points.columns[name][at] is not None) == ended for name in MEASURED[2:])
        trend.drain(now, "a")
        assert sum(each.ended for each in trend.flows(now)) <= seen["completed"] + seen["failed"]
        after = now - 1000
        fewer, wanted = told(trend, now, after), told(trend, now)
        assert fewer == {instant: row for instant, row in wanted.items() if instant > after}


@given(st.lists(st.floats(0, 3500), min_size=1, max_size=60))
def test_nothing_is_lost_while_the_clock_goes_to_and_fro_by_a_minute(moves: list[float]) -> None:
    trend, newest = Trend(), 0.0
    for move in moves:
        at = max(move, newest - 60)
        newest = max(newest, at)
        trend.submitted(NOW + at)
    assert sum(row.get("submitted", 0) for row in told(trend, NOW + newest + 10).values()) == len(moves)


@given(st.lists(st.floats(0, 9000), min_size=1, max_size=60).map(sorted))
def test_a_clock_that_only_goes_on_has_each_in_its_own_step(moves: list[float]) -> None:
    trend = Trend()
    for move in moves:
        trend.submitted(NOW + move)
    now = NOW + moves[-1] + 10
    rows = told(trend, now)
    wanted = Counter((NOW + move) // 10 * 10 for move in moves)
    assert {at: row["submitted"] for at, row in rows.items() if row} == {
        at: many for at, many in wanted.items() if at >= now // 10 * 10 - 3600
    }


class TestPercentiles:
    def test_nothing_observed_tells_nothing(self) -> None:
        assert Sketch().percentiles() == (None, None, None)

    @given(st.lists(st.floats(0.001, 6e5), min_size=1, max_size=200))
    def test_they_are_right_to_a_tenth(self, seconds: list[float]) -> None:
        sketch = Sketch()
        for each in seconds:
            sketch.observe(each)
        ordered = sorted(seconds)
        for part, found in zip((0.5, 0.95, 0.99), sketch.percentiles(), strict=True):
            exact = ordered[math.ceil(part * len(ordered)) - 1]
            assert found is not None
            assert abs(found - exact) <= max(0.1 * exact, 0.0011)

    @pytest.mark.parametrize(
        ("seconds", "found"),
        [(0.0, 0.0), (-1.0, 0.0), (0.0005, 0.0), (math.nan, 0.0), (math.inf, 6e5), (1e300, 6e5), (10**400, 6e5)],
    )
    def test_odd_values_have_their_place(self, seconds: float, found: float) -> None:
        sketch = Sketch()
        sketch.observe(seconds)
        assert sketch.percentiles() == pytest.approx((found,) * 3, rel=0.1)

    def test_a_step_that_was_told_counts_what_comes_after(self) -> None:
        """The clock was set back into it."""
        trend = Trend()
        trend.ended(NOW, RunState.FAILED, 1.0, 1.0)
        trend.submitted(NOW + 100)
        assert told(trend, NOW + 110)[NOW]["wait_p99"] == pytest.approx(1, rel=0.1)
        trend.ended(NOW, RunState.FAILED, 50.0, 50.0)
        assert told(trend, NOW + 10)[NOW]["wait_p99"] == pytest.approx(50, rel=0.1)


class TestFlows:
    def test_ends_are_counted_by_flow_and_cancelled_ones_say_nothing(self) -> None:
        trend = Trend()
        for status in (*ENDS, RunState.FAILED):
            trend.ended_of(NOW, status, "", "a", "t")
        trend.ended_of(NOW, RunState.COMPLETED, "", "b", "t")
        assert trend.flows(NOW) == [FlowEnds("a", 3, 2), FlowEnds("b", 1, 0)]

    def test_a_tenant_sees_its_own(self) -> None:
        """FLOW-274, FLOW-275"""
        trend = Trend()
        for tenant in ("anna", "bert", ""):
            trend.ended_of(NOW, RunState.FAILED, tenant, "a", "t")
        assert trend.flows(NOW, "bert") == [FlowEnds("a", 1, 1)]
        assert trend.flows(NOW, "nobody") == []
        assert trend.flows(NOW) == [FlowEnds("a", 3, 3)]

    def test_they_are_forgotten_after_a_quarter_of_an_hour(self) -> None:
        trend = Trend()
        trend.ended_of(NOW, RunState.FAILED, "", "a", "t")
        assert len(trend.flows(NOW + 14 * 60)) == 1
        assert trend.flows(NOW + 15 * 60) == []

    def test_names_are_bounded_in_number_and_length(self) -> None:
        trend = Trend()
        for number in range(1000):
            trend.ended_of(NOW, RunState.FAILED, "", f"{number}-" + "x" * 600, f"tag {number}")
            trend.ended_of(NOW, RunState.FAILED, "", "0-" + "x" * 600, "tag 0")
        found = trend.flows(NOW)
        assert len(found) == 200
        assert {len(each.flow) for each in found} == {512}
        assert found[0].ended == 1001
        assert len(trend._minutes.now(NOW).ends) == 200

    def test_no_tenant_hides_another_one_behind_many_flows(self) -> None:
        trend = Trend()
        for number in range(300):
            trend.ended_of(NOW, RunState.FAILED, "noisy", f"x{number}", "t")
            trend.ended_of(NOW, RunState.FAILED, "noisy", "x7", "t")
        for _ in range(50):
            trend.ended_of(NOW, RunState.FAILED, "quiet", "billing", "t")
        trend.ended_of(NOW, RunState.COMPLETED, "new", "first", "t")
        trend.ended_of(NOW, RunState.FAILED, "noisy", "one more", "t")
        assert trend.flows(NOW, "quiet") == [FlowEnds("billing", 50, 50)]
        assert trend.flows(NOW, "new") == [FlowEnds("first", 1, 0)]
        left = trend.flows(NOW, "noisy")
        assert len(left) == 198
        assert FlowEnds("x7", 301, 301) in left, "the one that failed least made room"

    @given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 90)), max_size=600))
    def test_each_tenant_has_its_share(self, ends: list[tuple[int, int]]) -> None:
        trend = Trend()
        for tenant, flow in ends:
            trend.ended_of(NOW, RunState.FAILED, str(tenant), str(flow), "t")
        found = [len(trend.flows(NOW, str(tenant))) for tenant in range(6)]
        minute = trend._minutes.now(NOW)
        assert sum(found) == minute.flows_count == min(200, len(set(ends)))
        wanted = [len({flow for each, flow in ends if each == tenant}) for tenant in range(6)]
        assert all(has >= min(wants, 200 // 6) for has, wants in zip(found, wanted, strict=True))

    def test_two_hundred_tenants_and_more_are_bounded(self) -> None:
        trend = Trend()
        for tenant in range(500):
            for flow in "ab":
                trend.ended_of(NOW, RunState.FAILED, f"t{tenant}", flow, "t")
        assert [sum(each.ended for each in trend.flows(NOW, f"t{tenant}")) for tenant in (0, 199, 200)] == [1, 1, 0]
        assert trend._minutes.now(NOW).flows_count == 200


class TestQueues:
    def test_nothing_is_known_at_first(self) -> None:
        assert Trend().drain(NOW, "a") == Drain(None, None, None, None)

    def test_what_was_is_known_ten_minutes_later(self) -> None:
        trend = Trend()
        for minute in range(11):
            assert trend.drain(NOW + 60 * minute - 21, "a").depth_before is None
            trend.sample(NOW + 60 * minute, 0, 0, {"a": 100 + minute})
            trend.sample(NOW + 60 * minute + 20, 0, 0, {"a": 999})
        now = NOW + 600
        assert (trend.drain(now, "a").depth_before, trend.drain(now, "a").depth_lately) == (100, 108)
        assert trend.drain(now, "b").depth_before == 0

    def test_the_peak_is_the_most_of_this_minute_and_the_one_before(self) -> None:
        trend = Trend()
        for second, depth in ((0, 5), (30, 90), (55, 20), (65, 30), (115, 10), (185, 4)):
            trend.sample(NOW // 60 * 60 + second, 0, 0, {"a": depth})
        begin = NOW // 60 * 60
        assert [trend.drain(begin + at, "a").depth_peak for at in (185, 240)] == [4, 4]
        assert trend.drain(begin + 185, "b").depth_peak is None
        early = Trend()
        for second, depth in ((0, 5), (30, 90), (65, 30)):
            early.sample(begin + second, 0, 0, {"a": depth})
        assert early.drain(begin + 70, "a").depth_peak == 90
        for number in range(300):
            early.sample(begin + 70, 0, 0, {f"t{number}": 1})
        assert len(early._minutes.now(begin + 70).peaks) == 200

    def test_the_longest_queues_are_kept_and_the_rest_is_not_known(self) -> None:
        trend = Trend()
        trend.sample(NOW, 0, 0, {f"t{number}": 1000 - number for number in range(300)})
        now = NOW + 600
        found = {tag: trend.drain(now, tag).depth_before for tag in ("t0", "t199", "t200", "never")}
        assert found == {"t0": 1000, "t199": 801, "t200": None, "never": None}

    def test_the_pace_is_that_of_whole_minutes(self) -> None:
        trend = Trend()
        for second in range(0, 200, 10):  # from the middle of a minute on
            trend.sample(NOW + second, 0, 0, {})
            trend.ended_of(NOW + second, RunState.COMPLETED, "", "f", "a")
        assert trend.drain(NOW + 199, "a").per_minute == 6
        assert trend.drain(NOW + 199, "b").per_minute == 0
        assert trend.drain(NOW + 1100, "a").per_minute is None

    def test_the_pace_of_a_busy_queue_is_that_of_the_last_minute(self) -> None:
        trend = Trend()
        for second in range(0, 540, 10):
            trend.ended_of(NOW + second, RunState.COMPLETED, "", "f", "a")
        assert trend.drain(NOW + 540, "a").per_minute == 6
        for tenth in range(5400, 6200):
            trend.ended_of(NOW + tenth / 10, RunState.COMPLETED, "", "f", "a")
        assert trend.drain(NOW + 620, "a").per_minute == pytest.approx(600, rel=0.15)

    def test_a_tag_too_many_has_no_pace(self) -> None:
        trend = Trend()
        trend.sample(NOW - 60, 0, 0, {})
        for number in range(201):
            trend.ended_of(NOW, RunState.FAILED, "", "f", f"t{number}")
        found = [trend.drain(NOW + 60, tag).per_minute for tag in ("t0", "t199", "t200")]
        assert found == [1, 1, None]


def test_the_sketches_of_a_full_hour_take_half_a_megabyte() -> None:
    trend = Trend()
    for number in range(2 * STEPS_MAX):
        for seconds in (0.1, 1.0, 10.0):
            trend.ended(NOW + 10 * number, RunState.COMPLETED, seconds, seconds)
    slots = [slot for slot in trend._steps._slots if slot is not None]
    assert len(slots) == STEPS_MAX + 1
    sketches = [sketch._counts for _, step in slots for sketch in (step._wait, step._run) if sketch is not None]
    assert sum(map(sys.getsizeof, sketches)) < 600_000


def test_a_slot_is_found_by_its_number_alone() -> None:
    ring = Ring[list[int]](10, 3, list)
    for number in range(5):
        ring.now(10.0 * number).append(number)
    assert [ring.find(number) for number in range(-1, 6)] == [None, None, None, [2], [3], [4], None]
    assert (ring.first(40.0), ring.newest(40.0)) == (2, 4)
