"""Every row of the table of malformed input (section 26.1) that reaches a door, on real sockets.

One door for all of them: that it still serves at the end is part of what is tested.
"""

from __future__ import annotations

import logging
import struct
import uuid

import pytest

from pyoco_server.core.frames.codec import Type
from support.backends import fields_of
from support.grid.patient_doors import closes, door
from support.grid.peers import ClientPeer, OpenDoor, Peer, WorkerPeer, grid_config, open_door

__all__ = ["door"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


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
