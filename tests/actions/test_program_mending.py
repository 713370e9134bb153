"""What a crash left between a record and its message is repaired, by any process, and nothing else is changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.claim import claim_job, free_slot
from pyoco_server.actions.programs.finish import finish_job
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.submit import Inline, submit_job
from pyoco_server.actions.programs.sweep import mend
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.flow_moves import accept
from pyoco_server.core.programs.moves import addressed, program_of
from pyoco_server.core.run import Caller, Run, Submission, changed
from pyoco_server.core.states import RunState
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.loops.programs.sweeper import ProgramSweeper
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.runs.port import Changes, Removed, Stored
from pyoco_server.wiring.backend import open_index
from support.backends import Clock, dead_letters
from support.grid.acts import DONE, FAILED, QUICK, an_ask, claimed, in_hand, job_submitted, run_of, slot_of
from support.grid.crashes import crashing_at
from support.grid.program_stage import a_store
from support.grid.story import assert_exact
from support.servers import unique
from support.waiting import eventually

pytestmark = pytest.mark.virtual_time


async def without_message(backend: Backend) -> Run:
    ask = an_ask(backend)
    dying, _ = crashing_at(backend, "submit.recorded")
    with pytest.raises(BaseException, match="submit"):
        await submit_job(dying, Caller(), ask, Inline({}))
    return await run_of(backend, ask.run_id)


async def ended_with_message(backend: Backend, *, point: str = "finish.recorded") -> Run:
    run = (await job_submitted(backend)).run
    dying, _ = crashing_at(backend, point)
    attempt = await claimed(backend, run)
    with pytest.raises(BaseException, match="finish"):
        await finish_job(dying, attempt, FAILED if point == "finish.recorded" else DONE, ())
    return await run_of(backend, run.run_id)


class TestOne:
    async def test_a_job_without_a_message_is_put_again_after_a_while(self, grid: Backend, clock: Clock) -> None:
        """GRID-57"""
        run = await without_message(grid)
        clock.now += 599
        assert not await mend(grid, run.run_id)
        clock.now += 2
        assert await mend(grid, run.run_id)
        assert await programs_of(grid).queue.has(addressed(run))
        assert not await mend(grid, run.run_id)
        attempt = await claimed(grid, run)
        await finish_job(grid, attempt, DONE, ())
        assert attempt.slot is not None
        await free_slot(grid, attempt.slot)
        await assert_exact(grid, [run.run_id])

    async def test_one_that_runs_and_has_lost_its_message_gets_one(self, grid: Backend, clock: Clock) -> None:
        run = (await job_submitted(grid)).run
        await claimed(grid, run)
        await programs_of(grid).queue.remove(addressed(run))
        clock.now += 601
        assert await mend(grid, run.run_id)
        assert await programs_of(grid).queue.has(addressed(run))

    async def test_the_message_of_one_that_has_ended_is_taken_out_with_what_its_end_lacks(
        self, grid: Backend, clock: Clock, link: Link, config: NatsBackendConfig
    ) -> None:
        """GRID-57, GRID-86, GRID-174"""
        run = await ended_with_message(grid)
        assert not await mend(grid, run.run_id)
        clock.now += 601
        assert await mend(grid, run.run_id)
        letters = [letter["body"] for letter in await dead_letters(link, config)]
        await assert_exact(grid, [run.run_id], letters=letters)
        assert letters[0]["job"]["run_id"] == run.run_id
        assert not await mend(grid, run.run_id)

    async def test_a_record_without_a_job_that_could_be_put_ends(
        self, grid: Backend, clock: Clock, link: Link, config: NatsBackendConfig
    ) -> None:
        run = await without_message(grid)
        found = await grid.runs.find(run.run_id)
        broken = changed(run, program=replace(program_of(run), job={"v": 7}))
        assert isinstance(await grid.runs.replace(broken, found.revision), Stored)
        clock.now += 601
        assert await mend(grid, run.run_id)
        ended = await run_of(grid, run.run_id)
        assert (ended.status, ended.reason) == (RunState.FAILED, "invalid_job")
        assert [letter["body"]["reason"] for letter in await dead_letters(link, config)] == ["invalid_job"]

    async def test_a_flow_is_not_its_business(self, grid: Backend, clock: Clock) -> None:
        flow = accept(Submission(flow_name="f", tag="t", tags=(), params={}), Caller(), grid.new_id(), clock.now)
        await grid.runs.create(flow)
        clock.now += 601
        assert not await mend(grid, flow.run_id)
        assert not await mend(grid, grid.new_id())


@pytest.fixture
async def quick(config: NatsBackendConfig) -> AsyncIterator[Backend]:
    async with a_store(config, unique("g"), **QUICK, exec_sweep_sec=0.2) as backend:
        yield backend


@pytest.mark.parametrize("has_index", [True, False], ids=["gateway or keeper", "door"])
async def test_a_sweeper_finds_all_of_it_by_itself(quick: Backend, has_index: bool) -> None:
    """GRID-57, GRID-74: also what comes later, and slots without a holder"""
    lost = [await without_message(quick) for _ in range(3)]
    left = [await ended_with_message(quick), await ended_with_message(quick, point="finish.told")]
    waiting = (await job_submitted(quick)).run
    await slot_of(quick, waiting, "gone")
    with open_index(quick.config) as index:
        feeder = IndexFeeder(quick.runs, index)
        await feeder.start()
        sweeper = ProgramSweeper(quick, index, feeder) if has_index else ProgramSweeper(quick)
        queue, group = programs_of(quick).queue, program_of(waiting).group
        await sweeper.start()
        try:
            for run in lost:
                await eventually(lambda run=run: queue.has(addressed(run)))  # type: ignore[misc]
            for run in left:
                await eventually(lambda run=run: _is_gone(quick, run))  # type: ignore[misc]
            await eventually(lambda: not programs_of(quick).slots.all_held(group))
            later = await without_message(quick)
            await eventually(lambda: queue.has(addressed(later)))
            await eventually(lambda: sweeper.mended == len(lost) + len(left) + 1)
            assert await queue.has(addressed(waiting))
        finally:
            await sweeper.stop()
            await feeder.stop()
    await assert_exact(quick, [run.run_id for run in left])


async def _is_gone(backend: Backend, run: Run) -> bool:
    return not await programs_of(backend).queue.has(addressed(run))


async def test_runs_that_were_stored_anew_are_followed_from_their_beginning(
    quick: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-57: their numbers begin anew, and what came before says nothing of them."""
    told = iter([("old", 50), ("new", 3), ("new", 4)])
    asked: list[tuple[int, str]] = []

    async def changes(after: int = 0, epoch: str = "") -> AsyncIterator[Changes]:
        asked.append((after, epoch))
        found, revision = next(told)
        yield Changes((Removed("gone", revision),), True, found)

    monkeypatch.setattr(quick.runs, "changes", changes)
    sweeper = ProgramSweeper(quick)
    for _ in range(3):
        await sweeper.turn()
    assert asked == [(0, ""), (50, "old"), (3, "new")]


async def test_two_sweepers_at_once_do_no_harm(config: NatsBackendConfig) -> None:
    """GRID-57"""
    group = unique("g")
    settings = {**QUICK, "exec_sweep_sec": 0.1}
    async with a_store(config, group, **settings) as one, a_store(config, group, **settings) as other:
        runs = [await without_message(one) for _ in range(5)]
        sweepers = [ProgramSweeper(one), ProgramSweeper(other)]
        for sweeper in sweepers:
            await sweeper.start()
        for run in runs:
            await eventually(lambda run=run: programs_of(one).queue.has(addressed(run)))  # type: ignore[misc]
        for sweeper in sweepers:
            await sweeper.stop()
        for run in runs:
            attempt = await claim_job(one, in_hand(run), await slot_of(one, run), worker_id="w", holder="me")
            assert isinstance(attempt, ProgramAttempt)
            await finish_job(one, attempt, DONE, ())
            await programs_of(one).queue.remove(attempt.job)
            assert attempt.slot is not None
            await free_slot(one, attempt.slot)
        await assert_exact(one, [run.run_id for run in runs])
