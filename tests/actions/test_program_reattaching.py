"""A program runs on while its door dies: another one answers for it, unless a newer attempt has begun."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from pyoco_server.actions.attempt import Standing
from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.beat import beat
from pyoco_server.actions.programs.claim import free_slot
from pyoco_server.actions.programs.finish import Settlement, finish_job
from pyoco_server.actions.programs.put_back import Why, put_back
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.reattach import reattach
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.programs.moves import program_of
from pyoco_server.core.states import RunState
from pyoco_server.ports.backend import Backend
from support.backends import Clock
from support.grid.acts import DONE, again, begun, exact, run_of, slot_of
from support.grid.program_stage import a_store
from support.servers import unique
from support.waiting import eventually


async def test_another_door_answers_for_it_and_takes_its_slot_along(config: NatsBackendConfig) -> None:
    """GRID-56, GRID-110"""
    group = unique("g")
    async with a_store(config, group) as one, a_store(config, group) as other:
        run, attempt = await begun(one, "door-a")
        await eventually(lambda: bool(programs_of(other).slots.held(group, "clientA")))
        taken_over = await reattach(other, run.run_id, attempt.attempt_id, worker_id="w1", holder="door-b")
        assert taken_over is not None
        assert (taken_over.run.attempt, program_of(taken_over.run).holder) == (1, "door-b")
        assert (taken_over.slot and taken_over.slot.holder) == "door-b"
        assert taken_over.job.args == attempt.job.args
        assert await beat(one, attempt) is Standing.FENCED  # the same token, another holder
        assert attempt.slot is not None
        await free_slot(one, attempt.slot)  # too late: it is not its own any more
        assert len(programs_of(other).slots.held(group, "clientA")) == 1
        assert await finish_job(other, taken_over, DONE, ()) is Settlement.RECORDED
        await exact(other, taken_over)


async def test_one_that_was_put_back_runs_on(grid: Backend) -> None:
    """GRID-110"""
    run, attempt = await begun(grid)
    assert attempt.slot is not None
    await put_back(grid, attempt, Why.WORKER_DOWN)
    await free_slot(grid, attempt.slot)
    again_held = await reattach(grid, run.run_id, attempt.attempt_id, worker_id="w1", holder="me")
    assert again_held is not None
    assert (again_held.run.status, program_of(again_held.run).lost) == (RunState.RUNNING, 0)
    assert again_held.slot is not None
    await finish_job(grid, again_held, DONE, ())
    await exact(grid, again_held)


async def test_at_its_cap_it_runs_on_without_a_slot_and_gets_one_later(grid: Backend) -> None:
    """GRID-75, GRID-110"""
    limits = replace(programs_of(grid).config, exec_default_cap=1)
    grid = replace(grid, programs=replace(programs_of(grid), config=limits))
    run, attempt = await begun(grid)
    assert attempt.slot is not None
    await put_back(grid, attempt, Why.WORKER_DOWN)
    await free_slot(grid, attempt.slot)
    other = await slot_of(grid, run, "else")
    held = await reattach(grid, run.run_id, attempt.attempt_id, worker_id="w1", holder="me")
    assert held is not None
    assert _number(held) is None
    assert await beat(grid, held) is Standing.OURS
    assert _number(held) is None
    await free_slot(grid, other)
    assert await beat(grid, held) is Standing.OURS
    assert _number(held) == 0
    assert program_of(await run_of(grid, run.run_id)).slot == 0
    await finish_job(grid, held, DONE, ())
    await exact(grid, held)


async def test_a_newer_attempt_supersedes_it(grid: Backend, clock: Clock) -> None:
    """GRID-110"""
    run, attempt = await begun(grid)
    clock.now += 21
    assert isinstance((await again(grid, run))[0], ProgramAttempt)
    assert await reattach(grid, run.run_id, attempt.attempt_id, worker_id="w1", holder="b") is None


async def test_taking_over_and_finishing_at_once_have_one_end(config: NatsBackendConfig) -> None:
    """GRID-47, GRID-54"""
    group = unique("g")
    async with a_store(config, group) as one, a_store(config, group) as other:
        for _ in range(10):
            run, attempt = await begun(one, "door-a")
            settled, held = await asyncio.gather(
                finish_job(one, attempt, DONE, ()),
                reattach(other, run.run_id, attempt.attempt_id, worker_id="w1", holder="door-b"),
            )
            assert settled is Settlement.RECORDED
            for each in (attempt, held):
                if each is not None and each.slot is not None:
                    await free_slot(one, each.slot)
            await exact(one, attempt)


def _number(attempt: ProgramAttempt) -> int | None:
    return None if attempt.slot is None else attempt.slot.number
