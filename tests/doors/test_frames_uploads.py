"""Outputs that come in parts, before the report that names them."""

from __future__ import annotations

import asyncio
import hashlib
import struct
import threading
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from pyoco_server.core.frames.codec import Type
from pyoco_server.core.frames.messages import AssignJob, ObjectAck, OutputRef, Settled
from pyoco_server.core.states import RunState
from pyoco_server.doors.frames import receiving
from pyoco_server.doors.frames.uploads import IncomingUpload
from support.grid.peers import ClientPeer, OpenDoor, WorkerPeer, a_job_id, open_door, open_second_door
from support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1024 * 1024


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(module_nats_url: str) -> AsyncIterator[OpenDoor]:
    async with open_door(module_nats_url) as opened:
        yield opened


class Scene:
    def __init__(self, client: ClientPeer, worker: WorkerPeer, job: AssignJob) -> None:
        self.client, self.worker, self.job = client, worker, job


@pytest_asyncio.fixture(loop_scope="module")
async def scene(door: OpenDoor) -> AsyncIterator[Scene]:
    """A worker with a job in hand."""
    exec_name = f"x{uuid.uuid4().hex[:8]}"
    async with await ClientPeer.connect(door) as client, await WorkerPeer.connect(door) as worker:
        await client.hello()
        await worker.hello(patterns=[f"job.assign.{exec_name}"], credit=10)
        await client.accepted(exec_name=exec_name)
        yield Scene(client, worker, await worker.assigned())


def reference(stored: str, data: bytes, **changes: Any) -> OutputRef:
    facts: dict[str, Any] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} | changes
    return OutputRef(bucket="pyoco_artifacts", object=stored, href="", **facts)


async def test_an_archive_in_parts_is_stored_and_becomes_the_result(door: OpenDoor, scene: Scene) -> None:
    """GRID-144, GRID-145"""
    worker, job = scene.worker, scene.job
    archive = bytes(range(256)) * 20_000
    stored = await worker.stored(job, "output.zip", archive)
    assert stored == f"{job.run_id}/a1/output.zip"
    assert await worker.settled(job, output_ref=reference(stored, archive)) == "recorded"
    [artifact] = (await door.run(job.run_id)).program.artifacts
    assert (artifact.name, artifact.object, artifact.size) == ("output.zip", stored, len(archive))
    await scene.client.result()
    assert await scene.client.fetched(job.job_id, "output.zip") == archive


async def test_four_parts_may_be_on_their_way_and_each_is_answered_in_order(scene: Scene) -> None:
    """GRID-144, section 6: the corrId is the msgId of the ObjectPut."""
    worker, job, data = scene.worker, scene.job, bytes(4 * 1000)
    sent = [
        await worker.put(job, "output.zip", data, offset=offset, part=data[offset : offset + 1000])
        for offset in range(0, 4000, 1000)
    ]
    frames = [await worker.next(Type.OBJECT_ACK) for _ in sent]
    assert [frame.corr_id for frame in frames] == sent
    acks = [ObjectAck.read(frame.payload) for frame in frames]
    assert [(each.received, each.done) for each in acks] == [(1000, False), (2000, False), (3000, False), (4000, True)]


async def test_an_empty_object_is_one_part(scene: Scene) -> None:
    """GRID-144"""
    assert (await scene.worker.stored(scene.job, "stdout.txt", b"")).endswith("/stdout.txt")


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"offset": 999}, "BAD_OBJECT"),
        ({"offset": 1001}, "BAD_OBJECT"),
        ({"size": 5000}, "BAD_OBJECT"),
        ({"token": "another"}, "BAD_OBJECT"),
        ({"token": None}, "BAD_OBJECT"),
        ({"sha256": "0" * 64, "part": bytes(3000)}, "BAD_OBJECT"),
        ({"part": bytes(3001)}, "BAD_OBJECT"),
        ({"last": True}, "BAD_SCHEMA"),
        ({"offset": -1}, "BAD_SCHEMA"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_a_part_that_does_not_follow_drops_the_upload_and_it_starts_again(
    scene: Scene, wrong: dict[str, Any], code: str
) -> None:
    """GRID-144, GRID-196"""
    worker, job, data = scene.worker, scene.job, bytes(4000)
    await worker.put(job, "output.zip", data, part=data[:1000])
    await worker.next(Type.OBJECT_ACK)
    msg_id = await worker.put(job, "output.zip", data, **{"offset": 1000, "part": data[1000:2000], **wrong})
    frame, error = await worker.error(code)
    assert (frame.corr_id, error.job_id) == (msg_id, job.job_id)
    if code == "BAD_OBJECT":
        await worker.put(job, "output.zip", data, offset=1000, part=data[1000:2000])
        await worker.error("BAD_OBJECT")  # it was dropped
    await worker.stored(job, "output.zip", data)


@pytest.mark.parametrize("payload", [b"", b"\x05", struct.pack("<H", 500) + b"{}"])
async def test_a_part_whose_meta_passes_its_end_is_refused(scene: Scene, payload: bytes) -> None:
    """GRID-196"""
    await scene.worker.send(Type.OBJECT_PUT, payload)
    await scene.worker.error("BAD_OBJECT")
    await scene.worker.stored(scene.job, "output.zip", b"data")


@pytest.mark.parametrize(
    ("name", "size"), [("evil.sh", 4), ("../output.zip", 4), ("output.zip", 2**40), ("stdout.txt", 2**30)]
)
async def test_only_outputs_of_a_possible_size_are_taken(scene: Scene, name: str, size: int) -> None:
    """GRID-144"""
    await scene.worker.put(scene.job, name, b"data", size=size, last=False, sha256=None)
    await scene.worker.error("BAD_OBJECT")


async def test_an_upload_of_an_attempt_that_no_longer_counts_is_settled_at_once(door: OpenDoor, scene: Scene) -> None:
    """GRID-27, GRID-144: the worker need not send a gigabyte to hear that it is stale."""
    worker, job = scene.worker, scene.job
    assert await worker.settled(job) == "recorded"
    await worker.put(job, "output.zip", b"late")
    settled = Settled.read((await worker.next(Type.SETTLED)).payload)
    assert (settled.job_id, settled.outcome) == (job.job_id, "stale")
    await worker.error("BAD_OBJECT")
    stranger = AssignJob(**{**vars(job), "job_id": a_job_id()})
    await worker.put(stranger, "output.zip", b"x")
    await worker.next(Type.SETTLED)
    await worker.error("BAD_OBJECT")
    assert (await door.run(job.run_id)).program.artifacts == ()


@pytest.mark.parametrize("changes", [{"sha256": "0" * 64}, {"size": 5}])
async def test_a_report_that_names_what_is_not_there_is_refused_and_may_come_again(
    door: OpenDoor, scene: Scene, changes: dict[str, Any]
) -> None:
    """GRID-144"""
    worker, job = scene.worker, scene.job
    await worker.ack(job, output_ref=reference("never/sent", b"data"))
    _, error = await worker.error("BAD_OBJECT")
    assert error.job_id == job.job_id
    stored = await worker.stored(job, "output.zip", b"data")
    await worker.ack(job, output_ref=reference(stored, b"data", **changes))
    await worker.error("BAD_OBJECT")
    assert (await door.run(job.run_id)).status is RunState.RUNNING
    assert await worker.settled(job, output_ref=reference(stored, b"data")) == "recorded"


async def test_what_was_uploaded_at_one_door_counts_at_another(door: OpenDoor, scene: Scene) -> None:
    """GRID-40: a door knows nothing that the store does not know."""
    worker, job = scene.worker, scene.job
    stored = await worker.stored(job, "output.zip", b"data")
    await worker.close()
    async with open_second_door(door) as second, await WorkerPeer.connect(second) as moved:
        await moved.hello(worker.worker_id, patterns=["job.assign.none"])
        assert await moved.settled(job, output_ref=reference(stored, b"data")) == "recorded"
    assert (await scene.client.result()).output_archive == b"data"


async def test_outputs_cut_to_fit_are_whole_when_they_were_sent_before(door: OpenDoor, scene: Scene) -> None:
    """GRID-143, GRID-144"""
    worker, job = scene.worker, scene.job
    whole = b"o" * 900_000
    await worker.stored(job, "stdout.txt", whole)
    cut = whole[-64 * 1024 :].decode()
    assert await worker.settled(job, stdout=cut, stdout_truncated=True) == "recorded"
    assert [each.name for each in (await door.run(job.run_id)).program.artifacts] == ["stdout.txt"]
    assert (await scene.client.result()).stdout == whole.decode()


async def test_a_silent_upload_is_dropped(door: OpenDoor, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """GRID-144"""
    worker, job, data = scene.worker, scene.job, bytes(2000)
    await worker.put(job, "output.zip", data, part=data[:1000])
    await worker.next(Type.OBJECT_ACK)
    monkeypatch.setattr(receiving, "SILENCE_SECONDS", 0.0)
    peer = door.door.context.workers[worker.worker_id]
    await eventually(lambda: not peer._receiving._begun)
    await worker.put(job, "output.zip", data, offset=1000, part=data[1000:])
    await worker.error("BAD_OBJECT")


async def test_a_disk_that_is_slow_is_not_a_worker_that_is_silent(
    door: OpenDoor, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-144: nothing is taken away from under a part that is being written."""
    worker, job, data = scene.worker, scene.job, bytes(2000)
    usual, begun, go = IncomingUpload._write, threading.Event(), threading.Event()

    def slow(self: IncomingUpload, part: bytes) -> None:
        begun.set()
        go.wait(60)
        usual(self, part)

    monkeypatch.setattr(IncomingUpload, "_write", slow)
    monkeypatch.setattr(receiving, "SILENCE_SECONDS", -1.0)
    await worker.put(job, "output.zip", data, part=data[:1000])
    await asyncio.to_thread(begun.wait, 60)
    uploads = door.door.context.workers[worker.worker_id]._receiving
    uploads.drop_silent()
    assert uploads._begun
    go.set()
    await worker.next(Type.OBJECT_ACK)


async def test_a_part_is_a_sign_of_life(door: OpenDoor, scene: Scene) -> None:
    """GRID-78"""
    in_flight = door.door.context.in_flight
    held = in_flight._held[scene.job.run_id]
    before = held.seen_at
    await scene.worker.put(scene.job, "output.zip", bytes(2000), part=bytes(1000))
    await scene.worker.next(Type.OBJECT_ACK)
    assert held.seen_at > before
