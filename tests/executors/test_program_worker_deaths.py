"""What becomes of programs and their directories when their worker is killed (GRID-95)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

from pyoco_server.core.states import RunState
from support.grid.program_sites import ProgramSite, processes_with
from support.waiting import eventually


@pytest.fixture
def site(tmp_path: Path) -> ProgramSite:
    site = ProgramSite(tmp_path)
    site.program("longest", "#!/bin/sh\nexec sleep 600\n")
    return site


#: A worker: runs a forker of five children, and one that has left its group, until it is killed.
WORKER = """
import asyncio, os, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from support.grid.program_sites import ProgramSite
async def main():
    site = ProgramSite.__new__(ProgramSite)
    site.home, site.exe, site.jobs = (Path(p) for p in sys.argv[1:4])
    async with site.executor() as executor:
        for name in sys.argv[4:]:
            executor.begin(site.work(name))
        print("running", flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


async def worker(site: ProgramSite, *names: str) -> asyncio.subprocess.Process:
    text = WORKER.format(tests=str(Path(__file__).parent.parent))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        text,
        str(site.home),
        str(site.exe),
        str(site.jobs),
        *names,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"running\n"
    return process


async def end(process: asyncio.subprocess.Process, how: signal.Signals = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(how)
    await process.communicate()


async def test_a_worker_that_is_killed_takes_its_programs_with_it(site: ProgramSite) -> None:
    """GRID-95, GRID-98, P10: no program alive, no directory left, whatever it was doing"""
    process = await worker(site, "forker", "forker", "longest")
    await eventually(lambda: len(processes_with(f"{site.jobs}/")) >= 13)
    await end(process)
    await eventually(lambda: processes_with(f"{site.jobs}/") == [])
    await eventually(lambda: site.left() == [])


async def test_leftovers_are_ended_and_removed_at_the_next_start(site: ProgramSite) -> None:
    """GRID-95: when worker and runner are killed at once; also who left its group; living workers are not touched"""
    leaver = site.program(
        "leaver.py", "import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.chdir('/')\ntime.sleep(600)\n"
    )
    dead, alive = await worker(site, "forker", leaver), await worker(site, "longest")
    try:
        await eventually(lambda: len(processes_with(f"{site.jobs}/")) >= 6 + 2 + 1)
        runners = [pid for pid in processes_with("program.runner") if _parent(pid) == dead.pid]
        assert len(runners) == 1
        for pid in (dead.pid, *runners):
            os.kill(pid, signal.SIGSTOP)
        for pid in (*runners, dead.pid):
            os.kill(pid, signal.SIGKILL)
        await end(dead)
        assert len(processes_with(f"{site.jobs}/")) >= 6 + 2 + 1, "nobody was there to end them"
        (site.jobs / ".packed" / "999999999-1-1-1").mkdir()
        (site.jobs / ".spool").mkdir()
        async with site.executor() as executor:
            assert len(site.left()) == 2, "the one of the living worker, and the spool, which is not ours"
            assert len(processes_with(f"{site.jobs}/")) == 1
            assert len(list((site.jobs / ".packed").iterdir())) == 2
            assert (await site.run(executor, "sleepn", "0")).report.status == RunState.COMPLETED
    finally:
        await end(alive)
    await eventually(lambda: processes_with(f"{site.jobs}/") == [])


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
