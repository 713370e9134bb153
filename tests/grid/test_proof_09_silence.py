"""A worker that takes jobs and never answers."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.ports.program_events.port import EventName
from support.grid.peers import WorkerPeer
from support.proofs.report import proof
from support.proofs.sizes import full_only
from support.proofs.stage import GROUP, SHORT_LEASES, Scene, scene

_DELAYS = (1, 2, 4, 8)
_ATTEMPTS = 5
#: From the moment at which a job may be tried again to the AssignJob, on a busy machine.
_SLACK = 1.0


@full_only  # its quick form: test_again_and_again_waits_longer_each_time_and_ends_the_job
async def test_silence_is_waited_for_longer_each_time_and_then_the_job_is_given_up(tmp_path: Path) -> None:
    """P9: GRID-78, GRID-79, GRID-80, GRID-87"""
    with proof("P9", "a silent worker", jobs=1, ack_timeout=5) as found:
        async with (
            scene(tmp_path, gateways=1, EXEC_ACK_TIMEOUT_SEC="5", env=SHORT_LEASES) as grid,
            grid.client("clientA") as client,
            await WorkerPeer.connect(grid.doors[0].port) as worker,
        ):
            await worker.hello("silent", credit=10)
            job = grid.job()
            future = await client.submit(job)
            beating = asyncio.create_task(_beat(worker))
            attempts = [(await worker.assigned(60)).attempt for _ in range(_ATTEMPTS)]
            assert attempts == [1, 2, 3, 4, 5]
            result = await asyncio.wait_for(future, 60)
            beating.cancel()
            await asyncio.wait({beating})
            assert (result.status, result.error_code) == ("FAILED", ErrorCode.MAX_ATTEMPTS)
            delays = await _delays(grid, job.job_id)
            found.note(delays=[round(delay, 2) for delay in delays])
            for delay, wanted in zip(delays, _DELAYS, strict=True):
                assert 0.8 * wanted <= delay <= 1.2 * wanted + _SLACK
            letters = await grid.letters()
            assert [letter["reason"] for letter in letters] == ["max_attempts"]
            await grid.assert_exact([job.job_id], letters=letters)
            assert await worker.is_silent(1.0)


async def _beat(worker: WorkerPeer) -> None:
    """It lives, and lists nothing."""
    while True:
        await worker.beat()
        await asyncio.sleep(2)


async def _delays(grid: Scene, job_id: str) -> list[float]:
    """From each time it was put back to the next time it was given away."""
    async with grid.programs() as programs:
        events = await programs.events.recent(job_id=job_id, event=None, group=GROUP, limit=100)
    told = [(event.ts, event.event) for event in reversed(events)]
    return [
        after - before
        for (before, first), (after, second) in itertools.pairwise(told)
        if (first, second) == (EventName.TIMEOUT_REQUEUE, EventName.ASSIGN)
    ]
