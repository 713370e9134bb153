"""The worker at a door by hand: assign, repeat, lose, cancel, drain."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pyoco_server.core.frames.codec import NIL, Frame, Type
from pyoco_server.core.frames.messages import ErrorMessage, JobResult
from pyoco_server.core.programs.dedup import Stage
from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.states import RunState
from pyoco_server.doors.frames.worker.worker import TcpWorker
from support.grid.pretended_programs import PretendedExecutor
from support.grid.scripted_door import an_assignment, open_door
from support.grid.worker_scenes import Clock, a_worker
from support.waiting import eventually


async def test_a_worker_says_hello_then_what_runs_then_what_it_has_room_for(tmp_path: Path) -> None:
    """GRID-32, GRID-65, GRID-106, GRID-110"""
    async with open_door() as door, a_worker(tmp_path, door, key="pyoco_k.secret", worker_max_par=3):
        visitor = await door.visitor()
        assert visitor.hello is not None
        assert (visitor.hello.worker_id, visitor.hello.patterns) == ("w1", ("job.assign.*",))
        assert (visitor.hello.max_parallel, visitor.hello.token) == (3, "pyoco_k.secret")
        await asyncio.sleep(0)  # nothing but its Hello until it is welcome
        assert [frame.type for frame in visitor.frames] == [Type.HELLO_WORKER]
        visitor.welcome()
        await visitor.heard(Type.CREDIT)
        assert [frame.type for frame in visitor.frames] == [Type.HELLO_WORKER, Type.HEARTBEAT, Type.CREDIT]
        assert visitor.credit == 3


async def test_a_job_is_run_answered_and_settled(tmp_path: Path) -> None:
    """GRID-26, GRID-69, GRID-109, section 6"""
    executor = PretendedExecutor()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor) as worker:
        visitor = await door.welcomed()
        job = an_assignment(args=("--n", "3"), files={"in.txt": b"hello\n"}, timeout_sec=7)
        frame = visitor.assign(job)
        program = await executor.begun()
        assert (program.work.exec_name, tuple(program.work.args)) == ("calcA", ("--n", "3"))
        assert (program.work.timeout_sec, program.work.client_id) == (7, "clientA")
        assert await program.read_inputs() == {"in.txt": b"hello\n"}
        await eventually(lambda: visitor.running() == {(job.job_id, job.token)})
        program.end()
        result = await visitor.result(job)
        assert (result.status, result.exit_code, result.stdout) == (RunState.COMPLETED, 0, "done\n")
        assert (result.token, result.attempt, result.run_id) == (job.token, 1, job.run_id)
        assert (result.worker_id, result.run_seconds) == ("w1", 1.0)
        ack = visitor.of(Type.ACK_JOB)[0]
        assert (ack.corr_id, ack.subject) == (frame.msg_id, "job.ack.calcA")
        await eventually(lambda: visitor.credit == 3)
        assert len(worker.spool.due()) == 1
        visitor.settle(ack)
        await eventually(lambda: not worker.spool.due())


async def test_the_same_job_ten_times_is_started_once(tmp_path: Path) -> None:
    """GRID-107, GRID-138, GRID-69; half of the copies come while it runs, half after its end."""
    executor = PretendedExecutor()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor):
        visitor = await door.welcomed()
        job = an_assignment()
        for _ in range(5):
            visitor.assign(job)
        program = await executor.begun()
        await eventually(lambda: visitor.credit == 2 + 4)
        program.end()
        await visitor.heard(Type.ACK_JOB)
        visitor.settle(visitor.of(Type.ACK_JOB)[0])
        for _ in range(5):
            visitor.assign(job)
        await visitor.heard(Type.ACK_JOB, 6)
        await eventually(lambda: visitor.credit == 2 + 10)
        assert len(executor.programs) == 1
        assert {(each.token, each.stdout, each.status) for each in visitor.results()} == {
            (job.token, "done\n", RunState.COMPLETED)
        }


async def test_a_running_job_takes_over_the_newer_token(tmp_path: Path) -> None:
    """GRID-107"""
    executor = PretendedExecutor()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor):
        visitor = await door.welcomed()
        old = an_assignment()
        visitor.assign(old)
        program = await executor.begun()
        new = an_assignment(job_id=old.job_id, attempt=2)
        frame = visitor.assign(new)
        await eventually(lambda: visitor.running() == {(new.job_id, new.token)})
        program.end()
        result = await visitor.result(new)
        assert (result.token, result.attempt) == (new.token, 2)
        assert visitor.of(Type.ACK_JOB)[0].corr_id == frame.msg_id
        assert len(executor.programs) == 1


async def test_a_finished_job_answers_a_newer_attempt_from_the_cache(tmp_path: Path) -> None:
    """GRID-107: the stored result, with the new token, until it is settled again."""
    executor = PretendedExecutor(ends_at_once=True)
    async with open_door() as door, a_worker(tmp_path, door, executor=executor) as worker:
        visitor = await door.welcomed()
        old = an_assignment()
        visitor.assign(old)
        await visitor.heard(Type.ACK_JOB)
        visitor.settle(visitor.of(Type.ACK_JOB)[0], "stale")
        new = an_assignment(job_id=old.job_id, attempt=2)
        visitor.assign(new)
        await visitor.heard(Type.ACK_JOB, 2)
        assert [(each.token, each.attempt) for each in visitor.results()] == [(old.token, 1), (new.token, 2)]
        assert [each.token for each in worker.spool.due()] == [new.token]
        assert len(executor.programs) == 1


async def _settled(worker: TcpWorker, job_id: str) -> None:
    """On the disk, and then in what the worker remembers."""
    await eventually(lambda: worker.spool.settled() == [job_id])
    await eventually(lambda: worker.crew._seen.stage(job_id) is Stage.SETTLED)


async def test_after_its_time_a_job_would_run_again(tmp_path: Path) -> None:
    """GRID-107, GRID-108: a sweep removes what is settled and old, and nothing that is not settled."""
    executor, clock = PretendedExecutor(ends_at_once=True), Clock()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor, clock=clock) as worker:
        visitor = await door.welcomed()
        settled, due = an_assignment(), an_assignment()
        for job in (settled, due):
            visitor.assign(job)
        await visitor.heard(Type.ACK_JOB, 2)
        visitor.settle(next(each for each in visitor.of(Type.ACK_JOB) if settled.job_id.encode() in each.payload))
        await _settled(worker, settled.job_id)
        clock.ahead += 599
        await worker.crew.sweep()
        assert worker.spool.get(settled.job_id) is not None
        clock.ahead += 2
        await worker.crew.sweep()
        assert worker.spool.get(settled.job_id) is None
        for job in (settled, due):
            visitor.assign(job)
        await executor.begun(3)
        await visitor.heard(Type.ACK_JOB, 4)
        assert [program.work.job_id for program in executor.programs[2:]] == [settled.job_id]


async def test_a_job_that_ran_again_after_its_time_is_known_for_as_long_as_any_other(tmp_path: Path) -> None:
    """GRID-107: also when nobody has swept yet."""
    executor, clock = PretendedExecutor(ends_at_once=True), Clock()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor, clock=clock) as worker:
        visitor = await door.welcomed()
        visitor.settles_all = True
        job = an_assignment()
        visitor.assign(job)
        await _settled(worker, job.job_id)
        clock.ahead += 601
        visitor.assign(job)
        await executor.begun(2)
        await visitor.heard(Type.ACK_JOB, 2)
        await eventually(lambda: not worker.spool.due())
        visitor.assign(job)
        await visitor.heard(Type.ACK_JOB, 3)
        assert len(executor.programs) == 2


async def test_a_fault_of_the_worker_is_not_kept_as_the_jobs_result(tmp_path: Path) -> None:
    """GRID-107, D30: the next attempt really runs."""
    executor = PretendedExecutor()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor):
        visitor = await door.welcomed()
        job = an_assignment()
        visitor.assign(job)
        (await executor.begun()).end(Report(status=RunState.FAILED, error_code=ErrorCode.WORKER_ERROR))
        assert (await visitor.result(job)).error_code is ErrorCode.WORKER_ERROR
        visitor.assign(job)  # nobody has asked for another attempt yet: the same answer
        await visitor.heard(Type.ACK_JOB, 2)
        new = an_assignment(job_id=job.job_id, attempt=2)
        visitor.assign(new)
        (await executor.begun(2)).end()
        await eventually(lambda: (new.token, "done\n") in {(each.token, each.stdout) for each in visitor.results()})
        assert len(executor.programs) == 2


async def test_what_is_assigned_over_the_limit_waits_and_is_listed(tmp_path: Path) -> None:
    """GRID-105"""
    executor = PretendedExecutor()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor, worker_max_par=2):
        visitor = await door.welcomed()
        jobs = [an_assignment() for _ in range(5)]
        for job in jobs:
            visitor.assign(job)
        await eventually(lambda: visitor.running() == {(job.job_id, job.token) for job in jobs})
        assert len(executor.programs) == 2
        for number in range(5):
            (await executor.begun(number + 1)).end()
        await visitor.heard(Type.ACK_JOB, 5)
        assert [program.work.job_id for program in executor.programs] == [job.job_id for job in jobs]
        await eventually(lambda: visitor.credit == 2 + 5)


async def test_what_may_wait_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GRID-105, GRID-195: a door that does not keep to its credits gets the rest back as a fault of the worker."""
    monkeypatch.setattr("pyoco_server.doors.frames.worker.crew._WAITING_BYTES_MAX", 1_000)
    executor = PretendedExecutor()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor, worker_max_par=1):
        visitor = await door.welcomed()
        jobs = [an_assignment(files={"in": bytes(400)}) for _ in range(4)]
        for job in jobs:
            visitor.assign(job)
        assert (await visitor.result(jobs[3])).error_code is ErrorCode.WORKER_ERROR
        await eventually(lambda: visitor.running() == {(job.job_id, job.token) for job in jobs[:3]})
        assert len(executor.programs) == 1


async def test_the_books_balance_over_two_hundred_jobs(tmp_path: Path) -> None:
    """GRID-66, GRID-69: a door that assigns at once what it has credit for never sees more than the limit."""
    executor = PretendedExecutor(ends_at_once=True)
    async with open_door() as door, a_worker(tmp_path, door, executor=executor, worker_max_par=4):
        visitor = await door.welcomed()
        visitor.settles_all = True
        for count in range(200):
            await eventually(lambda count=count: visitor.credit > count)  # type: ignore[misc]
            assert visitor.credit - count <= 4
            visitor.assign(an_assignment())
        await eventually(lambda: visitor.credit == 204)
        assert len({each.job_id for each in visitor.results()}) == 200


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
        kinds = [frame.type for frame in again.frames]
        assert kinds == [Type.HELLO_WORKER, Type.HEARTBEAT, Type.ACK_JOB, Type.CREDIT]
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


async def test_a_cancelled_job_is_ended_and_said_to_be(tmp_path: Path) -> None:
    """GRID-112, GRID-164"""
    executor = PretendedExecutor()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor):
        visitor = await door.welcomed()
        job = an_assignment()
        visitor.assign(job)
        program = await executor.begun()
        visitor.cancel(job, token="another")
        visitor.cancel(an_assignment())
        visitor.assign(an_assignment())
        await executor.begun(2)
        assert executor.programs[0].is_cancelled is False
        visitor.cancel(job)
        result = await visitor.result(job)
        assert (result.status, result.error_code, result.stdout) == (RunState.CANCELLED, ErrorCode.CANCELLED, "so far")
        assert program.is_cancelled
        await eventually(lambda: visitor.credit == 3)


async def test_a_job_that_waits_is_cancelled_without_a_start(tmp_path: Path) -> None:
    """GRID-105, GRID-112"""
    executor = PretendedExecutor()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor, worker_max_par=1):
        visitor = await door.welcomed()
        first, waiting = an_assignment(), an_assignment()
        visitor.assign(first)
        visitor.assign(waiting)
        await executor.begun()
        visitor.cancel(waiting)
        result = await visitor.result(waiting)
        assert (result.status, result.error_code, result.exit_code) == (
            RunState.CANCELLED,
            ErrorCode.CANCELLED,
            None,
        )
        assert len(executor.programs) == 1
        executor.programs[0].end()
        assert (await visitor.result(first)).status is RunState.COMPLETED


async def test_a_superseded_job_is_killed_and_nothing_is_said(tmp_path: Path) -> None:
    """GRID-110, GRID-107: and the job may run here again."""
    executor = PretendedExecutor()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor, worker_max_par=1):
        visitor = await door.welcomed()
        running, waiting = an_assignment(), an_assignment()
        visitor.assign(running)
        visitor.assign(waiting)
        program = await executor.begun()
        visitor.cancel(waiting, "superseded")
        visitor.cancel(running, "superseded")
        await eventually(lambda: program.is_killed)
        await eventually(lambda: visitor.credit == 3)
        assert visitor.results() == []
        new = an_assignment(job_id=running.job_id, attempt=2)
        visitor.assign(new)
        (await executor.begun(2)).end()
        assert (await visitor.result(new)).token == new.token


async def test_a_job_that_waits_may_be_cancelled_and_superseded_at_once(tmp_path: Path) -> None:
    """GRID-110: nothing is said of it, and the connection stays."""
    executor = PretendedExecutor()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor, worker_max_par=1) as worker:
        visitor = await door.welcomed()
        running, waiting = an_assignment(), an_assignment()
        visitor.assign(running)
        visitor.assign(waiting)
        program = await executor.begun()
        await eventually(lambda: worker.crew.unfinished == 2)
        worker.crew.cancel(waiting.job_id, waiting.token, "cancelled")
        worker.crew.cancel(waiting.job_id, waiting.token, "superseded")
        await eventually(lambda: worker.crew.unfinished == 1)
        program.end()
        assert (await visitor.result(running)).status is RunState.COMPLETED
        assert [each.job_id for each in visitor.results()] == [running.job_id]
        assert not visitor.is_gone


async def test_a_superseded_program_keeps_its_place_until_it_is_gone(tmp_path: Path) -> None:
    """GRID-69, GRID-105, GRID-110"""
    executor = PretendedExecutor()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor, worker_max_par=1) as worker:
        visitor = await door.welcomed()
        job = an_assignment()
        visitor.assign(job)
        program = await executor.begun()
        program.dies_slowly = True
        visitor.cancel(job, "superseded")
        await eventually(lambda: program.is_killed)
        visitor.assign(an_assignment(job_id=job.job_id, attempt=2))
        await eventually(lambda: worker.crew.unfinished == 2)
        assert (visitor.credit, len(executor.programs)) == (1, 1)
        program.end()
        await executor.begun(2)
        await eventually(lambda: visitor.credit == 2)


async def test_a_superseded_result_is_not_sent_any_more(tmp_path: Path) -> None:
    """GRID-110"""
    clock = Clock()
    executor = PretendedExecutor(ends_at_once=True)
    async with open_door() as door, a_worker(tmp_path, door, executor=executor, clock=clock) as worker:
        visitor = await door.welcomed()
        job = an_assignment()
        visitor.assign(job)
        await visitor.result(job)
        visitor.cancel(job, "superseded")
        await eventually(lambda: not worker.spool.due())


async def test_a_worker_without_a_door_ends_its_programs_after_its_patience(tmp_path: Path) -> None:
    """GRID-111: and keeps the results that are finished."""
    executor, clock = PretendedExecutor(), Clock()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor, clock=clock) as worker:
        visitor = await door.welcomed()
        finished, running = an_assignment(), an_assignment()
        visitor.assign(finished)
        visitor.assign(running)
        await executor.begun(2)
        executor.programs[0].end()
        await visitor.result(finished)
        await door.stop()
        await eventually(lambda: worker.link.current is None)
        await asyncio.sleep(0.2)  # a few turns of the ticker
        assert not executor.programs[1].is_killed
        clock.ahead += 601
        await eventually(lambda: executor.programs[1].is_killed)
        await eventually(lambda: worker.crew.unfinished == 0)
        await door.start()
        again = await door.welcomed(1)
        await again.heard(Type.CREDIT)
        assert again.running() == set()
        assert again.credit == 2
        assert [each.job_id for each in again.results()] == [finished.job_id]


async def test_a_drain_lets_programs_finish_and_asks_for_no_more(tmp_path: Path) -> None:
    """GRID-113"""
    executor = PretendedExecutor()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor) as worker:
        visitor = await door.welcomed()
        visitor.settles_all = True
        job = an_assignment()
        visitor.assign(job)
        program = await executor.begun()
        draining = asyncio.create_task(worker.drain(30))
        await asyncio.sleep(0)
        program.end()
        await draining
        await worker.stop()
        assert [each.job_id for each in visitor.results()] == [job.job_id]
        await visitor.gone()
        assert visitor.credit == 2
        assert worker.spool.due() == []


async def test_what_does_not_finish_within_a_drain_is_killed_and_not_reported(tmp_path: Path) -> None:
    """GRID-113"""
    executor = PretendedExecutor()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor) as worker:
        visitor = await door.welcomed()
        visitor.assign(an_assignment())
        program = await executor.begun()
        await worker.drain(0.05)
        await worker.stop()
        await visitor.gone()
        assert program.is_killed
        assert visitor.results() == []
        assert executor.is_stopped


async def test_a_busy_machine_delays_the_credit_and_never_the_result(tmp_path: Path) -> None:
    """GRID-70, P31"""
    clock, busy = Clock(), [0.99]
    executor = PretendedExecutor()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor, cpu=lambda: busy[0], clock=clock):
        visitor = await door.welcomed()
        await visitor.heard(Type.CREDIT)
        for _ in range(2):
            visitor.assign(an_assignment())
        await executor.begun(2)
        executor.programs[0].end()
        await visitor.heard(Type.ACK_JOB)
        clock.ahead += 10
        await asyncio.sleep(0.2)
        assert visitor.credit == 2
        clock.ahead += 20.5
        await eventually(lambda: visitor.credit == 3)
        executor.programs[1].end()
        await visitor.heard(Type.ACK_JOB, 2)
        assert visitor.credit == 3
        busy[0] = 0.1
        await eventually(lambda: visitor.credit == 4)


async def test_a_full_spool_stops_the_credit_until_it_has_shrunk(tmp_path: Path) -> None:
    """GRID-109"""
    executor = PretendedExecutor()
    async with (
        open_door() as door,
        a_worker(tmp_path, door, executor=executor, worker_spool_max_bytes=2**20) as worker,
    ):
        visitor = await door.welcomed()
        await visitor.heard(Type.CREDIT)
        job = an_assignment()
        visitor.assign(job)
        (await executor.begun()).end(Report(status=RunState.COMPLETED, exit_code=0, stdout=bytes(2**20)))
        await visitor.heard(Type.ACK_JOB)
        assert not worker.spool.has_room
        await asyncio.sleep(0.2)
        assert visitor.credit == 2
        visitor.settle(visitor.of(Type.ACK_JOB)[0])
        await eventually(lambda: visitor.credit == 3)
