"""Progress and output that a host reports while a run goes on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from pyoco_server.core.outcome import Completed, Progress
from pyoco_server.executors.host import wire
from pyoco_server.executors.host.host import Host
from pyoco_server.executors.host.pool import HostExecutor
from pyoco_server.executors.port import Execution
from support.host_scenes import begun, helpers_on_path, hosts, next_of, pool, work
from support.waiting import eventually

__all__ = ["helpers_on_path", "hosts", "pool"]

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("warm_hosts_of_module")]


async def _is_silent(work: Execution | Host) -> bool:
    return await work.progress() is None


async def _held(pipe: Path) -> int:
    """Returns when `holds_the_interpreter` has opened the pipe, with our end of it: it holds until that is closed."""
    return await asyncio.to_thread(os.open, pipe, os.O_WRONLY)


async def _shows(host: Host, graph: dict[str, list[str]]) -> bool:
    progress = await host.progress()
    return progress is not None and progress.graph == graph


class TestProgress:
    async def test_is_told_while_the_work_goes_on(self, hosts: HostExecutor, tmp_path: Path) -> None:
        """FLOW-375"""
        gate, seen = tmp_path / "gate", list[Progress]()
        execution = await begun(hosts, work("steps", gate=str(gate)))

        async def shows_the_second() -> bool:
            seen.extend([progress] if (progress := await execution.progress()) is not None else [])
            return bool(seen) and seen[-1].tasks.get("second") == "RUNNING"

        await eventually(shows_the_second)
        assert seen[-1].tasks == {"first": "SUCCEEDED", "second": "RUNNING"}
        assert seen[-1].task_records["first"]["output"] == "first"
        gate.touch()
        assert isinstance(await execution.outcome(), Completed)

    async def test_shows_what_follows_what_and_the_graph_is_sent_once(
        self, hosts: HostExecutor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """A graph never changes: a heartbeat must not pay for it again."""
        graph: dict[str, list[str]] = {"first": [], "second": ["first"]}
        host = next_of(hosts)
        sent: list[bool] = []
        unpack = wire.unpack_progress

        def noted(data: bytes) -> Progress:
            progress = unpack(data)
            sent.append(bool(progress.graph))
            return progress

        monkeypatch.setattr(wire, "unpack_progress", noted)
        gate, seen = tmp_path / "gate", []
        running = host.run(work("steps", gate=str(gate)).data)
        while not running.done():
            progress = await host.progress()
            if progress is not None and progress.tasks:
                seen.append(progress.graph)
            if len(seen) > 10:
                gate.touch()
            await asyncio.sleep(0.02)
        assert all(each == graph for each in seen)
        assert sent.count(True) == 1
        outcome = host.read_outcome(await running or b"")
        assert outcome is not None
        assert outcome.progress.graph == graph
        running = host.run(work("waits_for", path=str(tmp_path / "other")).data)  # another run, another graph
        await eventually(lambda: _shows(host, {"waits_for": []}))
        (tmp_path / "other").touch()
        await running

    async def test_is_not_waited_for_when_the_work_holds_the_interpreter(
        self, hosts: HostExecutor, tmp_path: Path
    ) -> None:
        """FLOW-208: the work goes on until it has been asked for twice in vain."""
        os.mkfifo(tmp_path / "pipe")
        execution = await begun(hosts, work("holds_the_interpreter", pipe=str(tmp_path / "pipe")))
        held = await _held(tmp_path / "pipe")
        await eventually(lambda: _is_silent(execution))
        assert await execution.progress() is None
        os.close(held)
        assert isinstance(await execution.outcome(), Completed)

    async def test_of_one_run_is_never_told_of_another(self, hosts: HostExecutor, tmp_path: Path) -> None:
        """An answer that came too late for its own run belongs to nobody."""
        host = next_of(hosts)
        os.mkfifo(tmp_path / "pipe")
        running = host.run(work("holds_the_interpreter", pipe=str(tmp_path / "pipe")).data)
        held = await _held(tmp_path / "pipe")
        await eventually(lambda: _is_silent(host))
        os.close(held)
        assert await running is not None
        running = host.run(work("sleeps", seconds=0.5).data)
        while not running.done():
            progress = await host.progress()
            assert progress is None or set(progress.tasks) <= {"sleeps"}, progress
            await asyncio.sleep(0.01)
