"""The table of malformed input (section 26.1), row by row, at processes that run. Each function provokes one row and
fails unless the answer, and what becomes of the connection, are as they are written there."""

from __future__ import annotations

import asyncio
import json
import struct
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pyoco_server.core.frames.codec import Frame, Type
from pyoco_server.core.frames.messages import AssignJob
from pyoco_server.core.programs.job import InlineInputs
from pyoco_server.core.programs.names import run_id_of
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.states import RunState
from pyoco_server.grid_client import GridClient, JobRequest
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.link import open_link
from support.doors_support import FORM, disposition, form
from support.grid.fake_door import FakeDoor, Talk, fake_door
from support.grid.peers import ClientPeer, Peer, WorkerPeer, a_job_id
from support.grid.scripted_door import an_assignment
from support.grid.scripted_door import open_door as scripted_door
from support.grid.stores import a_job, client_queue_of
from support.proofs.stage import GROUP, Scene
from support.waiting import eventually

__all__ = ["ROWS", "Row"]

_REFUSED = ("BAD_JOB_ID", "BAD_EXEC_NAME", "BAD_FILE_NAME", "BAD_SUBJECT", "CLIENT_ID_MISMATCH")


@dataclass(frozen=True)
class Row:
    name: str
    provoke: Callable[[Scene], Awaitable[None]]


async def _said(grid: Scene, data: bytes, code: str) -> None:
    """An Error, and the end."""
    async with await Peer.connect(grid.doors[0].port) as peer:
        await peer.raw(data)
        await peer.error(code)
        assert await peer.ended() == []


async def _client(grid: Scene) -> ClientPeer:
    client = await ClientPeer.connect(grid.doors[0].port)
    await client.hello("malformed")
    return client


async def _worker(grid: Scene, exec_name: str = "nothing") -> WorkerPeer:
    worker = await WorkerPeer.connect(grid.doors[0].port)
    await worker.hello(patterns=[f"job.assign.{exec_name}"], credit=1)
    return worker


async def _refused(peer: Peer, kind: int, payload: bytes, code: str, subject: str = "") -> None:
    """An Error, and the connection stays: the heartbeat is accepted without an answer."""
    msg_id = await peer.send(kind, payload, subject=subject)
    frame = await peer.next_of(Type.ERROR)
    assert frame.corr_id == msg_id
    assert json.loads(frame.payload)["Code"] == code, frame.payload
    await peer.send(Type.HEARTBEAT)


def _ended(grid: Scene) -> list[str]:
    return [line["reason"] for line in grid.doors[0].log if line["message"] == "a connection ended"]


async def _ends(grid: Scene, data: bytes, reason: str, *, leaves: bool = False) -> None:
    """No word; the reason is in the log."""
    before = _ended(grid).count(reason)
    peer = await Peer.connect(grid.doors[0].port)
    if data:
        await peer.raw(data)
    if not leaves:
        assert await peer.ended(60) == []
    await peer.close()
    await eventually(lambda: _ended(grid).count(reason) > before)


# TCP, and before a Hello.


async def _too_short(grid: Scene) -> None:
    await _said(grid, (38).to_bytes(4, "little"), "BAD_FRAME")


async def _too_long(grid: Scene) -> None:
    for data in ((4_194_305).to_bytes(4, "little"), b"GET / HTTP/1.1\r\n", bytes.fromhex("160301020001")):
        await _said(grid, data, "FRAME_TOO_LARGE")


async def _lengths(grid: Scene) -> None:
    await _said(grid, struct.pack("<IB16s16sHI", 39, 0x0C, bytes(16), bytes(16), 1, 0), "BAD_FRAME")


async def _subject(grid: Scene) -> None:
    async with await _client(grid) as client:
        for subject in (b"\xc3\x28", b"a" * 256, b"job.\x07"):
            head = struct.pack("<IB16s16sH", 39 + len(subject), 3, uuid.uuid4().bytes, bytes(16), len(subject))
            await client.raw(head + subject + bytes(4))
            await client.error("BAD_SUBJECT")
        await client.accepted(exec_name="parked")


async def _cut(grid: Scene) -> None:
    await _ends(grid, bytes.fromhex("27000000") + b"\x0c" * 10, "eof_in_frame", leaves=True)


async def _half(grid: Scene) -> None:
    await _ends(grid, bytes.fromhex("27000000") + b"\x0c" * 10, "frame_timeout")


async def _nothing(grid: Scene) -> None:
    await _ends(grid, b"", "hello_timeout")


async def _unknown(grid: Scene) -> None:
    async with await _client(grid) as client:
        for kind in (0x00, 0x13, 0xFF):
            await _refused(client, kind, b"", "UNKNOWN_TYPE")


async def _no_hello(grid: Scene) -> None:
    for kind in (Type.CREDIT, Type.SUBMIT_JOB, Type.RESULT):
        async with await Peer.connect(grid.doors[0].port) as peer:
            await peer.send(kind, b"\1\0\0\0")
            await peer.error("BAD_STATE")
            assert await peer.ended() == []


async def _bad_hello(grid: Scene) -> None:
    bad = [b"{", b'{"ClientId":"a.b"}', b'{"ClientId":"a","DesiredParallelism":0}', b'{"ClientId":"a","Token":1}']
    frames = [(Type.HELLO_CLIENT, each) for each in bad]
    frames += [(Type.HELLO_WORKER, b'{"WorkerId":"w","Pattern":"job.>.x"}')]
    for kind, payload in frames:
        async with await Peer.connect(grid.doors[0].port) as peer:
            await peer.send(kind, payload)
            await peer.error("BAD_HELLO")
            assert await peer.ended() == []


# Clients and workers.


async def _other_role(grid: Scene) -> None:
    async with await _client(grid) as client, await _worker(grid) as worker:
        await _refused(client, Type.CREDIT, b"\1\0\0\0", "BAD_STATE")
        await _refused(worker, Type.SUBMIT_JOB, b"{}", "BAD_STATE")


async def _json(grid: Scene) -> None:
    bad = [b"\xff", b"{", b"[]", b'{"a":NaN}', b'{"a":1,"a":2}', b'{"a":' + b"[" * 40 + b"]" * 40 + b"}"]
    async with await _client(grid) as client:
        for payload in bad:
            await _refused(client, Type.CANCEL_JOB, payload, "BAD_JSON")


def _job(client: ClientPeer, **changes: object) -> bytes:
    good = {"JobId": a_job_id(), "ClientId": client.client_id, "ExecName": "parked", "Args": [], "Files": {}}
    return json.dumps({**good, **changes}).encode()


async def _schema(grid: Scene) -> None:
    async with await _client(grid) as client:
        wrong: list[dict[str, object]] = [{"Args": 1}, {"Files": {"a": "%"}}, {"TimeoutSec": 0}, {"TimeoutSec": True}]
        for changes in wrong:
            await _refused(client, Type.SUBMIT_JOB, _job(client, **changes), "BAD_SCHEMA", "job.submit.parked")


async def _names(grid: Scene) -> None:
    changes: list[dict[str, object]] = [
        {"JobId": "x"},
        {"ExecName": "a.b"},
        {"Files": {"../x": ""}},
        {"ExecName": "b"},
        {"ClientId": "b"},
    ]
    async with await _client(grid) as client:
        for change, code in zip(changes, _REFUSED, strict=True):
            await _refused(client, Type.SUBMIT_JOB, _job(client, **change), code, "job.submit.parked")


async def _conflict(grid: Scene) -> None:
    async with await _client(grid) as client:
        ack = await client.accepted(exec_name="parked")
        payload = _job(client, JobId=ack.job_id, Args=["other"])
        await _refused(client, Type.SUBMIT_JOB, payload, "JOB_ID_CONFLICT", "job.submit.parked")


async def _credit(grid: Scene) -> None:
    async with await _worker(grid) as worker:
        for payload in (b"", b"\1", bytes(4), b"\xff" * 4, b"\x11\x27\0\0"):
            await _refused(worker, Type.CREDIT, payload, "BAD_CREDIT")


def _nobodys() -> AssignJob:
    return an_assignment("x", job_id=a_job_id())


async def _stale(grid: Scene) -> None:
    async with await _worker(grid) as worker:
        assert await worker.settled(_nobodys()) == "stale"


async def _bad_report(grid: Scene) -> None:
    exec_name = f"x{uuid.uuid4().hex[:8]}"
    async with await _client(grid) as client, await _worker(grid, exec_name) as worker:
        await client.accepted(exec_name=exec_name)
        job = await worker.assigned()
        for changes in ({"Status": "DONE"}, {"OutputArchive": "%"}):
            report = json.loads(worker.report(job).to_payload()) | changes
            await _refused(worker, Type.ACK_JOB, json.dumps(report).encode(), "BAD_SCHEMA")
        assert await worker.settled(job) == "recorded"  # it continued
        assert (await client.result()).status is RunState.COMPLETED


async def _stolen_report(grid: Scene) -> None:
    exec_name = f"x{uuid.uuid4().hex[:8]}"
    async with (
        await _client(grid) as client,
        await _worker(grid, exec_name) as worker,
        await _worker(grid) as thief,
    ):
        await client.accepted(exec_name=exec_name)
        job = await worker.assigned()
        assert await thief.settled(AssignJob(**{**vars(job), "token": a_job_id()})) == "stale"
        await eventually(lambda: any(line.get("security") for line in grid.doors[0].log))
        assert await worker.settled(job) == "recorded"


async def _heartbeat(grid: Scene) -> None:
    async with await _worker(grid) as worker:
        await _refused(worker, Type.HEARTBEAT, b"{", "BAD_JSON")


async def _part(grid: Scene) -> None:
    exec_name = f"x{uuid.uuid4().hex[:8]}"
    async with await _client(grid) as client, await _worker(grid, exec_name) as worker:
        await client.accepted(exec_name=exec_name)
        job, data = await worker.assigned(), bytes(4000)
        await worker.put(job, "output.zip", data, part=data[:1000])
        await worker.next(Type.OBJECT_ACK)
        await worker.put(job, "output.zip", data, offset=999, part=data[:1000])
        await worker.error("BAD_OBJECT")
        await worker.put(job, "output.zip", data, offset=1000, part=data[:1000])  # it was dropped
        await worker.error("BAD_OBJECT")
        await worker.put(job, "output.zip", data, token="another")
        await worker.next(Type.SETTLED)  # stale: it may forget it
        await worker.error("BAD_OBJECT")
        await worker.put(job, "output.zip", data, sha256="0" * 64)
        await worker.error("BAD_OBJECT")
        await _refused(worker, Type.OBJECT_PUT, b"\xff\xff{}", "BAD_OBJECT")
        await worker.stored(job, "output.zip", data)
        assert await worker.settled(job) == "recorded"


async def _tenth(grid: Scene) -> None:
    before = _ended(grid).count("too_many_errors")
    async with await _client(grid) as client:
        for _ in range(10):
            await client.send(0x55)
        assert [frame.type for frame in await client.ended()] == [Type.ERROR] * 10
    await eventually(lambda: _ended(grid).count("too_many_errors") > before)


# What doors, queues and stores may hold against us.


async def _bad_door(grid: Scene) -> None:
    """A client, and a worker's process: the connection is closed, and made again."""
    lies: list[Frame] = []

    async def lie_once(talk: Talk, frame: Frame) -> None:
        door: FakeDoor = talk.door
        lies.append(frame)
        await (door.accept(talk, frame) if len(lies) > 1 else talk.wire.send(Frame(Type.RESULT, b"[", uuid.uuid4())))

    async with fake_door() as door:
        door.on_submit = lie_once
        async with GridClient("127.0.0.1", door.port, "anna") as client:
            assert (await client.run(JobRequest(exec_name="calcA"))).status is RunState.COMPLETED
            assert client.stats().groups[0].reconnects == 1


async def _bad_assignment(grid: Scene) -> None:
    async with scripted_door() as door:
        arriving = asyncio.create_task(door.welcomed())
        root = grid.folder / "jobs-malformed"
        root.mkdir(mode=0o700)
        env = {"WORK_ROOT": str(root), "WORKER_EXEC_ALLOW": "calcA"}
        process = grid.processes.start("worker", "127.0.0.1", door.port, "--id", "wary", waits=False, env=env)
        visitor = await arriving
        visitor.settles_all = True
        for job, code in (
            (an_assignment(files={"../x": b""}), ErrorCode.BAD_FILE_NAME),
            (an_assignment("sleepn"), ErrorCode.EXEC_NOT_ALLOWED),
        ):
            visitor.assign(job)
            result = await visitor.result(job)
            assert (result.status, result.error_code) == (RunState.FAILED, code)
        # And bytes that are not a frame: it disconnects and reconnects.
        visitor.writer.write(bytes(4))
        await visitor.gone()
        await door.welcomed(1)
        assert process.is_alive
        await asyncio.to_thread(process.stop)


async def _bad_message(grid: Scene) -> None:
    async with grid.programs() as programs:
        job_id = a_job_id()
        inputs = InlineInputs({"../x": ""})
        job = a_job(GROUP, "calcA", "anna", job_id=job_id, run_id=run_id_of(job_id, GROUP), inputs=inputs)
        await programs.queue.add_client_queue(client_queue_of(job))
        await programs.queue.put(job)

        async def is_buried() -> bool:
            return any(
                letter["reason"] == "invalid_job" and letter["run_id"] == job.run_id for letter in await grid.letters()
            )

        await eventually(is_buried, 60)
        assert not await programs.queue.has(job)


async def _bad_record(grid: Scene) -> None:
    """It is counted, the claim waits, and the record is not overwritten."""
    job_id = a_job_id()
    run_id = run_id_of(job_id, GROUP)
    link = await open_link(grid.processes.config.nats_url, "proof")
    bucket = Bucket(link, grid.processes.config.runs_kv_bucket)
    written = await bucket.write(run_id, b"this is no record", 0)
    assert written is not None
    async with grid.programs() as programs, grid.http() as http:
        job = a_job(GROUP, "calcA", "anna", job_id=job_id, run_id=run_id)
        await programs.queue.add_client_queue(client_queue_of(job))
        await programs.queue.put(job)

        async def is_seen() -> bool:
            return "\npyoco_exec_corrupt_records 1.0\n" in (await http.get("/metrics")).text

        await eventually(is_seen, 60)
        assert await programs.queue.has(job)
        found = await bucket.get(run_id)
        assert found is not None
        assert found.revision == written.revision
        # Only a person may remove it; then the job is claimed, and made again from its message.
        assert await bucket.delete(run_id, written.revision)
        await eventually(lambda: _is_gone(grid, job_id), 60)
    await link.close()


async def _is_gone(grid: Scene, job_id: str) -> bool:
    async with grid.http() as http:
        answer = await http.get(f"/runs/{run_id_of(job_id, GROUP)}")
        return answer.status_code == 200 and answer.json()["status"] == "COMPLETED"


async def _bad_form(grid: Scene) -> None:
    bodies = [b"no form at all", form((disposition("arg"), b"1")), form((disposition("exec_name"), b"a.b"))]
    async with grid.http() as http:
        for body in bodies:
            assert (await http.post("/jobs", content=body, headers=FORM)).status_code == 422


async def _large_form(grid: Scene) -> None:
    async with grid.http() as http:
        head = form((disposition("exec_name"), b"calcA"), (disposition("file", "big"), b""), end=b"")[:-2]
        body = head + bytes(grid.grid_config.exec_http_max_bytes + 1_000_000)
        assert (await http.post("/jobs", content=body, headers=FORM)).status_code == 413


async def _unknown_paths(grid: Scene) -> None:
    nobody = a_job_id()
    async with grid.http() as http:
        for path in (f"/runs/{nobody}", f"/runs/{nobody}/artifacts", "/dlq/4000000000"):
            assert (await http.get(path)).status_code == 404, path


async def _no_program(grid: Scene) -> None:
    async with grid.client("anna") as client:
        result = await client.run(grid.job(exec_name="missing"))
        assert (result.status, result.error_code) == (RunState.FAILED, ErrorCode.EXEC_NOT_FOUND)


ROWS = [
    Row("len below 39", _too_short),
    Row("len above the limit", _too_long),
    Row("inner lengths do not add up", _lengths),
    Row("a subject that is none", _subject),
    Row("the end in the middle of a frame", _cut),
    Row("half a frame, then silence", _half),
    Row("nothing at all", _nothing),
    Row("an unknown type", _unknown),
    Row("not a Hello", _no_hello),
    Row("a bad Hello", _bad_hello),
    Row("a frame of the other role", _other_role),
    Row("no JSON", _json),
    Row("a wrong field", _schema),
    Row("a wrong name", _names),
    Row("another content under one JobId", _conflict),
    Row("a bad credit", _credit),
    Row("a report of nobody's job", _stale),
    Row("a bad report", _bad_report),
    Row("a report of another worker's job", _stolen_report),
    Row("a bad heartbeat", _heartbeat),
    Row("a part that does not follow", _part),
    Row("a tenth error", _tenth),
    Row("a bad frame from a door", _bad_door),
    Row("a bad assignment", _bad_assignment),
    Row("a bad queue message", _bad_message),
    Row("a record that is no JSON", _bad_record),
    Row("a bad form", _bad_form),
    Row("a form above the limit", _large_form),
    Row("a path of nothing", _unknown_paths),
    Row("a program that is not there", _no_program),
]
