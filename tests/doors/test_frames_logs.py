"""Lines of programs that workers send to a door: stored under the attempt of their sender, or not at all."""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import replace

import pytest

from pyoco_server.core.frames.codec import Type
from pyoco_server.core.frames.messages import LOGS, AssignJob, ErrorMessage, LogChunk, LogCredit
from pyoco_server.core.run_log.attempt_log import AttemptLog, Limits
from pyoco_server.core.run_log.line import Stream
from pyoco_server.core.run_log.shipment import Shipment
from pyoco_server.core.states import RunState
from pyoco_server.doors.http.program_exposition import render_figures
from pyoco_server.executors.capture.port import Captured
from pyoco_server.loops.log_sender import StoredLines
from support.collected_lines import stored_lines
from support.grid.door_scenes import client, door, exec_name
from support.grid.peers import ClientPeer, OpenDoor, WorkerPeer, open_door
from support.servers import config_for
from support.waiting import eventually

__all__ = ["client", "door", "exec_name"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


def batches(*texts: str, first: int = 1) -> list[Shipment]:
    """A batch for each text, the first of them with this sequence."""
    log, found = AttemptLog(Limits()), list[Shipment]()
    for number, text in enumerate(["earlier"] * (first - 1) + list(texts)):
        log.feed(Stream.STDOUT, "exec", f"{text}\n".encode(), 1.0)
        if number == first - 2 + len(texts):
            log.finish(2.0)
        shipment = log.take(3.0)
        assert shipment is not None
        found.append(shipment)
    return found[first - 1 :]


async def a_worker(door: OpenDoor, exec_name: str, worker_id: str | None = None) -> WorkerPeer:
    worker = await WorkerPeer.connect(door)
    ack = await worker.hello(worker_id, [f"job.assign.{exec_name}"], credit=2, capabilities=(LOGS, "later"))
    assert (ack.capabilities, ack.log_credits) == ((LOGS,), 2)
    return worker


async def told(worker: WorkerPeer, job: AssignJob, shipment: Shipment) -> str:
    """Send a chunk, and return the outcome."""
    chunk = LogChunk(job_id=job.job_id, token=job.token or "", shipment=shipment)
    msg_id = await worker.send(Type.LOG_CHUNK, chunk.to_payload())
    frame = await worker.next_of(Type.LOG_CREDIT)
    assert frame.corr_id == msg_id
    return LogCredit.read(frame.payload).outcome.value


async def test_lines_are_stored_under_the_attempt_also_after_its_result(
    door: OpenDoor, client: ClientPeer, exec_name: str
) -> None:
    """LOG-5, LOG-28, LOG-30"""
    sender = door.door.context.lines
    assert sender is not None
    before = sender.totals.lines["stdout"]
    async with await a_worker(door, exec_name) as worker:
        await client.accepted(exec_name=exec_name)
        job = await worker.assigned()
        one, two, three = batches("one", "two", "three")
        assert await told(worker, job, one) == "stored"
        assert await worker.settled(job) == "recorded"
        assert await told(worker, job, two) == "stored"
    async with await a_worker(door, exec_name, worker.worker_id) as again:  # reconnects with its last lines
        assert await told(again, job, two) == "stored"
        assert await told(again, job, three) == "stored"
    shown = (await render_figures(door.door.figures(), sender.totals)).decode()
    assert f'pyoco_log_lines_total{{stream="stdout"}} {before + 4}.0\n' in shown
    lines = await stored_lines(door.backend, job.run_id)
    assert [(line.id, line.task, line.text) for line in lines] == [
        ((1, 1), "exec", "one"),
        ((1, 2), "exec", "two"),
        ((1, 3), "exec", "three"),
    ]


async def test_an_attempt_that_failed_and_its_successor_have_lines_of_their_own(
    door: OpenDoor, client: ClientPeer, exec_name: str
) -> None:
    """LOG-7, LOG-30: the lines of a fenced worker are dropped, and so are those of another one's attempt"""
    stale = await a_worker(door, exec_name)
    await client.accepted(exec_name=exec_name)
    first = await stale.assigned()
    assert await told(stale, first, batches("from the first")[0]) == "stored"
    stale.abort()
    async with await a_worker(door, exec_name) as other:
        second = await other.assigned()
        assert (second.run_id, second.attempt) == (first.run_id, 2)
        async with await a_worker(door, exec_name, stale.worker_id) as back:
            assert await told(back, first, batches("late", first=2)[0]) == "stale"
            assert await told(back, second, batches("stolen")[0]) == "stale"
        assert await told(other, second, batches("from the second")[0]) == "stored"
        assert await other.settled(second) == "recorded"
    lines = await stored_lines(door.backend, first.run_id)
    assert [(line.attempt, line.text) for line in lines if line.gap is None] == [
        (1, "from the first"),
        (2, "from the second"),
    ]


async def test_lines_that_cannot_be_stored_delay_neither_heartbeats_nor_results(
    door: OpenDoor, client: ClientPeer, exec_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LOG-5, LOG-30: credits of their own, which only an answer gives back"""
    gate, append = asyncio.Event(), StoredLines.append

    async def waits(self: StoredLines, captured: Captured, shipment: Shipment, after: int) -> int:
        await gate.wait()
        return await append(self, captured, shipment, after)

    monkeypatch.setattr(StoredLines, "append", waits)
    async with await a_worker(door, exec_name) as worker:
        await client.accepted(exec_name=exec_name)
        job = await worker.assigned()
        for shipment in batches("one", "two", "three"):
            chunk = LogChunk(job_id=job.job_id, token=job.token or "", shipment=shipment)
            await worker.send(Type.LOG_CHUNK, chunk.to_payload())
        refused = ErrorMessage.read((await worker.next_of(Type.ERROR)).payload)
        assert refused.code == "BAD_CREDIT"
        await worker.beat(job)
        assert await worker.settled(job) == "recorded"
        assert (await client.result()).status is RunState.COMPLETED
        gate.set()
        for _ in range(2):
            await worker.next_of(Type.LOG_CREDIT)
    assert [line.text for line in await stored_lines(door.backend, job.run_id)] == ["one", "two"]


async def test_a_door_that_holds_too_much_takes_lines_later(
    door: OpenDoor, client: ClientPeer, exec_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LOG-26, LOG-30: its memory is bounded, whatever the number of workers"""
    lines = door.door.context.lines
    assert lines is not None
    async with await a_worker(door, exec_name) as worker:
        await client.accepted(exec_name=exec_name)
        job = await worker.assigned()
        monkeypatch.setattr(lines, "_size", 10**9)
        assert await told(worker, job, batches("one")[0]) == "later"
        monkeypatch.setattr(lines, "_size", 0)
        assert await told(worker, job, batches("one")[0]) == "stored"


async def test_the_head_of_an_attempt_is_bounded_whatever_its_worker_says(
    door: OpenDoor, client: ClientPeer, exec_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LOG-24, LOG-30"""
    lines = door.door.context.lines
    assert lines is not None
    monkeypatch.setattr(lines, "limits", Limits(head_bytes=10, tail_bytes=10))
    async with await a_worker(door, exec_name) as worker:
        await client.accepted(exec_name=exec_name)
        job = await worker.assigned()
        for shipment in batches(*(f"line {number}" for number in range(6))):
            assert not shipment.is_tail
            assert await told(worker, job, shipment) == "stored"

    async def is_bounded() -> bool:
        return [line.text for line in await stored_lines(door.backend, job.run_id) if line.gap is None] == [
            "line 0",
            "line 5",
        ]

    await eventually(is_bounded)


async def test_without_the_capability_on_both_sides_no_lines_are_taken(
    door: OpenDoor, exec_name: str, module_nats_url: str
) -> None:
    """GRID-23, LOG-22, LOG-30: to an older worker the door is as before"""
    without = replace(config_for(module_nats_url), logs_enabled=False)
    async with open_door(module_nats_url, config=without) as silent:
        for one, capabilities in ((door, ("later",)), (silent, (LOGS,))):
            async with await WorkerPeer.connect(one) as worker:
                ack = await worker.hello(patterns=[f"job.assign.{exec_name}"], capabilities=capabilities)
                assert (ack.capabilities, ack.log_credits) == ((), 0)
                await worker.send(Type.LOG_CHUNK, b"")
                assert ErrorMessage.read((await worker.next(Type.ERROR)).payload).code == "UNKNOWN_TYPE"


async def test_a_chunk_that_is_none_is_refused(door: OpenDoor, client: ClientPeer, exec_name: str) -> None:
    """LOG-30: also one that would unpack to more than any batch"""
    (good,) = batches("one")
    async with await a_worker(door, exec_name) as worker:
        await client.accepted(exec_name=exec_name)
        job = await worker.assigned()
        token = job.token or ""
        bomb = Shipment(1, 1, 0, 20, is_tail=False, is_last=True, payload=zlib.compress(bytes(100_000_000)))
        chunk = LogChunk(job_id=job.job_id, token=token, shipment=good)
        members = (
            ('"First":1', '"First":0', "BAD_SCHEMA"),
            ('"Size":4', '"Size":0', "BAD_SCHEMA"),
            ('"Tail":false', '"Tail":0    ', "BAD_SCHEMA"),
        )
        refused = [(chunk.to_payload().replace(old.encode(), new.encode()), code) for old, new, code in members] + [
            (b"", "BAD_OBJECT"),
            (b"\xff\xff{}", "BAD_OBJECT"),
            (chunk.to_payload() + bytes(1_000_000), "BAD_OBJECT"),
            (LogChunk(job_id=job.job_id, token=token, shipment=bomb).to_payload(), "BAD_OBJECT"),
        ]
        for payload, code in refused:
            await worker.send(Type.LOG_CHUNK, payload)
            assert ErrorMessage.read((await worker.next_of(Type.ERROR)).payload).code == code, payload[:200]
        assert await told(worker, job, good) == "stored"
