"""Two ends of one connection for frames, for tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from pyoco_server.core.frames.codec import Decoder, Frame, Type
from pyoco_server.frames.wire import CLOSE_REASONS, Timers, Wire, WireClosed, fresh

__all__ = ["LONG", "PATIENT", "SHORT", "Open", "Pair", "connected", "heartbeat", "read_frame"]

PATIENT = Timers(hello=300, frame=300, idle=300, write=300, heartbeat=300)
#: Short enough to wait for, long enough to tell them apart on a busy machine.
SHORT = 0.3
LONG = 100.0


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


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    head = await reader.readexactly(4)
    body = await reader.readexactly(int.from_bytes(head, "little"))
    (frame,) = Decoder().feed(head + body)
    assert isinstance(frame, Frame)
    return frame
