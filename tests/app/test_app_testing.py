"""`app.testing()`: an app in this process, on the memory adapters, in virtual time."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from pyoco_server import App, RunCancelled, RunFailed, RunTimeout, aio, as_completed, ends, task
from pyoco_server.app.failures import RequestFailed
from pyoco_server.testing.block import AppTesting

app = App("tested")
#: What the tasks of the current test have been called with.
calls: list[str] = []


@task
def double(number: int) -> int:
    print(f"doubling {number}")
    calls.append(f"double {number}")
    return 2 * number


@task
def note(word: str) -> str:
    calls.append(word)
    return word


@task(retry="3 times, fixed, 1m")
def third_time(number: int) -> int:
    calls.append("try")
    if calls.count("try") % 3:
        raise ConnectionError("not yet")
    return number


@task
def second_time() -> int:
    calls.append("again")
    if calls.count("again") < 2:
        raise ConnectionError("not yet")
    return 2


@task
def ask_another(number: int) -> int:
    return doubled.submit(number=number).result() + 1


@app.flow
def doubled(number: int) -> int:
    return double(number)


@app.flow(tag="gpu")
def tried(number: int) -> int:
    return third_time(number)


@app.flow
def joined(number: int) -> dict[str, int]:
    """One branch waits for its next try while the other is executed."""
    return ends(third_time, double)


@app.flow(retry="2 times, fixed, 10m")
def again() -> int:
    return second_time()


@app.flow
def nested(number: int) -> int:
    return ask_another(number)


@app.flow(schedule={"every": "1h"}, tags=["hourly"])
def hourly(word: str = "tick") -> str:
    return note(word)


@pytest.fixture
def t() -> Iterator[AppTesting]:
    calls.clear()
    with app.testing() as block:
        yield block


class TestRuns:
    def test_submissions_run_in_this_process(self, t: AppTesting) -> None:
        """APP-15: sync, many at once, from asyncio, and from a task of another run."""

        async def from_asyncio() -> list[int]:
            handles = [await doubled.asubmit(number=number) for number in range(3)]
            finished = [handle async for handle in aio.as_completed(handles)]
            assert {handle.id for handle in finished} == {handle.id for handle in handles}
            return await aio.gather(*handles)

        run = doubled.submit(number=4)
        assert (run.result(), run.status) == (8, "COMPLETED")
        assert [line.text for line in run.logs(stream="stdout")] == ["doubling 4"]
        assert doubled.map({"number": number} for number in range(30)).results() == list(range(0, 60, 2))
        assert asyncio.run(from_asyncio()) == [0, 2, 4]
        assert nested.submit(number=1).result() == 3
        with pytest.raises(TypeError):
            doubled.submit(numer=1)  # type: ignore[call-arg]

    def test_a_block_is_isolated_and_leaves_nothing_behind(self) -> None:
        """APP-15"""
        streams, threads = (sys.stdout, sys.stderr), set(threading.enumerate())
        server = app.submitter
        with app.testing() as first:
            run = doubled.submit(number=1)
            assert run.result() == 2
            first.advance("1d")
        with app.testing() as second:
            assert second.now < first.now
            with pytest.raises(RequestFailed, match="ERR-PYOCO-0005"):
                app.run(run.id).snapshot()
            waiting = tried.submit(number=1)
            second.run_due()
        assert set(threading.enumerate()) <= threads
        assert (sys.stdout, sys.stderr) == streams
        assert app.submitter is server
        assert run.result() == 2  # it was read before
        for ended in (run, waiting):
            with pytest.raises(RequestFailed, match="block has ended"):
                ended.snapshot()

    def test_a_broken_flow_is_found_at_the_start(self) -> None:
        """APP-15"""
        broken = App("broken")

        @broken.flow
        def nothing() -> int:
            raise LookupError("no graph")

        with pytest.raises(LookupError, match="no graph"), broken.testing():
            pass


class TestTime:
    def test_tries_of_a_task_wait_for_advance(self, t: AppTesting) -> None:
        """APP-15, RETRY-13"""
        run = tried.submit(number=7)
        t.run_due()
        for _ in range(2):
            with pytest.raises(RunTimeout, match=r"waits until .* advance"):
                run.result()
            with pytest.raises(RunTimeout, match="advance"):
                list(as_completed([run]))
        assert (calls, run.status) == (["try"], "RUNNING")
        assert doubled.submit(number=1).result() == 2  # one that waits does not keep others from running
        t.advance(59.9)
        assert calls.count("try") == 1
        t.advance(0.1)
        assert calls.count("try") == 2
        began = t.now
        t.advance("1h")
        assert (run.result(), calls.count("try"), t.now - began) == (7, 3, timedelta(hours=1))
        assert run.snapshot()["tasks"] == {"third_time": "SUCCEEDED"}

    def test_other_branches_go_on_while_one_waits(self, t: AppTesting) -> None:
        """APP-15"""
        run = joined.submit(number=5)
        t.run_due()
        assert sorted(calls) == ["double 5", "try"]
        t.advance("5m")
        assert run.result() == {"third_time": 5, "double": 10}

    def test_tries_of_a_run_and_delays_wait_for_advance(self, t: AppTesting) -> None:
        """APP-15, RETRY-14, DELAY-1: in the order of their times."""
        run, late = again.submit(), hourly.options(delay="5m").submit(word="late")
        t.run_due()
        assert (run.status, late.status, calls) == ("PENDING", "PENDING", ["again"])
        with pytest.raises(RunTimeout, match="still PENDING: it waits until"):
            late.result(timeout=50)
        t.advance(timedelta(minutes=10))
        assert [call for call in calls if call != "tick"] == ["again", "late", "again"]
        assert (run.result(), late.result()) == (2, "late")

    def test_schedules_tick_on_advance(self, t: AppTesting) -> None:
        """APP-13, APP-15, SCHED-13"""
        assert t.now.tzinfo is UTC
        assert abs(t.now - datetime.now(UTC)) < timedelta(hours=1)
        t.run_due()
        assert calls == []
        t.advance("3h")
        assert calls == ["tick"] * 3
        t.advance("59m")
        t.advance("1m")
        assert calls == ["tick"] * 4

    def test_what_waits_can_be_cancelled(self, t: AppTesting) -> None:
        """APP-15"""
        runs = [tried.submit(number=1), again.submit()]
        t.run_due()
        for run in runs:
            run.cancel()
            with pytest.raises(RunCancelled):
                run.result()
        t.advance("30m")
        assert (calls.count("try"), calls.count("again")) == (1, 1)

    def test_the_last_try_fails_the_run(self, t: AppTesting) -> None:
        """APP-8, APP-15"""

        @task
        def never() -> int:
            raise ValueError("on purpose")

        failing = App("failing")

        @failing.flow(retry="2 times, fixed, 1m")
        def fails() -> int:
            return never()

        with failing.testing() as other:
            run = fails.submit()
            other.advance("1m")
            with pytest.raises(RunFailed, match="on purpose") as raised:
                run.result()
            assert len(raised.value.tries) == 2
            assert isinstance(raised.value.__cause__, ValueError)

    def test_a_bad_duration_is_refused(self, t: AppTesting) -> None:
        """APP-15"""
        bad: list[str | float | timedelta] = ["soon", -1, "", float("nan"), timedelta(seconds=-1)]
        for duration in bad:
            with pytest.raises(ValueError, match="advance"):
                t.advance(duration)
