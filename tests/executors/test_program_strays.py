"""Processes that leave the group of their program: gone when its result is here, and before another attempt begins."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pyoco_server.core.states import RunState
from support.grid.program_sites import ProgramSite
from support.strays import COUNT, WITH_MARK, a_token, alive_with
from support.waiting import eventually

STRAYS = f"""#!{sys.executable}
import sys, time
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from support.strays import strays
strays(sys.argv[1], "note", float(sys.argv[2]))
"""


@pytest.fixture
def site(tmp_path: Path) -> ProgramSite:
    site = ProgramSite(tmp_path)
    site.program("strays", STRAYS)
    return site


@pytest.fixture
def token() -> Iterator[str]:
    token = a_token()
    yield token
    for pid in alive_with(token):
        os.kill(pid, signal.SIGKILL)


async def test_nothing_is_left_of_a_program_when_its_result_is_here(site: ProgramSite, token: str) -> None:
    """SAFE-6, GRID-98: also of what emptied its environment"""
    async with site.executor() as executor:
        report = (await site.run(executor, "strays", token, "0")).report
        assert report.status == RunState.COMPLETED, report
        assert len(alive_with(token)) == 0
        for stop in ("cancel", "kill"):
            work = site.work("strays", token, "600")
            execution = executor.begin(work)
            await eventually((site.jobs / work.job_id / "a1" / "note").exists)
            assert len(alive_with(token)) == COUNT
            getattr(execution, stop)()
            await execution.outcome()
            assert len(alive_with(token)) == 0, stop


async def test_a_program_beside_keeps_its_strays(site: ProgramSite, token: str) -> None:
    """SAFE-6: each program has its own, also the younger one"""
    other = a_token()
    async with site.executor() as executor:
        work = site.work("strays", other, "600")
        running = executor.begin(work)
        await eventually((site.jobs / work.job_id / "a1" / "note").exists)
        report = (await site.run(executor, "strays", token, "0")).report
        assert report.status == RunState.COMPLETED
        # The one without variables could be of the older program.
        assert len(alive_with(token)) == COUNT - WITH_MARK
        assert len(alive_with(other)) == COUNT
        running.cancel()
        await running.outcome()
        await eventually(lambda: alive_with(token) == alive_with(other) == [])


async def test_an_older_program_leaves_nothing_to_a_younger_one(site: ProgramSite, token: str) -> None:
    """SAFE-6: a process without variables is older than the program that runs, so that cannot have started it"""
    other = a_token()
    async with site.executor() as executor:
        first = site.work("strays", token, "600")
        older = executor.begin(first)
        await eventually((site.jobs / first.job_id / "a1" / "note").exists)
        second = site.work("strays", other, "600")
        younger = executor.begin(second)
        await eventually((site.jobs / second.job_id / "a1" / "note").exists)
        older.cancel()
        await older.outcome()
        await eventually(lambda: alive_with(token) == [])
        assert len(alive_with(other)) == COUNT
        younger.cancel()
        await younger.outcome()


#: A worker: runs one attempt of a job until it is killed.
WORKER = """
import asyncio, os, sys
from pathlib import Path
from support.grid.program_sites import ProgramSite
async def main():
    home, job_id, token = sys.argv[1:]
    site = ProgramSite.__new__(ProgramSite)
    site.home, site.exe, site.jobs = Path(home), Path(home) / "exe", Path(home) / "jobs"
    async with site.executor() as executor:
        executor.begin(site.work("strays", token, "600", job_id=job_id, run_id=job_id))
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.parametrize("with_runner", [False, True], ids=["the worker", "the worker and its runner"])
async def test_another_attempt_finds_nothing_of_a_dead_worker(
    site: ProgramSite, tmp_path: Path, token: str, with_runner: bool
) -> None:
    """SAFE-6, GRID-98: on another worker process of this machine, which has another WORK_ROOT, and was there before"""
    (tmp_path / "other").mkdir()
    other, job_id = ProgramSite(tmp_path / "other"), str(uuid.uuid4())
    async with other.executor() as executor:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            WORKER,
            str(site.home),
            job_id,
            token,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )
        worker = psutil.Process(process.pid)
        try:
            await eventually((site.jobs / job_id / "a1" / "note").exists)
            family = [worker, *worker.children()] if with_runner else [worker]
            for each in family:
                each.suspend()
            for each in reversed(family):
                each.kill()
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):  # it was reaped, in another thread
                worker.kill()
            await process.wait()
        if with_runner:
            assert len(alive_with(token)) == COUNT, "nobody was there to end them"
        else:
            await eventually(lambda: alive_with(token) == [], seconds=12.0)
        work = other.work("calcA", job_id=job_id, run_id=job_id, attempt=2)
        execution = executor.begin(work)
        outcome = await execution.outcome()
        assert outcome.report.status == RunState.COMPLETED
        if outcome.archive is not None:
            outcome.archive.discard()
        assert len(alive_with(token)) == (COUNT - WITH_MARK if with_runner else 0)


_EXITING_CHILD = """
import os, time
from pathlib import Path
from pyoco_server.executors.program.strays import EXITING, end_strays
pid = os.fork() or os._exit(0)
while " Z " not in Path(f"/proc/{pid}/stat").read_text():
    time.sleep(0.001)
assert end_strays((), {}) == {EXITING}, "a child without memory belongs to no known program"
os.waitpid(pid, 0)
assert end_strays((), {}) == set()
"""


def test_a_child_that_is_exiting_is_not_taken_for_one_of_another_program() -> None:
    """SAFE-6: what it started is adopted after its environment is gone, so its program is not over yet"""
    subprocess.run([sys.executable, "-c", _EXITING_CHILD], check=True, timeout=60)
