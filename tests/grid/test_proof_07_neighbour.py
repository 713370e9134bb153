"""A client with thousands of queued jobs delays nobody."""

from __future__ import annotations

import time
from pathlib import Path

from support.proofs.report import proof
from support.proofs.sizes import full_only
from support.proofs.stage import scene, submit_all
from support.waiting import eventually


@full_only  # its quick form: test_a_client_at_its_cap_delays_nobody
async def test_the_job_of_another_client_starts_within_three_seconds(tmp_path: Path) -> None:
    """P7: GRID-61"""
    await a_neighbour(tmp_path, queued=5_000, tries=10)


async def a_neighbour(folder: Path, *, queued: int, tries: int) -> None:
    with proof("P7", "a client with a long queue", queued=queued) as found:
        async with (
            scene(folder, workers=1) as grid,
            grid.client("clientA", desired=1) as crowd,
            grid.client("clientB", desired=1) as one,
            grid.programs() as programs,
        ):
            await submit_all(crowd, [grid.job(0.5) for _ in range(queued)])

            async def are_queued() -> bool:
                return (await programs.queue.totals()).last_sequence >= queued

            await eventually(are_queued, 300)
            waited = []
            for _ in range(tries):
                job, at = grid.job(), time.time()
                result = await one.run(job)
                assert result.status == "COMPLETED"
                (begun,) = [mark.at for mark in grid.marks.all() if mark.job_id == job.job_id and mark.word == "begin"]
                waited.append(begun - at)
            left = (await programs.queue.totals()).messages
            found.note(tries=tries, longest_wait=round(max(waited), 2), still_queued=left)
            assert max(waited) < 3.0
            assert left > queued / 2
