"""Cancelled and superseded jobs at a TCP worker, drains, and limits on new work."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pyoco_server.core.frames.codec import Type
from pyoco_server.core.frames.messages import CancelJob
from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.states import RunState
from support.grid.pretended_programs import PretendedExecutor
from support.grid.scripted_door import an_assignment, open_door
from support.grid.worker_scenes import Clock, a_worker, pulses
from support.waiting import eventually


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
    """GRID-110: it is not reported, and the connection stays."""
    executor = PretendedExecutor()
    async with open_door() as door, a_worker(tmp_path, door, executor=executor, worker_max_par=1) as worker:
        visitor = await door.welcomed()
        running, waiting = an_assignment(), an_assignment()
        visitor.assign(running)
        visitor.assign(waiting)
        program = await executor.begun()
        await eventually(lambda: worker.jobs.unfinished == 2)
        for reason in ("cancelled", "superseded"):
            worker.jobs.cancel(CancelJob(job_id=waiting.job_id, reason=reason, token=waiting.token))
        await eventually(lambda: worker.jobs.unfinished == 1)
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
        await eventually(lambda: worker.jobs.unfinished == 2)
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
        await pulses(worker)  # it knows that it is alone
        clock.ahead += 300
        await pulses(worker)
        assert not executor.programs[1].is_killed
        clock.ahead += 301
        await eventually(lambda: executor.programs[1].is_killed)
        await eventually(lambda: worker.jobs.unfinished == 0)
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
    async with (
        open_door() as door,
        a_worker(tmp_path, door, executor=executor, cpu=lambda: busy[0], clock=clock) as worker,
    ):
        visitor = await door.welcomed()
        await visitor.heard(Type.CREDIT)
        for _ in range(2):
            visitor.assign(an_assignment())
        await executor.begun(2)
        executor.programs[0].end()
        await visitor.heard(Type.ACK_JOB)
        clock.ahead += 10
        await pulses(worker)
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
        await pulses(worker)
        assert visitor.credit == 2
        visitor.settle(visitor.of(Type.ACK_JOB)[0])
        await eventually(lambda: visitor.credit == 3)
