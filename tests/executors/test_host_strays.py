"""Whatever processes a run of a flow starts, and however it ends: nothing of it is left."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
import uvloop

from pyoco_server.core.outcome import Cancelled, Completed, Died, Failed, Outcome, TimedOut
from pyoco_server.executors.host.execution import HostExecution
from pyoco_server.executors.host.pool import HostExecutor
from pyoco_server.executors.host.process import completed_start
from pyoco_server.executors.port import Work
from pyoco_server.executors.strays import marks, owners
from pyoco_server.executors.strays.marks import end_abandoned
from support.host_scenes import begun, executor, helpers_on_path, inner, is_gone, is_whole, outcome_of, work
from support.strays import COUNT, WITH_MARK, a_token, alive_with
from support.waiting import eventually

__all__ = ["helpers_on_path"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(helpers_on_path: None) -> AsyncIterator[HostExecutor]:
    async with executor(resolver="support.stray_flows:resolve") as pool:
        yield pool


@pytest_asyncio.fixture(loop_scope="module")
async def hosts(pool: HostExecutor) -> HostExecutor:
    await eventually(lambda: is_whole(pool))
    pool._pool.restarts = 0
    return pool


@pytest.fixture
def token() -> Iterator[str]:
    token = a_token()
    yield token
    for pid in alive_with(token):
        os.kill(pid, signal.SIGKILL)


class TestNothingIsLeftOf:
    """When the outcome is here, and so before another attempt can begin."""

    @pytest.mark.parametrize(
        ("flow", "end"),
        [
            ("strays", Completed),
            ("daemon_alone", Completed),
            ("strays_and_failure", Failed),
            ("strays_and_crash", Died),
        ],
    )
    async def test_a_run_that_ends(self, hosts: HostExecutor, token: str, flow: str, end: type[Outcome]) -> None:
        """SAFE-6, SAFE-7"""
        outcome = await outcome_of(hosts, work(flow, token=token))
        assert alive_with(token) == []
        assert isinstance(outcome, end), outcome
        assert hosts.restarts == 1, "a host whose run left a child is replaced"

    async def test_a_run_that_has_used_up_its_files(self, hosts: HostExecutor, token: str) -> None:
        """SAFE-6: its host cannot look for its children, and its guard can"""
        assert isinstance(await outcome_of(hosts, work("strays_and_no_files", token=token)), Completed)
        await eventually(lambda: alive_with(token) == [], seconds=12.0)

    @pytest.mark.parametrize("flow", ["strays", "strays_and_halt", "strays_and_hold"])
    async def test_a_run_that_is_cancelled(self, hosts: HostExecutor, token: str, tmp_path: Path, flow: str) -> None:
        """SAFE-6: also when its host is stopped, or never returns to the interpreter"""
        seconds = {"seconds": 600.0} if flow == "strays" else {}
        execution = await begun(hosts, work(flow, token=token, note=str(tmp_path / "note"), **seconds))
        await eventually((tmp_path / "note").exists)
        assert len(alive_with(token)) == COUNT
        execution.kill()
        outcome = await execution.outcome()
        assert alive_with(token) == []
        assert isinstance(outcome, Cancelled)

    async def test_a_run_that_takes_too_long(self, hosts: HostExecutor, token: str, tmp_path: Path) -> None:
        """SAFE-6"""
        execution = await begun(hosts, work("strays", token=token, note=str(tmp_path / "note"), seconds=600.0))
        await eventually((tmp_path / "note").exists)
        assert isinstance(execution, HostExecution)
        execution._expire(1.0)  # as the timer does
        outcome = await execution.outcome()
        assert alive_with(token) == []
        assert outcome == TimedOut(seconds=1.0)

    @pytest.mark.parametrize("who", ["host", "guard"])
    async def test_a_run_whose_host_is_killed(self, hosts: HostExecutor, token: str, tmp_path: Path, who: str) -> None:
        """SAFE-6: what a killed guard left is found by its mark; only what emptied its environment is not"""
        execution = await begun(hosts, work("strays", token=token, note=str(tmp_path / "note"), seconds=600.0))
        await eventually((tmp_path / "note").exists)
        host = int((tmp_path / "note").read_text())
        os.kill(host if who == "host" else psutil.Process(host).ppid(), signal.SIGKILL)
        outcome = await execution.outcome()
        assert len(alive_with(token)) == (0 if who == "host" else COUNT - WITH_MARK)
        assert is_gone(host)
        assert isinstance(outcome, Died)
        assert "SIGKILL" in outcome.how


class TestAHost:
    async def test_that_reaped_a_zombie_goes_on(self, hosts: HostExecutor) -> None:
        """SAFE-7"""
        outcome = await outcome_of(hosts, work("ended_child"))
        assert isinstance(outcome, Completed)
        assert not psutil.pid_exists(outcome.progress.task_records["ended_child"]["output"])
        assert isinstance(await outcome_of(hosts, work("ended_child")), Completed)
        assert hosts.restarts == 0

    @pytest.mark.parametrize(("flow", "restarts"), [("lasting_thread", 1), ("brief_thread", 0)])
    async def test_with_a_thread_left_behind_is_replaced(self, hosts: HostExecutor, flow: str, restarts: int) -> None:
        """SAFE-7: one that is about to end is waited for"""
        assert isinstance(await outcome_of(hosts, work(flow)), Completed)
        assert hosts.restarts == restarts

    async def test_restores_what_a_run_has_changed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """SAFE-7: umask, working directory, environment, time zone, signal mask, dispositions, timers"""
        monkeypatch.setenv("A_VARIABLE", "of the worker")
        async with executor(resolver="support.stray_flows:resolve") as hosts:
            await eventually(lambda: is_whole(hosts))
            found = []
            for flow in ("finds_everything", "changes_everything", "finds_everything"):
                outcome = await outcome_of(hosts, work(flow))
                assert isinstance(outcome, Completed), outcome
                found.append(outcome.progress.task_records[flow]["output"])
            assert ["A_VARIABLE", "of the worker"] in found[0][3]
            assert found[0] == found[2], "the process id is in it: no other host took over"
            assert hosts.restarts == 0


async def test_what_a_flow_starts_has_three_descriptors_also_under_uvloop() -> None:
    """SAFE-8: uvloop, which services use, hands down copies of the service's own streams"""

    async def run() -> Outcome:
        async with executor(resolver="support.stray_flows:resolve") as hosts:
            return await outcome_of(hosts, work("inherited_descriptors"))

    outcome = await asyncio.to_thread(uvloop.run, run())
    assert isinstance(outcome, Completed), outcome
    assert outcome.progress.task_records["inherited_descriptors"]["output"] == ["0", "1", "2", "3"]


#: Asserts that a run without children costs no look at /proc, in a process that has no other children.
NO_LOOK = """
import builtins, os, threading, time
from pyoco_server.executors.host.scene import Scene
scene = Scene()
def refuse(*_, **__): raise AssertionError("a look at the file system")
builtins.open = os.listdir = os.scandir = refuse
began = time.perf_counter()
for _ in range(1000):
    assert scene.restore()
print(time.perf_counter() - began)
"""


async def test_a_run_that_leaves_nothing_costs_no_look_at_proc() -> None:
    """SAFE-6, SAFE-7"""
    ran = subprocess.run([sys.executable, "-c", NO_LOOK], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


#: A worker of hosts, as far as this is about their end: one that runs `flow`, and one that is idle.
WORKER = """
import asyncio, sys
from pyoco_server.core.job import decode_job
from pyoco_server.executors.strays import marks
from pyoco_server.executors.host.pool import HostExecutor
from pyoco_server.executors.host.wire import Settings
from pyoco_server.executors.port import Work
from support.stray_flows import a_job

async def main():
    flow, token, note, marks._MARK = sys.argv[1:]
    hosts = HostExecutor(Settings("support.stray_flows:resolve", (), 262144, 65536, 0), 1, 1000, 0.0)
    await hosts.start()
    more = {"seconds": 600.0} if flow == "strays" else {}
    data = a_job(flow, token=token, note=note, **more)
    await hosts.begin(Work(decode_job(data), data), lambda: None)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@contextmanager
def a_worker(flow: str, token: str, note: Path, mark: str = "_PYOCO_STARTED_BY") -> Iterator[psutil.Process]:
    with subprocess.Popen([sys.executable, "-c", WORKER, flow, token, str(note), mark]) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()


@pytest.mark.parametrize("flow", ["strays", "strays_and_halt", "strays_and_hold"])
async def test_a_worker_that_is_killed_leaves_nothing(tmp_path: Path, token: str, flow: str) -> None:
    """SAFE-6: whatever its hosts are doing at that moment; nobody else has to look for it"""
    with a_worker(flow, token, tmp_path / "note") as worker:
        await eventually((tmp_path / "note").exists)
        await eventually(lambda: len(worker.children()) == 2)  # a host at work, and an idle one
        family = worker.children(recursive=True)
        worker.kill()
        await eventually(lambda: alive_with(token) == [] and all(is_gone(each.pid) for each in family), seconds=12.0)


@pytest.mark.parametrize("who", ["the next worker", "another attempt"])
async def test_what_a_worker_left_that_was_killed_with_its_guards_is_ended_by(
    hosts: HostExecutor, tmp_path: Path, token: str, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """SAFE-6: before it begins; what living workers run is not touched"""
    mark = f"_OF_THIS_TEST_{token}"  # or workers of other tests on this machine may be faster
    monkeypatch.setattr(marks, "_MARK", mark)
    living = a_token()
    with (
        a_worker("strays", living, tmp_path / "living", mark),
        a_worker("strays_and_hold", token, tmp_path / "dead", mark) as dead,
    ):
        await eventually(lambda: (tmp_path / "living").exists() and (tmp_path / "dead").exists())
        guards = dead.children()
        its_hosts = [host for guard in guards for host in guard.children()]
        for process in (dead, *guards):
            process.suspend()
        for process in (*guards, dead):
            process.kill()
        dead.wait(60)
        await eventually(lambda: all(is_gone(host.pid) for host in its_hosts))
        assert len(alive_with(token)) == COUNT, "nobody was there to end them"
        if who == "the next worker":
            async with executor(resolver="support.stray_flows:resolve"):
                assert len(alive_with(token)) == COUNT - WITH_MARK
        else:
            first = work("finds_everything")
            execution = await hosts.begin(Work(first.job, first.data, attempt=2), lambda: None)
            assert len(alive_with(token)) == COUNT - WITH_MARK
            assert execution is not None
            assert isinstance(await execution.outcome(), Completed)
        assert len(alive_with(living)) == COUNT
    await eventually(lambda: alive_with(living) == [])


async def test_a_guard_that_is_still_there_is_not_killed_by_the_next_worker(
    tmp_path: Path, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SAFE-6: only the guard finds a process that emptied its environment"""
    mark = f"_OF_THIS_TEST_{token}"
    monkeypatch.setattr(marks, "_MARK", mark)
    with a_worker("strays", token, tmp_path / "note", mark) as worker:
        await eventually((tmp_path / "note").exists)
        guards = worker.children()
        for guard in guards:
            guard.suspend()
        worker.kill()
        worker.wait(60)
        ending = asyncio.create_task(asyncio.to_thread(end_abandoned))
        await asyncio.sleep(0.2)
        assert not ending.done()
        for guard in guards:
            guard.resume()
        await ending
        assert alive_with(token) == []


async def test_what_nobody_has_left_is_not_touched(hosts: HostExecutor) -> None:
    before = [inner(host).pid for host in hosts._pool._processes]
    await asyncio.to_thread(end_abandoned)
    assert [inner(host).pid for host in hosts._pool._processes] == before


async def test_a_process_that_cannot_be_inspected_is_not_taken_for_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """SAFE-6: without a free file descriptor, living workers would be taken for dead, and their hosts killed"""
    me = owners.own_text()
    assert not owners.is_gone(me, 0.0)

    def refuse(*_: object) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert not owners.is_gone(me, 0.0)
    with pytest.raises(OSError, match="Too many open files"):
        owners.own_text()


async def test_a_start_is_completed_however_often_it_is_cancelled() -> None:
    """SAFE-6: a pool that stops asks again every half second"""
    began, may_end = asyncio.Event(), asyncio.Event()
    done: list[str] = []

    class Child:
        def kill_now(self) -> None:
            done.append("killed")

        async def wait(self) -> int:
            await may_end.wait()
            done.append("ended")
            return 0

    async def spawn() -> Any:
        began.set()
        await asyncio.sleep(0.01)
        return Child()

    starting = asyncio.ensure_future(completed_start(spawn()))
    await began.wait()
    for _ in range(5):
        starting.cancel()
        await asyncio.sleep(0.01)
    assert not starting.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert done == ["killed", "ended"]
