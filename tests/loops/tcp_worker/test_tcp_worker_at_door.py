"""A worker at a real door, with real programs: from the client's SubmitJob to its Result."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.config.grid import GridConfig
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.states import RunState
from pyoco_server.executors.program import samples
from pyoco_server.executors.program.local import LocalPrograms
from pyoco_server.executors.program.settings import RunnerSettings
from pyoco_server.loops.tcp_worker.worker import TcpWorker
from support.grid.peers import ClientPeer, OpenDoor, grid_config, open_door, open_second_door
from support.grid.worker_scenes import a_worker
from support.waiting import eventually

MIB = 1024 * 1024
SAMPLES = Path(samples.__path__[0])


@contextlib.asynccontextmanager
async def working(root: Path, *doors: OpenDoor, **settings: Any) -> AsyncIterator[TcpWorker]:
    """A worker with the programs of the examples, and one that reports its start."""
    programs = root / "exe"
    programs.mkdir(exist_ok=True)
    for path in SAMPLES.glob("*.sh"):
        (programs / path.name).write_bytes(path.read_bytes())
    (programs / "waits.sh").write_text(
        f'echo "$JOB_ID" >> {root}/started; while [ ! -e {root}/gate ]; do sleep 0.05; done; echo over\n'
    )
    (programs / "copy.sh").write_text("cat in.bin > out.bin; ls\n")
    config = GridConfig(exec_dir=str(programs), work_root=str(root / "jobs"), worker_max_par=4)
    executor = LocalPrograms(RunnerSettings.of(config, os.environ), os.environ)
    async with a_worker(root / "jobs", *doors, executor=executor, **settings) as worker:
        yield worker


@contextlib.asynccontextmanager
async def a_client(door: OpenDoor, cap: int = 8) -> AsyncIterator[ClientPeer]:
    async with await ClientPeer.connect(door) as client:
        await client.hello(cap=cap)
        yield client


def started(root: Path) -> list[str]:
    path = root / "started"
    return path.read_text().split() if path.exists() else []


async def test_jobs_go_through_a_door_and_come_back(nats_url: str, tmp_path: Path) -> None:
    """P1, GRID-48, GRID-69, GRID-143"""
    async with (
        open_door(nats_url) as door,
        working(tmp_path, door) as worker,
        a_client(door) as client,
    ):
        for _ in range(3):
            await client.accepted(exec_name="calcA", args=("--n", "3"))
        for _ in range(3):
            result = await client.result()
            assert (result.status, result.stdout, result.worker_id) == (RunState.COMPLETED, "--n\n3\n", "w1")
            assert result.output_archive is not None
            archive = zipfile.ZipFile(io.BytesIO(result.output_archive))
            assert archive.read("result.txt") == b"--n\n3\n"
        await client.accepted(exec_name="failn", args=("7",))
        result = await client.result()
        assert (result.status, result.exit_code, result.error_code) == (RunState.FAILED, 7, ErrorCode.EXIT_NONZERO)
        await client.accepted(exec_name="nosuch")
        assert (await client.result()).error_code is ErrorCode.EXEC_NOT_FOUND
        await eventually(lambda: not worker.spool.due())
        await eventually(lambda: door.door.context.worker_credits.credits(door.door.context.workers["w1"]) == 2)


@pytest.mark.parametrize("size", [2 * MIB, 20 * MIB])
async def test_files_of_any_size_come_out_as_they_went_in(nats_url: str, tmp_path: Path, size: int) -> None:
    """P22, GRID-144: an archive in the frame, and one in parts; same sha256 at the client and at the source."""
    async with open_door(nats_url) as door, working(tmp_path, door), a_client(door) as client:
        mib = size // MIB
        await client.accepted(exec_name="bigout", args=(str(mib),))
        result = await client.result()
        assert result.status is RunState.COMPLETED
        archive = result.output_archive
        if archive is None:
            assert result.output_ref is not None
            archive = await client.fetched(result.job_id, "output.zip")
            assert hashlib.sha256(archive).hexdigest() == result.output_ref.sha256
        assert zipfile.ZipFile(io.BytesIO(archive)).testzip() is None


async def test_inputs_that_are_objects_reach_the_program(nats_url: str, tmp_path: Path) -> None:
    """GRID-147: larger than what a queue message takes."""
    data = os.urandom(2 * MIB)
    async with (
        open_door(nats_url, grid_config(exec_inline_max=1024)) as door,
        working(tmp_path, door),
        a_client(door) as client,
    ):
        await client.accepted(exec_name="copy", files={"in.bin": data})
        result = await client.result()
        assert (result.status, result.stderr) == (RunState.COMPLETED, "")
        archive = result.output_archive or await client.fetched(result.job_id, "output.zip")
        assert zipfile.ZipFile(io.BytesIO(archive)).read("out.bin") == data


async def test_a_running_job_is_cancelled_over_tcp(nats_url: str, tmp_path: Path) -> None:
    """GRID-112, GRID-160, GRID-164, P21"""
    async with open_door(nats_url) as door, working(tmp_path, door) as worker, a_client(door) as client:
        ack = await client.accepted(exec_name="waits")
        await eventually(lambda: len(started(tmp_path)) == 1)
        await client.cancel(ack.job_id)
        result = await client.result()
        assert (result.status, result.error_code) == (RunState.CANCELLED, ErrorCode.CANCELLED)
        await eventually(lambda: worker.jobs.unfinished == 0)
        await eventually(lambda: door.door.context.worker_credits.credits(door.door.context.workers["w1"]) == 2)


async def test_a_door_that_dies_costs_no_second_start(nats_url: str, tmp_path: Path) -> None:
    """GRID-110, P11: the program runs on, is attached at the other door, and its result arrives there."""
    async with (
        open_door(nats_url) as first,
        open_second_door(first) as second,
        working(tmp_path, first, second) as worker,
        a_client(second) as client,
    ):
        ack = await client.accepted(exec_name="waits")
        await eventually(lambda: len(started(tmp_path)) == 1)
        first.server.close()
        assert worker.link.current is not None
        worker.link.current.wire._writer.transport.abort()  # as a killed door leaves it
        await eventually(lambda: "w1" in second.door.context.workers)
        await eventually(lambda: second.door.context.in_flight.get(ack.run_id) is not None)
        (tmp_path / "gate").touch()
        result = await client.result()
        assert (result.status, result.stdout) == (RunState.COMPLETED, "over\n")
        assert len(started(tmp_path)) == 1
        assert (await second.run(ack.run_id)).attempt == 1


async def test_a_draining_door_hands_its_workers_over(nats_url: str, tmp_path: Path) -> None:
    """GRID-41, GRID-45, P17: no second start, no lost attempt."""
    async with (
        open_door(nats_url) as first,
        open_second_door(first) as second,
        working(tmp_path, first),
        a_client(second) as client,
    ):
        ack = await client.accepted(exec_name="waits")
        await eventually(lambda: len(started(tmp_path)) == 1)
        first.server.close()
        draining = asyncio.create_task(first.door.drain())
        await eventually(lambda: second.door.context.in_flight.get(ack.run_id) is not None)
        await draining
        (tmp_path / "gate").touch()
        result = await client.result()
        assert (result.status, result.attempt) == (RunState.COMPLETED, 1)
        run = await second.run(ack.run_id)
        assert (run.attempt, run.program.lost) == (1, 0)
        assert len(started(tmp_path)) == 1


async def test_a_worker_that_dies_gives_its_job_to_another(nats_url: str, tmp_path: Path) -> None:
    """GRID-81, GRID-113: what is not reported is put back, and the next worker runs it."""
    grid = grid_config(exec_worker_down_delay_sec=0.1)
    async with open_door(nats_url, grid) as door, a_client(door) as client:
        async with working(tmp_path, door) as worker:
            ack = await client.accepted(exec_name="waits")
            await eventually(lambda: len(started(tmp_path)) == 1)
            await worker.drain(0)
        async with working(tmp_path, door):
            await eventually(lambda: len(started(tmp_path)) == 2)
            (tmp_path / "gate").touch()
            result = await client.result()
            assert (result.job_id, result.status, result.attempt) == (ack.job_id, RunState.COMPLETED, 2)


async def test_a_hundred_jobs_are_each_started_once(nats_url: str, tmp_path: Path) -> None:
    """GRID-69, GRID-138, P5: and never more at once than there are credits."""
    (tmp_path / "gate").touch()
    async with open_door(nats_url) as door, working(tmp_path, door) as worker, a_client(door, cap=50) as client:
        most = 0
        for _ in range(100):
            await client.submit(client.request("waits"))
        for _ in range(100):
            assert (await client.result()).status is RunState.COMPLETED
            most = max(most, worker.jobs.running)
        assert most <= 2
        assert len(set(started(tmp_path))) == len(started(tmp_path)) == 100
        await eventually(lambda: not worker.spool.due())
