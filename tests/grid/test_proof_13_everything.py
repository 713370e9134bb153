"""Workers, doors and NATS nodes are killed at the same time, and jobs come in from all sides."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx

from pyoco_server.grid_client import JobRequest
from support.grid.processes import GridProcess
from support.proofs.killers import kill_doors, kill_leaders, kill_workers
from support.proofs.report import proof
from support.proofs.sizes import full_only, size
from support.proofs.stage import Scene, scene

#: Of one command, or one turn over HTTP.
_BATCH = 25
_PATIENCE_SECONDS = 900.0
_ACCEPTED, _ENDED = 200, ("COMPLETED", "FAILED", "CANCELLED")

#: Hands in a batch; the status of each JobId, once it has ended.
Way = Callable[[Scene, int], Awaitable[dict[str, str]]]


@full_only
async def test_everything_is_killed_at_once_for_minutes_and_each_job_ends_once(tmp_path: Path) -> None:
    """P13: every promise together"""
    await all_at_once(tmp_path, jobs=size(150, 1_500), seconds=size(30.0, 300.0))


async def all_at_once(folder: Path, *, jobs: int, seconds: float) -> None:
    with proof("P13", "workers, doors and nodes are killed at once", jobs=jobs) as found:
        async with scene(folder, nodes=3, doors=3, workers=4, gateways=1) as grid, grid.programs() as programs:
            turns = jobs // 3 // _BATCH
            async with asyncio.timeout(seconds + _PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
                tasks.create_task(kill_workers(grid, found, every=5.0, seconds=seconds))
                tasks.create_task(kill_doors(grid, found, every=7.0, seconds=seconds))
                tasks.create_task(kill_leaders(grid, programs, found, kills=int(seconds // 15), every=15.0))
                asked = [
                    tasks.create_task(_in_turns(way, grid, turns, seconds))
                    for way in (_by_client, _by_clientx, _by_http)
                ]
            ended = {job_id: status for task in asked for job_id, status in task.result().items()}
            assert len(ended) == jobs
            assert set(ended.values()) == {"COMPLETED"}
            await grid.assert_exact(ended)
            found.note(starts=grid.marks.starts().total())


async def _in_turns(way: Way, grid: Scene, turns: int, seconds: float) -> dict[str, str]:
    """Spread over the time: the next turn does not wait for the one before."""
    began = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        asked = []
        for turn in range(turns):
            await asyncio.sleep(max(0.0, began + 0.9 * seconds * turn / turns - time.monotonic()))
            asked.append(tasks.create_task(_of(way(grid, turn))))
    return {job_id: status for task in asked for job_id, status in task.result().items()}


async def _of(batch: Awaitable[dict[str, str]]) -> dict[str, str]:
    ended = await batch
    assert len(ended) == _BATCH
    return ended


async def _by_client(grid: Scene, turn: int) -> dict[str, str]:
    """The command, with the other doors named."""
    first, *others = grid.doors
    options = [part for door in others for part in ("--door", door.address)]
    asks = ("--exec", "marked", "--count", _BATCH, "--arg", "0.5")
    return await _results(grid.processes.start_client(first, "clientA", 8, *options, *asks, name=f"client-a{turn}"))


async def _by_clientx(grid: Scene, turn: int) -> dict[str, str]:
    asks = ("--exec", "marked", "--count", _BATCH, "--arg", "0.5")
    place = "|".join(grid.addresses)
    return await _results(grid.processes.start("clientx", "clientX", place, 8, *asks, name=f"clientx-{turn}"))


async def _results(command: GridProcess) -> dict[str, str]:
    done = await asyncio.to_thread(command.finished, _PATIENCE_SECONDS)
    assert done.code == 0, command.tail()
    job_ids = [line["JobId"] for line in done.lines]
    assert len(job_ids) == len(set(job_ids))
    return {line["JobId"]: line["Status"] for line in done.lines}


async def _by_http(grid: Scene, turn: int) -> dict[str, str]:
    """Each answer that is not known is asked for again, with the same JobId."""
    asks = [grid.job(0.5) for _ in range(_BATCH)]
    async with grid.http(timeout=60) as http:
        statuses = await asyncio.gather(*(_to_its_end(grid, http, ask) for ask in asks))
    return {ask.job_id: status for ask, status in zip(asks, statuses, strict=True)}


async def _to_its_end(grid: Scene, http: httpx.AsyncClient, ask: JobRequest) -> str:
    answer = await grid.post(http, ask)
    while answer.status_code != _ACCEPTED:
        assert answer.status_code in {429, 503}, answer.text
        await asyncio.sleep(1.0)
        answer = await grid.post(http, ask)
    run_id = answer.json()["run_id"]
    while True:
        await asyncio.sleep(1.0)
        answer = await http.get(f"/runs/{run_id}")
        if answer.status_code == _ACCEPTED and answer.json()["status"] in _ENDED:
            return str(answer.json()["status"])
