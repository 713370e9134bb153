"""Every row of the table of malformed input (section 26.1) that reaches a door, on real sockets.

One door for all of them: that it still serves at the end is part of what is tested.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import random
import struct
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

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
from support.grid.peers import ClientPeer, OpenDoor, Peer, WorkerPeer, a_job_id, grid_config, open_door
from support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

_NIL_UUID = "00000000-0000-0000-0000-000000000000"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(module_nats_url: str) -> AsyncIterator[OpenDoor]:
    """With long timers: a busy machine may be late with a frame."""
    grid = grid_config(exec_hello_sec=120.0, exec_frame_sec=120.0, exec_idle_sec=120.0, exec_max_conns_per_ip=500)
    async with open_door(module_nats_url, grid) as opened:
        yield opened


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [fields_of(each)["reason"] for each in caplog.records if each.getMessage() == "a connection ended"]


async def closes(caplog: pytest.LogCaptureFixture, reason: str) -> None:
    await eventually(lambda: reason in reasons(caplog))


# TCP ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "code", "reason"),
    [
        pytest.param(bytes.fromhex("00000000"), "BAD_FRAME", "bad_frame", id="B2: len 0"),
        pytest.param(bytes.fromhex("26000000"), "BAD_FRAME", "bad_frame", id="B3: len 38"),
        pytest.param(bytes.fromhex("01004000"), "FRAME_TOO_LARGE", "frame_too_large", id="B1: one over"),
        pytest.param(bytes.fromhex("ffffffff"), "FRAME_TOO_LARGE", "frame_too_large", id="B4"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "FRAME_TOO_LARGE", "frame_too_large", id="B9: HTTP"),
        pytest.param(bytes.fromhex("160301020001"), "FRAME_TOO_LARGE", "frame_too_large", id="B10: TLS"),
        pytest.param(
            bytes.fromhex(
                "2b0000000600112233445566778899aabbccddeeff0000000000000000000000000000000000000500000004000000"
            ),
            "BAD_FRAME",
            "bad_frame",
            id="B6: inner lengths",
        ),
        pytest.param(
            bytes.fromhex("270000000c00112233445566778899aabbccddeeff00000000000000000000000000000000010000000000"),
            "BAD_FRAME",
            "bad_frame",
            id="B5: subject past the end",
        ),
    ],
)
async def test_bytes_that_are_no_frame_get_an_error_and_the_end(
    door: OpenDoor, caplog: pytest.LogCaptureFixture, data: bytes, code: str, reason: str
) -> None:
    """GRID-17, GRID-18, GRID-196"""
    caplog.set_level(logging.INFO)
    async with await Peer.connect(door) as peer:
        await peer.raw(data)
        frame, _ = await peer.error(code)
        assert frame.corr_id.int == 0
        assert await peer.ended() == []
    await closes(caplog, reason)


@pytest.mark.parametrize("subject", [b"\xc3\x28", b"a" * 256, b"job.\x07", b"a b", b"job.\xc2\x85"])
async def test_a_subject_that_is_none_is_refused_and_the_connection_stays(door: OpenDoor, subject: bytes) -> None:
    """GRID-19, GRID-196"""
    async with await ClientPeer.connect(door) as client:
        await client.hello()
        msg_id = uuid.uuid4()
        head = struct.pack("<IB16s16sH", 39 + len(subject), Type.SUBMIT_JOB, msg_id.bytes, bytes(16), len(subject))
        await client.raw(head + subject + bytes(4))
        frame, _ = await client.error("BAD_SUBJECT")
        assert frame.corr_id == msg_id
        await client.accepted()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(bytes.fromhex("27000000") + b"\x0c" * 10, "eof_in_frame", id="end in the middle"),
        pytest.param(b"\x27", "eof_in_frame", id="end in the length"),
        pytest.param(b"", "peer_closed", id="nothing, then the end"),
    ],
)
async def test_the_end_of_a_stream_is_logged_for_what_it_was(
    door: OpenDoor, caplog: pytest.LogCaptureFixture, data: bytes, reason: str
) -> None:
    """GRID-38, GRID-196"""
    caplog.set_level(logging.INFO)
    peer = await Peer.connect(door)
    await peer.raw(data)
    await peer.close()
    await closes(caplog, reason)


@pytest.mark.parametrize(
    ("data", "timer", "reason"),
    [
        pytest.param(b"", "exec_hello_sec", "hello_timeout", id="nothing at all"),
        pytest.param(bytes.fromhex("27000000") + b"\x0c" * 10, "exec_frame_sec", "frame_timeout", id="half a frame"),
    ],
)
async def test_a_peer_that_stalls_is_closed_without_a_word(
    nats_url: str, caplog: pytest.LogCaptureFixture, data: bytes, timer: str, reason: str
) -> None:
    """GRID-33, GRID-34, GRID-196: with one timer that is short; those of the contract take a minute"""
    caplog.set_level(logging.INFO)
    timers = {"exec_hello_sec": 120.0, "exec_frame_sec": 120.0, "exec_idle_sec": 120.0, timer: 0.6}
    async with open_door(nats_url, grid_config(**timers)) as door, await Peer.connect(door) as peer:
        await peer.raw(data)
        assert await peer.ended() == []
        await closes(caplog, reason)
    line = next(each for each in caplog.records if fields_of(each).get("reason") == reason)
    assert {"peer", "role", "id", "bytes_read", "frames_read"} <= fields_of(line).keys()


@pytest.mark.parametrize("kind", [0x00, 0x13, 0x7F, 0xFF])
async def test_a_type_that_nobody_knows_is_refused_and_the_connection_stays(door: OpenDoor, kind: int) -> None:
    """GRID-23, GRID-196"""
    async with await WorkerPeer.connect(door) as worker:
        await worker.hello()
        msg_id = await worker.send(kind)
        frame, _ = await worker.error("UNKNOWN_TYPE")
        assert frame.corr_id == msg_id
        await worker.beat()
        assert await worker.is_silent(0.05)


# Hello --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [each for each in Type if each not in (Type.HELLO_CLIENT, Type.HELLO_WORKER)])
async def test_the_first_frame_is_a_hello(door: OpenDoor, caplog: pytest.LogCaptureFixture, kind: Type) -> None:
    """GRID-31, GRID-196"""
    caplog.set_level(logging.INFO)
    async with await Peer.connect(door) as peer:
        msg_id = await peer.send(kind, b"\x01\x00\x00\x00")
        frame, _ = await peer.error("BAD_STATE")
        assert frame.corr_id == msg_id
        assert await peer.ended() == []
    await closes(caplog, "bad_state")


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (Type.HELLO_CLIENT, b""),
        (Type.HELLO_CLIENT, b"\xff"),
        (Type.HELLO_CLIENT, b"[]"),
        (Type.HELLO_CLIENT, b"{}"),
        (Type.HELLO_CLIENT, b'{"ClientId":"a.b"}'),
        (Type.HELLO_CLIENT, b'{"ClientId":"a","ClientId":"b"}'),
        (Type.HELLO_CLIENT, b'{"ClientId":"a","DesiredParallelism":0}'),
        (Type.HELLO_CLIENT, b'{"ClientId":"a","DesiredParallelism":true}'),
        (Type.HELLO_CLIENT, b'{"ClientId":"a","DesiredParallelism":4.0}'),
        (Type.HELLO_CLIENT, b'{"ClientId":"a","DesiredParallelism":"4"}'),
        (Type.HELLO_WORKER, b'{"WorkerId":"w","Pattern":""}'),
        (Type.HELLO_WORKER, b'{"WorkerId":"w","Pattern":"a..b"}'),
        (Type.HELLO_WORKER, b'{"WorkerId":"w","Pattern":"job.>.x"}'),
        (Type.HELLO_WORKER, b'{"WorkerId":"w","Pattern":"job.assign.calc*"}'),
        (Type.HELLO_WORKER, b'{"WorkerId":"w","Pattern":[]}'),
        (Type.HELLO_WORKER, b'{"WorkerId":"w w","Pattern":"a"}'),
        (Type.HELLO_WORKER, b'{"WorkerId":"w","Pattern":"a","MaxParallel":0}'),
    ],
)
async def test_a_hello_that_is_wrong_is_the_last_frame(
    door: OpenDoor, caplog: pytest.LogCaptureFixture, kind: Type, payload: bytes
) -> None:
    """GRID-30, GRID-196, GRID-197"""
    caplog.set_level(logging.INFO)
    async with await Peer.connect(door) as peer:
        await peer.send(kind, payload)
        await peer.error("BAD_HELLO")
        assert await peer.ended() == []
    await closes(caplog, "bad_hello")


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
    """Section 8.1, GRID-31, GRID-196"""
    async with await connect(door) as peer:
        msg_id = await peer.send(kind)
        frame, _ = await peer.error("BAD_STATE")
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
        ({"JobId": "absent"}, "BAD_JOB_ID", ""),
        ({"JobId": "abc"}, "BAD_JOB_ID", ""),
        ({"JobId": _NIL_UUID}, "BAD_JOB_ID", ""),
        ({"JobId": 4}, "BAD_JOB_ID", ""),
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
        ("job.submit.a.b", "BAD_EXEC_NAME"),
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
        side = door.door.house.workers[worker.worker_id]
        assert door.door.house.seats.credits(side) == 2


async def _assigned(door: OpenDoor, client: ClientPeer, worker: WorkerPeer) -> AssignJob:
    """A job that this worker has in hand: its program is nobody else's."""
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
    """GRID-196: BAD_SCHEMA, and the attempt goes on."""
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
        holdings = door.door.house.holdings
        real = holdings.seen
        holdings.seen = lambda run_id, token: seen.append(run_id) or real(run_id, token)  # type: ignore[func-returns-value,method-assign]
        try:
            bad = {"Running": [{"JobId": job.job_id, "Token": job.token}, {"JobId": 1}], "Cpu": 0.5}
            await worker.send_json(Type.HEARTBEAT, bad)
            await worker.next(Type.ERROR)
            assert seen == []
            await worker.beat(job)
            await eventually(lambda: seen == [job.run_id])
        finally:
            holdings.seen = real  # type: ignore[method-assign]
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
    assert door.door.house.in_work.in_use == door.door.house.reports_in_work.in_use == 0
    assert len(door.door.house.board) == 0
    await eventually(lambda: door.server.connections == 0)
