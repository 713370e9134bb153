"""A door that hears everything there is, beside a client that works."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import psutil
import pytest

from pyoco_server.core.programs.names import run_id_of
from support.grid.frame_fuzz import talk
from support.grid.peers import Peer
from support.grid.story import assert_exact
from support.proofs.malformed import ROWS
from support.proofs.report import proof
from support.proofs.sizes import size
from support.proofs.stage import GROUP, Scene, run_jobs, scene
from support.timers import timers
from support.waiting import eventually

_GROWTH_MAX = 64 * 2**20
_AT_ONCE = 50
#: What a connection may end with when everything was tried at it.
_REASONS = {
    "peer_closed",
    "eof_in_frame",
    "hello_timeout",
    "frame_timeout",
    "bad_frame",
    "frame_too_large",
    "bad_state",
    "bad_hello",
    "too_many_errors",
}


@pytest.mark.usefixtures("cold_processes")  # their memory is looked at
async def test_whatever_a_door_hears_good_jobs_go_on(tmp_path: Path) -> None:
    """P3: GRID-195, GRID-196"""
    await fuzzed_door(tmp_path, connections=size(250, 5_000), jobs=size(30, 200), stall=size("1", ""))


async def fuzzed_door(folder: Path, *, connections: int, jobs: int, stall: str) -> None:
    """`stall`: seconds of the timers of Hello and frame, if not the usual ones."""
    with proof("P3", "a door is fuzzed", connections=connections, jobs=jobs, rows=len(ROWS)) as found:
        settings = {"EXEC_MAX_CONNS_PER_IP": "1000", "EXEC_HTTP_MAX_BYTES": str(4 * 2**20)}
        settings |= timers(exec_hello_sec=float(stall), exec_frame_sec=float(stall)) if stall else {}
        async with scene(folder, doors=1, gateways=1, env=settings) as grid, grid.client("good", desired=4) as client:
            for pattern in ("job.assign.marked", "job.assign.calcA", "job.assign.missing"):
                grid.start_worker(pattern, waits=False)
            await _fuzz(grid, found.chance, 100)
            door = psutil.Process(grid.doors[0].pid)
            before = door.memory_info().rss
            asks = [grid.job(f"{found.chance.uniform(0.0, 0.3):.2f}") for _ in range(jobs)]
            working = asyncio.create_task(run_jobs(client, asks, 600, over=size(3.0, 60.0)))
            rows = asyncio.create_task(_rows(grid))
            await _fuzz(grid, found.chance, connections)
            results = await working
            await rows
            await eventually(lambda: len(_endings(grid)) >= connections)
            grown = door.memory_info().rss - before
            found.note(grown_mib=round(grown / 2**20, 1), endings=_count(_endings(grid)))
            assert {result.status for result in results.values()} == {"COMPLETED"}
            async with grid.backend() as backend:
                await assert_exact(backend, [run_id_of(job_id, GROUP) for job_id in results])
            assert set(grid.marks.starts()) == set(results)
            _assert_sound(grid, door, grown)


def _assert_sound(grid: Scene, door: psutil.Process, grown: int) -> None:
    """The same process, no traceback, and every way to end was seen."""
    assert grid.doors[0].is_alive
    assert grid.doors[0].pid == door.pid
    assert grown < _GROWTH_MAX
    assert set(_endings(grid)) >= _REASONS
    for process in [*grid.doors, *grid.workers]:
        assert "Traceback" not in process.stdout + process.stderr, process.name
    errors = [line for line in grid.doors[0].log if line["level"] in ("ERROR", "CRITICAL") and not line.get("security")]
    assert errors == []


def _endings(grid: Scene) -> list[str]:
    return [line["reason"] for line in grid.doors[0].log if line["message"] == "a connection ended"]


def _count(words: list[str]) -> dict[str, int]:
    return {word: words.count(word) for word in sorted(set(words))}


async def _rows(grid: Scene) -> None:
    for row in ROWS:
        for left in (2, 1, 0):
            try:
                await row.provoke(grid)
                break
            except (AssertionError, ConnectionError):  # on a busy machine a Hello may come after its second
                if not left:
                    print("the row was:", row.name)
                    raise


async def _fuzz(grid: Scene, chance: random.Random, connections: int) -> None:
    talks = [(talk(chance), chance.random()) for _ in range(connections)]
    turn = asyncio.Semaphore(_AT_ONCE)

    async def one(data: bytes, mood: float) -> None:
        async with turn:
            peer = await Peer.connect(grid.doors[0].port)
            with contextlib.suppress(ConnectionError):
                await peer.raw(data)
                if mood < 0.5:  # reads what it is told
                    await asyncio.wait({asyncio.create_task(_drained(peer))}, timeout=0.2)
            if mood < 0.3:
                peer.abort()
            with contextlib.suppress(ConnectionError):
                await peer.close()

    await asyncio.gather(*(one(*each) for each in talks))


async def _drained(peer: Peer) -> None:
    with contextlib.suppress(ConnectionError, TimeoutError):
        await peer.ended(0.15)
