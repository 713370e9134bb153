"""Workers claim only programs that they have (FIND-14)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.config.grid import GridConfig
from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.states import RunState
from pyoco_server.executors.program.local import LocalPrograms
from pyoco_server.executors.program.settings import RunnerSettings
from pyoco_server.loops.tcp_worker.finished import FinishedJob
from pyoco_server.loops.tcp_worker.worker import TcpWorker
from support.grid.peers import ClientPeer, OpenDoor, WorkerPeer, grid_config, open_door, open_second_door
from support.grid.worker_scenes import a_worker
from support.servers import unique
from support.waiting import eventually

SOON = {"exec_worker_down_delay_sec": 0.1}


def put_program(root: Path, name: str) -> Path:
    folder = root / "exe"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.sh"
    path.write_text(f"echo {root.name}\n")
    return path


@contextlib.asynccontextmanager
async def working(root: Path, door: OpenDoor, *names: str, allow: tuple[str, ...] = ("*",)) -> AsyncIterator[TcpWorker]:
    """A worker that takes every name and has these programs. They print the name of its directory."""
    (root / "exe").mkdir(parents=True)
    for name in names:
        put_program(root, name)
    config = GridConfig(exec_dir=str(root / "exe"), work_root=str(root / "jobs"), worker_exec_allow=allow)
    executor = LocalPrograms(RunnerSettings.of(config, os.environ), os.environ)
    more: dict[str, Any] = {"worker_exec_allow": allow}
    async with a_worker(root / "jobs", door, executor=executor, worker_id=root.name, **more) as worker:
        yield worker


@contextlib.asynccontextmanager
async def a_client(door: OpenDoor) -> AsyncIterator[ClientPeer]:
    async with await ClientPeer.connect(door) as client:
        await client.hello(cap=8)
        yield client


async def test_a_worker_is_never_assigned_a_program_that_it_lacks(nats_url: str, tmp_path: Path) -> None:
    """FIND-14: both take every name, and only one has it"""
    async with (
        open_door(nats_url, grid_config(**SOON)) as door,
        working(tmp_path / "without", door, "other"),
        working(tmp_path / "with", door, "render"),
        a_client(door) as client,
    ):
        for _ in range(6):
            ack = await client.accepted(exec_name="render")
        for _ in range(6):
            result = await client.result()
            assert (result.status, result.stdout, result.attempt) == (RunState.COMPLETED, "with\n", 1)
        assert not (await door.run(ack.run_id)).earlier_attempts


async def test_a_program_that_comes_and_goes_is_noticed(nats_url: str, tmp_path: Path) -> None:
    """FIND-14"""
    async with (
        open_door(nats_url, grid_config()) as door,
        working(tmp_path / "w", door, "first"),
        a_client(door) as client,
    ):
        worker_credits = door.door.context.worker_credits
        await eventually(lambda: worker_credits.serves("first") and not worker_credits.serves("second"))
        await client.accepted(exec_name="second")
        path = put_program(tmp_path / "w", "second")
        result = await client.result()
        assert (result.status, result.attempt) == (RunState.COMPLETED, 1)
        path.unlink()
        await eventually(lambda: not worker_credits.serves("second"))
        assert worker_credits.takes("second")


@pytest.mark.parametrize(
    ("allow", "code"), [(("*",), ErrorCode.EXEC_NOT_FOUND), (("other*",), ErrorCode.EXEC_NOT_ALLOWED)]
)
async def test_a_job_that_no_worker_can_run_ends_without_an_attempt(
    nats_url: str, tmp_path: Path, allow: tuple[str, ...], code: ErrorCode
) -> None:
    """FIND-14, GRID-89, GRID-90"""
    async with (
        open_door(nats_url, grid_config(**SOON)) as door,
        working(tmp_path / "w", door, "other", allow=allow),
        a_client(door) as client,
    ):
        ack = await client.accepted(exec_name="render")
        result = await client.result()
        assert (result.status, result.error_code, result.worker_id) == (RunState.FAILED, code, None)
        run = await door.run(ack.run_id)
        assert (run.attempt, run.reason) == (0, code.value.lower())


async def test_a_worker_of_an_earlier_version_that_lacks_it_leaves_it_to_one_that_has_it(nats_url: str) -> None:
    """FIND-14: at once, and this was no attempt; it gets no more of that program"""
    exec_name = unique("x")
    async with (
        open_door(nats_url, grid_config(**SOON)) as door,
        open_second_door(door) as second,
        a_client(door) as client,
        await WorkerPeer.connect(door) as old,
        await WorkerPeer.connect(second) as other,
    ):
        await old.hello(credit=2)
        await other.hello()
        ack = await client.accepted(exec_name=exec_name)
        missing = {"status": RunState.FAILED, "error_code": ErrorCode.EXEC_NOT_FOUND, "exit_code": None}
        await door.backend.registry.start()
        await eventually(lambda: _knows(door, other.worker_id))
        assert await old.settled(await old.assigned(), **missing) == "recorded"
        run = await door.run(ack.run_id)
        assert (run.status, run.attempt, run.error) == (RunState.PENDING, 0, None)
        assert await old.is_silent()
        await other.credit(1)
        job = await other.assigned()
        assert (job.run_id, job.attempt) == (ack.run_id, 1)
        # Now no worker is left that might have it.
        await eventually(lambda: _knows(second, old.worker_id, lacks=exec_name))
        await other.settled(job, **missing)
        result = await client.result()
        assert (result.status, result.error_code) == (RunState.FAILED, ErrorCode.EXEC_NOT_FOUND)


async def _knows(door: OpenDoor, worker_id: str, lacks: str | None = None) -> bool:
    await door.backend.registry.start()
    found = [each for each in await door.backend.registry.all() if each.worker_id == worker_id]
    return any(lacks is None or lacks in (each.lacks or ()) for each in found)


async def test_a_job_waits_for_a_worker_that_is_away_and_had_its_program(nats_url: str, tmp_path: Path) -> None:
    """FIND-14: a restart of the one worker that has it fails nothing"""
    async with open_door(nats_url, grid_config(**SOON)) as door, a_client(door) as client:
        async with working(tmp_path / "has", door, "render"):
            await client.accepted(exec_name="render")
            assert (await client.result()).status is RunState.COMPLETED
            await eventually(lambda: _knows(door, "has"))
        async with working(tmp_path / "without", door, "other"):
            ack = await client.accepted(exec_name="render")
            await client.accepted(exec_name="never")
            result = await client.result()  # of the one that no worker ever had
            assert (result.exec_name, result.error_code) == ("never", ErrorCode.EXEC_NOT_FOUND)
            assert (await door.run(ack.run_id)).status is RunState.PENDING
            async with working(tmp_path / "again", door, "render"):
                assert (await client.result()).stdout == "again\n"


def test_a_program_that_was_not_there_may_be_run_by_the_next_attempt() -> None:
    """FIND-14, GRID-107: such a result is not kept as that of the job"""
    report = Report(status=RunState.FAILED, error_code=ErrorCode.EXEC_NOT_FOUND)
    finished = FinishedJob(job_id="j", run_id="j", client_id="c", exec_name="x", attempt=1, token="t", report=report)
    assert not finished.is_worth_keeping
