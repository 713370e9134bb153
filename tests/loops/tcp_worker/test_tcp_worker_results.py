"""Results of a TCP worker: kept until settled, and sent again after a lost connection or a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyoco_server.core.frames.codec import NIL, Frame, Type
from pyoco_server.core.frames.messages import ErrorMessage, JobResult
from support.grid.pretended_programs import PretendedExecutor
from support.grid.scripted_door import an_assignment, open_door
from support.grid.worker_scenes import Clock, a_worker
from support.waiting import eventually


async def test_a_lost_door_costs_no_program_and_no_token(tmp_path: Path) -> None:
    """GRID-110: the same token is listed at the next connection, and the result goes there."""
    executor = PretendedExecutor()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor):
        visitor = await door.welcomed()
        job = an_assignment()
        visitor.assign(job)
        program = await executor.begun()
        visitor.cut()
        again = await door.welcomed(1)
        await again.heard(Type.CREDIT)
        assert [frame.type for frame in again.frames[:3]] == [Type.HELLO_WORKER, Type.HEARTBEAT, Type.CREDIT]
        assert again.running() == {(job.job_id, job.token)}
        assert again.credit == 1
        program.end()
        result = await again.result(job)
        assert result.token == job.token
        assert again.of(Type.ACK_JOB)[0].corr_id == NIL
        await eventually(lambda: again.credit == 2)
        assert not program.is_killed


async def test_a_result_that_was_not_settled_is_sent_again_at_the_next_door(tmp_path: Path) -> None:
    """GRID-109, GRID-110: after the list, before the credit."""
    executor = PretendedExecutor(ends_at_once=True)
    async with open_door() as door, a_worker(tmp_path, door, executor=executor) as worker:
        visitor = await door.welcomed()
        jobs = [an_assignment(), an_assignment()]
        for job in jobs:
            visitor.assign(job)
        await visitor.heard(Type.ACK_JOB, 2)
        visitor.settle(visitor.of(Type.ACK_JOB)[0])
        await eventually(lambda: len(worker.spool.due()) == 1)
        visitor.cut()
        again = await door.welcomed(1)
        await again.heard(Type.CREDIT)
        kinds = dict.fromkeys(frame.type for frame in again.frames)
        assert list(kinds) == [Type.HELLO_WORKER, Type.HEARTBEAT, Type.ACK_JOB, Type.CREDIT]
        assert again.credit == 2
        assert len(executor.programs) == 2


async def test_a_result_that_ended_while_there_was_no_door_is_sent_to_the_next(tmp_path: Path) -> None:
    """GRID-109, GRID-110"""
    executor = PretendedExecutor()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor) as worker:
        visitor = await door.welcomed()
        job = an_assignment()
        visitor.assign(job)
        program = await executor.begun()
        await door.stop()
        await eventually(lambda: worker.link.current is None)
        program.end()
        await eventually(lambda: len(worker.spool.due()) == 1)
        await door.start()
        again = await door.welcomed(1)
        assert (await again.result(job)).token == job.token
        assert again.running() == set()


async def test_every_half_minute_an_unsettled_result_is_sent_again(tmp_path: Path) -> None:
    """GRID-109"""
    clock = Clock()
    async with (
        open_door() as door,
        a_worker(tmp_path, door, executor=PretendedExecutor(ends_at_once=True), clock=clock),
    ):
        visitor = await door.welcomed()
        visitor.assign(an_assignment())
        await visitor.heard(Type.ACK_JOB)
        clock.ahead += 20
        with pytest.raises(AssertionError):
            await eventually(lambda: len(visitor.of(Type.ACK_JOB)) > 1, seconds=0.3)
        clock.ahead += 11
        await visitor.heard(Type.ACK_JOB, 2)
        visitor.settle(visitor.of(Type.ACK_JOB)[0])
        await eventually(lambda: visitor.credit == 3)


async def test_a_restarted_worker_sends_what_its_predecessor_left_and_runs_none_of_it_again(tmp_path: Path) -> None:
    """GRID-107, GRID-109"""
    job = an_assignment()
    async with open_door() as door:
        async with a_worker(tmp_path, door, executor=PretendedExecutor(ends_at_once=True)):
            visitor = await door.welcomed()
            visitor.assign(job)
            await visitor.result(job)
        executor = PretendedExecutor()
        async with a_worker(tmp_path, door, executor=executor) as worker:
            again = await door.welcomed(1)
            assert (await again.result(job)).token == job.token
            visitor = again
            new = an_assignment(job_id=job.job_id, attempt=2)
            again.assign(new)
            await again.heard(Type.ACK_JOB, 2)
            assert again.results()[1].token == new.token
            again.settle(again.of(Type.ACK_JOB)[1])
            await eventually(lambda: not worker.spool.due())
        assert executor.programs == []


async def test_many_results_of_the_time_before_are_said_as_fast_as_they_are_settled(tmp_path: Path) -> None:
    """GRID-109, GRID-195: a door is not flooded, and every result gets through, each once."""
    clock = Clock()
    async with open_door() as door:
        async with a_worker(
            tmp_path, door, executor=PretendedExecutor(ends_at_once=True), worker_max_par=100
        ) as worker:
            visitor = await door.welcomed()
            for count in range(100):
                visitor.assign(an_assignment())
                await eventually(lambda count=count: len(visitor.of(Type.ACK_JOB)) > count - 40)  # type: ignore[misc]
            await eventually(lambda: len(worker.spool.due()) == 100)
            await visitor.heard(Type.ACK_JOB, 100)
        async with a_worker(tmp_path, door, clock=clock) as worker:
            again = await door.welcomed(1)
            await again.heard(Type.ACK_JOB, 48)
            await again.heard(Type.CREDIT)
            assert len(again.of(Type.ACK_JOB)) == 48
            again.settles_all = True
            for frame in again.of(Type.ACK_JOB):
                again.settle(frame)
            await eventually(lambda: not worker.spool.due())
            assert len({each.job_id for each in again.results()}) == len(again.results()) == 100


async def test_a_door_that_is_behind_with_settling_is_not_asked_for_more(tmp_path: Path) -> None:
    """GRID-69: the credit comes with the Settled then."""
    executor = PretendedExecutor(ends_at_once=True)
    async with open_door() as door, a_worker(tmp_path, door, executor=executor, worker_max_par=60):
        visitor = await door.welcomed()
        for _ in range(60):
            visitor.assign(an_assignment())
        await visitor.heard(Type.ACK_JOB, 60)
        assert visitor.credit < 60 + 50
        for frame in visitor.of(Type.ACK_JOB):
            visitor.settle(frame)
        await eventually(lambda: visitor.credit == 120)


async def test_results_that_a_door_refuses_for_good_do_not_stop_the_work(tmp_path: Path) -> None:
    """GRID-109: they stay and are said again, however many they are."""
    executor, clock = PretendedExecutor(ends_at_once=True), Clock()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor, clock=clock) as worker:
        visitor = await door.welcomed()

        def refuse(frame: Frame) -> None:
            if frame.type == Type.ACK_JOB:
                result = JobResult.read_ack(frame.payload)
                error = ErrorMessage(code="BAD_SCHEMA", message="no", job_id=result.job_id)
                visitor.say(Type.ERROR, error.to_payload(), corr_id=frame.msg_id)

        visitor.on_frame = refuse
        for count in range(60):
            await eventually(lambda count=count: visitor.credit > count)  # type: ignore[misc]
            visitor.assign(an_assignment())
        await eventually(lambda: visitor.credit == 62)
        assert len(worker.spool.due()) == 60
        clock.ahead += 31
        await visitor.heard(Type.ACK_JOB, 120)
