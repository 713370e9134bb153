"""Who gets which job, and when: real queues and slots on a real NATS, and workers with as much room as a test says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyoco_server.actions.programs.claim import claim_job, take_slot
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.states import RunState
from pyoco_server.loops.programs import dispatcher
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.queue.port import Reply
from support.grid.program_stage import Stage, Tally, Workers, a_stage, a_store, cap, recorded_run, submitted
from support.servers import unique
from support.waiting import eventually


@pytest.fixture
def group() -> str:
    return unique("g")


@pytest.fixture
async def backend(config: NatsBackendConfig, group: str) -> AsyncIterator[Backend]:
    async with a_store(config, group) as backend:
        yield backend


async def is_at_rest(backend: Backend) -> bool:
    """No slot is held and no message is left: GRID-75."""
    programs = programs_of(backend)
    group = programs.config.exec_group
    counts = [await programs.queue.counts(client_queue) for client_queue in programs.queue.client_queues(group)]
    return not programs.slots.all_held(group) and not any(c.waiting or c.unacked for c in counts if c is not None)


class TestTurns:
    async def test_one_credit_at_a_time_starts_programs_in_turn(self, backend: Backend) -> None:
        """GRID-59, P8: A, B, C, A, B, C"""
        for name in "ABC":
            await asyncio.gather(*(submitted(backend, name) for _ in range(10)))
        async with a_stage(backend) as stage:
            stage.runs_everything()
            stage.give(1)
            await eventually(lambda: len(stage.workers.started) == 30)
            assert (stage.workers.order, stage.workers.most) == ("ABC" * 10, 1)
        await eventually(lambda: is_at_rest(backend))

    async def test_the_clients_of_a_program_have_theirs_too(self, backend: Backend) -> None:
        """GRID-59"""
        for client in ("c1", "c2", "c3"):
            await asyncio.gather(*(submitted(backend, "A", client) for _ in range(5)))
        async with a_stage(backend) as stage:
            stage.runs_everything()
            stage.give(1)
            await eventually(lambda: len(stage.workers.started) == 15)
            assert [each.job.client_id for each in stage.workers.started] == ["c1", "c2", "c3"] * 5

    async def test_a_lane_gives_its_jobs_in_the_order_in_which_they_came(self, backend: Backend) -> None:
        """GRID-58"""
        run_ids = [await submitted(backend) for _ in range(12)]
        async with a_stage(backend) as stage:
            stage.runs_everything()
            stage.give(1)
            await eventually(lambda: len(stage.workers.started) == 12)
            assert [each.run.run_id for each in stage.workers.started] == run_ids

    async def test_the_turn_is_kept_over_an_idle_time(self, backend: Backend) -> None:
        """GRID-59: also across idle times"""
        async with a_stage(backend) as stage:
            stage.runs_everything()
            await submitted(backend, "A")
            stage.give(1)
            await eventually(lambda: stage.workers.order == "A" and stage.workers.credits == 1)
            stage.workers.credits = 0
            for name in "ABC":
                await submitted(backend, name)
            stage.give(1)
            await eventually(lambda: len(stage.workers.started) == 4)
            assert stage.workers.order == "ABCA"


class TestCredits:
    async def test_there_are_never_more_jobs_than_credits_and_they_balance_at_the_end(self, backend: Backend) -> None:
        """GRID-62, GRID-66, GRID-69, P5"""
        await cap(backend, "clientA", 100)
        await asyncio.gather(*(submitted(backend) for _ in range(100)))
        async with a_stage(backend) as stage:
            stage.runs_everything(0.01)
            stage.give(2)
            await eventually(lambda: len(stage.workers.started) == 100)
            await eventually(lambda: stage.workers.credits == 2)
            assert (stage.workers.most, len(stage.in_flight)) == (2, 0)
        await eventually(lambda: is_at_rest(backend))

    async def test_without_a_credit_nothing_leaves_the_queue(self, backend: Backend) -> None:
        """GRID-62"""
        run_id = await submitted(backend)
        async with a_stage(backend) as stage:
            programs = programs_of(backend)
            (client_queue,) = programs.queue.client_queues(programs.config.exec_group)
            assert await programs.queue.counts(client_queue) is None
            assert not programs.slots.held(client_queue.group, client_queue.client)
            stage.give(1)
            await eventually(lambda: run_id in stage.workers.running)
            await stage.finish(stage.workers.running[run_id])

    async def test_many_credits_take_many_jobs_at_once(self, backend: Backend) -> None:
        """GRID-60: a step has several round trips, so several are under way"""
        await cap(backend, "clientA", 50)
        await asyncio.gather(*(submitted(backend) for _ in range(50)))
        async with a_stage(backend, count=50) as stage:
            await eventually(lambda: len(stage.workers.running) == 50)
            await asyncio.gather(*(stage.finish(each) for each in list(stage.workers.running.values())))
            await eventually(lambda: is_at_rest(backend))

    async def test_a_credit_comes_back_from_a_lane_that_was_empty(self, backend: Backend) -> None:
        """GRID-60, GRID-69"""
        async with a_stage(backend, count=1) as stage:
            stage.runs_everything()
            await submitted(backend, "A")
            await eventually(lambda: stage.workers.order == "A" and stage.workers.credits == 1)
            await submitted(backend, "B")
            await eventually(lambda: stage.workers.order == "AB")

    async def test_a_worker_that_cannot_be_reached_loses_the_job_and_nothing_else(self, backend: Backend) -> None:
        """GRID-83, GRID-81"""
        run_id = await submitted(backend)
        async with a_stage(backend) as stage:
            stage.workers.is_lost = True
            stage.give(1)
            await eventually(lambda: _is_put_back(backend, run_id))
            program = (await recorded_run(backend, run_id)).program
            assert program is not None
            assert program.lost == 1
            assert len(stage.in_flight) == 0


async def _is_put_back(backend: Backend, run_id: str) -> bool:
    run = await recorded_run(backend, run_id)
    return run.status is RunState.PENDING and run.attempt == 1


class TestCaps:
    async def test_hold_over_several_processes_that_share_the_lanes(
        self, backend: Backend, config: NatsBackendConfig, group: str
    ) -> None:
        """GRID-72, GRID-118, P6: counted over all of them, at every moment; and slots are used again and again"""
        await cap(backend, "clientA", 3)
        await asyncio.gather(*(submitted(backend) for _ in range(90)))
        tally = Tally()
        async with a_store(config, group) as other:
            places = ((backend, "one"), (backend, "two"), (other, "three"))
            stages = [Stage(place, Workers(10, tally=tally), holder) for place, holder in places]
            for stage in stages:
                stage.runs_everything(0.005)
            await asyncio.gather(*(stage.start() for stage in stages))
            await eventually(lambda: sum(len(stage.workers.started) for stage in stages) == 90)
            await asyncio.gather(*(stage.stop() for stage in stages))
            assert (tally.most["clientA"], [stage.workers.credits for stage in stages]) == (3, [10, 10, 10])
            await eventually(lambda: is_at_rest(other))
        await eventually(lambda: is_at_rest(backend))

    async def test_a_client_at_its_cap_delays_nobody(self, backend: Backend) -> None:
        """GRID-61, P7: hundreds of queued jobs of one client with a cap of one, then one of another"""
        await cap(backend, "clientA", 1)
        async with a_stage(backend, count=4) as stage:
            for _ in range(5):
                await asyncio.gather(*(submitted(backend) for _ in range(100)))
            await eventually(lambda: len(stage.workers.running) == 1)
            before = len(stage.workers.running)
            await submitted(backend, client_id="clientB")
            await eventually(lambda: len(stage.workers.running) == before + 1)
            (run_id,) = [key for key, each in stage.workers.running.items() if each.job.client_id == "clientB"]
            await stage.finish(stage.workers.running[run_id])
            stage.give(1)
            assert stage.workers.tally.most["clientA"] == 1
            await stage.finish(next(iter(stage.workers.running.values())))

    async def test_the_next_job_starts_as_soon_as_another_process_frees_a_slot(
        self, backend: Backend, config: NatsBackendConfig, group: str
    ) -> None:
        """GRID-60: the loop wakes on a freed slot"""
        await cap(backend, "clientA", 1)
        async with a_store(config, group) as other:
            held = await take_slot(other, group, "clientA", "another")
            assert held is not None
            run_id = await submitted(backend)
            async with a_stage(backend, count=1) as stage:
                await eventually(lambda: stage.workers.credits == 1)
                await programs_of(other).slots.free(held)
                began = time.monotonic()
                await eventually(lambda: run_id in stage.workers.running)
                assert time.monotonic() - began < 60
                await stage.finish(stage.workers.running[run_id])

    @pytest.mark.virtual_time
    async def test_a_lowered_cap_is_waited_for_and_a_raised_one_is_used(self, backend: Backend, group: str) -> None:
        """GRID-76"""
        await cap(backend, "clientA", 3)
        await asyncio.gather(*(submitted(backend) for _ in range(6)))
        async with a_stage(backend, count=10) as stage:
            await eventually(lambda: len(stage.workers.running) == 3)
            await cap(backend, "clientA", 1)
            slots = programs_of(backend).slots
            await eventually(lambda: (known := slots.cap(group, "clientA")) is not None and known.cap == 1)
            first, second, third = list(stage.workers.running.values())
            await stage.finish(first)
            await stage.finish(second)
            await asyncio.sleep(3)
            assert len(stage.workers.running) == 1
            await cap(backend, "clientA", 4)
            await eventually(lambda: len(stage.workers.running) == 4)
            for attempt in [third, *stage.workers.running.values()]:
                await stage.finish(attempt)

    async def test_a_program_of_the_same_client_elsewhere_is_not_starved(
        self, backend: Backend, config: NatsBackendConfig, group: str
    ) -> None:
        """GRID-61: a process that keeps the only slot of a client for its own program lets go of it now and then"""
        await cap(backend, "clientA", 1)
        async with a_store(config, group) as other, a_stage(backend, execs="A") as busy:
            # Each job submits the next one before it ends, so the client's queue for A never runs empty.
            busy.runs_everything(before_end=lambda: submitted(backend, "A"))
            await asyncio.gather(*(submitted(backend, "A") for _ in range(20)))
            busy.give(1)
            await eventually(lambda: len(busy.workers.started) > 20)
            async with a_stage(other, count=1, execs="B", holder="other") as poor:
                poor.runs_everything()
                await submitted(other, "B")
                await eventually(lambda: len(poor.workers.started) == 1)
                busy.workers.on_start = lambda _: None
                busy.workers.credits = 0


class TestWithoutAWord:
    """GRID-60: wakeups may be lost, and the queue does not announce redeliveries."""

    async def test_a_lane_that_gave_all_it_had_is_looked_at_again(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def silence(*_: object) -> None:
            """Lost."""

        monkeypatch.setattr(programs_of(backend).wakeups, "tell", silence)
        async with a_stage(backend, count=2) as stage:
            first = await submitted(backend)  # its client queue is new: that is seen
            await eventually(lambda: first in stage.workers.running)
            second = await submitted(backend)
            await eventually(lambda: second in stage.workers.running)
            for attempt in list(stage.workers.running.values()):
                await stage.finish(attempt)

    async def test_all_that_somebody_dead_had_in_hand_is_taken_at_once(self, backend: Backend) -> None:
        """P28: not one of them with each look at an idle client queue, which would take minutes"""
        count = 150
        await cap(backend, "clientA", count)
        run_ids = set(await asyncio.gather(*(submitted(backend) for _ in range(count))))
        queue = programs_of(backend).queue
        (client_queue,) = queue.client_queues(programs_of(backend).config.exec_group)
        for delivery in await queue.take(client_queue, count):
            await delivery.answer(Reply.LATER)
        async with a_stage(backend, count=count) as stage:
            await eventually(lambda: set(stage.workers.running) == run_ids)
            await asyncio.gather(*(stage.finish(attempt) for attempt in list(stage.workers.running.values())))


class TestStopping:
    async def test_nothing_more_is_claimed_and_nothing_is_held(self, backend: Backend) -> None:
        """GRID-41"""
        run_ids = [await submitted(backend) for _ in range(3)]
        stage = Stage(backend, Workers(count=3))
        await stage.in_flight.start()
        await stage.dispatcher.start()
        await stage.dispatcher.stop()
        for attempt in stage.in_flight.all():
            await stage.finish(attempt)
        await stage.in_flight.stop()
        programs = programs_of(backend)
        await eventually(lambda: not programs.slots.all_held(programs.config.exec_group))
        for run_id in run_ids:
            run = await recorded_run(backend, run_id)
            assert (run.status, run.attempt) in ((RunState.PENDING, 0), (RunState.COMPLETED, 1))

    async def test_gives_back_what_was_claimed_and_not_handed_over(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """GRID-41: at once, and it was no attempt"""
        claimed, go_on = asyncio.Event(), asyncio.Event()

        async def slowly(*given: Any, **more: Any) -> Any:
            taken = await claim_job(*given, **more)
            claimed.set()
            await go_on.wait()
            return taken

        monkeypatch.setattr(dispatcher, "claim_job", slowly)
        run_id = await submitted(backend)
        async with a_stage(backend, count=1) as stage:
            await claimed.wait()
            stopping = asyncio.create_task(stage.dispatcher.stop())
            await asyncio.sleep(0)
            go_on.set()
            await stopping
            run = await recorded_run(backend, run_id)
            assert (run.status, run.attempt, stage.workers.started) == (RunState.PENDING, 0, [])
            assert (stage.workers.credits, len(stage.in_flight)) == (1, 0)
            programs = programs_of(backend)
            await eventually(lambda: not programs.slots.all_held(programs.config.exec_group))

    async def test_may_be_repeated_and_started_again(self, backend: Backend) -> None:
        async with a_stage(backend) as stage:
            stage.runs_everything()
            await stage.dispatcher.start()
            await stage.dispatcher.stop()
            await stage.dispatcher.stop()
            await stage.dispatcher.start()
            await submitted(backend)
            stage.give(1)
            await eventually(lambda: len(stage.workers.started) == 1)
