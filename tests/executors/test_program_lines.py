"""What real programs print, line by line, beside their reports."""

from __future__ import annotations

import asyncio
import time

import psutil

from pyoco_server.core.run_log.attempt_log import Limits
from pyoco_server.core.run_log.line import Line, Why
from pyoco_server.executors.capture.port import Captured
from pyoco_server.executors.program.local import LocalPrograms
from pyoco_server.executors.program.port import ProgramOutcome
from support.collected_lines import CollectedLines
from support.grid.program_runs import DONE, site
from support.grid.program_sites import ProgramSite
from support.waiting import eventually

__all__ = ["site"]


async def printed(
    executor: LocalPrograms, collected: CollectedLines, exec_name: str, *args: str
) -> tuple[list[Line], ProgramOutcome]:
    """Run a program to its end, and return all of its lines."""
    work = ProgramSite.work(exec_name, *args)
    outcome = await executor.begin(work).outcome()
    attempt = Captured(work.run_id, work.attempt)
    await eventually(lambda: collected.is_over(attempt))
    return collected.lines(attempt), outcome


async def test_lines_are_there_while_the_program_runs(site: ProgramSite) -> None:
    """LOG-1, LOG-2, LOG-3, LOG-5: those of a child process too; what is open at the end is a line."""
    gate, collected = site.home / "gate", CollectedLines()
    site.program(
        "talks.sh",
        f'echo one; sh -c "echo two >&2"; while [ ! -e {gate} ]; do sleep 0.01; done; printf "three\\r\\nopen end"\n',
    )
    async with site.executor(collector=collected) as executor:
        work = site.work("talks", attempt=3)
        execution, attempt = executor.begin(work), Captured(work.run_id, 3)
        await eventually(lambda: len(collected.lines(attempt)) == 2)
        assert {(line.stream, line.text) for line in collected.lines(attempt)} == {("stdout", "one"), ("stderr", "two")}
        gate.touch()
        report = (await execution.outcome()).report
        await eventually(lambda: collected.is_over(attempt))
        assert [(line.seq, line.task, line.text) for line in collected.lines(attempt)][2:] == [
            (3, "exec", "three"),
            (4, "exec", "open end"),
        ]
        assert (report.stdout, report.stderr) == (b"one\nthree\r\nopen end", b"two\n")
        silent = site.work(site.program("silent.sh", "true\n"))
        assert (await executor.begin(silent).outcome()).report.status is DONE
        assert Captured(silent.run_id, 1) not in collected.shipments
        assert executor._captures is not None
        assert executor._captures._attempts == {}


async def test_any_bytes_are_lines(site: ProgramSite) -> None:
    """LOG-4, LOG-23: invalid UTF-8, NUL, and a line of a megabyte; the report has the bytes themselves"""
    site.program(
        "odd.py",
        "import os\nos.write(1, b'a\\xffb\\0c\\n')\n"
        "data = b'x' * 1_000_000 + b'\\n\\n\\nend'\nwhile data: data = data[os.write(1, data):]\n",
    )
    collected = CollectedLines()
    async with site.executor(collector=collected, exec_stdio_max=2**20) as executor:
        lines, outcome = await printed(executor, collected, "odd")
    assert [line.text for line in lines] == ["a\ufffdb\u2400c", "x" * 16_384, "", "", "end"]
    assert [line.cut_bytes for line in lines] == [0, 1_000_000 - 16_384, 0, 0, 0]
    assert outcome.report.stdout == b"a\xffb\0c\n" + b"x" * 1_000_000 + b"\n\n\nend"


async def test_a_flood_is_bounded_and_delays_no_other_program(site: ProgramSite) -> None:
    """LOG-5, LOG-24: short lines, which are the most expensive; the beginning and the end are kept"""
    site.program("floods.sh", "echo first; yes y | head -c 20000000; echo last\n")
    collected = CollectedLines(Limits(line_bytes=16_384, head_bytes=100_000, tail_bytes=200_000))
    async with site.executor(collector=collected) as executor:
        assert executor._line is not None
        runner = psutil.Process(executor._line.pid)
        memory = runner.memory_info().rss
        flood = asyncio.ensure_future(printed(executor, collected, "floods"))
        slowest = grown = 0.0
        while not flood.done():
            began = time.monotonic()
            await site.run(executor, "failn", "0")
            slowest = max(slowest, time.monotonic() - began)
            grown = max(grown, runner.memory_info().rss - memory)
        lines, outcome = await flood
    gaps = [line.gap for line in lines if line.gap is not None]
    kept = [line for line in lines if line.gap is None]
    assert (lines[0].text, lines[-1].text) == ("first", "last")
    assert {gap.why for gap in gaps} == {Why.LIMIT}
    assert sum(gap.lines or 0 for gap in gaps) + len(kept) == 10_000_002
    assert outcome.report.status is DONE
    assert slowest < 5
    assert grown < 64 * 2**20


async def test_a_stop_waits_for_the_lines_of_killed_programs(site: ProgramSite) -> None:
    """LOG-5"""
    collected = CollectedLines()
    site.program("waits.sh", "echo started; exec sleep 60\n")
    async with site.executor(collector=collected) as executor:
        work = site.work("waits")
        execution = executor.begin(work)
        attempt = Captured(work.run_id, 1)
        await eventually(lambda: bool(collected.lines(attempt)))
        execution.kill()
        await execution.outcome()
    assert collected.is_over(attempt)
