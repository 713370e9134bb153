"""What is counted while a gateway watches: each end once, and history never."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from pyoco_server.core.flow_moves import ask_cancel, beat, claim, conclude, put_back
from pyoco_server.core.outcome import NOTHING_YET, Completed, Failed
from pyoco_server.core.retries.course import after
from pyoco_server.core.retries.matching import raised
from pyoco_server.core.run import Run, changed
from pyoco_server.core.snapshot import from_snapshot, to_snapshot
from pyoco_server.core.states import RunState
from pyoco_server.loops.tally import OTHER_FLOWS, Histogram, Tally
from pyoco_server.ports.runs.port import Changes, Removed, Stored
from support.backends import ANNA, BERT, Clock

BEGAN = Clock().now
NUMBERS = count(1)


def a_run(flow_name: str = "hello", **more: Any) -> Run:
    fields: dict[str, Any] = {"submitted_at": BEGAN, "updated_at": BEGAN, "heartbeat_at": BEGAN, "tag": "default"}
    return Run(**fields | {"run_id": f"run-{next(NUMBERS)}", "flow_name": flow_name} | more)


def taken(run: Run, seconds: float, owner: Any = ANNA) -> Run:
    return claim(run, owner, f"attempt-{next(NUMBERS)}", run.submitted_at + seconds)


def done(run: Run, seconds: float) -> Run:
    assert run.start_time is not None
    return conclude(run, Completed(), run.start_time + seconds)


class Feed:
    """Hands changes on as the feeder does, with revisions that grow."""

    def __init__(self, tally: Tally, epoch: str = "a", caught_up: bool = True) -> None:
        self._tally, self.epoch = tally, epoch
        self.revision = 0
        tally.on_changes(Changes((), caught_up, epoch))

    def say(self, *changes: Run | str, caught_up: bool = True) -> tuple[Stored | Removed, ...]:
        items: list[Stored | Removed] = []
        for change in changes:
            self.revision += 1
            removed = isinstance(change, str)
            items.append(Removed(change, self.revision) if removed else Stored(change, self.revision))  # type: ignore[arg-type]
        self._tally.on_changes(Changes(tuple(items), caught_up, self.epoch))
        return tuple(items)

    def repeat(self, items: tuple[Stored | Removed, ...], caught_up: bool = True) -> None:
        self._tally.on_changes(Changes(items, caught_up, self.epoch))


@pytest.fixture
def tally() -> Tally:
    return Tally(Clock())


def ended(tally: Tally) -> dict[tuple[str, str], int]:
    """How many ends were counted, by flow and outcome."""
    found = {key: sum(ends.duration.counts) for key, ends in tally.ends.items()}
    assert found == {key: sum(ends.wait.counts) for key, ends in tally.ends.items()}
    return found


class TestEnds:
    def test_an_end_is_counted_with_its_wait_and_its_duration(self, tally: Tally) -> None:
        run = a_run()
        running = taken(run, 3.0)
        Feed(tally).say(run, running, done(running, 0.2))
        (ends,) = tally.ends.values()
        assert [ends.wait.total, ends.duration.total] == pytest.approx([3.0, 0.2])
        bounds = [*Histogram.BOUNDS, None]
        assert [bounds[at] for at, many in enumerate(ends.wait.counts) if many] == [5.0]
        assert [bounds[at] for at, many in enumerate(ends.duration.counts) if many] == [0.25]

    def test_only_ends_are_counted_and_by_flow_and_outcome(self, tally: Tally) -> None:
        feed = Feed(tally)
        for flow in ("a", "a", "b"):
            run = a_run(flow)
            running = taken(run, 1.0)
            feed.say(run, running, beat(running, NOTHING_YET, BEGAN + 2), done(running, 3.0))
        running = taken(a_run("a"), 1.0)
        feed.say(running, conclude(running, Failed(message="x"), BEGAN + 2))
        running = taken(a_run("a"), 1.0)
        feed.say(ask_cancel(running, None, BEGAN + 2), conclude(ask_cancel(running, None, BEGAN + 2), Completed(), 9.0))
        feed.say(a_run("c"), taken(a_run("c"), 1.0))
        assert ended(tally) == {("a", "COMPLETED"): 2, ("b", "COMPLETED"): 1, ("a", "FAILED"): 1, ("a", "CANCELLED"): 1}

    def test_a_run_that_never_began_has_neither(self, tally: Tally) -> None:
        Feed(tally).say(conclude(a_run(), Failed(message="gone"), BEGAN + 1))
        assert tally.ends == {}

    def test_clocks_that_disagree_make_no_negative_time(self, tally: Tally) -> None:
        """FLOW-209"""
        Feed(tally).say(done(taken(a_run(), -4.0), -1.0))
        (ends,) = tally.ends.values()
        assert (ends.wait.total, ends.duration.total) == (0.0, 0.0)

    def test_a_bound_belongs_to_its_bucket(self) -> None:
        histogram = Histogram()
        for value in (0.0, 0.01, 0.011, 7200.0, 7200.1):
            histogram.observe(value)
        assert (histogram.counts[:2], histogram.counts[-2:]) == ([2, 1], [1, 1])


class TestOnce:
    def test_a_run_that_was_delivered_again_and_again_ends_once(self, tally: Tally) -> None:
        feed = Feed(tally)
        running = taken(a_run(), 1.0)
        again = taken(put_back(running, BEGAN + 2), 5.0, BERT)
        feed.say(running, put_back(running, BEGAN + 2), again, done(again, 1.0), running.run_id)
        assert ended(tally) == {("hello", "COMPLETED"): 1}

    def test_what_the_feed_says_twice_is_counted_once(self, tally: Tally) -> None:
        """The index was opened anew at an older mark: the same store, the same revisions"""
        feed = Feed(tally)
        first = feed.say(taken(a_run(), 1.0), done(taken(a_run(), 1.0), 1.0))
        second = feed.say(done(taken(a_run(), 1.0), 1.0))
        feed.repeat((*first, *second), caught_up=False)
        feed.repeat(first)
        feed.repeat(second)
        assert ended(tally) == {("hello", "COMPLETED"): 2}
        newer = done(taken(a_run(), 1.0), 1.0)
        feed.repeat((*second, Stored(newer, feed.revision + 1)))
        assert ended(tally) == {("hello", "COMPLETED"): 3}

    def test_what_was_there_before_is_history(self, tally: Tally) -> None:
        """A gateway that starts: its index is resumed or built anew"""
        feed = Feed(tally, caught_up=False)
        feed.say(done(taken(a_run(), 1.0), 1.0), caught_up=False)
        feed.say(done(taken(a_run(), 1.0), 1.0), caught_up=True)
        assert tally.ends == {}
        feed.say(done(taken(a_run(), 1.0), 1.0))
        assert ended(tally) == {("hello", "COMPLETED"): 1}

    def test_another_store_is_history_until_it_is_known(self, tally: Tally) -> None:
        Feed(tally).say(done(taken(a_run(), 1.0), 1.0))
        other = Feed(tally, "b", caught_up=False)
        other.say(done(taken(a_run(), 1.0), 1.0), caught_up=False)
        other.say(done(taken(a_run(), 1.0), 1.0), caught_up=True)
        assert ended(tally) == {("hello", "COMPLETED"): 1}
        other.say(done(taken(a_run(), 1.0), 1.0))
        assert ended(tally) == {("hello", "COMPLETED"): 2}

    def test_ends_during_an_outage_are_counted_when_the_feed_goes_on(self, tally: Tally) -> None:
        """The watch was renewed and catches up: the same store, newer revisions"""
        feed = Feed(tally)
        feed.say(done(taken(a_run(), 1.0), 1.0), caught_up=False)
        assert ended(tally) == {("hello", "COMPLETED"): 1}


class Heard:
    """Who listens to the tally."""

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self.ended: list[str] = []

    def on_submitted(self, run: Run) -> None:
        self.submitted.append(run.run_id)

    def on_ended(self, run: Run) -> None:
        self.ended.append(run.run_id)


class TestListener:
    @pytest.fixture
    def heard(self) -> Heard:
        return Heard()

    @pytest.fixture
    def feed(self, heard: Heard) -> Feed:
        return Feed(Tally(Clock(), heard))

    def test_each_run_is_told_of_twice(self, feed: Feed, heard: Heard) -> None:
        runs = [a_run(submitted_at=BEGAN + number) for number in range(3)]
        for run in runs:
            running = taken(run, 1.0)
            feed.say(run, running, beat(running, NOTHING_YET, BEGAN + 2), put_back(running, BEGAN + 3))
            again = taken(put_back(running, BEGAN + 3), 5.0, BERT)
            feed.say(again, done(again, 1.0), run.run_id)
        assert heard.submitted == heard.ended == [run.run_id for run in runs]

    def test_a_submission_that_was_passed_over_is_told_with_the_next_word(self, feed: Feed, heard: Heard) -> None:
        """The store keeps the newest word only: a quick worker has changed it already"""
        first, second, third = (a_run(submitted_at=BEGAN + 1) for _ in range(3))
        feed.say(taken(first, 1.0), done(taken(second, 1.0), 1.0), conclude(third, Failed(message="x"), BEGAN + 3))
        feed.say(done(taken(first, 1.0), 1.0))
        assert heard.submitted == [first.run_id, second.run_id, third.run_id]
        assert heard.ended == [second.run_id, third.run_id, first.run_id]

    def test_what_was_submitted_before_we_watched_is_history_and_its_end_is_not(self, feed: Feed, heard: Heard) -> None:
        old = a_run(submitted_at=BEGAN - 5)
        feed.say(taken(old, 1.0), done(taken(old, 1.0), 1.0))
        assert (heard.submitted, heard.ended) == ([], [old.run_id])

    def test_history_and_repetitions_are_not_told(self, heard: Heard) -> None:
        feed = Feed(Tally(Clock(), heard), caught_up=False)
        feed.say(a_run(submitted_at=BEGAN + 1), done(taken(a_run(), 1.0), 1.0), caught_up=False)
        feed.say(a_run(submitted_at=BEGAN + 1), caught_up=True)
        assert (heard.submitted, heard.ended) == ([], [])
        items = feed.say(a_run(submitted_at=BEGAN + 1), done(taken(a_run(), 1.0), 1.0))
        feed.repeat(items)
        assert (len(heard.submitted), len(heard.ended)) == (1, 1)

    def test_what_is_kept_in_mind_is_bounded_and_nothing_is_told_twice(
        self, feed: Feed, heard: Heard, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("pyoco_server.loops.tally._SUBMITTED_MAX", 3)
        clock = Clock(BEGAN + 1000)
        feed._tally._clock = clock
        runs = [a_run(submitted_at=BEGAN + 1 + number) for number in range(10)]
        for run in runs:
            feed.say(run)
        feed.say(*(taken(run, 1.0) for run in runs))
        assert heard.submitted == [run.run_id for run in runs]
        assert len(feed._tally._submitted) == 3
        late = a_run(submitted_at=BEGAN + 50)
        feed.say(taken(late, 1.0))
        assert heard.submitted[-1] == late.run_id

    def test_a_record_from_the_future_hides_nothing(
        self, feed: Feed, heard: Heard, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("pyoco_server.loops.tally._SUBMITTED_MAX", 1)
        runs = [a_run(submitted_at=BEGAN + 10**9), a_run(), a_run(), taken(a_run(submitted_at=BEGAN + 1), 1.0)]
        feed.say(*runs)
        assert heard.submitted == [run.run_id for run in runs]

    def test_a_strangers_record_breaks_nothing(self, feed: Feed, heard: Heard) -> None:
        feed.say(replace(a_run(submitted_at=BEGAN + 1), run_id=["r"]))  # type: ignore[arg-type]  # that is the point
        assert heard.submitted == []


class TestRedeliveries:
    def test_every_attempt_beyond_the_first_is_counted_as_it_begins(self, tally: Tally) -> None:
        feed = Feed(tally)
        run = taken(a_run(), 1.0)
        feed.say(run, beat(run, NOTHING_YET, BEGAN + 2))
        assert tally.redeliveries == 0
        for wanted in (1, 2, 3):
            run = taken(run, 10.0)
            feed.say(run)
            assert tally.redeliveries == wanted
            feed.say(beat(run, NOTHING_YET, BEGAN + 11), put_back(run, BEGAN + 12))
        feed.say(done(run, 1.0))
        assert tally.redeliveries == 3

    def test_an_attempt_that_was_passed_over_is_counted_with_the_next(self, tally: Tally) -> None:
        """The store keeps the newest word only: a slow reader misses some"""
        second = taken(taken(a_run(), 1.0), 2.0)
        feed = Feed(tally)
        feed.say(second)
        feed.say(done(taken(taken(second, 3.0), 4.0), 1.0))
        assert tally.redeliveries == 3

    def test_an_attempt_from_before_we_watched_is_not_ours(self, tally: Tally) -> None:
        old = taken(taken(a_run(submitted_at=BEGAN - 100), 1.0), 10.0)
        feed = Feed(tally)
        feed.say(beat(old, NOTHING_YET, BEGAN + 1), beat(old, NOTHING_YET, BEGAN + 2))
        assert tally.redeliveries == 0
        third = taken(old, 101.0)
        feed.say(third, done(third, 1.0))
        assert tally.redeliveries == 1

    def test_what_is_kept_in_mind_is_bounded_and_forgotten_at_the_end(
        self, tally: Tally, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("pyoco_server.loops.tally._REPEATED_MAX", 3)
        feed = Feed(tally)
        runs = [taken(taken(a_run(), 1.0), 2.0) for _ in range(5)]
        feed.say(*runs)
        assert list(tally._attempts) == [run.run_id for run in runs[2:]]
        feed.say(done(runs[2], 1.0), runs[3].run_id)
        assert list(tally._attempts) == [runs[4].run_id]
        assert tally.redeliveries == 5


class TestNames:
    def test_flows_beyond_the_limit_are_counted_together(self, tally: Tally) -> None:
        feed = Feed(tally)
        for number in range(230):
            feed.say(done(taken(a_run(f"flow {number}"), 1.0), 1.0))
            feed.say(done(taken(a_run("flow 3"), 1.0), 1.0))
        assert len({flow for flow, _ in tally.ends}) == 201
        assert (ended(tally)[OTHER_FLOWS, "COMPLETED"], ended(tally)["flow 3", "COMPLETED"]) == (30, 231)

    def test_a_strangers_record_is_counted_and_breaks_nothing(self, tally: Tally) -> None:
        good = to_snapshot(done(taken(a_run(), 1.0), 1.0))
        odd: list[dict[str, Any]] = [
            {"flow_name": 7},
            {"flow_name": ["x"]},
            {"flow_name": "\ud800"},
            {"flow_name": "x" * 10_000},
            {"flow_name": "x" * 10_001},
            {"attempt": "many"},
            {"attempt": [2]},
            {"attempt": -1},
            {"attempt": 2.5},
            {"start_time": 5, "end_time": 10**300},
        ]
        feed = Feed(tally)
        for each in odd:
            feed.say(from_snapshot(good | each))
        assert sum(ended(tally).values()) == len(odd)
        names = [flow for flow, _ in tally.ends]
        assert [name for name in names if len(name) > 512 or name != name.encode("utf-8", "replace").decode()] == []
        assert ended(tally)["x" * 512, "COMPLETED"] == 2
        assert tally.redeliveries == 0


def test_a_change_that_is_no_end_costs_next_to_nothing() -> None:
    """It is on the way of every change of every run. A generous bound: the figure itself is in the benchmarks"""
    tally = Tally(listener=Heard())
    Feed(tally)
    running = taken(a_run(), 1.0)
    items = tuple(Stored(replace(running, run_id=f"{number}"), number) for number in range(1, 20_001))
    began = time.process_time()
    tally.on_changes(Changes(items, True, "a"))
    assert (time.process_time() - began) / len(items) < 5e-5


def test_retries_are_counted_by_flow_and_kind(tally: Tally) -> None:
    """RETRY-20: the last failed try does not count as a retry."""
    feed = Feed(tally)
    run = changed(a_run(), retry={"tries": 3, "delay": 0})
    failed = Failed(message="oh", cause=raised(["builtins.OSError"]))
    first = after(taken(run, 1.0), failed, BEGAN + 2, 0.5)
    second = after(taken(first, 3.0), failed, BEGAN + 4, 0.5)
    last = after(taken(second, 5.0), failed, BEGAN + 6, 0.5)
    items = feed.say(first, second, beat(second, NOTHING_YET, BEGAN + 5), last)
    feed.repeat(items)
    assert last.status is RunState.FAILED
    assert tally.retries == {(run.flow_name, "exception:OSError"): 2}
    feed.say(replace(second, run_id="r"))  # first seen here: both of its tries ended while we watched
    assert tally.retries == {(run.flow_name, "exception:OSError"): 4}
