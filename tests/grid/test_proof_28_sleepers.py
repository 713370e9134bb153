"""A process stands still for longer than its attempts are waited for, and wakes up when others have them."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from pyoco_server.grid_client import GridClient
from pyoco_server.ports.program_events.port import EventName
from support.grid.processes import GridProcess
from support.proofs.report import Findings, proof
from support.proofs.sizes import full_only
from support.proofs.stage import GROUP, SHORT_LEASES, Scene, scene, submit_all
from support.waiting import eventually

_JOBS = 5
#: Long enough that the second attempts run when the sleeper wakes, which is after the first ones have ended.
_SECONDS = 20


@full_only  # its quick forms: test_program_holdings_outages.py, test_native_workers.py
@pytest.mark.parametrize("kind", ["door", "native worker"])
async def test_who_wakes_up_too_late_drops_its_results_and_acks_nothing(tmp_path: Path, kind: str) -> None:
    """P28: GRID-10, GRID-56"""
    with proof("P28", f"a {kind} stands still", jobs=_JOBS, ack_wait=4) as found:
        settings = {**SHORT_LEASES, "WORKER_MAX_PAR": str(_JOBS)}
        async with scene(tmp_path, doors=2, env=settings) as grid:
            sleeper, other = (_door_and_other if kind == "door" else _native_and_other)(grid)
            await _stand_still(grid, sleeper, other, found)


def _door_and_other(grid: Scene) -> tuple[GridProcess, str]:
    """The door that is to sleep has a worker, which stays with it; a second worker comes to the other door."""
    grid.start_worker(first=0)
    return grid.doors[0], "worker-2"


def _native_and_other(grid: Scene) -> tuple[GridProcess, str]:
    return grid.start_native(), "native-2"


async def _stand_still(grid: Scene, sleeper: GridProcess, other: str, found: Findings) -> None:
    awake = grid.doors[1]
    async with GridClient(awake.host, awake.port, "clientA", desired=2 * _JOBS) as client:
        futures = await submit_all(client, [grid.job(_SECONDS) for _ in range(_JOBS)])
        await eventually(lambda: len(_marks(grid, "begin", 1)) == _JOBS)
        sleeper.signal(signal.SIGSTOP)
        try:
            await asyncio.to_thread(grid.start_native if other == "native-2" else lambda: grid.start_worker(first=1))
            await eventually(lambda: len(_marks(grid, "begin", 2)) == _JOBS, 60)
            await eventually(lambda: len(_marks(grid, "end", 1)) == _JOBS, 60)
            assert _marks(grid, "end", 2) == [], "the machine was too slow: nobody runs when the sleeper wakes"
        finally:
            sleeper.signal(signal.SIGCONT)
        await _until_one_has_ended(grid)
        async with asyncio.timeout(120):
            results = await asyncio.gather(*futures.values())
    assert {(result.status, result.attempt, result.worker_id) for result in results} == {("COMPLETED", 2, other)}
    assert set(grid.marks.starts().values()) == {2}
    await grid.assert_exact(futures)
    assert sleeper.is_alive
    async with grid.programs() as programs:
        stale = await programs.events.recent(job_id=None, event=EventName.STALE_RESULT, group=GROUP, limit=100)
    found.note(taken_over=_JOBS, stale_results=len(stale))


async def _until_one_has_ended(grid: Scene) -> None:
    """Until a second attempt is over, every message stays: the sleeper has acked none."""
    async with grid.programs() as programs:
        while True:
            left = (await programs.queue.totals()).messages
            if _marks(grid, "end", 2):
                return
            assert left == _JOBS
            await asyncio.sleep(0.05)


def _marks(grid: Scene, word: str, attempt: int) -> list[str]:
    return [mark.job_id for mark in grid.marks.all() if (mark.word, mark.attempt) == (word, attempt)]
