"""Programs take turns."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.proofs.report import proof
from support.proofs.sizes import full_only
from support.proofs.stage import scene, submit_all
from support.waiting import eventually


@full_only  # its quick form: test_one_credit_at_a_time_starts_programs_in_turn
async def test_three_programs_start_in_turn(tmp_path: Path) -> None:
    """P8: GRID-59"""
    await in_turn(tmp_path, each=30)


async def in_turn(folder: Path, *, each: int) -> None:
    with proof("P8", "turns", programs=3, jobs=3 * each) as found:
        async with (
            scene(folder, WORKER_MAX_PAR="1") as grid,
            grid.client("clientA", desired=4) as client,
            grid.programs() as programs,
        ):
            marked = (folder / "programs" / "marked.sh").read_bytes()
            for name in "ABC":
                (folder / "programs" / f"{name}.sh").write_bytes(marked)
            futures = await submit_all(client, [grid.job(exec_name=name) for name in "ABC" for _ in range(each)])

            async def are_queued() -> bool:
                return (await programs.queue.totals()).messages == len(futures)

            await eventually(are_queued, 60)
            grid.start_worker()
            async with asyncio.timeout(300):
                await asyncio.gather(*futures.values())
            order = "".join(mark.exec_name for mark in grid.marks.all() if mark.word == "begin")
            found.note(order=f"{order[:6]}…{order[-3:]}", most_at_once=grid.marks.most_at_once())
            assert order == "ABC" * each
            await grid.assert_exact(futures)
