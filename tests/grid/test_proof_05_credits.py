"""A worker with two credits never has more than two jobs, whatever else it says."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

from pyoco_server.core.frames.codec import Type
from pyoco_server.core.frames.messages import AssignJob
from support.grid.peers import WorkerPeer
from support.proofs.report import Findings, proof
from support.proofs.sizes import full_only
from support.proofs.stage import Scene, run_jobs, scene, submit_all
from support.waiting import eventually

_CREDITS = 2
#: GRID-25: 0, -1, 10,001, the largest there is, and three that are not four bytes long.
_BAD = (
    b"\x00\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\x11\x27\x00\x00",
    b"\xff\xff\xff\x7f",
    b"",
    b"\x01\x00\x00",
    b"\x01\x00\x00\x00\x00",
)


@full_only  # its quick forms are in tests/loops and tests/doors
async def test_two_credits_are_never_more_than_two_jobs(tmp_path: Path) -> None:
    """P5: GRID-66, GRID-67, GRID-69"""
    await two_credits(tmp_path, jobs=1_000)


async def two_credits(folder: Path, *, jobs: int) -> None:
    with proof("P5", "two credits", jobs=jobs) as found:
        async with scene(folder, WORKER_MAX_PAR=str(_CREDITS)) as grid:
            await _counted_by_the_worker(grid, jobs, found)
            await _counted_by_the_programs(grid, jobs, found)


async def _counted_by_the_worker(grid: Scene, jobs: int, found: Findings) -> None:
    """A worker by hand sees every AssignJob. What comes is never more than what was given."""
    async with grid.client("clientA", desired=50) as client, await WorkerPeer.connect(grid.doors[0].port) as worker:
        await worker.hello("by-hand", credit=_CREDITS)
        given, came = _CREDITS, 0
        unfinished: list[AssignJob] = []
        futures = await submit_all(client, [grid.job() for _ in range(jobs)])
        while came < jobs:
            unfinished.append(await worker.assigned())
            came += 1
            assert came + _unread(worker) <= given
            if len(unfinished) == _CREDITS:
                assert await worker.settled(unfinished.pop(0)) == "recorded"
                assert came + _unread(worker) <= given
                await worker.credit(1)
                given += 1
        for job in unfinished:
            await worker.settled(job)
            await worker.credit(1)
            given += 1
        results = await asyncio.gather(*futures.values())
        assert {result.status for result in results} == {"COMPLETED"}
        await _until_credits(grid, "by-hand", given - came)
        await grid.assert_exact(futures)
        for payload in _BAD:
            await worker.send(Type.CREDIT, payload)
            await worker.error("BAD_CREDIT")
        more = await submit_all(client, [grid.job() for _ in range(5)])
        held = [await worker.assigned() for _ in range(_CREDITS)]
        assert await worker.is_silent(2.0)
        for job in held:
            await worker.settled(job)
        assert await worker.is_silent(2.0)
        await worker.credit(3)
        for _ in range(3):
            await worker.settled(await worker.assigned())
        await asyncio.gather(*more.values())
        await grid.assert_exact(more)
    found.note(assigned=came, given=given, bad_credits=len(_BAD))


def _unread(worker: WorkerPeer) -> int:
    """AssignJobs that have arrived and were not looked at."""
    return sum(frame.type == Type.ASSIGN_JOB for frame in worker._frames)


async def _until_credits(grid: Scene, worker_id: str, count: int) -> None:
    """As the door writes them down, every 5 s."""
    async with grid.backend() as backend:

        async def are_so_many() -> bool:
            record = await backend.registry.find(worker_id)
            return record is not None and record.credits == count

        await eventually(are_so_many, 60)


async def _counted_by_the_programs(grid: Scene, jobs: int, found: Findings) -> None:
    worker = grid.start_worker()
    client_id = f"client-{uuid.uuid4().hex[:8]}"
    async with grid.client(client_id, desired=50) as client:
        results = await run_jobs(client, [grid.job() for _ in range(jobs)], 900)
    assert {result.status for result in results.values()} == {"COMPLETED"}
    assert grid.marks.most_at_once() == _CREDITS
    assert set(grid.marks.starts().values()) == {1}
    assert len(grid.marks.starts()) == jobs
    await _until_credits(grid, "worker-1", _CREDITS)
    await grid.assert_exact(results)
    assert worker.is_alive
    found.note(most_at_once=grid.marks.most_at_once())
