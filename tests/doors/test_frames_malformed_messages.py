"""Malformed jobs, reports, credits and heartbeats that reach a door (section 26.1)."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import random
import struct
import uuid
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pyoco_server.core.frames.codec import Frame, Type, encode
from pyoco_server.core.frames.messages import (
    AssignJob,
    BinaryPart,
    Heartbeat,
    JobRequest,
    ObjectGet,
    RunningJob,
    SubmitAck,
)
from pyoco_server.core.states import RunState
from support.backends import fields_of
from support.grid.patient_doors import closes, door
from support.grid.peers import ClientPeer, OpenDoor, Peer, WorkerPeer, a_job_id
from support.waiting import eventually

__all__ = ["door"]

pytestmark = pytest.mark.asyncio(loop_scope="module")
_NIL_UUID = "00000000-0000-0000-0000-000000000000"


# In CLIENT and WORKER -----------------------------------------------------------------------------------------------


async def _client(door: OpenDoor) -> ClientPeer:
    client = await ClientPeer.connect(door)
    await client.hello()
    return client


async def _worker(door: OpenDoor) -> WorkerPeer:
    """One that gets none of the jobs that other tests leave behind."""
    worker = await WorkerPeer.connect(door)
    await worker.hello(patterns=["job.assign.nothing"])
    return worker


_CLIENT_MAY = {Type.HELLO_CLIENT, Type.SUBMIT_JOB, Type.CANCEL_JOB, Type.OBJECT_GET, Type.HEARTBEAT}
_WORKER_MAY = {Type.CREDIT, Type.ACK_JOB, Type.OBJECT_PUT, Type.OBJECT_GET, Type.HEARTBEAT}
_OF_A_CAPABILITY = {Type.LOG_CHUNK, Type.LOG_CREDIT}


@pytest.mark.parametrize(
    ("connect", "kind"),
    [
        *((_client, kind) for kind in Type if kind not in _CLIENT_MAY),
        *((_worker, kind) for kind in Type if kind not in _WORKER_MAY),
    ],
)
async def test_a_frame_of_the_other_role_is_refused_and_the_connection_stays(
    door: OpenDoor, connect: Callable[[OpenDoor], Awaitable[Peer]], kind: Type
) -> None:
    """Section 8.1, GRID-31, GRID-196, LOG-30: without the capability its types are not known"""
    async with await connect(door) as peer:
        msg_id = await peer.send(kind)
        frame, _ = await peer.error("UNKNOWN_TYPE" if kind in _OF_A_CAPABILITY else "BAD_STATE")
        assert frame.corr_id == msg_id
        await peer.send(Type.HEARTBEAT)
        assert await peer.is_silent(0.05)


_BAD_JSON = [
    b"\xff\xfe",
    b"{",
    b"[]",
    b"4",
    b'{"a":NaN}',
    b'{"a":Infinity}',
    b'{"JobId":1,"JobId":2}',
    b'{"a":' + b"[" * 40 + b"]" * 40 + b"}",
    b'{"a":' * 2000 + b"1" + b"}" * 2000,
]


@pytest.mark.parametrize("payload", _BAD_JSON, ids=lambda payload: repr(payload[:20]))
@pytest.mark.parametrize("kind", [Type.SUBMIT_JOB, Type.CANCEL_JOB, Type.OBJECT_GET])
async def test_what_is_no_json_from_a_client_is_refused(door: OpenDoor, kind: Type, payload: bytes) -> None:
    """GRID-196"""
    async with await _client(door) as client:
        msg_id = await client.send(kind, payload, subject="job.submit.calcA" if kind == Type.SUBMIT_JOB else "")
        frame, _ = await client.error("BAD_JSON")
        assert frame.corr_id == msg_id
        await client.send(Type.HEARTBEAT)
        assert await client.is_silent(0.05)


@pytest.mark.parametrize("payload", _BAD_JSON, ids=lambda payload: repr(payload[:20]))
@pytest.mark.parametrize("kind", [Type.ACK_JOB, Type.HEARTBEAT, Type.OBJECT_PUT])
async def test_what_is_no_json_from_a_worker_is_refused(door: OpenDoor, kind: Type, payload: bytes) -> None:
    """GRID-196"""
    async with await _worker(door) as worker:
        if kind == Type.OBJECT_PUT:
            payload = struct.pack("<H", len(payload)) + payload
        await worker.send(kind, payload)
        await worker.error("BAD_JSON")
        await worker.beat()
        assert await worker.is_silent(0.05)


def _request(client: ClientPeer, **changes: Any) -> dict[str, Any]:
    good = {"JobId": a_job_id(), "ClientId": client.client_id, "ExecName": "calcA", "Args": [], "Files": {}}
    return {name: value for name, value in {**good, **changes}.items() if value != "absent"}


_MANY = {f"f{number}": "" for number in range(65)}


@pytest.mark.parametrize(
    ("changes", "code", "names"),
    [
        ({"JobId": "absent"}, "BAD_SCHEMA", "JobId"),
        ({"JobId": "abc"}, "BAD_JOB_ID", ""),
        ({"ExecName": "absent"}, "BAD_SCHEMA", "ExecName"),
        ({"JobId": _NIL_UUID}, "BAD_JOB_ID", ""),
        ({"JobId": 4}, "BAD_SCHEMA", "JobId"),
        ({"ExecName": "calc.A"}, "BAD_EXEC_NAME", ""),
        ({"ExecName": "-calc"}, "BAD_EXEC_NAME", ""),
        ({"ExecName": "calcB"}, "BAD_SUBJECT", ""),
        ({"ClientId": "somebody-else"}, "CLIENT_ID_MISMATCH", ""),
        ({"ClientId": 1}, "BAD_SCHEMA", "ClientId"),
        ({"Args": "absent"}, "BAD_SCHEMA", "Args"),
        ({"Args": "x"}, "BAD_SCHEMA", "Args"),
        ({"Args": [1]}, "BAD_SCHEMA", "Args"),
        ({"Args": ["x"] * 257}, "BAD_SCHEMA", "Args"),
        ({"Args": ["x" * 20_000]}, "BAD_SCHEMA", "Args"),
        ({"Args": ["a\0b"]}, "BAD_SCHEMA", "Args"),
        ({"Files": []}, "BAD_SCHEMA", "Files"),
        ({"Files": {"a": "%%%"}}, "BAD_SCHEMA", "Files"),
        ({"Files": {"a": "YQ"}}, "BAD_SCHEMA", "Files"),
        ({"Files": {"../x": ""}}, "BAD_FILE_NAME", ""),
        ({"Files": {"a/b": ""}}, "BAD_FILE_NAME", ""),
        ({"Files": {"A": "", "a": ""}}, "BAD_FILE_NAME", ""),
        ({"Files": _MANY}, "BAD_SCHEMA", "Files"),
        ({"TimeoutSec": 0}, "BAD_SCHEMA", "TimeoutSec"),
        ({"TimeoutSec": True}, "BAD_SCHEMA", "TimeoutSec"),
        ({"TimeoutSec": 86_401}, "BAD_SCHEMA", "TimeoutSec"),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_a_job_that_is_wrong_is_refused_and_names_what_is_wrong(
    door: OpenDoor, changes: dict[str, Any], code: str, names: str
) -> None:
    """GRID-1, GRID-96, GRID-196, GRID-197. The text never repeats content (GRID-169)."""
    async with await _client(door) as client:
        msg_id = await client.send_json(Type.SUBMIT_JOB, _request(client, **changes), subject="job.submit.calcA")
        frame, error = await client.error(code)
        assert frame.corr_id == msg_id
        assert not error.retry
        assert names in error.message
        assert "%%%" not in error.message
        assert "../x" not in error.message
        await client.accepted()


@pytest.mark.parametrize(
    ("subject", "code"),
    [
        ("", "BAD_SUBJECT"),
        ("job.assign.calcA", "BAD_SUBJECT"),
        ("job.submit.計算", "BAD_EXEC_NAME"),
        ("job.submit.", "BAD_EXEC_NAME"),
        ("job.submit.a.b", "BAD_SUBJECT"),
    ],
)
async def test_the_subject_of_a_job_names_its_program(door: OpenDoor, subject: str, code: str) -> None:
    """V6 of section 3.3: refused for its subject, whatever its payload is. GRID-196"""
    async with await _client(door) as client:
        await client.send(Type.SUBMIT_JOB, b"{}", subject=subject)
        await client.error(code)
        await client.accepted()


async def test_a_job_id_in_capitals_is_the_same_job(door: OpenDoor) -> None:
    """GRID-1"""
    async with await _client(door) as client:
        job_id = a_job_id()
        await client.send_json(Type.SUBMIT_JOB, _request(client, JobId=job_id.upper()), subject="job.submit.calcA")
        assert SubmitAck.read((await client.next(Type.SUBMIT_ACK)).payload).job_id == job_id


async def test_one_id_with_other_content_is_a_conflict(door: OpenDoor) -> None:
    """GRID-48, GRID-196"""
    async with await _client(door) as client:
        ack = await client.accepted(args=("1",))
        await client.submit(client.request(job_id=ack.job_id, args=("2",)))
        _, error = await client.error("JOB_ID_CONFLICT")
        assert error.job_id == ack.job_id


@pytest.mark.parametrize(
    "payload",
    [b"", b"\x01", b"\x01\x00\x00\x00\x00", bytes(4), b"\xff\xff\xff\xff", b"\x11\x27\x00\x00", b"\xff\xff\xff\x7f"],
)
async def test_a_bad_credit_changes_nothing(door: OpenDoor, payload: bytes) -> None:
    """GRID-25, GRID-67, GRID-196"""
    async with await _worker(door) as worker:
        await worker.credit(2)
        await worker.send(Type.CREDIT, payload)
        await worker.error("BAD_CREDIT")
        peer = door.door.context.workers[worker.worker_id]
        assert door.door.context.worker_credits.credits(peer) == 2


async def _assigned(door: OpenDoor, client: ClientPeer, worker: WorkerPeer) -> AssignJob:
    """A job that this worker holds; no other worker has its program."""
    exec_name = f"x{uuid.uuid4().hex[:8]}"
    await worker.hello(patterns=[f"job.assign.{exec_name}"], credit=1)
    await client.accepted(exec_name=exec_name)
    return await worker.assigned()


@pytest.mark.parametrize(
    "changes",
    [
        {"Status": "DONE"},
        {"Status": "RUNNING"},
        {"OutputArchive": "%%%"},
        {"ExitCode": "0"},
        {"ExitCode": True},
        {"Token": None},
        {"Stdout": 1},
        {"ErrorCode": "NEVER_HEARD", "Status": "FAILED"},
    ],
    ids=str,
)
async def test_a_bad_report_leaves_its_attempt_alone(door: OpenDoor, changes: dict[str, Any]) -> None:
    """GRID-196: BAD_SCHEMA, and the attempt continues."""
    async with await _client(door) as client, await WorkerPeer.connect(door) as worker:
        job = await _assigned(door, client, worker)
        report = json.loads(worker.report(job).to_payload()) | changes
        await worker.send_json(Type.ACK_JOB, report)
        await worker.error("BAD_SCHEMA")
        assert (await door.run(job.run_id)).status is RunState.RUNNING
        assert await worker.settled(job) == "recorded"
        assert (await client.result()).status is RunState.COMPLETED


async def test_a_report_of_a_job_that_nobody_knows_is_stale(door: OpenDoor) -> None:
    """GRID-196"""
    async with await _worker(door) as worker:
        nobody = AssignJob(
            job_id=a_job_id(),
            client_id="c",
            exec_name="calcA",
            timeout_sec=1,
            run_id=a_job_id(),
            attempt=1,
            token=a_job_id(),
        )
        assert await worker.settled(nobody) == "stale"


async def test_a_report_with_a_wrong_token_is_stale_and_of_another_workers_job_a_security_event(
    door: OpenDoor, caplog: pytest.LogCaptureFixture
) -> None:
    """GRID-27, GRID-196"""
    caplog.set_level(logging.INFO)
    async with (
        await _client(door) as client,
        await WorkerPeer.connect(door) as worker,
        await _worker(door) as thief,
    ):
        job = await _assigned(door, client, worker)
        guessed = AssignJob(**{**vars(job), "token": a_job_id()})
        assert await worker.settled(guessed) == "stale"
        assert not [each for each in caplog.records if fields_of(each).get("security")]
        assert await thief.settled(guessed) == "stale"
        events = [fields_of(each) for each in caplog.records if fields_of(each).get("security")]
        assert [(each["worker_id"], each["owner"]) for each in events] == [(thief.worker_id, worker.worker_id)]
        assert (await door.run(job.run_id)).status is RunState.RUNNING
        assert await worker.settled(job) == "recorded"


async def test_a_bad_heartbeat_is_no_sign_of_life(door: OpenDoor) -> None:
    """GRID-196"""
    async with await _client(door) as client, await WorkerPeer.connect(door) as worker:
        job = await _assigned(door, client, worker)
        seen: list[str] = []
        in_flight = door.door.context.in_flight
        real = in_flight.seen
        in_flight.seen = lambda run_id, token: seen.append(run_id) or real(run_id, token)  # type: ignore[func-returns-value,method-assign]
        try:
            bad = {"Running": [{"JobId": job.job_id, "Token": job.token}, {"JobId": 1}], "Cpu": 0.5}
            await worker.send_json(Type.HEARTBEAT, bad)
            await worker.next(Type.ERROR)
            assert seen == []
            await worker.beat(job)
            await eventually(lambda: seen == [job.run_id])
        finally:
            in_flight.seen = real  # type: ignore[method-assign]
        await worker.settled(job)


async def test_the_tenth_error_within_a_minute_is_the_last_one(
    door: OpenDoor, caplog: pytest.LogCaptureFixture
) -> None:
    """GRID-35, GRID-196"""
    caplog.set_level(logging.INFO)
    async with await _client(door) as client:
        for _ in range(9):
            await client.send(0x55)
            await client.error("UNKNOWN_TYPE")
        await client.accepted()
        await client.send(0x55)
        await client.error("UNKNOWN_TYPE")
        assert await client.ended() == []
    await closes(caplog, "too_many_errors")


async def test_what_may_happen_to_anybody_is_no_protocol_error(door: OpenDoor) -> None:
    """GRID-35: a conflict, or a job that is not there, is answered as often as it is asked for."""
    async with await _client(door) as client:
        for _ in range(15):
            await client.cancel(a_job_id())
            await client.error("NOT_FOUND")
        await client.accepted()


async def test_a_byte_at_a_time_gives_the_same_frames(door: OpenDoor) -> None:
    """GRID-16"""
    async with await ClientPeer.connect(door) as client:
        client.client_id = "bytes"
        hello = encode(Frame(Type.HELLO_CLIENT, b'{"ClientId":"bytes"}', uuid.uuid4()))
        for byte in hello:
            await client.raw(bytes([byte]))
        await client.next(Type.HELLO_ACK)
        await client.accepted()


async def test_a_job_in_a_frame_of_the_largest_size_is_taken(door: OpenDoor) -> None:
    """GRID-14, GRID-147"""
    async with await _client(door) as client, await WorkerPeer.connect(door) as worker:
        await worker.hello(patterns=["job.assign.largest"], credit=1)
        request = _request(client, ExecName="largest", Files={"big": ""})
        room = 4_194_304 - 39 - len("job.submit.largest") - len(json.dumps(request))
        data = bytes(room // 4 * 3)
        request["Files"]["big"] = base64.b64encode(data).decode()
        await client.send_json(Type.SUBMIT_JOB, request, subject="job.submit.largest")
        await client.next(Type.SUBMIT_ACK)
        job = await worker.assigned()
        assert job.files == {}
        assert [(each.name, each.size) for each in job.input_refs] == [("big", len(data))]
        await worker.settled(job)


def _mutated(chance: random.Random, good: list[bytes]) -> bytes:
    """Some frames as they might be, in any order, with a byte or a piece changed now and then."""
    data = bytearray(b"".join(chance.choice(good) for _ in range(chance.randrange(1, 6))))
    for _ in range(chance.choice([0, 0, 1, 1, 5])):
        place = chance.randrange(len(data))
        data[place : place + chance.choice([0, 1, 4])] = chance.randbytes(chance.choice([1, 1, 4]))
    return bytes(data[: chance.randrange(len(data) // 2, len(data) + 1)])


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_comes_no_defect_of_ours_is_met(
    door: OpenDoor, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """GRID-195: random frames in every state, 40 connections each."""
    chance = random.Random(seed)
    caplog.set_level(logging.ERROR)
    job = AssignJob(
        job_id=a_job_id(), client_id="c", exec_name="x", timeout_sec=1, run_id=a_job_id(), attempt=1, token="t"
    )
    report = WorkerPeer.report(SimpleNamespace(worker_id="w"), job).to_payload()  # type: ignore[arg-type]
    payloads = [
        b"",
        b"{}",
        b"\x01\x00\x00\x00",
        b'{"ClientId":"fuzz"}',
        b'{"WorkerId":"fuzz","Pattern":"job.assign.fuzz"}',
        JobRequest(job_id=job.job_id, client_id="fuzz", exec_name="fuzz", files={"a": b"x"}).to_payload(),
        report,
        Heartbeat((RunningJob(job.job_id, "t"),), 0.5).to_payload(),
        ObjectGet(job_id=job.job_id, name="output.zip").to_payload(),
        BinaryPart(
            job_id=job.job_id, token="t", name="output.zip", offset=0, size=4, last=False, data=b"x"
        ).to_payload(),
    ]
    good = [
        encode(Frame(kind, payload, uuid.UUID(int=chance.getrandbits(128)), subject=subject))
        for kind in Type
        for payload in payloads
        for subject in ("", "job.submit.fuzz")
    ]
    hellos = [
        encode(Frame(Type.HELLO_CLIENT, payloads[3], uuid.uuid4())),
        encode(Frame(Type.HELLO_WORKER, payloads[4], uuid.uuid4())),
        b"",
    ]
    for _ in range(40):
        peer = await Peer.connect(door)
        with contextlib.suppress(ConnectionError):
            await peer.raw(chance.choice(hellos) + _mutated(chance, good))
        if chance.random() < 0.3:
            peer.abort()
        else:
            await peer.close()
    await eventually(lambda: not door.door.sessions)
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []


async def test_the_door_still_serves(door: OpenDoor) -> None:
    """GRID-195: after everything above."""
    async with await _client(door) as client, await WorkerPeer.connect(door) as worker:
        job = await _assigned(door, client, worker)
        assert await worker.settled(job) == "recorded"
        assert (await client.result()).job_id == job.job_id
    await eventually(lambda: not door.door.sessions)
    assert door.door.context.in_work.in_use == door.door.context.reports_in_work.in_use == 0
    assert len(door.door.context.end_waiters) == 0
    await eventually(lambda: door.server.connections == 0)
