"""What runs in threads of this process print, as lines."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import sys
import threading
import uuid
from collections.abc import Callable

import pytest
from pyoco import task
from pyoco.core.models import Flow

from pyoco_server.core.job import Job, encode_job
from pyoco_server.core.outcome import Completed
from pyoco_server.core.run_log.attempt_log import Limits
from pyoco_server.core.run_log.line import Line, Stream, Why
from pyoco_server.executors.capture.in_threads import NOTICE
from pyoco_server.executors.capture.port import Captured
from pyoco_server.executors.flow.build import FlowBuilder
from pyoco_server.executors.flow.reader import YamlFlowFiles
from pyoco_server.executors.port import Work
from pyoco_server.executors.threads import ThreadExecutor
from support.collected_lines import CollectedLines

log = logging.getLogger("app.load")


def threads_for(collector: CollectedLines, *functions: Callable[..., object]) -> ThreadExecutor:
    """Its flow `f` calls the functions one after another, in tasks of their names."""

    def resolve(_: str) -> Flow:
        flow = Flow(name="f")
        for each in functions:
            flow = flow >> task(each)
        return flow

    return ThreadExecutor(FlowBuilder(resolve, YamlFlowFiles(1000)), collector=collector)


def work(**params: object) -> tuple[Work, Captured]:
    job = Job(run_id=str(uuid.uuid4()), flow_name="f", tag="t", submitted_at=1.0, params=params)
    return Work(job, encode_job(job), attempt=3), Captured(job.run_id, 3)


async def lines_of(threads: ThreadExecutor, collector: CollectedLines) -> list[Line]:
    """Execute the flow, and return what was captured of it."""
    what, captured = work()
    async with asyncio.timeout(100):
        assert isinstance(await (await threads.begin(what, lambda: None)).outcome(), Completed)
        await threads.stop()
    lines = collector.lines(captured)
    assert collector.is_over(captured) == bool(lines)
    return lines


async def test_prints_and_records_are_captured_after_a_line_about_what_is_not(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """LOG-1, LOG-2, LOG-3, LOG-27: thread mode"""

    def load() -> None:
        print("half", "way")
        print("oh no", file=sys.stderr, end="")
        os.write(1, b"not by Python\n")
        other = threading.Thread(target=print, args=("of another thread",))
        other.start()
        other.join()

    def save() -> None:
        log.info("saved %d", 3)
        log.debug("not this")
        log.error("it failed", exc_info=ValueError("bad"))

    stdout, stderr, enabled = sys.stdout, sys.stderr, logging.Logger.isEnabledFor
    collector = CollectedLines()
    lines = await lines_of(threads_for(collector, load, save), collector)
    assert [(line.stream.value, line.task, line.level, line.text) for line in lines] == [
        ("system", None, None, NOTICE),
        ("stdout", "load", None, "half way"),
        ("log", "save", "INFO", "saved 3"),
        ("log", "save", "ERROR", "it failed"),
        ("stderr", "load", None, "oh no"),
    ]
    assert [line.seq for line in lines] == [1, 2, 3, 4, 5]
    assert lines[3].exc is not None
    assert lines[3].exc.startswith("ValueError: bad")
    # The program around it sees what it saw before, and nothing of it stays replaced.
    assert set(capfd.readouterr().out.splitlines()) == {"half way", "not by Python", "of another thread"}
    assert [record.getMessage() for record in caplog.records] == ["it failed"]
    assert (sys.stdout, sys.stderr, logging.Logger.isEnabledFor) == (stdout, stderr, enabled)


async def test_two_runs_at_once_do_not_mix(capsys: pytest.CaptureFixture[str]) -> None:
    """LOG-1: also while one goes on when the other has ended"""
    both, first_is_over = threading.Barrier(2, timeout=50), threading.Event()

    def talk(ctx: object, who: str) -> None:
        for number in range(50):
            both.wait()
            print(who, number)
            log.warning("%s %d", who, number)
        if who == "b":
            assert first_is_over.wait(50)
            print("b at last")

    collector = CollectedLines()
    threads = threads_for(collector, talk)
    (one, of_a), (other, of_b) = work(who="a"), work(who="b")
    async with asyncio.timeout(100):
        a, b = await threads.begin(one, lambda: None), await threads.begin(other, lambda: None)
        assert isinstance(await a.outcome(), Completed)
        print("of the program")
        first_is_over.set()
        assert isinstance(await b.outcome(), Completed)
        await threads.stop()
    for who, captured, last in (("a", of_a, []), ("b", of_b, ["b at last"])):
        texts = [line.text for line in collector.lines(captured)]
        assert texts == [NOTICE, *(text for number in range(50) for text in [f"{who} {number}"] * 2), *last]


async def test_a_silent_run_has_no_lines() -> None:
    """LOG-10"""
    collector = CollectedLines()
    assert await lines_of(threads_for(collector, lambda: None), collector) == []
    assert not any(collector.shipments.values())


async def test_a_flood_is_bounded_and_its_middle_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """LOG-5, LOG-24: thread mode"""
    monkeypatch.setattr(sys, "stdout", io.StringIO())

    def flood() -> None:
        print("\n".join(f"line {number}" for number in range(200_000)))

    collector = CollectedLines(Limits(head_bytes=4096, tail_bytes=8192))
    lines = await lines_of(threads_for(collector, flood), collector)
    (gap,) = [line.gap for line in lines if line.gap is not None]
    assert gap.why is Why.LIMIT
    assert gap.lines == 200_001 - (len(lines) - 1)
    assert lines[-1].text == "line 199999"
    assert sum(len(line.text) + 1 for line in lines if line.gap is None) <= 4096 + 8192


async def test_lines_of_a_run_that_goes_on_are_passed_on_at_a_stop(capsys: pytest.CaptureFixture[str]) -> None:
    """LOG-1: a thread cannot be ended"""
    has_printed, may_end = threading.Event(), threading.Event()

    def lasts() -> None:
        print("begun")
        has_printed.set()
        assert may_end.wait(50)
        print("too late")

    collector = CollectedLines()
    threads = threads_for(collector, lasts)
    what, captured = work()
    async with asyncio.timeout(100):
        execution = await threads.begin(what, lambda: None)
        await asyncio.to_thread(has_printed.wait)
        await threads.stop()
        may_end.set()
        assert isinstance(await execution.outcome(), Completed)
    assert [line.text for line in collector.lines(captured)] == [NOTICE, "begun"]
    assert not collector.is_over(captured)


async def test_a_record_without_a_handler_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """LOG-1: what `logging` prints as a last resort is no other way"""
    monkeypatch.setattr(logging.root, "handlers", [])
    collector = CollectedLines()

    def warns() -> None:
        log.warning("only once")

    lines = await lines_of(threads_for(collector, warns), collector)
    assert [(line.stream, line.text) for line in lines[1:]] == [(Stream.LOG, "only once")]
    assert capsys.readouterr().err == "only once\n"
