"""One connection over real sockets: whole frames, timers, and ends that have a reason."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import uvloop

from pyoco_server.core.frames.codec import Decoder, Frame, FrameError, Type, encode
from pyoco_server.core.frames.messages import ErrorMessage
from pyoco_server.core.programs.faults import Code
from pyoco_server.frames.tls import client_context
from pyoco_server.frames.wire import CLOSE_REASONS, QUEUE_FRAMES_MAX, Timers, Wire, WireClosed, fresh
from pyoco_server.grid_config import GridConfig
from support.grid.frame_vectors import BAD, GOOD
from support.priced.url_sites import Authority
from support.waiting import eventually

PATIENT = Timers(hello=300, frame=300, idle=300, write=300, heartbeat=300)
#: Short enough to wait for, long enough to tell them apart on a busy machine.
SHORT = 0.3
LONG = 100.0
BEAT = bytes.fromhex(GOOD["V1"][1])


@dataclass
class Pair:
    """A wire, and the bare streams of its peer."""

    wire: Wire
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def ended(self) -> str:
        """Why the wire ends."""
        try:
            while True:
                await self.wire.receive()
        except WireClosed as closed:
            reason = closed.reason
        assert reason in CLOSE_REASONS
        return reason


Open = Callable[..., Awaitable[Pair]]


@pytest.fixture
async def connected() -> AsyncIterator[Open]:
    """Opens pairs; closes all of them."""
    async with contextlib.AsyncExitStack() as stack:

        async def connect(timers: Timers = PATIENT, heartbeat: Callable[[], bytes] = bytes) -> Pair:
            loop = asyncio.get_running_loop()
            accepted: asyncio.Future[Wire] = loop.create_future()
            server = await asyncio.start_server(
                lambda reader, writer: accepted.set_result(Wire(reader, writer, timers, heartbeat)), "127.0.0.1", 0
            )
            stack.push_async_callback(server.wait_closed)
            stack.callback(server.close)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            pair = Pair(await accepted, reader, writer)
            stack.push_async_callback(pair.wire.close, "draining")
            stack.callback(writer.close)
            return pair

        yield connect


def heartbeat() -> Frame:
    return fresh(Type.HEARTBEAT)


def error_frame(refused: FrameError) -> Frame:
    return fresh(Type.ERROR, ErrorMessage.of(refused).to_payload(), corr_id=refused.msg_id)


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    head = await reader.readexactly(4)
    body = await reader.readexactly(int.from_bytes(head, "little"))
    (frame,) = Decoder().feed(head + body)
    assert isinstance(frame, Frame)
    return frame


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


@pytest.mark.parametrize(
    ("timers", "sent", "reason"),
    [
        ({"hello": SHORT}, b"", "hello_timeout"),
        ({"frame": SHORT}, BEAT[:1], "frame_timeout"),
        ({"frame": SHORT}, BEAT + BEAT[:42], "frame_timeout"),
        ({"idle": SHORT}, BEAT, "idle_timeout"),
        # The frame's own timer rules as soon as there is a byte of one.
        ({"hello": SHORT / 3, "frame": SHORT}, b"\x27", "frame_timeout"),
        ({"idle": SHORT / 3, "frame": SHORT}, BEAT + b"\x27", "frame_timeout"),
    ],
    ids=["nothing", "a byte", "a frame and a half", "a frame", "a byte and no hello", "a byte after a frame"],
)
async def test_a_silent_peer_is_given_up(connected: Open, timers: dict[str, float], sent: bytes, reason: str) -> None:
    """GRID-33, GRID-34, GRID-196: nothing at all; half a frame and then silence."""
    pair = await connected(replace(PATIENT, **timers))
    await pair.say(sent)
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(LONG):
        assert await pair.ended() == reason
    assert asyncio.get_running_loop().time() - began >= SHORT * 0.9


async def test_one_byte_at_a_time_does_not_keep_a_frame_alive(connected: Open) -> None:
    """GRID-34: whatever else the peer sends, the frame's time is counted from its first byte."""
    pair = await connected(replace(PATIENT, frame=SHORT))

    async def drip() -> None:
        with contextlib.suppress(OSError):
            for byte in encode(fresh(Type.HEARTBEAT, bytes(100_000))):
                await pair.say(bytes([byte]))
                await asyncio.sleep(SHORT / 10)

    dripping = asyncio.create_task(drip())
    async with asyncio.timeout(LONG):
        assert await pair.ended() == "frame_timeout"
    dripping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await dripping


async def test_half_a_frame_does_not_count_as_a_sign_of_life_but_a_whole_one_does(connected: Open) -> None:
    """GRID-33: frames that keep coming keep it open beyond the idle time."""
    pair = await connected(replace(PATIENT, idle=3 * SHORT))

    async def speak() -> None:
        with contextlib.suppress(OSError):
            for _ in range(12):
                await pair.say(encode(heartbeat()))
                await asyncio.sleep(SHORT / 3)

    speaking = asyncio.create_task(speak())
    for _ in range(12):
        await pair.wire.receive()
    await speaking
    async with asyncio.timeout(LONG):
        assert await pair.ended() == "idle_timeout"


async def test_time_in_which_nobody_asks_does_not_count_against_the_peer(connected: Open) -> None:
    """GRID-37: a door that is busy stops reading; that is not the peer's silence."""
    pair = await connected(replace(PATIENT, idle=SHORT, frame=SHORT))
    first, second = heartbeat(), heartbeat()
    data = encode(second)
    await pair.say(encode(first) + data[:10])
    assert await pair.wire.receive() == first
    await asyncio.sleep(2 * SHORT)
    await pair.say(data[10:])
    assert await pair.wire.receive() == second
    await asyncio.sleep(2 * SHORT)
    listening = asyncio.create_task(pair.wire.receive())
    await asyncio.sleep(SHORT / 10)
    await pair.say(encode(first))
    assert await listening == first


async def test_a_wait_that_is_cut_off_loses_nothing_and_its_time_counts(connected: Open) -> None:
    """GRID-33: whoever asks again and again for a moment still ends after the idle time."""
    pair = await connected(replace(PATIENT, idle=2 * SHORT))
    frame = heartbeat()
    data = encode(frame)
    await pair.say(data[:10])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(pair.wire.receive(), SHORT / 10)
    await pair.say(data[10:])
    assert await pair.wire.receive() == frame

    async def short_looks() -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(pair.wire.receive(), SHORT / 4)

    with pytest.raises(WireClosed, match="idle_timeout"):
        await asyncio.wait_for(short_looks(), LONG)


async def test_after_silence_a_heartbeat_is_sent_with_its_payload(connected: Open) -> None:
    """GRID-33"""
    pair = await connected(replace(PATIENT, heartbeat=SHORT), lambda: b'{"Running":[]}')
    async with asyncio.timeout(LONG):
        for _ in range(2):
            frame = await read_frame(pair.reader)
            assert (frame.type, frame.payload) == (Type.HEARTBEAT, b'{"Running":[]}')


async def test_who_speaks_sends_no_heartbeat(connected: Open) -> None:
    """GRID-33"""
    pair = await connected(replace(PATIENT, heartbeat=SHORT))
    for _ in range(10):
        await pair.wire.send(fresh(Type.CREDIT, b"1234"))
        assert (await read_frame(pair.reader)).type == Type.CREDIT
        await asyncio.sleep(SHORT / 5)


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
