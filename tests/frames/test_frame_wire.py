"""One connection over real sockets: whole frames, timers, and ends that have a reason."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop

from pyoco_server.config.grid import GridConfig
from pyoco_server.core.frames.codec import Frame, FrameError, Type, encode
from pyoco_server.core.frames.messages import ErrorMessage
from pyoco_server.core.programs.faults import Code
from pyoco_server.frames.tls import client_context
from pyoco_server.frames.wire import QUEUE_FRAMES_MAX, Timers, Wire, WireClosed, fresh
from support.grid.frame_pairs import LONG, PATIENT, SHORT, Open, connected, heartbeat, read_frame
from support.grid.frame_vectors import BAD, GOOD
from support.priced.url_sites import Authority
from support.waiting import eventually

__all__ = ["connected"]


def error_frame(refused: FrameError) -> Frame:
    return fresh(Type.ERROR, ErrorMessage.of(refused).to_payload(), corr_id=refused.msg_id)


def test_the_timers_are_those_of_the_settings() -> None:
    """GRID-33"""
    assert Timers.of(GridConfig()) == Timers() == Timers(hello=10, frame=30, idle=60, write=30, heartbeat=15)
    assert Timers.of(GridConfig(exec_idle_sec=5.0)).idle == 5


async def test_frames_arrive_whole_however_they_are_cut(connected: Open) -> None:
    """GRID-16"""
    pair = await connected()
    data = b"".join(bytes.fromhex(text) for _, text in GOOD.values())

    async def drip() -> None:
        for start in range(0, len(data), 7):
            await pair.say(data[start : start + 7])
            await asyncio.sleep(0)

    dripping = asyncio.create_task(drip())
    assert [await pair.wire.receive() for _ in GOOD] == [frame for frame, _ in GOOD.values()]
    await dripping
    assert (pair.wire.frames_read, pair.wire.bytes_read) == (len(GOOD), len(data))


async def test_a_frame_of_four_mebibytes_passes_both_ways(connected: Open) -> None:
    """GRID-14, GRID-17"""
    pair = await connected()
    frame = fresh(Type.ACK_JOB, bytes(4_194_265))
    _, received = await asyncio.gather(pair.say(encode(frame)), pair.wire.receive())
    assert received == frame
    _, written = await asyncio.gather(pair.wire.send(frame), read_frame(pair.reader))
    assert written == frame


async def test_frames_of_many_senders_never_mix(connected: Open) -> None:
    """GRID-20: large and small ones, all at once."""
    pair = await connected()
    frames = [fresh(Type.RESULT, bytes([number]) * (number * 9_973 % 300_000)) for number in range(200)]
    sending = [asyncio.create_task(pair.wire.send(frame)) for frame in frames]
    received = [await read_frame(pair.reader) for _ in frames]
    await asyncio.gather(*sending)
    assert sorted(received, key=lambda each: each.msg_id) == sorted(frames, key=lambda each: each.msg_id)
    assert pair.wire.frames_written == len(frames)


async def test_frames_in_the_background_are_overtaken_until_they_are_being_written(connected: Open) -> None:
    """LOG-30"""
    pair = await connected()
    background = [fresh(Type.LOG_CHUNK, bytes([number]) * 700_000) for number in range(2)]
    others = [fresh(Type.ACK_JOB, bytes([number]) * 700_000) for number in range(3)]
    for frame in background:
        pair.wire.send_in_background(frame)
    for frame in others:
        assert pair.wire.send_soon(frame)
    received = [await read_frame(pair.reader) for _ in range(5)]
    assert received == [*others, *background]


@pytest.mark.parametrize("name", [name for name in BAD if name != "B8"])
async def test_bytes_that_are_no_frame_end_it_and_the_peer_can_be_told(connected: Open, name: str) -> None:
    """GRID-195, GRID-196: `len` out of bounds, lengths that do not add up; also with more bytes behind them."""
    pair = await connected()
    text, code = BAD[name]
    await pair.say(bytes.fromhex(text) + bytes(300_000))
    with pytest.raises(WireClosed) as caught:
        await pair.wire.receive()
    assert caught.value.reason == code.lower()
    assert caught.value.fault is not None
    closing = asyncio.create_task(pair.wire.close(caught.value.reason, error_frame(caught.value.fault)))
    told = ErrorMessage.read((await read_frame(pair.reader)).payload)
    assert (told.code, told.retry) == (code, False)
    assert await pair.reader.read() == b""
    pair.writer.close()
    await closing


async def test_a_bad_subject_is_raised_and_the_next_frame_is_read(connected: Open) -> None:
    """GRID-19, GRID-196"""
    pair = await connected()
    await pair.say(bytes.fromhex(BAD["B8"][0]) + bytes.fromhex(GOOD["V1"][1]))
    with pytest.raises(FrameError) as caught:
        await pair.wire.receive()
    assert caught.value.code is Code.BAD_SUBJECT
    assert await pair.wire.receive() == GOOD["V1"][0]


async def test_a_peer_that_leaves_between_frames_closed(connected: Open) -> None:
    """GRID-38"""
    pair = await connected()
    await pair.say(encode(heartbeat()))
    pair.writer.close()
    assert await pair.ended() == "peer_closed"


async def test_a_peer_that_leaves_within_a_frame_broke_off(connected: Open) -> None:
    """GRID-196: end of stream in the middle of a frame."""
    pair = await connected()
    await pair.say(encode(heartbeat())[:20])
    pair.writer.close()
    assert await pair.ended() == "eof_in_frame"


async def test_a_peer_that_resets_has_closed(connected: Open) -> None:
    """GRID-38"""
    pair = await connected()
    await pair.say(encode(heartbeat()))
    await pair.wire.receive()
    pair.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    pair.writer.transport.abort()
    assert await pair.ended() == "peer_closed"


async def test_a_peer_that_does_not_read_is_cut_off(connected: Open) -> None:
    """GRID-33, GRID-77: and whoever waits for room or for a frame hears of it."""
    pair = await connected(replace(PATIENT, write=SHORT))
    listening = asyncio.create_task(pair.ended())
    pair.writer.transport.pause_reading()  # type: ignore[attr-defined]

    async def flood() -> None:
        while True:
            await pair.wire.send(fresh(Type.RESULT, bytes(1_000_000)))

    async with asyncio.timeout(LONG):
        with pytest.raises(WireClosed, match="write_timeout"):
            await flood()
        assert await listening == "write_timeout"
    assert pair.wire.send_soon(heartbeat()) is False
    assert pair.wire.unwritten


async def test_what_waits_to_be_written_is_bounded(connected: Open) -> None:
    """GRID-77: 64 frames, or 16 MiB; who cannot wait is told."""
    pair = await connected()
    pair.writer.transport.pause_reading()  # type: ignore[attr-defined]
    large = fresh(Type.RESULT, bytes(4_000_000))
    for _ in range(30):
        pair.wire.send_soon(large)
        await asyncio.sleep(0)
    assert not pair.wire.send_soon(large)
    assert len(pair.wire.unwritten) == 4
    while pair.wire.send_soon(heartbeat()):
        assert len(pair.wire.unwritten) <= QUEUE_FRAMES_MAX
    assert len(pair.wire.unwritten) == QUEUE_FRAMES_MAX
    waiting = asyncio.create_task(pair.wire.send(heartbeat()))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    pair.writer.transport.resume_reading()  # type: ignore[attr-defined]

    async def read_on() -> None:
        while await pair.reader.read(1_000_000):
            pass

    reading = asyncio.create_task(read_on())
    async with asyncio.timeout(LONG):
        await waiting
    reading.cancel()


async def test_a_frame_above_the_limit_is_refused_before_anything_is_written(connected: Open) -> None:
    """GRID-21"""
    pair = await connected()
    too_large = fresh(Type.RESULT, bytes(4_194_266))
    with pytest.raises(FrameError, match="FRAME_TOO_LARGE"):
        pair.wire.send_soon(too_large)
    with pytest.raises(FrameError, match="FRAME_TOO_LARGE"):
        await pair.wire.send(too_large)
    await pair.wire.send(frame := heartbeat())
    assert await read_frame(pair.reader) == frame


async def test_closing_writes_what_waits_and_wakes_who_listens(connected: Open) -> None:
    """GRID-38: the first reason is the one that counts."""
    pair = await connected()
    listening = asyncio.create_task(pair.ended())
    frames = [heartbeat() for _ in range(3)]
    for frame in frames:
        assert pair.wire.send_soon(frame)
    last = fresh(Type.NOT_LEADER, b"{}")
    closing = asyncio.create_task(pair.wire.close("worker_replaced", last))
    assert [await read_frame(pair.reader) for _ in range(4)] == [*frames, last]
    assert await pair.reader.read() == b""
    pair.writer.close()
    async with asyncio.timeout(LONG):
        await asyncio.gather(closing, pair.wire.close("draining"))
    assert await listening == pair.wire.reason == "worker_replaced"
    with pytest.raises(WireClosed, match="worker_replaced"):
        await pair.wire.send(heartbeat())


async def test_who_listens_is_woken_before_the_peer_has_gone(connected: Open) -> None:
    """GRID-38: the close waits for the peer; whoever listens does not."""
    pair = await connected()
    listening = asyncio.create_task(pair.ended())
    await asyncio.sleep(0)
    closing = asyncio.create_task(pair.wire.close("key_revoked"))
    assert await listening == "key_revoked"
    assert not pair.wire._writer.is_closing()
    pair.writer.close()
    await closing


async def test_the_end_is_the_same_under_uvloop() -> None:
    """GRID-195: its transports refuse to be used after their end."""

    async def ends() -> list[str]:
        wires: asyncio.Queue[Wire] = asyncio.Queue()
        server = await asyncio.start_server(
            lambda reader, writer: wires.put_nowait(Wire(reader, writer, replace(PATIENT, write=SHORT))), "127.0.0.1", 0
        )
        reasons = []
        for is_reset in (True, False):
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            wire = await wires.get()
            if is_reset:
                writer.transport.abort()
            else:
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                while wire.reason is None:
                    wire.send_soon(fresh(Type.RESULT, bytes(1_000_000)))
                    await asyncio.sleep(0.01)
            with pytest.raises(WireClosed) as caught:
                await wire.receive()
            await wire.close("draining", heartbeat())
            reasons.append(caught.value.reason)
            writer.close()
        server.close()
        return reasons

    assert await asyncio.to_thread(uvloop.run, ends()) == ["peer_closed", "write_timeout"]


async def test_closing_does_not_wait_long_for_a_peer_that_stays(connected: Open) -> None:
    """GRID-195"""
    pair = await connected(replace(PATIENT, write=SHORT))
    async with asyncio.timeout(LONG):
        await pair.wire.close("draining")
    await eventually(lambda: not [each for each in asyncio.all_tasks() if each.get_name().startswith("wire to")])


async def test_a_frame_passes_through_tls(tmp_path: Path) -> None:
    """GRID-166: also a large one, and the last one before a close."""
    authority = Authority(tmp_path)
    accepted: asyncio.Future[Wire] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(
        lambda reader, writer: accepted.set_result(Wire(reader, writer, PATIENT)),
        "127.0.0.1",
        0,
        ssl=authority.context("127.0.0.1"),
    )
    host, port = server.sockets[0].getsockname()
    wire = Wire(*await asyncio.open_connection(host, port, ssl=client_context(ca=str(authority.ca_file))), PATIENT)
    other = await accepted
    frame = fresh(Type.ACK_JOB, bytes(4_000_000))
    _, received = await asyncio.gather(wire.send(frame), other.receive())
    assert received == frame
    last = heartbeat()
    closing = asyncio.create_task(other.close("draining", last))
    assert await wire.receive() == last
    with pytest.raises(WireClosed, match="peer_closed"):
        await wire.receive()
    await asyncio.gather(closing, wire.close("peer_closed"))
    server.close()
    await server.wait_closed()
