"""What the code of a run prints, captured in real host processes."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator

import psutil
import pytest

from pyoco_server.core.job import Job, encode_job
from pyoco_server.core.outcome import Completed, Died, Failed, Outcome
from pyoco_server.core.run_log.attempt_log import Limits
from pyoco_server.core.run_log.batch import decode_batch
from pyoco_server.core.run_log.line import Line
from pyoco_server.core.run_log.reading import Assembly
from pyoco_server.core.run_log.shipment import Shipment
from pyoco_server.executors.capture.port import Captured
from pyoco_server.executors.host.pool import HostExecutor
from pyoco_server.executors.port import Work
from support.host_scenes import helpers_on_path, settings
from support.waiting import eventually

__all__ = ["helpers_on_path"]

pytestmark = pytest.mark.usefixtures("helpers_on_path")


class Collected:
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.limits, self.level = Limits(), 20
        self.shipments: dict[str, list[Shipment]] = {}

    def collect(self, captured: Captured, shipment: Shipment) -> None:
        self.shipments.setdefault(captured.run_id, []).append(shipment)

    def is_over(self, run_id: str) -> bool:
        return any(each.is_last for each in self.shipments.get(run_id, ()))

    def lines(self, run_id: str) -> list[Line]:
        assembly = Assembly()
        found = [
            line for each in self.shipments.get(run_id, ()) for line in assembly.add(1, decode_batch(each.payload), 5.0)
        ]
        return [*found, *assembly.end()]


class Scene:
    def __init__(self, executor: HostExecutor, collected: Collected) -> None:
        self.executor, self.collected = executor, collected

    async def run(self, flow: str) -> tuple[str, Outcome]:
        job = Job(run_id=str(uuid.uuid4()), flow_name=flow, tag="t", params={}, submitted_at=1.0)
        execution = await self.executor.begin(Work(job, encode_job(job)), lambda: None)
        assert execution is not None
        return job.run_id, await execution.outcome()

    async def lines(self, flow: str, outcome: type[Outcome] = Completed) -> list[Line]:
        """Of one run, when all have arrived."""
        run_id, found = await self.run(flow)
        assert isinstance(found, outcome), found
        await eventually(lambda: self.collected.is_over(run_id))
        return self.collected.lines(run_id)


@contextlib.asynccontextmanager
async def opened(collected: Collected) -> AsyncIterator[Scene]:
    executor = HostExecutor(settings("support.talking_flows:resolve"), 1, 1000, 0.0, collected)
    await executor.start()
    try:
        yield Scene(executor, collected)
    finally:
        await executor.stop()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with opened(Collected()) as scene:
        yield scene


def shown(lines: list[Line]) -> list[tuple[str | None, str, str]]:
    return [(line.task, line.stream.value, line.text) for line in lines]


async def test_every_way_to_print_is_captured_with_its_task_in_order(scene: Scene) -> None:
    """LOG-1, LOG-3, LOG-8: descriptors, child processes and records; what Python prints keeps its order"""
    lines = await scene.lines("both")
    python = [each for each in shown(lines) if each[2] in {"one", "a record of 2", "three", "four"}]
    assert python == [
        ("every_way", "stdout", "one"),
        ("every_way", "log", "a record of 2"),
        ("every_way", "stderr", "three"),
        ("every_way", "stdout", "four"),
    ]
    assert sorted(shown(lines)[4:], key=str) == sorted(
        [
            ("every_way", "stdout", "five"),
            ("every_way", "stderr", "six"),
            ("every_way", "stdout", "seven, open"),
            ("second", "stdout", "eight"),
        ],
        key=str,
    )
    record = next(line for line in lines if line.stream == "log")
    assert (record.level, record.logger, record.exc) == ("INFO", "my.app", None)
    assert [line.seq for line in lines] == list(range(1, len(lines) + 1))


async def test_tasks_that_run_together_are_told_apart_by_their_threads(scene: Scene) -> None:
    """LOG-3"""
    lines = await scene.lines("together")
    for name in ("left", "right"):
        texts = [f"{name} {number}" for number in range(20)]
        assert [line.text for line in lines if line.task == name and line.stream == "stdout"] == texts
        assert [line.text for line in lines if line.task == name and line.stream == "log"] == texts
    assert len(lines) == 80


async def test_a_failed_run_shows_its_exception_and_its_open_line(scene: Scene) -> None:
    """LOG-2, LOG-8"""
    lines = await scene.lines("fails", Failed)
    assert shown(lines) == [("fails", "log", "caught"), ("fails", "stdout", "open")]
    assert lines[0].level == "ERROR"
    assert (lines[0].exc or "").splitlines()[-1].startswith("ValueError: ")


async def test_each_run_on_a_host_has_its_own_lines(scene: Scene) -> None:
    """LOG-3, LOG-7: one after another on the same host, and those that print nothing between them"""
    flows = ["ten_lines", "nothing", "second", "nothing", "ten_lines"] * 8
    runs = [(flow, (await scene.run(flow))[0]) for flow in flows]
    await eventually(lambda: all(scene.collected.is_over(run_id) for flow, run_id in runs if flow != "nothing"))
    for flow, run_id in runs:
        texts = {"ten_lines": [f"line {n}" for n in range(10)], "second": ["eight"], "nothing": []}[flow]
        assert [line.text for line in scene.collected.lines(run_id)] == texts
    assert scene.executor.restarts == 0


async def test_lines_of_a_host_that_was_killed_are_there(scene: Scene) -> None:
    """LOG-5: kill -9 of the host loses nothing that it had printed"""
    assert shown(await scene.lines("dies", Died)) == [("dies", "stdout", "before the end")]
    assert shown(await scene.lines("second")) == [("second", "stdout", "eight")]


@pytest.mark.parametrize(
    ("flow", "expected"),
    [
        ("closes", [("closes", "stdout", "before"), ("closes", "log", "still logged")]),
        (
            "redirects",
            [
                ("redirects", "stdout", "before"),
                ("redirects", "log", "still logged"),
                ("redirects", "stderr", "to stderr"),
            ],
        ),
        ("binary", [("binary", "stdout", "\ufffd\u2400\x1b[2J")]),
        ("forks", [("forks", "stdout", text) for text in ("parent", "forked", "parent again")]),
        ("configures", [("configures", "log", "twice"), ("configures", "stdout", "own twice")]),
        ("bad_record", [("bad_record", "log", "'%d' (not formatted: TypeError)")]),
        (
            "odd_records",
            [
                ("odd_records", "log", "_Shapeless (not formatted: ValueError)"),
                ("odd_records", "log", "from a long name"),
                ("odd_records", "log", "the last one"),
            ],
        ),
    ],
)
async def test_what_a_task_does_to_its_output_harms_only_its_own_lines(
    scene: Scene, flow: str, expected: list[object]
) -> None:
    """LOG-1, LOG-4"""
    assert sorted(shown(await scene.lines(flow)), key=str) == sorted(expected, key=str)
    assert shown(await scene.lines("second")) == [("second", "stdout", "eight")]


async def test_a_child_that_outlives_its_task_delays_nothing_and_reaches_no_other_run(scene: Scene) -> None:
    """LOG-5"""
    began = time.monotonic()
    lines = await scene.lines("leaves_a_child")
    assert time.monotonic() - began < 30
    assert sorted(line.text for line in lines) == ["from the child", "from the task"]
    assert shown(await scene.lines("second")) == [("second", "stdout", "eight")]


async def test_what_a_thread_prints_after_its_task_belongs_to_the_run(scene: Scene) -> None:
    """LOG-3: the last task has ended, so it is of no task"""
    assert shown(await scene.lines("leaves_a_thread")) == [(None, "stdout", "from the thread")]


async def test_a_flood_delays_nobody_and_leaves_its_beginning_and_its_end() -> None:
    """LOG-5, LOG-24: 100 MB; the worker's event loop runs on, and it gets no more than is kept"""
    collected = Collected()
    async with opened(collected) as scene:
        lags: list[float] = []

        async def measure() -> None:
            while True:
                began = time.monotonic()
                await asyncio.sleep(0.01)
                lags.append(time.monotonic() - began - 0.01)

        measuring = asyncio.create_task(measure())
        lines = await scene.lines("floods")
        measuring.cancel()
        assert lines[-1].text == "the last line"
        assert lines[0].seq == 1
        assert sum(line.gap.lines or 0 for line in lines if line.gap) + sum(not line.gap for line in lines) == 1_000_001
        run = next(iter(collected.shipments.values()))
        assert sum(each.size for each in run) < 40 * 2**20
        assert sorted(lags)[len(lags) // 2] < 0.1


async def test_one_endless_line_is_cut(scene: Scene) -> None:
    """LOG-23: 100 MB without a line end"""
    (line,) = await scene.lines("long_line")
    assert (len(line.text), line.cut_bytes) == (16_384, 100_000_000 - 16_384)
    guards = [each for each in psutil.Process().children() if each.is_running()]
    assert all(guard.memory_info().rss < 200 * 2**20 for guard in guards)


async def test_the_output_of_imports_still_goes_to_the_worker(scene: Scene, capfd: pytest.CaptureFixture[str]) -> None:
    """LOG-1: it belongs to no run. The host that replaces this one prints it now."""
    await scene.run("dies")
    await eventually(lambda: "imported" in capfd.readouterr().out)
