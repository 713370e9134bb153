"""What a new user does first."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.proofs.report import proof
from support.proofs.sizes import full_only
from support.proofs.stage import scene


@full_only  # its quick form: test_the_first_three_jobs
async def test_the_three_sample_jobs_of_a_client_complete(tmp_path: Path) -> None:
    """P1: GRID-48, GRID-120"""
    with proof("P1", "the first jobs", jobs=3):
        async with scene(tmp_path, workers=1) as grid:
            out = tmp_path / "out"
            done = await asyncio.to_thread(grid.processes.client, grid.doors[0], "clientA", "--out", out)
            assert done.code == 0, done
            assert [line["Status"] for line in done.lines] == ["COMPLETED"] * 3
            job_ids = [line["JobId"] for line in done.lines]
            assert all((out / job_id / "result.txt").is_file() for job_id in job_ids)
            await grid.assert_exact(job_ids)
