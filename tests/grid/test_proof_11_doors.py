"""Doors that are killed, and doors that are stopped in turn: their workers' programs go on."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest

from support.proofs.killers import kill_doors
from support.proofs.report import Findings, proof
from support.proofs.sizes import size
from support.proofs.stage import Scene, restart, run_jobs, scene
from support.timers import timers

_WORKERS = 3


async def test_doors_that_are_killed_again_and_again_cost_no_job_a_second_start(tmp_path: Path) -> None:
    """P11: GRID-40, GRID-110"""
    await killed_doors(tmp_path, jobs=size(30, 300), every=size(1.5, 3.0), seconds=size(4.0, 60.0))


async def killed_doors(folder: Path, *, jobs: int, every: float, seconds: float) -> None:
    # A door that is killed with a slot that has no run yet leaves it to the next sweep, minutes later as users have it.
    sweeps = timers(exec_sweep_sec=5)
    with proof("P11", "doors are killed", jobs=jobs) as found:
        async with (
            scene(folder, doors=3, workers=_WORKERS, env=sweeps) as grid,
            grid.client("clientA", desired=12) as client,
        ):
            longest = size(1.5, 4.0)
            asks = [grid.job(f"{found.chance.uniform(0.2, longest):.2f}") for _ in range(jobs)]
            killing = asyncio.create_task(kill_doors(grid, found, every, seconds))
            results = await run_jobs(client, asks, 600, over=seconds)
            await killing
            assert {result.status for result in results.values()} == {"COMPLETED"}
            await grid.assert_exact(results)
            again = {job_id: count for job_id, count in grid.marks.starts().items() if count > 1}
            found.note(starts=grid.marks.starts().total(), reconnects=client.stats().groups[0].reconnects)
            assert again == {}
            assert set(grid.marks.starts()) == set(results)


async def test_doors_are_restarted_in_turn_under_load_and_nobody_notices(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """P17: GRID-41, GRID-45: SIGTERM; peers are sent elsewhere, no caller hears an error, no program starts twice"""
    await rolling_restart(tmp_path, caplog, jobs=size(24, 300), rounds=size(1, 3))


async def rolling_restart(folder: Path, caplog: pytest.LogCaptureFixture, *, jobs: int, rounds: int) -> None:
    caplog.set_level(logging.INFO, "pyoco_server.client")
    with proof("P17", "doors are restarted in turn", jobs=jobs, rounds=rounds) as found:
        async with scene(folder, doors=3, workers=_WORKERS) as grid, grid.client("clientA", desired=12) as client:
            longest = size(2.0, 4.0)
            asks = [grid.job(f"{found.chance.uniform(0.2, longest):.2f}") for _ in range(jobs)]
            rolling = asyncio.create_task(_roll(grid, found, rounds))
            results = await run_jobs(client, asks, 600, over=rounds * size(4.0, 25.0))  # an error would be raised here
            await rolling
            assert {result.status for result in results.values()} == {"COMPLETED"}
            await grid.assert_exact(results)
            starts = grid.marks.starts()
            assert set(starts) == set(results)
            assert set(starts.values()) == {1}
            sent_away = caplog.text.count("redirected by door"), _told(grid)
            found.note(client_sent_away=sent_away[0], workers_sent_away=sent_away[1])
            assert min(sent_away) >= 1


def _told(grid: Scene) -> int:
    return sum(worker.stdout.count("door redirects this worker") for worker in grid.workers)


async def _roll(grid: Scene, found: Findings, rounds: int) -> None:
    """Each door leaves by itself, with 0, long before its time is up: its peers went when they were told to."""
    slowest = 0.0
    for _ in range(rounds):
        for door in grid.doors:
            began = time.monotonic()
            assert await asyncio.to_thread(door.stop) == 0
            slowest = max(slowest, time.monotonic() - began)
            await restart(door)
    found.note(restarts=rounds * len(grid.doors), slowest_stop_seconds=round(slowest, 1))
