"""Workers at a door: credits, turns, signs of life, and what becomes of the jobs of one that goes."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from pyoco_server.actions.programs.submit import Inline, submit_job
from pyoco_server.core.frames.codec import Type
from pyoco_server.core.frames.messages import ObjectGet
from pyoco_server.core.programs.job import InputFile, JobAsk
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.run import Caller
from pyoco_server.core.states import RunState, WorkerState
from pyoco_server.doors.frames.assigning import INLINE_BYTES_MAX
from pyoco_server.frames import tasks
from pyoco_server.ports.objects.port import ObjectInfo
from support.grid.door_scenes import a_worker, client, door, exec_name
from support.grid.peers import (
    ClientPeer,
    OpenDoor,
    WorkerPeer,
    a_job_id,
    fetched,
)
from support.waiting import eventually

__all__ = ["client", "door", "exec_name"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


# Credits ------------------------------------------------------------------------------------------------------------


async def test_a_worker_gets_as_many_jobs_as_it_gave_credits(
    door: OpenDoor, client: ClientPeer, exec_name: str
) -> None:
    """GRID-65, GRID-66, GRID-69"""
    async with await a_worker(door, exec_name, credit=0) as worker:
        for _ in range(5):
            await client.accepted(exec_name=exec_name)
        assert await worker.is_silent()
        await worker.credit(1)
        await worker.credit(1)
        jobs = [await worker.assigned(), await worker.assigned()]
        assert await worker.is_silent()
        await worker.settled(jobs.pop())
        assert await worker.is_silent()
        await worker.credit(1)
        await worker.assigned()
        assert await worker.is_silent(0.1)


async def test_credits_are_held_at_ten_thousand(door: OpenDoor, exec_name: str) -> None:
    """GRID-66"""
    async with await a_worker(door, exec_name, credit=10_000) as worker:
        await worker.credit(10_000)
        await worker.credit(1)
        worker_credits, peer = door.door.context.worker_credits, door.door.context.workers[worker.worker_id]
        await eventually(lambda: peer.session.wire.frames_read == 4)
        assert worker_credits.credits(peer) == 10_000


async def test_credits_are_forgotten_with_the_connection(door: OpenDoor, client: ClientPeer, exec_name: str) -> None:
    """GRID-68"""
    worker = await a_worker(door, exec_name, credit=5, worker_id="forgets")
    await worker.close()
    async with await a_worker(door, exec_name, credit=0, worker_id="forgets") as again:
        await client.accepted(exec_name=exec_name)
        assert await again.is_silent()


async def test_workers_with_credit_get_jobs_in_turn(door: OpenDoor, client: ClientPeer, exec_name: str) -> None:
    """GRID-59"""
    async with await a_worker(door, exec_name, 6) as anna, await a_worker(door, exec_name, 6) as bert:
        for worker in (anna, bert) * 3:
            await client.accepted(exec_name=exec_name)
            await worker.assigned()


async def test_a_pattern_that_can_match_no_job_is_taken_with_a_warning(door: OpenDoor) -> None:
    """GRID-30"""
    async with await WorkerPeer.connect(door) as worker:
        ack = await worker.hello(patterns=["job.assign.a", "job.submit.*", ">"])
        assert ack.warnings == ("pattern 2 can match no job",)
        assert ack.cap is None
        assert f"127.0.0.1:{door.port}" in ack.doors


async def test_a_worker_gets_only_jobs_that_its_patterns_match(door: OpenDoor, client: ClientPeer) -> None:
    """GRID-28, GRID-61: jobs without a worker delay no others."""
    async with await a_worker(door, "mine", credit=5) as worker:
        await client.accepted(exec_name="yours")
        ack = await client.accepted(exec_name="mine")
        assert (await worker.assigned()).job_id == ack.job_id
        assert await worker.is_silent(0.1)


# Cancel -------------------------------------------------------------------------------------------------------------


async def test_a_cancel_that_crosses_a_result_leaves_the_result(
    door: OpenDoor, client: ClientPeer, exec_name: str
) -> None:
    """GRID-161"""
    async with await a_worker(door, exec_name) as worker:
        await client.accepted(exec_name=exec_name)
        job = await worker.assigned()
        await client.cancel(job.job_id)
        await worker.cancelled()
        assert await worker.settled(job, stdout="too fast") == "recorded"
        assert (await client.result()).stdout == "too fast"


async def test_a_cancelled_job_frees_its_slot(door: OpenDoor, exec_name: str) -> None:
    """GRID-164"""
    async with await a_worker(door, exec_name, credit=5) as worker, await ClientPeer.connect(door) as client:
        await client.hello(cap=1)
        await client.accepted(exec_name=exec_name)
        job = await worker.assigned()
        await client.accepted(exec_name=exec_name)
        await client.cancel(job.job_id)
        await worker.cancelled()
        report = {"status": RunState.CANCELLED, "error_code": ErrorCode.CANCELLED, "exit_code": -15}
        assert await worker.settled(job, **report) == "recorded"
        assert (await client.result()).status is RunState.CANCELLED
        assert (await worker.assigned()).job_id != job.job_id


# Inputs -------------------------------------------------------------------------------------------------------------


async def submitted(door: OpenDoor, client_id: str, exec_name: str, files: dict[str, bytes]) -> str:
    """As over HTTP, where files may be larger than a frame."""
    ask = JobAsk(
        job_id=a_job_id(),
        group=door.group,
        client_id=client_id,
        exec_name=exec_name,
        files=tuple(InputFile(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items()),
    )
    return (await submit_job(door.backend, Caller(), ask, Inline(files))).run.run_id


async def test_inputs_that_fit_travel_in_the_frame_and_the_others_are_fetched(door: OpenDoor, exec_name: str) -> None:
    """GRID-146, GRID-147"""
    files = {"a.bin": b"a" * 100_000, "b.bin": bytes(INLINE_BYTES_MAX), "c.bin": b"c" * 1_500_000}
    async with await a_worker(door, exec_name) as worker, await a_worker(door, "else") as stranger:
        await submitted(door, "http", exec_name, files)
        job = await worker.assigned()
        assert job.files == {"a.bin": files["a.bin"], "c.bin": files["c.bin"]}
        assert [each.name for each in job.input_refs] == ["b.bin"]
        assert await fetched(worker, job.job_id, "b.bin") == files["b.bin"]
        assert await fetched(worker, job.job_id, "b.bin", INLINE_BYTES_MAX - 10) == bytes(10)
        assert await fetched(worker, job.job_id, "a.bin") == files["a.bin"]
        await worker.send(Type.OBJECT_GET, ObjectGet(job_id=job.job_id, name="x").to_payload())
        await worker.error("NOT_FOUND")
        await stranger.send(Type.OBJECT_GET, ObjectGet(job_id=job.job_id, name="b.bin").to_payload())
        await stranger.error("FORBIDDEN")
        await worker.settled(job)
        await worker.send(Type.OBJECT_GET, ObjectGet(job_id=job.job_id, name="b.bin").to_payload())
        await worker.error("FORBIDDEN")


async def test_inputs_that_are_no_longer_kept_are_the_workers_to_report(door: OpenDoor, exec_name: str) -> None:
    """GRID-101, GRID-146"""
    run_id = await submitted(door, "http", exec_name, {"a.bin": b"a" * 100_000})
    artifacts = door.door.context.programs.artifacts
    [inputs] = [each.name for each in (await artifacts.catalogue()).objects if each.name.startswith(run_id)]
    assert await artifacts.delete(inputs)
    async with await a_worker(door, exec_name) as worker:
        job = await worker.assigned()
        assert [each.name for each in job.input_refs] == ["a.bin"]
        await worker.send(Type.OBJECT_GET, ObjectGet(job_id=job.job_id, name="a.bin").to_payload())
        _, error = await worker.error("NOT_FOUND")
        assert error.job_id == job.job_id
        report = {"status": RunState.FAILED, "error_code": ErrorCode.INPUT_MISSING, "exit_code": None}
        assert await worker.settled(job, **report) == "recorded"


async def test_a_job_whose_inputs_the_door_still_fetches_is_alive(
    door: OpenDoor, exec_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-78: its worker has not received it yet, and cannot send heartbeats for it."""
    monkeypatch.setattr(tasks, "_BEAT_SECONDS", 0.01)
    artifacts, in_flight = door.door.context.programs.artifacts, door.door.context.in_flight
    info, may_come = artifacts.info, asyncio.Event()

    async def slowly(name: str) -> ObjectInfo:
        await may_come.wait()
        return await info(name)

    run_id = await submitted(door, "http", exec_name, {"a.bin": b"a" * 100_000})
    monkeypatch.setattr(artifacts, "info", slowly)
    async with await a_worker(door, exec_name) as worker:
        await eventually(lambda: in_flight.get(run_id) is not None)
        held = in_flight._held[run_id]
        long_ago = held.seen_at = held.seen_at - 60.0
        await eventually(lambda: held.seen_at > long_ago)
        may_come.set()
        await worker.settled(await worker.assigned())


# Records ------------------------------------------------------------------------------------------------------------


async def test_a_door_writes_down_itself_and_its_workers(door: OpenDoor, client: ClientPeer, exec_name: str) -> None:
    """GRID-115, GRID-46"""
    context = door.door.context
    async with await a_worker(door, exec_name, credit=3, worker_id="known") as worker:
        await client.accepted(exec_name=exec_name)
        job = await worker.assigned()
        await worker.beat(job)
        await eventually(lambda: context.workers["known"].cpu == 0.25)

        async def is_known() -> bool:
            """A look at a lane has a credit in hand for a moment."""
            door.door._records.nudge()
            record = await door.backend.registry.find("known")
            return record is not None and (record.running, record.cpu, record.credits) == ((job.run_id,), 0.25, 2)

        await eventually(is_known)
        record = await door.backend.registry.find("known")
        assert record is not None
        assert (record.kind, record.patterns) == ("exec-tcp", (f"job.assign.{exec_name}",))
        assert (record.max_parallel, record.door_id, record.state) == (4, context.door_id, WorkerState.RUNNING)
        [mine] = [each for each in context.programs.doors.all(door.group) if each.door_id == context.door_id]
        assert (mine.addr, mine.state) == (f"127.0.0.1:{door.port}", "serving")
        await worker.settled(job)

    async def is_gone() -> bool:
        record = await door.backend.registry.find("known")
        return record is not None and record.state is WorkerState.STOPPED_GRACEFUL

    await eventually(is_gone)


async def test_nothing_is_left_of_connections_that_have_ended(door: OpenDoor) -> None:
    """After everything above: a door keeps nothing (GRID-40)."""
    context = door.door.context
    await eventually(lambda: not door.door.sessions)
    await eventually(lambda: not context.tasks)
    assert not context.workers
    assert not context.assigned
    assert not len(context.end_waiters)
    assert not context.in_work.in_use
    assert not context.reports_in_work.in_use
