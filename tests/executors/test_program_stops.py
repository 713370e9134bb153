"""Programs that do not end by themselves, and processes that die: nothing is left, and the end has the right word."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.states import RunState
from pyoco_server.errors import UsageError
from pyoco_server.executors.program.local import LocalPrograms
from pyoco_server.executors.program.port import ProgramExecution, ProgramOutcome, ProgramWork, WorkFile
from pyoco_server.executors.strays.owners import own_text
from support.grid.program_sites import ProgramSite, processes_with
from support.waiting import eventually

#: A program that is asked to stop and does not, with a child that does not either. Says when it is deaf.
DEAF = 'trap "" TERM; (trap "" TERM; sleep 600; sleep 600) & echo deaf > deaf; while :; do sleep 1; done\n'


#: As the sample, and it leaves a word where nothing is kept.
FORKER = "for n in 1 2 3 4 5; do sleep 600 & done; echo started; echo ready > tmp/ready; wait\n"
#: Who listens to SIGTERM may be on a busy machine.
PATIENT = {"kill_seconds": 100.0}


@pytest.fixture
def site(tmp_path: Path) -> ProgramSite:
    site = ProgramSite(tmp_path)
    site.program("longest", "#!/bin/sh\nexec sleep 600\n")
    return site


async def begun(executor: LocalPrograms, work: ProgramWork, count: int = 1) -> ProgramExecution:
    """Returns once that many processes of it are there."""
    execution = executor.begin(work)
    await eventually(lambda: len(processes_with(work.job_id)) >= count)
    return execution


async def test_a_cancelled_program_is_gone_with_all_its_children(site: ProgramSite) -> None:
    """GRID-98, GRID-112, GRID-160, P21: outputs so far are kept, no process is left"""
    (site.exe / "forker.sh").write_text(FORKER)
    async with site.executor(change=PATIENT) as executor:
        work = site.work("forker", "5")
        execution = await begun(executor, work, 6)
        await eventually((site.jobs / work.job_id / "a1" / "tmp" / "ready").exists)
        execution.cancel()
        execution.cancel()
        outcome = await execution.outcome()
        report = outcome.report
        assert (report.status, report.error_code) == (RunState.CANCELLED, ErrorCode.CANCELLED)
        assert (report.exit_code, report.stdout) == (-signal.SIGTERM, b"started\n")
        assert processes_with(work.job_id) == []
        assert site.left() == []


async def test_a_shorter_grace_may_be_asked_for_later(site: ProgramSite) -> None:
    """CLI-10"""
    deaf = site.program("deaf.sh", DEAF)
    async with site.executor(change={"kill_seconds": 300.0}) as executor:
        work = site.work(deaf)
        execution = executor.begin(work)
        await eventually((site.jobs / work.job_id / "a1" / "deaf").exists)
        for seconds in (None, 200.0, 0.0):
            execution.cancel(seconds)
        outcome = await execution.outcome()
        assert (outcome.report.error_code, outcome.report.exit_code) == (ErrorCode.CANCELLED, -signal.SIGKILL)
        assert outcome.archive is not None
        outcome.archive.discard()


async def test_one_that_does_not_listen_is_killed_after_the_grace(site: ProgramSite) -> None:
    """GRID-99, GRID-112: SIGTERM, then SIGKILL"""
    deaf = site.program("deaf.sh", DEAF)
    async with site.executor(change={"kill_seconds": 0.6}) as executor:
        work = site.work(deaf)
        execution = executor.begin(work)
        await eventually((site.jobs / work.job_id / "a1" / "deaf").exists)
        began = time.monotonic()
        execution.cancel()
        outcome = await execution.outcome()
        assert (outcome.report.error_code, outcome.report.exit_code) == (ErrorCode.CANCELLED, -signal.SIGKILL)
        assert time.monotonic() - began >= 0.6
        assert outcome.archive is not None
        outcome.archive.discard()
        assert processes_with(work.job_id) == []
        seconds = 5.0  # far more than it needs until it is deaf
        work = site.work(deaf, timeout_sec=seconds)
        outcome = await executor.begin(work).outcome()
        assert outcome.archive is not None
        outcome.archive.discard()
        assert (outcome.report.error_code, outcome.report.exit_code) == (ErrorCode.RUN_TIMEOUT, -signal.SIGKILL)
        assert (outcome.report.run_seconds or 0) >= seconds + 0.6
        assert processes_with(work.job_id) == []
        assert site.left() == []
    assert (site.settings().kill_seconds, site.settings().linger_seconds) == (5.0, 2.0)


async def test_one_that_listens_may_say_goodbye(site: ProgramSite) -> None:
    """GRID-112: CANCELLED whatever its exit code, with its outputs"""
    text = "trap 'echo bye; echo kept > kept; exit 3' TERM\necho ready > ready\nwhile :; do sleep 0.01; done\n"
    polite = site.program("polite.sh", text)
    async with site.executor(change=PATIENT) as executor:
        work = site.work(polite)
        execution = executor.begin(work)
        await eventually((site.jobs / work.job_id / "a1" / "ready").exists)
        execution.cancel()
        outcome = await execution.outcome()
        assert (outcome.report.status, outcome.report.exit_code) == (RunState.CANCELLED, 3)
        assert outcome.report.stdout == b"bye\n"
        assert outcome.archive is not None
        outcome.archive.discard()


async def test_a_program_that_runs_too_long_is_stopped(site: ProgramSite) -> None:
    """GRID-99: FAILED, RUN_TIMEOUT; halted ones hear of it, too"""
    halted = site.program("halted.sh", "kill -STOP $$\n")
    async with site.executor(change=PATIENT) as executor:
        for name, args in (("sleepn", ["600"]), (halted, [])):
            report = (await site.run(executor, name, *args, timeout_sec=1.0)).report
            assert (report.status, report.error_code) == (RunState.FAILED, ErrorCode.RUN_TIMEOUT)
            assert report.error == "it ran for more than 1 s"
            assert report.exit_code == -signal.SIGTERM
            assert (report.run_seconds or 0) >= 1.0


async def test_what_a_program_leaves_running_is_ended_with_it(site: ProgramSite) -> None:
    """GRID-98, GRID-100: its group is killed; a pipe that a stranger holds is read for a while and no longer"""
    parent = site.program("parent.sh", "(trap '' TERM HUP; sleep 600) & echo done\n")
    runaway = site.program(
        "runaway.py",
        "import os, time, sys\n"
        "said, says = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    while True:\n"
        "        time.sleep(0.01)\n"
        "        try: os.write(1, b'x' * 1001); os.write(says, b'x')\n"
        "        except OSError: pass\n"
        "os.read(said, 1)\n"
        "print('done', flush=True)\n",
    )
    async with site.executor(change={"linger_seconds": 0.5}) as executor:
        work = site.work(parent)
        report = (await executor.begin(work).outcome()).report
        assert (report.status, report.stdout) == (RunState.COMPLETED, b"done\n")
        assert processes_with(work.job_id) == []
        work = site.work(runaway)
        began = time.monotonic()
        report = (await executor.begin(work).outcome()).report
        assert report.status == RunState.COMPLETED
        assert b"done\n" in report.stdout
        assert len(report.stdout) > 1000
        assert time.monotonic() - began >= 0.5
        assert report.ended_at is not None
        assert time.time() - report.ended_at >= 0.5, "the time of the program is its own"
        await eventually(lambda: processes_with(work.job_id) == [])


async def test_who_left_the_group_is_ended_soon_after(site: ProgramSite) -> None:
    """GRID-98: beyond the known limit; as long as the program runs, what it started is its own affair"""
    daemon = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\ntime.sleep(600)\n"
    (site.home / "daemon.py").write_text(daemon)
    starter = site.program(
        "starter.sh",
        f"{sys.executable} {site.home}/daemon.py </dev/null >/dev/null 2>&1; timeout 600 sleep 600 &\n"
        "env -i sleep 599.5 >/dev/null 2>&1 & echo ready > ready; sleep 600\n",
    )
    async with site.executor() as executor:
        work, other = site.work(starter), site.work(starter)
        first, second = executor.begin(work), executor.begin(other)
        for each in (work, other):
            await eventually((site.jobs / each.job_id / "a1" / "ready").exists)
        first.cancel()
        await first.outcome()
        await eventually(lambda: processes_with(work.job_id) == [])
        assert len(processes_with(other.job_id)) >= 4
    await eventually(lambda: processes_with(other.job_id) == [])
    assert await second.outcome()


async def test_one_that_ended_by_itself_keeps_its_result(site: ProgramSite) -> None:
    """GRID-161: a cancel or a kill that comes late changes nothing"""
    async with site.executor() as executor:
        over = executor.begin(site.work("failn", "4"))
        await over.outcome()
        over.cancel()
        over.kill()
        assert (await over.outcome()).report.exit_code == 4
        # Over for the kernel, and not yet for us: the runner is held up meanwhile.
        assert executor._line is not None
        runner = executor._line.pid
        assert runner is not None
        work = site.work(site.program("waits.sh", "until [ -e go ]; do sleep 0.01; done\n"))
        execution = await begun(executor, work)
        os.kill(runner, signal.SIGSTOP)
        try:
            (site.jobs / work.job_id / "a1" / "go").touch()
            await eventually(lambda: processes_with(work.job_id) == [])
            execution.cancel()
        finally:
            os.kill(runner, signal.SIGCONT)
        outcome = await execution.outcome()
        assert outcome.report.status == RunState.COMPLETED
        assert outcome.archive is not None
        outcome.archive.discard()


async def test_a_killed_one_is_gone_at_once_and_is_nobodys_result(site: ProgramSite) -> None:
    """GRID-110, GRID-113"""
    deaf = site.program("deaf.sh", DEAF)
    async with site.executor() as executor:
        work = site.work(deaf)
        execution = await begun(executor, work, 2)
        execution.cancel()
        execution.kill()
        outcome = await execution.outcome()
        assert outcome.report.error_code == ErrorCode.WORKER_ERROR
        assert outcome.archive is None
        assert processes_with(work.job_id) == []
        await eventually(lambda: site.left() == [])


@pytest.mark.parametrize("size", [10, 1 << 20], ids=["small", "large"])
async def test_one_whose_inputs_are_on_the_way_never_starts(site: ProgramSite, size: int) -> None:
    """GRID-112: cancelled without being started"""
    waiting = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"x"
        waiting.set()
        await asyncio.Event().wait()

    site.program("ran.sh", f"touch {site.home}/ran\n")
    async with site.executor() as executor:
        for stop, code in (("cancel", ErrorCode.CANCELLED), ("kill", ErrorCode.WORKER_ERROR)):
            waiting.clear()
            execution = executor.begin(site.work("ran", files=[WorkFile("in", size, "0" * 64, slow)]))
            await waiting.wait()
            getattr(execution, stop)()
            assert (await execution.outcome()).report.error_code == code
            await eventually(lambda: site.left() == [])
        execution = executor.begin(site.work("ran", files=[WorkFile("in", size, "0" * 64, slow)]))
    assert (await execution.outcome()).report.error_code == ErrorCode.WORKER_ERROR, "the worker stopped"
    assert not (site.home / "ran").exists()
    assert site.left() == []


async def test_whoever_waits_for_an_outcome_may_be_cancelled(site: ProgramSite) -> None:
    """The attempt goes on, and others still hear of it."""
    async with site.executor() as executor:
        execution = executor.begin(site.work("sleepn", "0.3"))
        first, second = (asyncio.ensure_future(execution.outcome()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).report.status == RunState.COMPLETED
        assert first.cancelled()


async def test_a_stopped_executor_has_ended_everything(site: ProgramSite) -> None:
    """GRID-113: and says WORKER_ERROR to whoever still waits"""
    async with site.executor() as executor:
        work = site.work("forker", "5")
        execution = await begun(executor, work, 6)
        await asyncio.gather(executor.stop(), executor.stop())
        assert (await execution.outcome()).report.error_code == ErrorCode.WORKER_ERROR
        assert processes_with(work.job_id) == []
        assert site.left() == []
        assert (await site.run(executor, "calcA")).report.error_code == ErrorCode.WORKER_ERROR


async def test_a_lost_runner_is_replaced_and_its_programs_are_ended(site: ProgramSite) -> None:
    """GRID-98, GRID-101: it is a fault of the worker, and what it had started does not run on unseen"""
    async with site.executor() as executor:
        work = site.work("forker", "5")
        execution = await begun(executor, work, 6)
        assert executor._line is not None
        assert executor._line.pid is not None
        os.kill(executor._line.pid, signal.SIGKILL)
        outcome = await execution.outcome()
        assert outcome.report.error_code == ErrorCode.WORKER_ERROR
        assert processes_with(work.job_id) == []
        assert site.left() == []
        await eventually(lambda: executor._line is not None)
        assert (await site.run(executor, "sleepn", "0")).report.status == RunState.COMPLETED
        assert executor.restarts == 1


async def test_a_root_that_others_could_use_is_refused(site: ProgramSite, tmp_path: Path) -> None:
    """GRID-92"""

    async def refused(text: str) -> None:
        with pytest.raises(UsageError, match=text):
            async with site.executor():
                raise AssertionError("it started")

    (tmp_path / "real").mkdir(mode=0o700)
    site.jobs.symlink_to("real")
    await refused("is a symbolic link")
    site.jobs.unlink()
    site.jobs.write_text("")
    await refused("cannot be made")
    site.jobs.unlink()
    site.jobs.mkdir()
    for mode in (0o702, 0o770, 0o777):
        site.jobs.chmod(mode)
        await refused("is writable by others")
    site.jobs.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(site.jobs, 65534, 65534)
        await refused("belongs to another user")
        os.chown(site.jobs, 0, 0)
    site.exe = tmp_path / "none"
    await refused("EXEC_DIR=.* is no directory")
    assert own_text().startswith(f"{os.getpid()}-")


async def test_whatever_is_stopped_whenever_nothing_leaks(site: ProgramSite) -> None:
    """GRID-95, GRID-98, GRID-112: no process, no directory, no descriptor, and every attempt has an end"""
    chance = random.Random(8)
    jobs = [
        ["failn", "3"],
        ["sleepn", "0.02"],
        ["sleepn", "600"],
        ["forker", "3", "600"],
        ["calcA", "x"],
        ["bigout"],
        ["no"],
    ]
    async with site.executor() as executor:
        assert executor._line is not None
        places = [Path(f"/proc/{pid}/fd") for pid in (os.getpid(), executor._line.pid)]

        async def one() -> ProgramOutcome:
            name, *args = chance.choice(jobs)
            size = chance.choice([0, 0, 10, 300_000])
            files = [WorkFile.of("in", bytes(size))] if size else []
            execution = executor.begin(site.work(name, *args, files=files))
            await asyncio.sleep(chance.choice([0, 0, 0.001, 0.01, 0.05]))
            stop = chance.choice([execution.cancel, execution.kill])
            if args[-1:] == ["600"] or chance.random() < 0.5:
                stop()
            return await execution.outcome()

        async def many() -> list[ProgramOutcome]:
            return [await one() for _ in range(12)]

        await asyncio.gather(*(many() for _ in range(2)))
        before = [len(list(place.iterdir())) for place in places]
        ends = [end for part in await asyncio.gather(*(many() for _ in range(10))) for end in part]
        codes = {end.report.error_code for end in ends}
        assert codes <= {None, *map(ErrorCode, ("CANCELLED", "WORKER_ERROR", "EXIT_NONZERO", "EXEC_NOT_FOUND"))}
        assert len(codes) >= 4
        for end in ends:
            if end.archive is not None:
                end.archive.discard()
        await eventually(lambda: site.left() == [])
        await eventually(lambda: processes_with(f"{site.jobs}/") == [])
        await eventually(lambda: all(len(list(at.iterdir())) <= n for at, n in zip(places, before, strict=True)))
