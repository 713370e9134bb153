"""The clock of the store jumps, or a zone changes its clock: each tick has one run, and no delayed run comes early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyoco_server.core.schedules.record import CatchUp, Overlap, Schedule
from pyoco_server.loops.clock.duties import clock_duties
from pyoco_server.ports.backend import Backend
from simulation.loop import SimLoop
from support.keepers import keeping
from support.schedules import keeping_backend, make_schedule, outcomes, run_of_tick, schedule_now
from support.servers import config_for

pytestmark = pytest.mark.virtual_time

HOUR = 3600.0
#: Longer than processes take to hear of it.
HEARD_SECONDS = 45.0


@pytest.fixture
async def backend(nats_url: str) -> AsyncIterator[Backend]:
    async with keeping_backend(config_for(nats_url)) as backend:
        yield backend


def jump(seconds: float) -> None:
    """Set the time of day of this machine, which is also that of the store."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    loop.main.skew_seconds += seconds


async def _until(backend: Backend, instant: float) -> None:
    while backend.clock() < instant:
        await asyncio.sleep(min(30.0, instant - backend.clock() + 0.001))


async def _has_one_run_each(backend: Backend, schedule: Schedule, ticks: list[int]) -> None:
    found = await schedule_now(backend, schedule.name)
    entries = [*found.tail]
    assert [each.tick for each in entries] == ticks[len(ticks) - len(entries) :]
    assert len(entries) + found.spilled == len(ticks)
    assert {each.outcome.value for each in entries} == {"run"}
    for tick in ticks:
        assert await run_of_tick(backend, schedule, tick) is not None


async def test_ticks_that_were_jumped_over_have_one_run_each(backend: Backend, tmp_path: Path) -> None:
    """SCHED-13, SCHED-16"""
    async with keeping(backend, tmp_path, count=2, duties=clock_duties):
        schedule = await make_schedule(backend, when={"every": 60}, overlap=Overlap.ALLOW, catch_up=CatchUp.ALL)
        first = schedule.next_at
        assert first is not None
        await _until(backend, first + 90)
        jump(HOUR)
        await asyncio.sleep(HEARD_SECONDS)
        last = int(backend.clock()) // 60 * 60
        await _until(backend, last + 30)
    await _has_one_run_each(backend, schedule, list(range(first, last + 1, 60)))


async def test_an_hour_that_comes_again_runs_nothing_again(backend: Backend, tmp_path: Path) -> None:
    """SCHED-13: nor is anything lost when the clock is set right, after which the next tick comes"""

    async def keep(seconds: float) -> None:
        async with keeping_backend(backend.config) as own, keeping(own, tmp_path, count=2, duties=clock_duties):
            await asyncio.sleep(seconds)

    schedule = await make_schedule(backend, when={"every": 60}, overlap=Overlap.ALLOW, catch_up=CatchUp.ALL)
    first = schedule.next_at
    assert first is not None
    await keep(first + 90 - backend.clock())
    jump(-HOUR)
    await keep(140)
    assert (await schedule_now(backend)).cursor == first + 60
    jump(HOUR)
    await keep(60)
    await _has_one_run_each(backend, schedule, list(range(first, first + 241, 60)))


async def test_a_jump_forwards_follows_the_policy_of_missed_ticks(backend: Backend, tmp_path: Path) -> None:
    """SCHED-16, SCHED-19"""
    async with keeping(backend, tmp_path, duties=clock_duties):
        last = await make_schedule(backend, "last", when={"every": 600}, overlap=Overlap.ALLOW)
        none = await make_schedule(backend, "none", when={"every": 600}, catch_up=CatchUp.NONE)
        assert last.next_at is not None
        assert last.next_at == none.next_at
        await _until(backend, last.next_at - 300)
        jump(HOUR)
        await asyncio.sleep(HEARD_SECONDS)
        ticks = [last.next_at + 600 * n for n in range(6)]
        missed = [(tick, "skipped", "missed") for tick in ticks]
        assert await outcomes(backend, "none") == missed
        assert await outcomes(backend, "last") == [*missed[:-1], (ticks[-1], "run", None)]


#: Instants at which Berlin shows 02:30 in the two nights of a clock change: it does not exist, and it occurs twice.
#: Minutes around them suffice: from one tick to the next the keeper knows nothing but instants.
@pytest.mark.parametrize("half_past_two", [1806197400, 1792888200])
async def test_a_night_with_a_clock_change_has_each_tick_once(
    backend: Backend, tmp_path: Path, half_past_two: int
) -> None:
    """SCHED-12, SCHED-13"""
    jump(half_past_two - 240 - backend.clock())
    await asyncio.sleep(HEARD_SECONDS)
    async with keeping(backend, tmp_path, count=2, duties=clock_duties):
        nightly = await make_schedule(backend, "nightly", when={"cron": "30 2 * * *"}, timezone="Europe/Berlin")
        often = await make_schedule(
            backend, "often", when={"cron": "*/2 * * * *"}, timezone="Europe/Berlin", overlap=Overlap.ALLOW
        )
        await _until(backend, half_past_two + 250)
    await _has_one_run_each(backend, nightly, [half_past_two])
    await _has_one_run_each(backend, often, [half_past_two + 120 * n for n in range(-1, 3)])
