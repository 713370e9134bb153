"""A cancel ends a program with all its children."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from pyoco_server.core.programs.names import run_id_of
from pyoco_server.grid_client import GridClient, JobRequest
from support.proofs.report import proof
from support.proofs.sizes import full_only
from support.proofs.stage import GROUP, Scene, scene
from support.waiting import eventually

_CHILDREN = 5
_SECONDS = 12.0
_PLACES = 4


@full_only  # its quick forms are in tests/executors and tests/doors
async def test_a_cancelled_program_leaves_no_process_wherever_it_ran(tmp_path: Path) -> None:
    """P21: GRID-160, GRID-164"""
    with proof("P21", "families are cancelled", children=_CHILDREN) as found:
        async with scene(tmp_path, gateways=1) as grid:
            forker = (tmp_path / "programs" / "forker.sh").read_text(encoding="utf-8")
            for place in ("tcp", "native"):
                (tmp_path / "programs" / f"at_{place}.sh").write_text(forker, encoding="utf-8")
                # These do not heed SIGTERM, nor do their children: SIGKILL ends them.
                (tmp_path / "programs" / f"deaf_{place}.sh").write_text(f"trap '' TERM\n{forker}", encoding="utf-8")
            grid.start_worker("job.assign.at_tcp", "job.assign.deaf_tcp")
            grid.start_native("job.assign.at_native", "job.assign.deaf_native")
            ended, waited = [], {}
            async with grid.client("clientA") as client:
                for exec_name in ("at_tcp", "at_native", "deaf_tcp", "deaf_native"):
                    for over in ("tcp", "http"):
                        job = grid.job(_CHILDREN, exec_name=exec_name)
                        waited[f"{exec_name} over {over}"] = await _cancel_running(grid, client, job, over)
                        ended.append(job.job_id)
                for over in ("tcp", "http"):
                    job = grid.job(exec_name="nobody")
                    await _cancel_pending(grid, client, job, over)
                    ended.append(job.job_id)
            found.note(cancelled=len(ended), waited=waited)
            await grid.assert_exact(ended)
            await eventually(lambda: not grid.directories_left(), 10)
            await _until_all_credits_are_back(grid)


async def _cancel(grid: Scene, client: GridClient, job: JobRequest, over: str) -> None:
    if over == "tcp":
        client.cancel(job.job_id)
        return
    async with grid.http() as http:
        (await http.post(f"/runs/{run_id_of(job.job_id, GROUP)}/cancel")).raise_for_status()


async def _cancel_running(grid: Scene, client: GridClient, job: JobRequest, over: str) -> float:
    """The seconds until its last process was gone."""
    future = await client.submit(job)
    await eventually(lambda: len(grid.programs_alive()) == _CHILDREN + 1)
    began = time.monotonic()
    await _cancel(grid, client, job, over)
    await eventually(lambda: not grid.programs_alive(), _SECONDS)
    took = time.monotonic() - began
    result = await asyncio.wait_for(future, 30)
    assert (result.status, result.error_code, result.stdout) == ("CANCELLED", "CANCELLED", "started\n")
    return round(took, 2)


async def _cancel_pending(grid: Scene, client: GridClient, job: JobRequest, over: str) -> None:
    future = await client.submit(job)

    async def is_accepted() -> bool:
        async with grid.http() as http:
            return (await http.get(f"/runs/{run_id_of(job.job_id, GROUP)}")).status_code == 200

    await eventually(is_accepted)
    await _cancel(grid, client, job, over)
    result = await asyncio.wait_for(future, 30)
    assert (result.status, result.exit_code) == ("CANCELLED", None)


async def _until_all_credits_are_back(grid: Scene) -> None:
    async with grid.backend() as backend:

        async def are_back() -> bool:
            records = [await backend.registry.find(name) for name in ("worker-1", "native-1")]
            return [record.credits for record in records if record is not None] == [_PLACES, _PLACES]

        await eventually(are_back, 60)
