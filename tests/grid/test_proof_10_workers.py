"""Workers that are killed again and again."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.proofs.killers import kill_workers
from support.proofs.report import proof
from support.proofs.sizes import size
from support.proofs.stage import run_jobs, scene
from support.waiting import eventually


async def test_jobs_of_workers_that_are_killed_again_and_again_all_complete(tmp_path: Path) -> None:
    """P10: GRID-81, GRID-95"""
    await killed_workers(tmp_path, jobs=size(30, 300), every=size(1.0, 2.0), seconds=size(4.0, 60.0))


async def killed_workers(folder: Path, *, jobs: int, every: float, seconds: float) -> None:
    short = size({"EXEC_WORKER_DOWN_DELAY_SEC": "1"}, {})
    with proof("P10", "workers are killed", jobs=jobs) as found:
        async with scene(folder, workers=4, env=short) as grid, grid.client("clientA", desired=16) as client:
            longest = size(0.8, 2.0)
            asks = [grid.job(f"{found.chance.uniform(0.2, longest):.2f}") for _ in range(jobs)]
            killing = asyncio.create_task(kill_workers(grid, found, every, seconds))
            results = await run_jobs(client, asks, 600, over=0.9 * seconds)
            await killing
            assert {result.status for result in results.values()} == {"COMPLETED"}
            runs = await grid.assert_exact(results)
            await eventually(lambda: not grid.programs_alive(), 10)
            await eventually(lambda: not grid.directories_left(), 10)
            found.note(
                starts=sum(grid.marks.starts().values()), lost=sum(run.program.lost for run in runs if run.program)
            )
