"""The cap of a client holds over all doors and workers together, and what it leaves free is used."""

from __future__ import annotations

from pathlib import Path

from support.proofs.report import proof
from support.proofs.sizes import full_only
from support.proofs.stage import run_jobs, scene

_CAP = 3


@full_only  # its quick forms are in tests/loops
async def test_a_cap_of_three_holds_over_three_doors_and_a_native_worker(tmp_path: Path) -> None:
    """P6: GRID-72, GRID-118"""
    await capped(tmp_path, jobs=300, seconds_each=1.0)


async def capped(folder: Path, *, jobs: int, seconds_each: float) -> None:
    with proof("P6", "a cap over all doors", jobs=jobs, cap=_CAP) as found:
        settings = {"WORKER_MAX_PAR": "10"}
        async with (
            scene(folder, doors=3, workers=3, natives=1, env=settings) as grid,
            grid.client("clientA", desired=_CAP) as client,
        ):
            results = await run_jobs(client, [grid.job(seconds_each) for _ in range(jobs)], 900)
            assert {result.status for result in results.values()} == {"COMPLETED"}
            marks = grid.marks.all()
            begun = {mark.job_id: mark.at for mark in marks if mark.word == "begin"}
            ran = sum(mark.at - begun[mark.job_id] for mark in marks if mark.word == "end")
            took, least = marks[-1].at - marks[0].at, ran / _CAP
            workers = {result.worker_id for result in results.values()}
            found.note(
                most_at_once=grid.marks.most_at_once(),
                took=round(took, 1),
                three_in_parallel=round(least, 1),
                ratio=round(took / least, 3),
                workers=len(workers),
            )
            assert grid.marks.most_at_once() == _CAP
            assert took <= 1.25 * least
            assert len(workers) == 4
            await grid.assert_exact(results)
