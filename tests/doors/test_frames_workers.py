"""Workers at a door: credits, turns, signs of life, and what becomes of the jobs of one that goes."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from pyoco_server.actions.programs.submit import Inline, submit_job
from pyoco_server.core.frames.codec import Frame, Type
from pyoco_server.core.frames.messages import AssignJob, Heartbeat, HelloWorker, JobResult, ObjectGet
from pyoco_server.core.programs.job import InputFile, JobAsk
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.run import Caller
from pyoco_server.core.states import RunState, WorkerState
from pyoco_server.doors.frames import acks, tasks, worker_session
from pyoco_server.doors.frames.assigning import INLINE_BYTES_MAX
from pyoco_server.errors import Unavailable
from pyoco_server.ports.objects.port import ObjectInfo
from support.backends import fields_of
from support.grid.peers import (
    ClientPeer,
    OpenDoor,
    WorkerPeer,
    a_job_id,
    fetched,
    grid_config,
    open_door,
    open_second_door,
)
from support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(module_nats_url: str) -> AsyncIterator[OpenDoor]:
    """A lost worker's jobs come back soon."""
    grid = grid_config(exec_worker_down_delay_sec=0.3, exec_ack_timeout_sec=120.0, exec_run_heartbeat_sec=0.5)
    async with open_door(module_nats_url, grid) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def strict_door(nats_url: str) -> AsyncIterator[OpenDoor]:
    """A silent attempt is given up soon."""
    async with open_door(nats_url, grid_config(exec_ack_timeout_sec=2.0, exec_run_heartbeat_sec=0.5)) as opened:
        yield opened


@pytest.fixture
def exec_name() -> str:
    return f"x{uuid.uuid4().hex[:8]}"


@pytest_asyncio.fixture(loop_scope="module")
async def client(door: OpenDoor) -> AsyncIterator[ClientPeer]:
    async with await ClientPeer.connect(door) as peer:
        await peer.hello(cap=100)
        yield peer


async def a_worker(door: OpenDoor, exec_name: str, credit: int = 1, worker_id: str | None = None) -> WorkerPeer:
    worker = await WorkerPeer.connect(door)
    await worker.hello(worker_id, patterns=[f"job.assign.{exec_name}"], credit=credit)
    return worker


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
        seats, side = door.door.house.seats, door.door.house.workers[worker.worker_id]
        await eventually(lambda: side.session.wire.frames_read == 4)
        assert seats.credits(side) == 10_000


async def test_credits_are_forgotten_with_the_connection(door: OpenDoor, client: ClientPeer, exec_name: str) -> None:
    """GRID-68"""
    worker = await a_worker(door, exec_name, credit=5, worker_id="forgets")
    await worker.close()
    async with await a_worker(door, exec_name, credit=0, worker_id="forgets") as again:
        await client.accepted(exec_name=exec_name)
        assert await again.is_silent()


async def test_workers_with_credit_get_jobs_in_turn(door: OpenDoor, client: ClientPeer, exec_name: str) -> None:
    """GRID-59"""
    async with await a_worker(door, exec_name, 3) as anna, await a_worker(door, exec_name, 3) as bert:
        for _ in range(6):
            await client.accepted(exec_name=exec_name)
        for worker in (anna, bert):
            for _ in range(3):
                await worker.assigned()


async def test_a_pattern_that_can_match_no_job_is_taken_with_a_warning(door: OpenDoor) -> None:
    """GRID-30"""
    async with await WorkerPeer.connect(door) as worker:
        ack = await worker.hello(patterns=["job.assign.a", "job.submit.*", ">"])
        assert ack.warnings == ("pattern 2 can match no job",)
        assert ack.cap is None
        assert f"127.0.0.1:{door.port}" in ack.doors


async def test_a_worker_gets_only_jobs_that_its_patterns_match(door: OpenDoor, client: ClientPeer) -> None:
    """GRID-28, GRID-61: jobs without a worker delay nobody else's."""
    async with await a_worker(door, "mine", credit=5) as worker:
        await client.accepted(exec_name="yours")
        ack = await client.accepted(exec_name="mine")
        assert (await worker.assigned()).job_id == ack.job_id
        assert await worker.is_silent(0.1)


# A worker goes, and comes back --------------------------------------------------------------------------------------


async def test_the_jobs_of_a_worker_that_is_gone_go_to_another_one(
    door: OpenDoor, client: ClientPeer, exec_name: str
) -> None:
    """GRID-81, section 9.3; GRID-10: the old token is stale."""
    anna = await a_worker(door, exec_name)
    ack = await client.accepted(exec_name=exec_name)
    job = await anna.assigned()
    anna.abort()

    async def is_back() -> bool:
        run = await door.run(ack.run_id)
        return bool(run.status is RunState.PENDING and run.program.lost == 1 and run.program.not_before)

    await eventually(is_back)
    async with await a_worker(door, exec_name) as bert, await a_worker(door, "else", worker_id="late") as late:
        again = await bert.assigned()
        assert (again.job_id, again.attempt) == (job.job_id, 2)
        assert again.token != job.token
        assert await late.settled(job) == "stale"
        assert await bert.settled(again, stdout="second") == "recorded"
    result = await client.result()
    assert (result.attempt, result.stdout) == (2, "second")


async def test_a_worker_that_comes_back_in_time_goes_on_with_what_it_runs(
    door: OpenDoor, client: ClientPeer, exec_name: str
) -> None:
    """GRID-110: the same attempt, the same token, and nothing counted as lost."""
    worker = await a_worker(door, exec_name, worker_id="comes-back")
    ack = await client.accepted(exec_name=exec_name)
    job = await worker.assigned()
    worker.abort()
    async with await a_worker(door, exec_name, credit=0, worker_id="comes-back") as again:
        await again.beat(job)

        async def is_attached() -> bool:
            run = await door.run(ack.run_id)
            return bool(run.status is RunState.RUNNING and run.program.lost == 0 and run.attempt_id == job.token)

        await eventually(is_attached)
        await eventually(lambda: job.run_id in door.door.house.assigned)
        await again.credit(5)
        assert await again.is_silent(1.0)  # longer than its job would have waited
        assert await again.settled(job) == "recorded"
    assert (await client.result()).attempt == 1


async def test_a_worker_that_says_hello_again_replaces_its_older_connection(
    door: OpenDoor, client: ClientPeer, exec_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """GRID-39"""
    caplog.set_level(logging.INFO)
    older = await a_worker(door, exec_name, worker_id="twice")
    await client.accepted(exec_name=exec_name)
    job = await older.assigned()
    async with await a_worker(door, exec_name, credit=0, worker_id="twice") as newer:
        assert await older.ended() == []
        await older.close()

        def closed() -> list[tuple[Any, Any]]:
            told = [fields_of(each) for each in caplog.records if each.getMessage() == "a connection ended"]
            return [(each["id"], each["reason"]) for each in told]

        await eventually(lambda: closed() == [("twice", "worker_replaced")])
        await newer.beat(job)
        assert await newer.settled(job) == "recorded"
        assert (await client.result()).attempt == 1
        assert door.door.house.workers["twice"].session.role == "worker"


async def test_a_worker_is_greeted_again_only_after_its_older_connection_let_go(
    door: OpenDoor, client: ClientPeer, exec_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-39, GRID-110: what is put back too late would be taken from the program that goes on."""
    older = await a_worker(door, exec_name, worker_id="slowly")
    ack = await client.accepted(exec_name=exec_name)
    job = await older.assigned()
    holdings = door.door.house.holdings
    real, gate = holdings.put_back, asyncio.Event()

    async def slow(*args: Any) -> None:
        await gate.wait()
        await real(*args)

    monkeypatch.setattr(holdings, "put_back", slow)
    async with await WorkerPeer.connect(door) as newer:
        hello = HelloWorker(worker_id="slowly", patterns=(f"job.assign.{exec_name}",))
        await newer.send(Type.HELLO_WORKER, hello.to_payload())
        await newer.beat(job)
        assert await newer.is_silent()
        gate.set()
        await newer.next(Type.HELLO_ACK)
        await eventually(lambda: ack.run_id in door.door.house.assigned)
        run = await door.run(ack.run_id)
        assert (run.status, run.attempt, run.program.lost) == (RunState.RUNNING, 1, 0)
        assert await newer.settled(job) == "recorded"
    await older.close()


async def test_a_result_of_a_job_that_was_put_back_still_counts_while_nobody_else_has_begun(
    door: OpenDoor, client: ClientPeer, exec_name: str
) -> None:
    """GRID-55, GRID-109"""
    worker = await a_worker(door, exec_name)
    ack = await client.accepted(exec_name=exec_name)
    job = await worker.assigned()
    worker.abort()

    async def is_back() -> bool:
        return bool((await door.run(ack.run_id)).status is RunState.PENDING)

    await eventually(is_back)
    async with await WorkerPeer.connect(door) as again:
        await again.hello(worker.worker_id, patterns=["job.assign.other"])
        assert await again.settled(job, stdout="from the spool") == "recorded"
    assert (await client.result()).stdout == "from the spool"


async def test_a_report_that_cannot_be_written_before_its_worker_goes_is_given_up(
    door: OpenDoor, client: ClientPeer, exec_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-81, GRID-11: the worker keeps its result, and sends it wherever it comes back."""
    worker = await a_worker(door, exec_name, worker_id="has-it-still")
    ack = await client.accepted(exec_name=exec_name)
    job = await worker.assigned()
    holdings, tries = door.door.house.holdings, 0

    async def away(*_: Any) -> None:
        nonlocal tries
        tries += 1
        raise Unavailable

    with monkeypatch.context() as patch:
        patch.setattr(holdings, "finish", away)
        await worker.ack(job)
        await eventually(lambda: tries > 0)
        worker.abort()

        async def is_back() -> bool:
            run = await door.run(ack.run_id)
            return bool(run.status is RunState.PENDING and run.program.lost == 1)

        await eventually(is_back)
    async with await a_worker(door, "else", worker_id="has-it-still") as again:
        assert await again.settled(job, stdout="still") == "recorded"
    assert (await client.result()).stdout == "still"


async def test_an_attempt_that_is_superseded_is_stopped(door: OpenDoor, client: ClientPeer, exec_name: str) -> None:
    """GRID-110"""
    anna = await a_worker(door, exec_name, worker_id="was-away")
    await client.accepted(exec_name=exec_name)
    job = await anna.assigned()
    anna.abort()
    async with await a_worker(door, exec_name) as bert, await a_worker(door, "else", worker_id="was-away") as again:
        newer = await bert.assigned()
        await again.beat(job)
        asked = await again.cancelled()
        assert (asked.job_id, asked.token, asked.reason) == (job.job_id, job.token, "superseded")
        await bert.settled(newer)
        await again.beat(newer)  # ended: superseded just as well
        assert (await again.cancelled()).token == newer.token
    await client.result()


async def test_a_heartbeat_about_jobs_that_nobody_knows_stops_them(door: OpenDoor) -> None:
    """GRID-110, GRID-195"""
    async with await a_worker(door, "else") as worker:
        jobs = [
            AssignJob(job_id=a_job_id(), client_id="c", exec_name="x", timeout_sec=1, run_id="", attempt=1, token="t")
            for _ in range(200)
        ]
        await worker.beat(*jobs)
        stopped = {(await worker.cancelled()).job_id for _ in jobs}
        assert stopped == {each.job_id for each in jobs}


async def test_a_heartbeat_without_end_is_asked_about_bit_by_bit(
    door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-195: what a worker makes up does not fill the door's memory."""
    monkeypatch.setattr(worker_session, "_ATTACHING_MAX", 3)
    async with await a_worker(door, "else") as worker:
        jobs = [
            AssignJob(job_id=a_job_id(), client_id="c", exec_name="x", timeout_sec=1, run_id="", attempt=1, token="t")
            for _ in range(6)
        ]
        for asked, later in ((jobs[:3], jobs), (jobs[3:], jobs[3:])):
            await worker.beat(*later)
            assert {(await worker.cancelled()).job_id for _ in asked} == {each.job_id for each in asked}
            assert await worker.is_silent(0.05)


async def test_a_long_heartbeat_is_read_beside_the_event_loop(door: OpenDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    """GRID-34, GRID-106: it does not delay other connections."""
    monkeypatch.setattr(worker_session, "LARGE_BYTES", 1024)
    read, threads = Heartbeat.read, []

    def watched(payload: bytes) -> Heartbeat:
        threads.append(threading.current_thread())
        return read(payload)

    monkeypatch.setattr(Heartbeat, "read", watched)
    async with await a_worker(door, "else") as worker:
        jobs = [
            AssignJob(job_id=a_job_id(), client_id="c", exec_name="x", timeout_sec=1, run_id="", attempt=1, token="t")
            for _ in range(21)
        ]
        for listed in (jobs[:1], jobs[1:]):
            await worker.beat(*listed)
            assert {(await worker.cancelled()).job_id for _ in listed} == {each.job_id for each in listed}
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


# Signs of life ------------------------------------------------------------------------------------------------------


async def test_an_attempt_without_a_sign_of_life_is_tried_again(strict_door: OpenDoor, exec_name: str) -> None:
    """GRID-78, GRID-79: the connection is open, and other attempts on it are alive."""
    async with (
        await a_worker(strict_door, exec_name, credit=2) as worker,
        await ClientPeer.connect(strict_door) as client,
    ):
        await client.hello()
        await client.accepted(exec_name=exec_name)
        await client.accepted(exec_name=exec_name)
        alive, silent = await worker.assigned(), await worker.assigned()
        await worker.credit(1)
        for _ in range(400):
            await worker.beat(alive)
            if not await worker.is_silent(0.2):
                break
        again = await worker.assigned()
        assert (again.job_id, again.attempt) == (silent.job_id, 2)
        assert await worker.settled(alive) == "recorded"
        assert await worker.settled(silent) == "stale"
        assert await worker.settled(again) == "recorded"


async def test_a_report_that_is_passed_over_lives_with_its_worker_until_it_comes_again(
    strict_door: OpenDoor, exec_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-78, GRID-109: the worker no longer lists what it has reported."""
    async with await a_worker(strict_door, exec_name) as worker, await ClientPeer.connect(strict_door) as client:
        await client.hello()
        await client.accepted(exec_name=exec_name)
        job = await worker.assigned()
        with monkeypatch.context() as patch:
            patch.setattr(acks, "_AT_ONCE", 0)
            await worker.ack(job)
            for _ in range(15):  # longer than an attempt may be silent
                await worker.beat()
                assert await worker.is_silent(0.2)
        assert strict_door.door.house.holdings.get(job.run_id) is not None
        assert await worker.settled(job) == "recorded"
        assert (await client.result()).attempt == 1


async def test_reports_that_are_passed_over_do_not_pile_up(
    door: OpenDoor, exec_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-195: the next frame is not read before this one has been."""
    read, at_once, most = acks._read, 0, 0

    async def slowly(frame: Frame) -> JobResult:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.01)
        at_once -= 1
        return await read(frame)

    monkeypatch.setattr(acks, "_AT_ONCE", 0)
    monkeypatch.setattr(acks, "_read", slowly)
    job = AssignJob(job_id=a_job_id(), client_id="c", exec_name="x", timeout_sec=1, run_id="r", attempt=1, token="t")
    async with await a_worker(door, exec_name) as worker:
        for _ in range(5):
            await worker.ack(job)
        await worker.send(Type.CREDIT, b"")  # answered when all of them have been
        await worker.error("BAD_CREDIT")
    assert most == 1


async def test_a_worker_that_falls_silent_is_gone(nats_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """GRID-33, GRID-81; a heartbeat comes after silence of the door's own."""
    caplog.set_level(logging.INFO)
    grid = grid_config(exec_idle_sec=120.0, exec_heartbeat_sec=0.1, exec_worker_down_delay_sec=0.1)
    async with open_door(nats_url, grid) as door, await ClientPeer.connect(door) as client:
        await client.hello()
        worker = await a_worker(door, "calcA")
        ack = await client.accepted()
        job = await worker.assigned()
        wire = door.door.house.workers[worker.worker_id].session.wire
        assert wire._timers.idle == 120.0
        wire._timers = replace(wire._timers, idle=0.5)  # for this one, and from its next frame on
        await worker.beat(job)
        await worker.ended()

        async def is_lost() -> bool:
            return bool((await door.run(ack.run_id)).program.lost == 1)

        await eventually(is_lost)
        ended = [fields_of(each)["reason"] for each in caplog.records if each.getMessage() == "a connection ended"]
        assert ended == ["idle_timeout"]
        await worker.close()


async def test_heartbeats_of_a_door_come_after_its_own_silence(nats_url: str) -> None:
    """GRID-33"""
    async with (
        open_door(nats_url, grid_config(exec_heartbeat_sec=0.05)) as door,
        await ClientPeer.connect(door) as peer,
    ):
        assert (await peer.hello()).heartbeat_sec == 0.05
        for _ in range(600):
            assert await peer.is_silent(0.1)
            if peer.heartbeats >= 2:
                break
        assert peer.heartbeats >= 2


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


# Doors --------------------------------------------------------------------------------------------------------------


async def test_killing_a_door_does_not_restart_what_its_workers_run(
    door: OpenDoor, client: ClientPeer, exec_name: str
) -> None:
    """GRID-40, GRID-110, section 9.4"""
    async with open_second_door(door) as doomed:
        worker = await a_worker(doomed, exec_name, worker_id="moves")
        ack = await client.accepted(exec_name=exec_name)
        job = await worker.assigned()
        holder = (await door.run(ack.run_id)).program.holder
        await doomed.door.stop()
        await worker.close()
    assert (await door.run(ack.run_id)).status is RunState.RUNNING
    async with await a_worker(door, exec_name, worker_id="moves") as moved:
        await moved.beat(job)

        async def has_moved() -> bool:
            return bool((await door.run(ack.run_id)).program.holder not in (holder, None))

        await eventually(has_moved)
        assert await moved.settled(job) == "recorded"
    assert (await client.result()).attempt == 1


async def test_a_worker_that_leaves_after_it_moved_takes_its_jobs_along(
    door: OpenDoor, client: ClientPeer, exec_name: str
) -> None:
    """GRID-45, GRID-56: the door that it left sees another holder, and touches nothing."""
    async with open_second_door(door) as second:
        old = await a_worker(second, exec_name, worker_id="both")
        ack = await client.accepted(exec_name=exec_name)
        job = await old.assigned()
        async with await a_worker(door, exec_name, credit=0, worker_id="both") as new:
            await new.beat(job)
            await eventually(lambda: job.run_id in door.door.house.assigned)
            await old.close()
            await eventually(lambda: not second.door.sessions)
            run = await door.run(ack.run_id)
            assert (run.status, run.program.lost) == (RunState.RUNNING, 0)
            assert await new.settled(job) == "recorded"
    assert (await client.result()).attempt == 1


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
    artifacts = door.door.house.programs.artifacts
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
    """GRID-78: its worker has not heard of it yet, and cannot give a sign of life."""
    monkeypatch.setattr(tasks, "_BEAT_SECONDS", 0.01)
    artifacts, holdings = door.door.house.programs.artifacts, door.door.house.holdings
    info, may_come = artifacts.info, asyncio.Event()

    async def slowly(name: str) -> ObjectInfo:
        await may_come.wait()
        return await info(name)

    run_id = await submitted(door, "http", exec_name, {"a.bin": b"a" * 100_000})
    monkeypatch.setattr(artifacts, "info", slowly)
    async with await a_worker(door, exec_name) as worker:
        await eventually(lambda: holdings.get(run_id) is not None)
        held = holdings._held[run_id]
        long_ago = held.seen_at = held.seen_at - 60.0
        await eventually(lambda: held.seen_at > long_ago)
        may_come.set()
        await worker.settled(await worker.assigned())


# Records ------------------------------------------------------------------------------------------------------------


async def test_a_door_writes_down_itself_and_its_workers(door: OpenDoor, client: ClientPeer, exec_name: str) -> None:
    """GRID-115, GRID-46"""
    house = door.door.house
    async with await a_worker(door, exec_name, credit=3, worker_id="known") as worker:
        await client.accepted(exec_name=exec_name)
        job = await worker.assigned()
        await worker.beat(job)
        await eventually(lambda: house.workers["known"].cpu == 0.25)

        async def is_known() -> bool:
            """A look at a lane has a credit in hand for a moment."""
            door.door._records.nudge()
            record = await door.backend.registry.find("known")
            return record is not None and (record.running, record.cpu, record.credits) == ((job.run_id,), 0.25, 2)

        await eventually(is_known)
        record = await door.backend.registry.find("known")
        assert record is not None
        assert (record.kind, record.patterns) == ("exec-tcp", (f"job.assign.{exec_name}",))
        assert (record.max_parallel, record.door_id, record.state) == (4, house.door_id, WorkerState.RUNNING)
        [mine] = [each for each in house.programs.doors.all(door.group) if each.door_id == house.door_id]
        assert (mine.addr, mine.state) == (f"127.0.0.1:{door.port}", "serving")
        await worker.settled(job)

    async def is_gone() -> bool:
        record = await door.backend.registry.find("known")
        return record is not None and record.state is WorkerState.STOPPED_GRACEFUL

    await eventually(is_gone)


async def test_nothing_is_left_of_connections_that_have_ended(door: OpenDoor) -> None:
    """After everything above: a door keeps nothing (GRID-40)."""
    house = door.door.house
    await eventually(lambda: not door.door.sessions)
    await eventually(lambda: not house.tasks)
    assert not house.workers
    assert not house.assigned
    assert not len(house.board)
    assert not house.in_work.in_use
    assert not house.reports_in_work.in_use
