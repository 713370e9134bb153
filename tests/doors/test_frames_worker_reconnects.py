"""Workers that lose their connection to a door, return to it, or move to another door."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from pyoco_server.core.frames.codec import Type
from pyoco_server.core.frames.messages import AssignJob, ErrorMessage, Heartbeat, HelloWorker
from pyoco_server.core.states import RunState
from pyoco_server.doors.frames import worker_session
from pyoco_server.errors import Unavailable
from support.backends import fields_of
from support.grid.door_scenes import a_worker, client, door, exec_name
from support.grid.peers import (
    ClientPeer,
    OpenDoor,
    WorkerPeer,
    a_job_id,
    open_second_door,
)
from support.waiting import eventually

__all__ = ["client", "door", "exec_name"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


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
        await eventually(lambda: job.run_id in door.door.context.assigned)
        await again.credit(5)
        assert await again.is_silent(1.0)  # longer than its job would have waited
        assert await again.settled(job) == "recorded"
    assert (await client.result()).attempt == 1


async def test_a_worker_that_says_hello_again_replaces_its_older_connection(
    door: OpenDoor, client: ClientPeer, exec_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """GRID-39, SAFE-17: the older one learns why, and when it may return"""
    caplog.set_level(logging.INFO)
    older = await a_worker(door, exec_name, worker_id="twice")
    await client.accepted(exec_name=exec_name)
    job = await older.assigned()
    async with await a_worker(door, exec_name, credit=0, worker_id="twice") as newer:
        (farewell,) = await older.ended()
        told = ErrorMessage.read(farewell.payload)
        assert (told.code, told.retry, told.retry_after_ms) == ("TOO_MANY_CONNECTIONS", True, 5_000)
        assert "worker twice" in told.message
        await older.close()

        def closed() -> list[tuple[Any, Any]]:
            told = [fields_of(each) for each in caplog.records if each.getMessage() == "a connection ended"]
            return [(each["id"], each["reason"]) for each in told]

        await eventually(lambda: closed() == [("twice", "worker_replaced")])
        await newer.beat(job)
        assert await newer.settled(job) == "recorded"
        assert (await client.result()).attempt == 1
        assert door.door.context.workers["twice"].session.role == "worker"


async def test_a_worker_is_greeted_again_only_after_its_older_connection_let_go(
    door: OpenDoor, client: ClientPeer, exec_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-39, GRID-110: what is put back too late would be taken from the running program."""
    older = await a_worker(door, exec_name, worker_id="slowly")
    ack = await client.accepted(exec_name=exec_name)
    job = await older.assigned()
    in_flight = door.door.context.in_flight
    real, gate = in_flight.put_back, asyncio.Event()

    async def slow(*args: Any) -> None:
        await gate.wait()
        await real(*args)

    monkeypatch.setattr(in_flight, "put_back", slow)
    async with await WorkerPeer.connect(door) as newer:
        hello = HelloWorker(worker_id="slowly", patterns=(f"job.assign.{exec_name}",))
        await newer.send(Type.HELLO_WORKER, hello.to_payload())
        await newer.beat(job)
        assert await newer.is_silent()
        gate.set()
        await newer.next(Type.HELLO_ACK)
        await eventually(lambda: ack.run_id in door.door.context.assigned)
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
    in_flight, tries = door.door.context.in_flight, 0

    async def away(*_: Any) -> None:
        nonlocal tries
        tries += 1
        raise Unavailable

    with monkeypatch.context() as patch:
        patch.setattr(in_flight, "finish", away)
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
            await eventually(lambda: job.run_id in door.door.context.assigned)
            await old.close()
            await eventually(lambda: not second.door.sessions)
            run = await door.run(ack.run_id)
            assert (run.status, run.program.lost) == (RunState.RUNNING, 0)
            assert await new.settled(job) == "recorded"
    assert (await client.result()).attempt == 1
