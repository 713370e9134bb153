"""Who kills what, and how often; the choice is the seed's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial

from pyoco_server.ports.programs import Programs
from support.grid.processes import GridProcess
from support.proofs.report import Findings
from support.proofs.stage import Scene, leader_of, restart
from support.waiting import eventually

__all__ = ["kill_doors", "kill_leaders", "kill_workers"]

#: A killed worker's programs are gone within this time: they die with it.
_DEATH_SECONDS = 5.0


async def kill_workers(grid: Scene, found: Findings, every: float, seconds: float) -> None:
    """One by chance, again and again; it is started again when its programs are seen to be gone."""
    kills = 0
    async for _ in _ticks(every, seconds):
        worker = found.chance.choice(grid.workers)
        worker.kill()
        kills += 1
        await eventually(partial(_is_quiet, grid, worker), _DEATH_SECONDS)
        await restart(worker)
    found.note(workers_killed=kills)


async def _ticks(every: float, seconds: float) -> AsyncIterator[None]:
    """One each `every` seconds, whatever is done in between; never two at once."""
    began = time.monotonic()
    due = began + every
    while due <= began + seconds:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        yield
        due = max(due + every, time.monotonic())


def _is_quiet(grid: Scene, worker: GridProcess) -> bool:
    return not grid.programs_alive(worker)


async def kill_doors(grid: Scene, found: Findings, every: float, seconds: float) -> None:
    kills = 0
    async for _ in _ticks(every, seconds):
        door = found.chance.choice(grid.doors)
        door.kill()
        kills += 1
        await restart(door)
    found.note(doors_killed=kills)


async def kill_leaders(grid: Scene, programs: Programs, found: Findings, *, kills: int, every: float) -> None:
    """The node that leads the queue, whichever it is then; back three seconds later."""
    led: list[str] = []
    for _ in range(kills):
        began = time.monotonic()
        led.append(await leader_of(programs))
        node = grid.nodes.named(led[-1])
        node.kill()
        await asyncio.sleep(3.0)
        node.start()
        await node.until_up()
        await asyncio.sleep(max(0.0, began + every - time.monotonic()))
    found.note(leaders_killed=kills, led_by=sorted(set(led)))
