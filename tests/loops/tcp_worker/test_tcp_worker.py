"""The worker at a door by hand: assign, repeat, lose, cancel, drain."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from pyoco_server.core.frames.codec import Type
from pyoco_server.core.programs.dedup import DedupStage
from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.states import RunState
from pyoco_server.loops.tcp_worker.finished import FinishedJob
from pyoco_server.loops.tcp_worker.worker import TcpWorker
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


async def test_assignments_for_a_finished_job_that_arrive_together_are_all_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-107: in their order, so the newest token has the result in the end"""
    executor = PretendedExecutor(ends_at_once=True)
    async with open_door() as door, a_worker(tmp_path, door, executor=executor) as worker:
        visitor = await door.welcomed()
        first = an_assignment()
        visitor.assign(first)
        await visitor.heard(Type.ACK_JOB)
        visitor.settle(visitor.of(Type.ACK_JOB)[0])
        await _settled(worker, first.job_id)
        write, is_writing, may_write = worker.spool._write, threading.Event(), threading.Event()

        def slow_write(finished: FinishedJob) -> int:
            is_writing.set()
            may_write.wait(120)
            return write(finished)

        monkeypatch.setattr(worker.spool, "_write", slow_write)
        later = [an_assignment(job_id=first.job_id, attempt=number) for number in (2, 3, 4)]
        visitor.assign(later[0])
        await eventually(is_writing.is_set)
        for each in later[1:]:
            visitor.assign(each)
        await eventually(lambda: worker.jobs.unfinished == 3)
        may_write.set()
        await visitor.heard(Type.ACK_JOB, 4)
        assert [each.token for each in visitor.results()] == [first.token, *(each.token for each in later)]
        await eventually(lambda: visitor.credit == 2 + 4)
        assert [each.token for each in worker.spool.due()] == [later[-1].token]
        assert len(executor.programs) == 1


async def test_a_job_whose_result_is_lost_runs_again(tmp_path: Path) -> None:
    """GRID-107: no assignment stays without an answer"""
    executor = PretendedExecutor(ends_at_once=True)
    async with open_door() as door, a_worker(tmp_path, door, executor=executor) as worker:
        visitor = await door.welcomed()
        first = an_assignment()
        visitor.assign(first)
        await visitor.heard(Type.ACK_JOB)
        visitor.settle(visitor.of(Type.ACK_JOB)[0])
        await _settled(worker, first.job_id)
        (lost,) = [file for file in tmp_path.rglob("*") if file.stem == first.job_id]
        lost.unlink()
        later = [an_assignment(job_id=first.job_id, attempt=number) for number in (2, 3)]
        for each in later:
            visitor.assign(each)
        await eventually(lambda: later[-1].token in {each.token for each in visitor.results()})
        assert len(executor.programs) == 2


async def _settled(worker: TcpWorker, job_id: str) -> None:
    """On the disk, and then in what the worker remembers."""
    await eventually(lambda: worker.spool.settled() == [job_id])
    await eventually(lambda: worker.jobs._seen.stage(job_id) is DedupStage.SETTLED)


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
        await worker.jobs.sweep()
        assert worker.spool.get(settled.job_id) is not None
        clock.ahead += 2
        await worker.jobs.sweep()
        assert worker.spool.get(settled.job_id) is None
        for job in (settled, due):
            visitor.assign(job)
        await executor.begun(3)
        await visitor.heard(Type.ACK_JOB, 4)
        assert [program.work.job_id for program in executor.programs[2:]] == [settled.job_id]


async def test_a_job_that_ran_again_after_its_time_is_known_for_as_long_as_any_other(tmp_path: Path) -> None:
    """GRID-107: also before the first sweep."""
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
        visitor.assign(job)  # no other attempt was requested yet: the same answer
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
    monkeypatch.setattr("pyoco_server.loops.tcp_worker.assigned_jobs._WAITING_BYTES_MAX", 1_000)
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
