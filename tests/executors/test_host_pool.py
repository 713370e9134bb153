"""The pool of hosts: start, replacement of lost hosts, memory, and end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from pyoco_server.core.outcome import Completed, Failed, Progress
from pyoco_server.errors import UsageError
from pyoco_server.executors.host import wire
from pyoco_server.executors.host.child import Child
from pyoco_server.executors.host.host import Host
from pyoco_server.executors.host.pool import HostExecutor
from pyoco_server.executors.host.wire import Settings
from support.host_scenes import (
    begun,
    children_of_this_process,
    executor,
    helpers_on_path,
    hosts,
    inner,
    is_gone,
    is_whole,
    next_of,
    outcome_of,
    output_text,
    pool,
    settings,
    still_works,
    work,
)
from support.waiting import eventually

__all__ = ["helpers_on_path", "hosts", "pool"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


class TestThePool:
    async def test_replaces_a_host_after_so_many_runs(self) -> None:
        async with executor(runs_max=2) as hosts:
            pids = [output_text(await outcome_of(hosts, work("who")), "who") for _ in range(8)]
            assert max(map(pids.count, pids)) == 2
            assert len(set(pids)) >= 4
            assert hosts.restarts == 0
            await eventually(lambda: is_gone(pids[0]))

    async def test_replaces_a_host_that_died_while_it_had_nothing_to_do(self, hosts: HostExecutor) -> None:
        """Nobody's run may fail for it."""
        pid = output_text(await outcome_of(hosts, work("who")), "who")
        await eventually(lambda: is_whole(hosts))  # the spare is there, too
        for host in hosts._pool._processes:
            os.kill(host._process.pid, signal.SIGKILL)
        await eventually(lambda: is_gone(pid))
        await asyncio.sleep(0.1)
        await still_works(hosts)

    async def test_leaves_nothing_behind_when_it_stops(self, tmp_path: Path) -> None:
        before = children_of_this_process()
        async with executor(slots=2) as hosts:
            note = tmp_path / "pid"
            await begun(hosts, work("stays_with_others", path=str(note)))
            await begun(hosts, work("spins"))
            await eventually(note.exists)
            await eventually(lambda: note.read_text().strip() != "")
            assert len(children_of_this_process() - before) >= 3
        await eventually(lambda: children_of_this_process() <= before)

    async def test_may_be_stopped_at_any_moment_of_its_start(self) -> None:
        before = children_of_this_process()
        for seconds in (0.0, 0.05, 0.1, 0.2):
            hosts = HostExecutor(settings(), 2, 1000, 0.0)
            await hosts.start()
            await asyncio.sleep(seconds)
            await hosts.stop()
            await hosts.stop()
        await eventually(lambda: children_of_this_process() <= before)

    @pytest.mark.parametrize(
        "resolver",
        [
            "no_such_module:resolve",
            "support.naughty:no_such_name",
            "support.naughty:FLOWS",
            "support.naughty",
            ":resolve",
            "support.naughty:",
        ],
    )
    async def test_does_not_start_with_a_resolver_that_cannot_be_loaded(self, resolver: str) -> None:
        """FLOW-470"""
        before = children_of_this_process()
        hosts = HostExecutor(settings(resolver), 1, 1000, 0.0)
        with pytest.raises(UsageError, match="resolver"):
            await hosts.start()
        await hosts.stop()
        assert children_of_this_process() <= before

    async def test_does_not_start_with_a_module_that_ends_the_process(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """FLOW-470"""
        (tmp_path / "ends_it.py").write_text("import os\nos._exit(9)\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        hosts = HostExecutor(settings("ends_it:resolve"), 1, 1000, 0.0)
        with pytest.raises(UsageError, match="exit status 9"):
            await hosts.start()
        await hosts.stop()


PARENT = """
import asyncio, sys
from pyoco_server.core.job import Job, encode_job
from pyoco_server.executors.host.host import Host
from pyoco_server.executors.host.wire import Settings

async def main():
    host = await Host.spawn(Settings("support.naughty:resolve", (), 262144, 65536, 0))
    await host.ready()
    job = Job(run_id="0b0e9a52-6b1f-4c3c-9d0a-3c1a7d2f9a11", flow_name=sys.argv[1], tag="t", submitted_at=1.0,
              params={"path": sys.argv[2]})
    print(await host.run(encode_job(job)))
    await asyncio.sleep(300)

asyncio.run(main())
"""


async def test_a_host_dies_with_its_worker_and_takes_its_children_along(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, "stays_with_others", str(note)], stdout=subprocess.DEVNULL)
    try:
        await eventually(lambda: note.exists() and len(note.read_text().split()) == 2)
        grandchild, host = map(int, note.read_text().split())
        assert not is_gone(grandchild)
        assert not is_gone(host)
    finally:
        parent.kill()
        parent.wait()
    await eventually(lambda: is_gone(host) and is_gone(grandchild))


class _Questions:
    """A control line with these questions on it, whose other end may be gone when they are answered."""

    def __init__(self, *questions: bytes, is_cut: bool = False) -> None:
        self._questions, self._is_cut = [question + wire.number(0) for question in questions], is_cut
        self.answers: list[bytes] = []

    def receive(self) -> bytes | None:
        return self._questions.pop(0) if self._questions else None

    def send(self, body: bytes) -> None:
        if self._is_cut:
            raise BrokenPipeError
        self.answers.append(body)


class _Hungry:
    """A run that has left no memory for telling of it."""

    is_cancelled = False

    def progress(self) -> Progress:
        raise MemoryError

    def ask_cancel(self) -> None:
        self.is_cancelled = True


@pytest.mark.parametrize("is_cut", [False, True])
async def test_a_host_hears_its_worker_to_the_end(monkeypatch: pytest.MonkeyPatch, is_cut: bool) -> None:
    """Also when the worker dies before it is answered, and when an answer cannot be made: who no longer listens would
    neither stop when it is told to nor go with its worker."""
    ends = list[bool]()
    monkeypatch.setattr("pyoco_server.executors.host.child.end_all", lambda: ends.append(True))
    control, run = _Questions(wire.PROGRESS, wire.CANCEL, is_cut=is_cut), _Hungry()
    listener: Any = Child(cast(Any, None), cast(Any, control))
    listener._run = run
    with contextlib.suppress(BrokenPipeError):
        listener._listen()
    assert ends == [True]
    assert (control.answers, run.is_cancelled) == (([], False) if is_cut else ([b""], True))


async def test_a_failed_run_gives_its_memory_back(hosts: HostExecutor) -> None:
    """What a task held hangs on the traceback of its exception: the next run must not pay for it."""
    host = next_of(hosts)
    before = host.runs
    for _ in range(3):
        ended = await outcome_of(hosts, work("holds_much_and_fails"))
        assert isinstance(ended, Failed)
        assert "300 MB in hand" in ended.message
    assert host.runs == before + 3
    # The answer comes first, then the host tidies up.
    await eventually(lambda: inner(host).memory_info().rss < 200 << 20)


async def test_a_host_that_holds_too_much_after_a_failed_run_takes_no_other_along() -> None:
    """It says that it goes, and the run that waits for it goes to another."""
    async with executor(memory_bytes_max=600 << 20) as hosts:
        await eventually(lambda: is_whole(hosts))
        failing = await begun(hosts, work("keeps_much_and_fails", megabytes=300))
        waiting = asyncio.create_task(outcome_of(hosts, work("who")))
        failed, ended = await failing.outcome(), await waiting
    assert isinstance(failed, Failed)
    assert "still in hand" in failed.message
    assert isinstance(ended, Completed), ended
    assert hosts.restarts == 1


async def test_a_host_that_cannot_be_started_is_tried_again(
    hosts: HostExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is out of processes or memory for a moment must not leave a worker without hosts for ever."""
    spawn, failures = Host.spawn, 2

    async def hesitant(settings: Settings, _: object) -> Host:
        nonlocal failures
        if failures:
            failures -= 1
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return await spawn(settings)

    was_able = hosts.is_able
    monkeypatch.setattr(Host, "spawn", hesitant)
    for host in list(hosts._pool._processes):
        host.kill_now()
    await eventually(lambda: not any(host.is_alive for host in hosts._pool._processes))
    assert (was_able, hosts.is_able) == (True, False)
    assert await hosts.begin(work("fine"), lambda: None) is None or failures == 0
    await eventually(lambda: failures == 0 and any(host.is_alive for host in hosts._pool._processes))
    assert isinstance(await outcome_of(hosts, work("fine")), Completed)
