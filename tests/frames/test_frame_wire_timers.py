"""Timers of one connection: silence, slow peers and heartbeats."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest

from pyoco_server.core.frames.codec import Type, encode
from pyoco_server.frames.wire import WireClosed, fresh
from support.grid.frame_pairs import LONG, PATIENT, SHORT, Open, connected, heartbeat, read_frame
from support.grid.frame_vectors import GOOD

__all__ = ["connected"]

BEAT = bytes.fromhex(GOOD["V1"][1])


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
