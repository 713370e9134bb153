"""A process is killed at every step of submit, claim, finish, put back, re-attach and cancel; one job each."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import httpx

from pyoco_server.core.programs.names import run_id_of
from pyoco_server.grid_client import GridClient, JobRequest
from support.grid import crash_process
from support.grid.crashes import POINTS
from support.grid.processes import GridProcess
from support.proofs.report import proof
from support.proofs.sizes import full_only
from support.proofs.stage import GROUP, SHORT_LEASES, Scene, restart, scene
from support.servers import free_port
from support.timers import timers
from support.waiting import eventually

#: What is left behind is found within seconds.
_QUICK: Final = {
    **SHORT_LEASES,
    "EXEC_ACK_TIMEOUT_SEC": "5",
    "EXEC_WORKER_DOWN_DELAY_SEC": "1",
    **timers(exec_sweep_sec=2, exec_stale_sec=2),
}
#: More than what travels in the queue: it is stored as an object.
_FILES: Final = {"in.txt": b"x" * 20_000}
_DEATH_SECONDS = 120.0
_END_SECONDS = 120.0
_AT_NATIVES = tuple(point for point in POINTS if point.startswith(("claim.", "finish.")))
_AT_GATEWAYS = tuple(point for point in POINTS if point.startswith(("submit.", "cancel.")))


@full_only  # its quick form: test_whatever_step_a_process_dies_at_the_job_ends_exactly
async def test_whatever_step_a_process_is_killed_at_its_job_goes_exactly(tmp_path: Path) -> None:
    """P30: GRID-48, GRID-53, GRID-54, GRID-57, GRID-86"""
    with proof("P30", "killed at every step", points=len(POINTS)) as found:
        async with scene(tmp_path, gateways=1, env=_QUICK) as grid:
            _write_slow_once(tmp_path / "programs")
            ended: dict[str, str] = {}
            for point in POINTS:
                ended |= await _door_dies(grid, point)
            for point in _AT_NATIVES:
                ended |= await _native_dies(grid, point)
            for point in _AT_GATEWAYS:
                ended |= await _gateway_dies(grid, point)
            runs = await grid.assert_exact(ended, letters=await grid.letters())
            for run, (job_id, status) in zip(runs, ended.items(), strict=True):
                assert run.status == status, job_id
            found.note(
                killed_doors=len(POINTS),
                killed_natives=len(_AT_NATIVES),
                killed_gateways=len(_AT_GATEWAYS),
                jobs=len(ended),
            )


def _write_slow_once(programs: Path) -> None:
    """As `marked`, but only the first attempt takes its time."""
    marked = (programs / "marked.sh").read_text(encoding="utf-8")
    once = marked.replace('sleep "', '[ "$ATTEMPT" != 1 ] || sleep "')
    (programs / "slow_once.sh").write_text(once, encoding="utf-8")


def _ask(grid: Scene, point: str) -> tuple[JobRequest, str]:
    """And how it is to end."""
    if point.startswith("cancel."):
        return grid.job(files=_FILES), "CANCELLED"
    if point.startswith("put_back."):
        return grid.job(600, exec_name="slow_once", files=_FILES), "COMPLETED"
    if point.startswith("reattach."):
        return grid.job(10, files=_FILES), "COMPLETED"
    if point in ("finish.buried", "finish.noted"):
        return grid.job(0, 3, files=_FILES), "FAILED"
    return grid.job(files=_FILES), "COMPLETED"


def _mortal(grid: Scene, point: str, *arguments: str, **variables: str) -> GridProcess:
    """It kills itself when it gets there."""
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    env = {**grid.processes.variables, **variables, crash_process.VARIABLE: point, "PYTHONPATH": path}
    name = f"{arguments[0].partition('.')[0]}-dies-at-{point}"
    process = GridProcess(name, arguments, env, grid.folder)
    process.module = "support.grid.crash_process"
    grid.processes.processes.append(process)
    return process


async def _until_dead(process: GridProcess) -> None:
    assert await asyncio.to_thread(process.wait, _DEATH_SECONDS) == -signal.SIGKILL, process.name


async def _door_dies(grid: Scene, point: str) -> Mapping[str, str]:
    """Client and worker are at the one that dies, and know another; for a re-attach, they come to it from there."""
    home, victim = grid.doors[0], _mortal(grid, point, "leader", "0")
    victim.start()
    first, second = (home, victim) if point.startswith("reattach.") else (victim, home)
    worker = grid.processes.worker(first, "--door", second.address, "--id", "worker-1")
    if point.startswith("cancel."):
        worker.kill()  # the job waits
    job, status = _ask(grid, point)
    async with GridClient(first.host, first.port, "clientA", doors=[second.address]) as client:
        future = await client.submit(job)
        if point.startswith("cancel."):
            client.cancel(job.job_id)
        if point.startswith(("put_back.", "reattach.")):
            await eventually(lambda: job.job_id in grid.marks.starts())
            (worker if point.startswith("put_back.") else home).kill()
        await _until_dead(victim)
        for process in (worker, home):
            if not process.is_alive:
                await restart(process)
        result = await asyncio.wait_for(future, _END_SECONDS)
    assert result.status == status, f"{point}: {result}"
    assert worker.stop() == 0
    return {job.job_id: status}


async def _native_dies(grid: Scene, point: str) -> Mapping[str, str]:
    """The client is at a door that lives; another native worker comes when the first one is dead."""
    root = grid.folder / f"jobs-{point}"
    root.mkdir(mode=0o700)
    victim = _mortal(grid, point, "nworker", "--id", "native-1", WORK_ROOT=str(root))
    victim.start()
    job, status = _ask(grid, point)
    async with grid.client("clientA") as client:
        future = await client.submit(job)
        await _until_dead(victim)
        heir = grid.start_native()
        result = await asyncio.wait_for(future, _END_SECONDS)
    assert result.status == status, f"{point}: {result}"
    assert heir.stop() == 0
    return {job.job_id: status}


async def _gateway_dies(grid: Scene, point: str) -> Mapping[str, str]:
    """Who gets no answer asks again, elsewhere: always safe (GRID-49)."""
    port = free_port()
    options = ("pyoco_server.http_api:create_app", "--factory", "--log-level", "warning", "--port", str(port))
    victim = _mortal(grid, point, *options, PYOCO_DATA_DIR=str(_data_dir(grid, point)))
    victim.start(waits=False)
    job, status = grid.job(), "CANCELLED" if point.startswith("cancel.") else "COMPLETED"
    run_id = run_id_of(job.job_id, GROUP)
    async with grid.http() as http, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as dying:
        await eventually(lambda: _is_ready(dying), 90)
        if point.startswith("cancel."):
            (await grid.post(http, job, "clientA")).raise_for_status()
        for asked in (dying, http):
            try:
                if point.startswith("cancel."):
                    (await asked.post(f"/runs/{run_id}/cancel")).raise_for_status()
                else:
                    (await grid.post(asked, job, "clientA")).raise_for_status()
            except httpx.TransportError:
                assert asked is dying
            else:
                assert asked is http
        await _until_dead(victim)
        heir = grid.start_native()

        async def has_ended() -> bool:
            return bool((await http.get(f"/runs/{run_id}")).json()["status"] == status)

        await eventually(has_ended, _END_SECONDS)
    assert heir.stop() == 0
    return {job.job_id: status}


def _data_dir(grid: Scene, point: str) -> Path:
    folder = grid.folder / f"gateway-{point}"
    folder.mkdir()
    return folder


async def _is_ready(http: httpx.AsyncClient) -> bool:
    try:
        return (await http.get("/ready")).status_code == 200
    except httpx.TransportError:
        return False
