"""Jobs through a door: from a client, over a worker, and back."""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from pyoco_server.actions.programs.submit import submit_job
from pyoco_server.core.frames.codec import Type
from pyoco_server.core.frames.messages import AssignJob, ErrorMessage, JobResult, ObjectGet, OutputRef, SubmitAck
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.states import RunState
from pyoco_server.doors.frames import client_session
from support.grid.peers import ClientPeer, OpenDoor, WorkerPeer, a_job_id, grid_config, open_door, open_second_door
from support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(module_nats_url: str) -> AsyncIterator[OpenDoor]:
    async with open_door(module_nats_url) as opened:
        yield opened


class Pair:
    """A client and a worker of a program of their own."""

    def __init__(self, client: ClientPeer, worker: WorkerPeer, exec_name: str) -> None:
        self.client, self.worker, self.exec_name = client, worker, exec_name

    async def assigned(self, **more: Any) -> AssignJob:
        await self.client.accepted(exec_name=self.exec_name, **more)
        return await self.worker.assigned()

    async def finished(self, **report: Any) -> JobResult:
        assert await self.worker.settled(await self.assigned(), **report) == "recorded"
        return await self.client.result()


@pytest_asyncio.fixture(loop_scope="module")
async def pair(door: OpenDoor) -> AsyncIterator[Pair]:
    exec_name = f"x{uuid.uuid4().hex[:8]}"
    async with await ClientPeer.connect(door) as client, await WorkerPeer.connect(door) as worker:
        await client.hello()
        await worker.hello(patterns=[f"job.assign.{exec_name}"], credit=100)
        yield Pair(client, worker, exec_name)


async def test_a_delayed_job_waits_for_its_time(door: OpenDoor, pair: Pair) -> None:
    """DELAY-9"""
    ack = await pair.client.accepted(exec_name=pair.exec_name, not_before=time.time() + 3600)
    run = await door.run(ack.run_id)
    assert (run.status, run.waits_for_time, run.attempt) == (RunState.PENDING, True, 0)
    job = await pair.assigned()  # one without a time overtakes it
    assert job.run_id != ack.run_id
    _, msg_id = await pair.client.submit(exec_name=pair.exec_name, not_before=time.time() + 10**9)
    frame = await pair.client.next(Type.ERROR)
    refused = ErrorMessage.read(frame.payload)
    assert (frame.corr_id, refused.code) == (msg_id, "BAD_SCHEMA")
    assert "NotBefore" in refused.message


# There and back -----------------------------------------------------------------------------------------------------


async def test_a_job_goes_from_a_client_to_a_worker_and_its_result_back(door: OpenDoor, pair: Pair) -> None:
    """GRID-49, GRID-51, section 6"""
    client, worker = pair.client, pair.worker
    files = {"in.txt": b"hello\n"}
    request, msg_id = await client.submit(client.request(pair.exec_name, args=("--n", "3"), files=files))
    frame = await client.next(Type.SUBMIT_ACK)
    ack = SubmitAck.read(frame.payload)
    assert (frame.corr_id, ack.status, ack.duplicate) == (msg_id, RunState.PENDING, False)
    job = await worker.assigned()
    assert (job.job_id, job.args, job.files) == (request.job_id, ("--n", "3"), {"in.txt": b"hello\n"})
    assert (job.run_id, job.attempt, job.timeout_sec) == (ack.run_id, 1, 3600)
    report = {"stdout": "done", "stderr": "oh", "output_archive": b"PK-not-really", "run_seconds": 1.5}
    assert await worker.settled(job, **report) == "recorded"
    frame = await client.next(Type.RESULT)
    result = JobResult.read(frame.payload)
    assert (frame.corr_id, frame.subject) == (msg_id, f"job.result.{pair.exec_name}")
    assert (result.status, result.stdout, result.stderr, result.exit_code) == (RunState.COMPLETED, "done", "oh", 0)
    assert (result.output_archive, result.worker_id, result.run_seconds) == (b"PK-not-really", worker.worker_id, 1.5)
    assert result.token is None
    assert (await door.run(ack.run_id)).is_terminal


async def test_a_program_that_failed_is_not_tried_again(pair: Pair) -> None:
    """GRID-82"""
    result = await pair.finished(status=RunState.FAILED, exit_code=3, error="exit code 3", stderr="no")
    assert (result.status, result.exit_code, result.error_code) == (RunState.FAILED, 3, ErrorCode.EXIT_NONZERO)
    assert await pair.worker.is_silent()


async def test_a_fault_of_the_worker_itself_is_tried_again(pair: Pair) -> None:
    """GRID-79"""
    job = await pair.assigned()
    report = {"status": RunState.FAILED, "error_code": ErrorCode.WORKER_ERROR, "exit_code": None}
    assert await pair.worker.settled(job, **report) == "recorded"
    again = await pair.worker.assigned()
    assert (again.job_id, again.attempt) == (job.job_id, 2)
    assert again.token != job.token
    assert await pair.worker.settled(again) == "recorded"
    assert (await pair.client.result()).attempt == 2


# Hello and caps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "cap"),
    [
        (b'{"ClientId":"%s"}', 4),
        (b'{"ClientId":"%s","DesiredParallelism":null}', 4),
        (b'{"ClientId":"%s","DesiredParallelism":7}', 7),
        (b'{"ClientId":"%s","DesiredParallelism":10000}', 10_000),
        (b'{"ClientId":"%s","DesiredParallelism":20000}', 10_000),
    ],
)
async def test_the_cap_in_force_is_told_and_kept(door: OpenDoor, payload: bytes, cap: int) -> None:
    """GRID-71, section 5.1"""
    client_id = f"cap{uuid.uuid4().hex[:8]}"
    async with await ClientPeer.connect(door) as client:
        msg_id = await client.send(Type.HELLO_CLIENT, payload % client_id.encode())
        frame = await client.next(Type.HELLO_ACK)
        assert frame.corr_id == msg_id
        assert f'"Cap":{cap}'.encode() in frame.payload
    context = door.door.context
    await eventually(lambda: context.programs.slots.cap(context.group, client_id) is not None)
    known = context.programs.slots.cap(context.group, client_id)
    assert known is not None
    assert (known.cap, known.source) == (cap, "hello")


async def test_a_second_hello_changes_the_cap_and_never_the_client(door: OpenDoor) -> None:
    """Section 8.1"""
    async with await ClientPeer.connect(door) as client:
        await client.hello("hello-twice", cap=2)
        assert (await client.hello("hello-twice", cap=5)).cap == 5
        await client.send_json(Type.HELLO_CLIENT, {"ClientId": "another"})
        await client.error("BAD_STATE")
        await client.send_json(Type.HELLO_CLIENT, {"ClientId": "hello-twice", "DesiredParallelism": 0})
        await client.error("BAD_HELLO")
        client.client_id = "hello-twice"
        await client.accepted()


async def test_more_than_the_cap_of_a_client_is_never_assigned(door: OpenDoor, pair: Pair) -> None:
    """GRID-72"""
    async with await ClientPeer.connect(door) as client:
        await client.hello(cap=2)
        for _ in range(5):
            await client.accepted(exec_name=pair.exec_name)
        jobs = [await pair.worker.assigned(), await pair.worker.assigned()]
        assert await pair.worker.is_silent()
        await pair.worker.settled(jobs[0])
        await pair.worker.assigned()
        assert await pair.worker.is_silent()


# The same job again -------------------------------------------------------------------------------------------------


async def test_a_job_that_is_submitted_again_is_one_job_with_one_result_for_each_connection(
    door: OpenDoor, pair: Pair
) -> None:
    """GRID-50, GRID-51: the corrId of the Result is that of the latest SubmitJob there."""
    async with await ClientPeer.connect(door) as other:
        await other.hello(pair.client.client_id)
        request, _ = await pair.client.submit(exec_name=pair.exec_name)
        await pair.client.next(Type.SUBMIT_ACK)
        job = await pair.worker.assigned()
        _, latest = await pair.client.submit(request)
        ack = SubmitAck.read((await pair.client.next(Type.SUBMIT_ACK)).payload)
        assert (ack.duplicate, ack.status) == (True, RunState.RUNNING)
        assert (await other.accepted(request)).duplicate
        await pair.worker.settled(job)
        frame = await pair.client.next(Type.RESULT)
        assert frame.corr_id == latest
        assert (await other.result()).job_id == job.job_id
        assert await pair.client.is_silent()
        assert await other.is_silent(0.05)
        assert await pair.worker.is_silent(0.05)


async def test_a_job_that_has_ended_gives_its_result_at_once(pair: Pair) -> None:
    """GRID-48 step 3"""
    request, _ = await pair.client.submit(exec_name=pair.exec_name)
    await pair.client.next(Type.SUBMIT_ACK)
    await pair.worker.settled(await pair.worker.assigned(), stdout="once")
    await pair.client.result()
    for _ in range(2):
        _, msg_id = await pair.client.submit(request)
        ack = SubmitAck.read((await pair.client.next(Type.SUBMIT_ACK)).payload)
        assert (ack.duplicate, ack.status) == (True, RunState.COMPLETED)
        frame = await pair.client.next(Type.RESULT)
        assert frame.corr_id == msg_id
        assert JobResult.read(frame.payload).stdout == "once"


async def test_a_result_never_overtakes_its_acknowledgement(
    door: OpenDoor, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-49, GRID-51: the job ends while its submission is still being worked on."""
    gate = asyncio.Event()

    async def no_look() -> None:
        """What is told is told without one."""

    async def slow(*args: Any) -> Any:
        done = await submit_job(*args)
        await gate.wait()
        return done

    monkeypatch.setattr(door.door.context.end_waiters, "turn", no_look)
    monkeypatch.setattr(client_session, "submit_job", slow)
    await pair.client.submit(exec_name=pair.exec_name)
    await pair.worker.settled(await pair.worker.assigned())
    assert await pair.client.is_silent()
    gate.set()
    await pair.client.next(Type.SUBMIT_ACK)
    await pair.client.next(Type.RESULT)  # and does not wait for the next look at the records


async def test_a_hundred_submissions_of_one_job_at_once_start_it_once(door: OpenDoor, pair: Pair) -> None:
    """GRID-50, P19 over one door and two connections"""
    async with await ClientPeer.connect(door) as other:
        await other.hello(pair.client.client_id)
        request = pair.client.request(pair.exec_name)
        for _ in range(50):
            await pair.client.submit(request)
            await other.submit(request)
        job = await pair.worker.assigned()
        acks = [await each.next_of(Type.SUBMIT_ACK) for each in (pair.client, other) for _ in range(50)]
        assert sum(not SubmitAck.read(ack.payload).duplicate for ack in acks) == 1
        assert await pair.worker.is_silent()
        await pair.worker.settled(job)
        assert (await pair.client.result()).job_id == (await other.result()).job_id == job.job_id
        assert await pair.worker.is_silent()


async def test_the_result_of_a_job_reaches_a_client_at_another_door(door: OpenDoor, pair: Pair) -> None:
    """GRID-40, GRID-51"""
    async with open_second_door(door) as second, await ClientPeer.connect(second) as elsewhere:
        await elsewhere.hello(pair.client.client_id)
        request = elsewhere.request(pair.exec_name)
        await elsewhere.accepted(request)
        job = await pair.worker.assigned()
        assert (await pair.client.accepted(request)).duplicate
        await pair.worker.settled(job)
        assert (await elsewhere.result()).job_id == (await pair.client.result()).job_id == job.job_id


async def test_lost_hints_cost_two_seconds_and_no_result(door: OpenDoor, pair: Pair) -> None:
    """GRID-51: the records of jobs that are waited for are read every two seconds."""
    async with open_second_door(door) as deaf, await ClientPeer.connect(deaf) as client:
        assert deaf.door._listening is not None
        await deaf.door._listening.close()
        await client.hello()
        ack = await client.accepted(exec_name=pair.exec_name)
        await pair.worker.settled(await pair.worker.assigned())
        assert (await client.result()).job_id == ack.job_id


# Reading no faster than can be worked on ----------------------------------------------------------------------------


async def test_64_submissions_of_a_connection_are_worked_on_at_a_time(
    door: OpenDoor, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-37"""
    real, gate, working = submit_job, asyncio.Event(), 0
    most = 0

    async def slow(*args: Any) -> Any:
        nonlocal working, most
        working += 1
        most = max(most, working)
        await gate.wait()
        try:
            return await real(*args)
        finally:
            working -= 1

    monkeypatch.setattr(client_session, "submit_job", slow)
    for _ in range(150):
        await pair.client.submit(exec_name="nobody-runs-this")
    await eventually(lambda: working == 64)
    await pair.client.send(0x55)  # it would be refused at once, if it were read
    assert await pair.client.is_silent()
    assert working == 64
    gate.set()
    for _ in range(150):
        await pair.client.next_of(Type.SUBMIT_ACK)
    await pair.client.next_of(Type.ERROR)
    assert most == 64


async def test_a_client_that_does_not_read_is_closed_and_loses_no_result(nats_url: str) -> None:
    """GRID-77, GRID-33"""
    async with open_door(nats_url, grid_config(exec_write_sec=1.0)) as door:
        worker = await WorkerPeer.connect(door)
        await worker.hello(credit=100)
        client = await ClientPeer.connect(door)
        await client.hello("slow", cap=100)
        requests = [client.request() for _ in range(24)]
        for request in requests:
            await client.accepted(request)
        session = next(each for each in door.door.sessions if each.role == "client")
        archive = bytes(1_500_000)
        for _ in requests:
            await worker.settled(await worker.assigned(), output_archive=archive)
        await asyncio.wait_for(session.over.wait(), 120)
        assert session.wire.reason == "write_timeout"
        client.abort()
        door.server._timers = replace(door.server._timers, write=120.0)  # the next one reads, on a busy machine slowly
        async with await ClientPeer.connect(door) as again:
            await again.hello("slow", cap=100)
            for request in requests:
                await again.submit(request)
            results = [await again.result() for _ in requests]
        assert {each.job_id for each in results} == {each.job_id for each in requests}
        assert all(each.output_archive == archive for each in results)
        await worker.close()


# Outputs ------------------------------------------------------------------------------------------------------------


async def test_an_archive_that_does_not_fit_is_named_and_can_be_fetched(pair: Pair) -> None:
    """GRID-143, GRID-146"""
    job = await pair.assigned()
    archive = bytes(range(256)) * 16_000
    stored = await pair.worker.stored(job, "output.zip", archive)
    sha256 = hashlib.sha256(archive).hexdigest()
    reference = OutputRef(bucket="pyoco_artifacts", object=stored, size=len(archive), sha256=sha256, href="x")
    await pair.worker.settled(job, output_ref=reference)
    result = await pair.client.result()
    assert result.output_archive is None
    assert result.output_ref is not None
    assert (result.output_ref.size, result.output_ref.sha256) == (len(archive), sha256)
    assert result.output_ref.href == f"/runs/{job.run_id}/artifacts"
    assert await pair.client.fetched(job.job_id, "output.zip") == archive
    assert await pair.client.fetched(job.job_id, "output.zip", 1_234_567) == archive[1_234_567:]
    assert await pair.client.fetched(job.job_id, "output.zip", len(archive)) == b""


async def test_what_was_printed_can_be_fetched_too(pair: Pair) -> None:
    """GRID-145"""
    result = await pair.finished(stdout="short", stderr="e" * 100_000)
    assert (result.stdout, result.stderr) == ("short", "e" * 100_000)
    assert await pair.client.fetched(result.job_id, "stdout.txt") == b"short"
    assert await pair.client.fetched(result.job_id, "stderr.txt") == b"e" * 100_000


async def test_only_outputs_of_ones_own_ended_jobs_are_given_out(door: OpenDoor, pair: Pair) -> None:
    """GRID-146, GRID-169"""
    running = await pair.assigned()
    result = await pair.finished(stdout="secret")
    missing = [(running.job_id, "stdout.txt"), (result.job_id, "output.zip"), (result.job_id, "x")]
    for job_id, name in [*missing, (a_job_id(), "stdout.txt")]:
        await pair.client.send(Type.OBJECT_GET, ObjectGet(job_id=job_id, name=name).to_payload())
        await pair.client.error("NOT_FOUND")
    await pair.client.send(Type.OBJECT_GET, ObjectGet(job_id=result.job_id, name="stdout.txt", offset=9).to_payload())
    await pair.client.error("BAD_OBJECT")
    async with await ClientPeer.connect(door) as stranger:
        await stranger.hello()
        await stranger.send(Type.OBJECT_GET, ObjectGet(job_id=result.job_id, name="stdout.txt").to_payload())
        await stranger.error("FORBIDDEN")


# Another's job ------------------------------------------------------------------------------------------------------


async def test_a_client_can_neither_attach_to_nor_cancel_anothers_job(door: OpenDoor, pair: Pair) -> None:
    """GRID-163, GRID-169"""
    job = await pair.assigned()
    async with await ClientPeer.connect(door) as stranger:
        await stranger.hello()
        await stranger.submit(stranger.request(pair.exec_name, job_id=job.job_id))
        await stranger.error("JOB_ID_CONFLICT")
        await stranger.cancel(job.job_id)
        _, error = await stranger.error("NOT_FOUND")
        assert error.job_id == job.job_id
        await pair.worker.settled(job)
        await pair.client.result()
        assert await stranger.is_silent()


# Cancel -------------------------------------------------------------------------------------------------------------


async def test_a_job_that_waits_is_cancelled_at_once(door: OpenDoor, pair: Pair) -> None:
    """GRID-159, GRID-163"""
    ack = await pair.client.accepted(exec_name="nobody-runs-this")
    await pair.client.cancel(ack.job_id, "no longer wanted")
    result = await pair.client.result()
    assert (result.job_id, result.status) == (ack.job_id, RunState.CANCELLED)
    assert (await door.run(ack.run_id)).cancel_reason == "no longer wanted"


async def test_a_job_that_runs_is_cancelled_through_its_worker(pair: Pair) -> None:
    """GRID-160, GRID-163"""
    job = await pair.assigned()
    await pair.client.cancel(job.job_id)
    asked = await pair.worker.cancelled()
    assert (asked.job_id, asked.token, asked.reason) == (job.job_id, job.token, "cancelled")
    report = {"status": RunState.CANCELLED, "error_code": ErrorCode.CANCELLED, "exit_code": -15}
    assert await pair.worker.settled(job, **report) == "recorded"
    assert (await pair.client.result()).status is RunState.CANCELLED


async def test_the_answer_to_a_cancel_is_the_result_also_where_nothing_was_submitted(
    door: OpenDoor, pair: Pair
) -> None:
    """GRID-161, GRID-163"""
    result = await pair.finished(stdout="kept")
    async with await ClientPeer.connect(door) as later:
        await later.hello(pair.client.client_id)
        msg_id = await later.cancel(result.job_id)
        frame = await later.next(Type.RESULT)
        assert frame.corr_id == msg_id
        assert JobResult.read(frame.payload).stdout == "kept"
