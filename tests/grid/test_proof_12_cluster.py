"""A cluster of three NATS nodes that lose their leader, a disk, or their majority."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from pyoco_server.errors import Unavailable
from pyoco_server.grid_client import JobRequest, JobResult
from pyoco_server.ports.programs import Programs
from support.proofs.killers import kill_leaders
from support.proofs.report import Findings, proof
from support.proofs.sizes import IS_FULL, full_only, size
from support.proofs.stage import Caller, Scene, leader_of, run_jobs, scene, submit_all
from support.waiting import eventually

_GAP_SECONDS = 15.0
_CURRENT_SECONDS = 60.0


@pytest.mark.timeout(900)  # a busy machine needs minutes for it
@pytest.mark.skipif(IS_FULL, reason="each on its own in `make proofs`")
async def test_a_cluster_loses_its_leader_and_then_a_disk_and_goes_on(tmp_path: Path) -> None:
    """P12 and P15, one scene: GRID-181, GRID-180, GRID-186"""
    with proof("P12", "a killed leader and a lost disk", jobs=30) as found:
        async with scene(tmp_path, nodes=3, doors=2, workers=1) as grid, grid.programs() as programs:
            async with grid.client("clientA", desired=4) as client:
                done = await _without_leader(grid, programs, client, found, jobs=20)
                await eventually(
                    lambda: _is_current(programs, *(node.name for node in grid.nodes.all)), _CURRENT_SECONDS
                )
                done += await _disk_lost(grid, programs, client, found, jobs=10)
            await grid.assert_exact(done)


async def _without_leader(grid: Scene, programs: Programs, client: Caller, found: Findings, *, jobs: int) -> list[str]:
    """The leader is killed after half of the jobs were submitted, and starts again when all have ended."""
    client.accepted_at.clear()
    asks = [grid.job(f"{found.chance.uniform(0.05, 0.5):.2f}") for _ in range(jobs)]
    leader = grid.nodes.named(await leader_of(programs))
    futures = await submit_all(client, asks[: jobs // 2], over=2.0)
    leader.kill()
    futures |= await submit_all(client, asks[jobs // 2 :], over=2.0)
    results = await _results_of(futures)
    assert {result.status for result in results.values()} == {"COMPLETED"}
    found.note(leaders_killed=1, longest_gap_seconds=round(client.longest_gap(), 1))
    leader.start()
    await leader.until_up()
    return list(results)


@full_only
async def test_the_leading_node_is_killed_again_and_again_and_jobs_are_accepted(tmp_path: Path) -> None:
    """P12: GRID-181, GRID-180"""
    with proof("P12", "the leading node is killed", jobs=500) as found:
        async with scene(tmp_path, nodes=3, doors=3, workers=2) as grid, grid.programs() as programs:
            async with grid.client("clientA", desired=8) as client:
                done, gap = await _under_fire(grid, programs, client, found, jobs=500, kills=6, every=10.0)
            assert gap <= _GAP_SECONDS
            await grid.assert_exact(done)


async def _under_fire(
    grid: Scene, programs: Programs, client: Caller, found: Findings, *, jobs: int, kills: int, every: float
) -> tuple[list[str], float]:
    """Jobs come in evenly while leaders die. And the longest gap between two acceptances."""
    client.accepted_at.clear()
    asks = [grid.job(f"{found.chance.uniform(0.05, 0.5):.2f}") for _ in range(jobs)]
    killing = asyncio.create_task(kill_leaders(grid, programs, found, kills=kills, every=every))
    results = await run_jobs(client, asks, 600, over=kills * every + 5)
    await killing
    assert {result.status for result in results.values()} == {"COMPLETED"}
    gap = client.longest_gap()
    found.note(longest_gap_seconds=round(gap, 1))
    return list(results), gap


@full_only
async def test_a_node_that_lost_its_disk_catches_up_and_then_another_may_die(tmp_path: Path) -> None:
    """P15: GRID-186"""
    with proof("P15", "a node loses its disk", jobs=600) as found:
        async with scene(tmp_path, nodes=3, doors=2, workers=2) as grid, grid.programs() as programs:
            async with grid.client("clientA", desired=8) as client:
                before = await run_jobs(client, [grid.job(0) for _ in range(300)], 600)
                done = [*before, *await _disk_lost(grid, programs, client, found, jobs=300)]
            await grid.assert_exact(done)


async def _disk_lost(grid: Scene, programs: Programs, client: Caller, found: Findings, *, jobs: int) -> list[str]:
    """A follower begins anew from nothing; when it has caught up, another node dies for good."""
    leader = await leader_of(programs)
    follower, other = (node for node in grid.nodes.all if node.name != leader)
    futures = await submit_all(client, [grid.job(0.1) for _ in range(jobs // 2)])
    follower.kill()
    follower.empty()
    follower.start()
    await follower.until_up()
    began = time.monotonic()
    await eventually(lambda: _is_current(programs, follower.name), _CURRENT_SECONDS)
    found.note(current_after_seconds=round(time.monotonic() - began, 1))
    results = await _results_of(futures)
    found.chance.choice([grid.nodes.named(leader), other]).kill()
    results |= await run_jobs(client, [grid.job(0.1) for _ in range(jobs - jobs // 2)], 600)
    assert {result.status for result in results.values()} == {"COMPLETED"}
    await grid.nodes.start()
    return list(results)


async def _is_current(programs: Programs, *nodes: str) -> bool:
    """Whether each of these nodes has a copy of every stream, with all messages."""
    try:
        replicas = await programs.queue.replicas()
    except Unavailable:
        return False
    streams = {copy.stream for copy in replicas}
    for node in nodes:
        copies = [copy for copy in replicas if copy.name == node]
        if {copy.stream for copy in copies} != streams:
            return False
        if not all(copy.is_leader or (copy.is_current and copy.lag == 0) for copy in copies):
            return False
    return True


async def _results_of(futures: dict[str, asyncio.Future[JobResult]]) -> dict[str, JobResult]:
    async with asyncio.timeout(600):
        return dict(zip(futures, await asyncio.gather(*futures.values()), strict=True))


@full_only
async def test_without_a_majority_nothing_is_accepted_and_nothing_accepted_is_lost(tmp_path: Path) -> None:
    """P16: GRID-182, GRID-9, GRID-44"""
    await majority_lost(tmp_path, through=8, outage=size(8.0, 40.0), jobs=size(20, 200))


async def majority_lost(folder: Path, *, through: int, outage: float, jobs: int) -> None:
    with proof("P16", "two of three nodes are killed", jobs=jobs, through=through, outage_seconds=outage) as found:
        async with scene(folder, nodes=3, doors=2, workers=2, natives=1, gateways=1, WORKER_MAX_PAR="8") as grid:
            async with grid.client("clientA", desired=64) as client:
                # They run through all of it.
                long = [grid.job(outage + 25) for _ in range(through)]
                futures = await submit_all(client, long)
                await eventually(lambda: len(grid.marks.running()) == through, 60)
                asks = [grid.job(0.1) for _ in range(jobs)]
                submitting = asyncio.create_task(submit_all(client, asks, over=outage + 10))
                await asyncio.sleep(3)
                unknown = await _outage(grid, client, found, outage)
                async with asyncio.timeout(300):
                    futures |= await submitting
                    results = await asyncio.gather(*futures.values())
            assert {result.status for result in results} == {"COMPLETED"}
            await _settle_over_http(grid, unknown)
            await grid.assert_exact([*futures, *(ask.job_id for ask in unknown)])
            starts = grid.marks.starts()
            found.note(refused_over_http=len(unknown), started_twice=sum(count > 1 for count in starts.values()))
            assert {starts[ask.job_id] for ask in long} == {1}


async def _outage(grid: Scene, client: Caller, found: Findings, seconds: float) -> list[JobRequest]:
    """Two nodes die by chance and come back. Returns what HTTP was asked for meanwhile, and could not promise."""
    dead = found.chance.sample(grid.nodes.all, 2)
    for node in dead:
        node.kill()
    # What a majority had stored is acknowledged a moment later, rightly so.
    await asyncio.sleep(2.0)
    known = set(client.accepted_at)
    asked: list[JobRequest] = []
    ends = time.monotonic() + seconds
    async with grid.http(timeout=60) as http:
        while time.monotonic() < ends:
            asked.append(grid.job(0))
            answer = await grid.post(http, asked[-1])
            assert answer.status_code == 503, answer.text
            await asyncio.sleep(1.0)
    found.note(accepted_before=len(known), accepted_meanwhile=len(set(client.accepted_at) - known))
    assert set(client.accepted_at) == known
    for node in dead:
        node.start()
    await asyncio.gather(*(node.until_up() for node in dead))
    return asked


async def _settle_over_http(grid: Scene, asks: list[JobRequest]) -> None:
    """GRID-49: the same JobId again settles what nobody knew."""
    async with grid.http() as http:
        for ask in asks:
            answer = await grid.post(http, ask)
            assert answer.status_code == 200, answer.text
            run_id = answer.json()["run_id"]

            async def has_ended(run_id: str = run_id) -> bool:
                return bool((await http.get(f"/runs/{run_id}")).json()["status"] == "COMPLETED")

            await eventually(has_ended, 60)
