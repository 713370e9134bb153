"""Pack processes that time out, are stopped, die, or do not start."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from pyoco_server.config.packs import PackConfig
from pyoco_server.core.packs import PACKS
from pyoco_server.errors import UsageError
from pyoco_server.executors.host.wire import CANCEL, number
from pyoco_server.executors.packs import host as host_module
from pyoco_server.executors.packs.child import Child
from pyoco_server.executors.packs.host import PackExecution, _Verdict
from pyoco_server.executors.packs.pool import PackHosts
from pyoco_server.executors.packs.port import Executed, Stopped, TimedOut
from support.priced.pack_hosts import begun, call, hosts, naughty, opened, outcome_of, pool, still_works
from support.priced.pack_scenes import naughty_hosts, pack_processes
from support.strays import COUNT, a_token, alive_with
from support.waiting import eventually

__all__ = ["hosts", "naughty", "pool"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def others(hosts: PackHosts) -> set[psutil.Process]:
    """The processes that are there already, and stay."""
    return set(pack_processes())


@pytest.fixture
def token() -> Iterator[str]:
    token = a_token()
    yield token
    for pid in alive_with(token):
        os.kill(pid, signal.SIGKILL)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def pid_in(path: Path) -> int:
    await eventually(lambda: path.exists() and path.read_text() != "")
    return int(path.read_text())


class TestTheTimebox:
    async def test_ends_a_pack_that_minds(self, hosts: PackHosts, monkeypatch: pytest.MonkeyPatch) -> None:
        """PRICED-124: the result of a pack that is cancelled is none, and its process lives."""
        monkeypatch.setattr(host_module, "KILL_SECONDS", 200.0)
        began = time.monotonic()
        assert await outcome_of(hosts, call("answers_late", timebox_seconds=0.2)) == TimedOut()
        assert 0.2 <= time.monotonic() - began < 50  # by itself it would answer after 60 s
        await still_works(hosts)
        assert hosts.restarts == 0

    async def test_ends_a_pack_that_does_not_mind(
        self, hosts: PackHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """PRICED-124: killed 5 s after its cancel, and not before. Here it is one second."""
        assert host_module.KILL_SECONDS == 5
        monkeypatch.setattr(host_module, "KILL_SECONDS", 1.0)
        began = time.monotonic()
        what = call("ignores_cancel", {"begun": str(tmp_path / "begun")}, timebox_seconds=0.2)
        assert await outcome_of(hosts, what) == TimedOut()
        assert 1.1 <= time.monotonic() - began < 50  # by itself it would end after 60 s
        assert is_gone(await pid_in(tmp_path / "begun"))
        assert hosts.restarts == 1

    async def test_kills_what_the_pack_has_started(
        self, hosts: PackHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(host_module, "KILL_SECONDS", 0.1)
        async with begun(hosts, call("leaves_a_child", {"begun": str(tmp_path / "begun")})) as execution:
            pid = await pid_in(tmp_path / "begun")
            assert isinstance(execution, PackExecution)
            execution._end(_Verdict.TIMED_OUT)  # as the timer of the timebox does
            assert await execution.outcome() == TimedOut()
        await eventually(lambda: is_gone(pid))

    async def test_does_not_touch_a_pack_that_has_answered(self, hosts: PackHosts) -> None:
        earlier = []
        for _ in range(5):
            async with begun(hosts, call("tells")) as execution:
                assert isinstance(execution, PackExecution)
                assert isinstance(await execution.outcome(), Executed)
            assert execution._timebox.cancelled()
            earlier.append(execution)
        async with begun(hosts, call("sleeps", {"seconds": 0.1})) as execution:
            for each in earlier:
                each._end(_Verdict.TIMED_OUT)
            assert isinstance(await execution.outcome(), Executed)


class TestNothingIsLeftOf:
    """SAFE-6: of what a pack has started, when the outcome is here, though it left the process group."""

    async def test_a_pack_that_ends(self, hosts: PackHosts, token: str) -> None:
        """SAFE-6, SAFE-7"""
        assert isinstance(await outcome_of(hosts, call("leaves_strays", {"token": token})), Executed)
        assert alive_with(token) == []
        await still_works(hosts)
        assert hosts.restarts == 1

    @pytest.mark.parametrize("verdict", list(_Verdict))
    async def test_a_pack_that_is_stopped(
        self, hosts: PackHosts, token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: _Verdict
    ) -> None:
        """SAFE-6"""
        monkeypatch.setattr(host_module, "KILL_SECONDS", 0.1)
        note = tmp_path / "note"
        inputs = {"token": token, "note": str(note), "seconds": 600.0}
        async with begun(hosts, call("leaves_strays", inputs)) as execution:
            await eventually(note.exists)
            assert len(alive_with(token)) == COUNT
            assert isinstance(execution, PackExecution)
            execution._end(verdict)
            outcome = await execution.outcome()
            assert alive_with(token) == []
            assert outcome == (TimedOut() if verdict is _Verdict.TIMED_OUT else Stopped())


#: A worker that executes a pack until it is killed.
WORKER = """
import asyncio, sys
from support.priced.pack_hosts import call
from support.priced.pack_scenes import naughty_hosts

async def main():
    token, note = sys.argv[1:]
    hosts = naughty_hosts(1)
    await hosts.start()
    process = await hosts.reserve_process()
    await process.begin(call("leaves_strays", {"token": token, "note": note, "seconds": 600.0}))
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_a_killed_worker_leaves_nothing_of_its_packs(tmp_path: Path, token: str) -> None:
    """SAFE-6: nobody else has to look for it"""
    note = tmp_path / "note"
    with subprocess.Popen([sys.executable, "-c", WORKER, token, str(note)]) as worker:
        try:
            await eventually(note.exists)
            assert len(alive_with(token)) == COUNT
            family = psutil.Process(worker.pid).children(recursive=True)
        finally:
            worker.kill()
    await eventually(lambda: alive_with(token) == [] and all(is_gone(each.pid) for each in family), seconds=12.0)


class TestStopping:
    async def test_a_call_asks_the_pack_first(self, hosts: PackHosts, monkeypatch: pytest.MonkeyPatch) -> None:
        """PRICED-123"""
        monkeypatch.setattr(host_module, "KILL_SECONDS", 200.0)
        for _ in range(5):  # the cancel may be there before the call, or after it
            async with begun(hosts, call("sleeps")) as execution:
                execution.cancel()
                execution.cancel()
                assert await execution.outcome() == Stopped()
        await still_works(hosts)
        assert hosts.restarts == 0

    async def test_a_call_for_good_is_at_once(self, hosts: PackHosts, tmp_path: Path) -> None:
        """PRICED-125"""
        async with begun(hosts, call("ignores_cancel", {"begun": str(tmp_path / "begun")})) as execution:
            pid = await pid_in(tmp_path / "begun")
            execution.kill()
            assert await execution.outcome() == Stopped()
            assert is_gone(pid)
        await still_works(hosts)

    async def test_a_seat_that_is_left_kills_what_runs_on_it(self, hosts: PackHosts, tmp_path: Path) -> None:
        async with begun(hosts, call("ignores_cancel", {"begun": str(tmp_path / "begun")})) as execution:
            pid = await pid_in(tmp_path / "begun")
        assert await execution.outcome() == Stopped()
        assert is_gone(pid)
        await still_works(hosts)

    async def test_the_pool_is_no_fault_of_the_pack(self, others: set[psutil.Process], tmp_path: Path) -> None:
        what = call("ignores_cancel", {"begun": str(tmp_path / "begun")})
        async with opened() as hosts, begun(hosts, what) as execution:
            pid = await pid_in(tmp_path / "begun")
            await hosts.stop()
            assert await execution.outcome() == Stopped()
            assert is_gone(pid)
        assert set(pack_processes()) == others

    async def test_and_starting_may_be_repeated_and_at_once(self, others: set[psutil.Process]) -> None:
        hosts = naughty_hosts(2)
        await hosts.stop()
        await asyncio.gather(hosts.start(), hosts.start(), hosts.stop(), hosts.start())
        await still_works(hosts)
        await asyncio.gather(hosts.stop(), hosts.stop())
        assert set(pack_processes()) == others


async def test_a_process_that_died_while_it_waited_costs_no_run(hosts: PackHosts) -> None:
    process = await hosts.reserve_process()
    for child in pack_processes():
        child.kill()
        child.wait(60)
    waiting = process._host
    assert waiting is not None
    await eventually(lambda: not waiting.is_alive)
    async with asyncio.timeout(100):
        execution = await process.begin(call("tells"))
        assert isinstance(await execution.outcome(), Executed)
    process.leave()
    await still_works(hosts)


@pytest.mark.parametrize("end", [None, ConnectionResetError(), MemoryError()])
async def test_a_process_that_no_longer_hears_its_worker_goes(
    monkeypatch: pytest.MonkeyPatch, end: BaseException | None
) -> None:
    """PRICED-125: also one whose pack has used up the memory that listening takes. It would outlive its worker."""
    ends = list[bool]()
    monkeypatch.setattr("pyoco_server.executors.packs.child.end_all", lambda: ends.append(True))
    control = Mock(receive=Mock(side_effect=[CANCEL + number(0), end]))
    child = Child(Mock(), control)
    with contextlib.suppress(ConnectionResetError, MemoryError):
        child._listen()
    assert ends == [True]
    assert child._cancelled.is_set()


async def test_packs_that_cannot_be_loaded_stop_the_worker(others: set[psutil.Process]) -> None:
    hosts = PackHosts(1, 0, PACKS.values(), PackConfig(), "no_such_module:executors")
    with pytest.raises(UsageError, match="no_such_module"):
        await hosts.start()
    assert set(pack_processes()) == others
