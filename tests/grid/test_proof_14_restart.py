"""Everything is killed at once, and started again: what was accepted is there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from support.proofs.report import proof
from support.proofs.sizes import size
from support.proofs.stage import GROUP, SHORT_LEASES, Scene, restart, scene, submit_all
from support.waiting import eventually

_CAPS = {"clientA": 5, "clientB": 3, "clientC": 2, "clientD": 7}
_RUNNING = 10
_LETTERS = 3


@pytest.mark.timeout(size(900, 1_200))
async def test_after_everything_was_killed_all_that_was_accepted_is_there(tmp_path: Path) -> None:
    """P14: GRID-177, GRID-172"""
    await everything_killed(tmp_path, queued=size(40, 500))


async def everything_killed(folder: Path, *, queued: int) -> None:
    short = size(SHORT_LEASES, {})
    with proof("P14", "everything is killed", queued=queued, running=_RUNNING, letters=_LETTERS) as found:
        async with scene(folder, workers=1, gateways=1, WORKER_MAX_PAR=str(_RUNNING), env=short) as grid:
            callers = {name: grid.client(name, cap) for name, cap in _CAPS.items()}
            for caller in callers.values():
                await caller.connect()
            failed = await submit_all(callers["clientD"], [grid.job(0, 3) for _ in range(_LETTERS)])
            await asyncio.gather(*failed.values())
            # Ten that run for long: five of A, three of B, two of C are their caps. More of D wait for a place.
            long = [callers[name] for name, cap in list(_CAPS.items())[:3] for _ in range(cap)]
            waiting = dict(failed)
            for caller in long:
                waiting |= await submit_all(caller, [grid.job(600)])
            await eventually(lambda: len(grid.marks.running()) == _RUNNING)
            for place, caller in enumerate(callers.values()):
                share = (queued - place + 3) // 4
                waiting |= await submit_all(caller, [grid.job(0) for _ in range(share)])
            await _until_queued(grid, queued)
            await _until_state(grid, waiting=queued + _RUNNING)
            await _kill_everything(grid)
            _make_quick(grid)
            # Only NATS and the gateway run again: nothing can have changed the state.
            await grid.nodes.start()
            await restart(grid.gateways[0])
            await _until_state(grid, waiting=queued + _RUNNING)
            for process in [*grid.doors, *grid.workers]:
                await restart(process)
            async with asyncio.timeout(600):
                results = await asyncio.gather(*waiting.values())
            for caller in callers.values():
                await caller.close()
            assert [result.job_id for result in results] == list(waiting)
            ended_badly = {result.job_id for result in results if result.status != "COMPLETED"}
            assert ended_badly == set(failed)
            letters_now = await grid.letters()
            assert len(letters_now) == _LETTERS
            await grid.assert_exact(waiting, letters=letters_now)
            found.note(jobs=len(waiting), starts=grid.marks.starts().total())


async def _until_state(grid: Scene, *, waiting: int) -> None:
    """The gateway shows exactly this. Its lists follow NATS with a delay, and it answers 503 until they
    have caught up."""
    expected = {"waiting": {"marked": waiting}, "dlq": _LETTERS, "client_cap": _CAPS, "letters": _LETTERS}
    shown: dict[str, Any] = {}

    async def is_shown() -> bool:
        async with grid.http() as http:
            answer = await http.get("/exec/state")
        if answer.status_code == 503:
            return False
        answer.raise_for_status()
        state = answer.json()["groups"][GROUP]
        unfinished = {name: queue["queued"] + queue["inflight"] for name, queue in state["queues"].items()}
        shown.update(waiting=unfinished, dlq=state["dlq"]["count"], client_cap=state["client_cap"])
        shown["letters"] = len(await grid.letters())
        return shown == expected

    try:
        await eventually(is_shown, 60)
    except AssertionError as error:
        raise AssertionError(f"the gateway shows {shown}, not {expected}") from error


async def _until_queued(grid: Scene, count: int) -> None:
    async def are_there() -> bool:
        async with grid.programs() as programs:
            return (await programs.queue.totals()).messages == count + _RUNNING

    await eventually(are_there, 120)


async def _kill_everything(grid: Scene) -> None:
    """All at the same moment, as far as one process can: NATS too."""
    for process in [*grid.doors, *grid.workers, *grid.gateways]:
        process.kill()
    grid.nodes.kill()
    await eventually(lambda: not grid.programs_alive(), 10)


def _make_quick(grid: Scene) -> None:
    """The long program is a short one from now on: it is run again."""
    program = grid.folder / "programs" / "marked.sh"
    program.write_text(program.read_text(encoding="utf-8").replace('sleep "${1:-0}"', "sleep 0"), encoding="utf-8")
