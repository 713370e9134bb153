"""Real bytes on a real socket: what no client would send, and senders that leave."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from support.doors_support import (
    JSON_BYTES_MAX,
    Door,
)
from support.gateways import listening

pytestmark = pytest.mark.asyncio(loop_scope="module")


class TestSockets:
    """Real bytes on a real socket."""

    @staticmethod
    async def _talk(port: int, *pieces: bytes, close: bool = False, until: bytes = b"}") -> bytes:
        """Send, and read until the server has answered; the request is never finished."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        hearing = asyncio.create_task(reader.readuntil(until))  # before it speaks: it may be cut off meanwhile
        try:
            with contextlib.suppress(ConnectionError):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
            if close:
                return b""
            async with asyncio.timeout(120):
                return await hearing
        finally:
            hearing.cancel()
            writer.close()

    async def test_the_answer_comes_before_the_end_of_a_body_too_large(self, door: Door) -> None:
        """FLOW-84: the sender still has something to say when it is told to stop."""
        head = b"POST /runs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        piece = b"10000\r\n" + b" " * 65536 + b"\r\n"
        async with listening(door.gateway.app) as port:
            answer = await self._talk(port, head, *[piece] * (JSON_BYTES_MAX // 65536 + 1))
            assert answer.startswith(b"HTTP/1.1 413 ")
            assert b"request body too large" in answer

    async def test_a_declared_length_is_answered_before_any_body(self, door: Door) -> None:
        async with listening(door.gateway.app) as port:
            head = b"POST /runs HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n"
            assert (await self._talk(port, head)).startswith(b"HTTP/1.1 413 ")
            head = b"POST /runs/yaml HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n"
            head += b"Content-Type: multipart/form-data; boundary=B\r\n\r\n"
            assert b"ERR-PYOCO-0016" in await self._talk(port, head)

    async def test_a_sender_that_leaves_early_leaves_nothing(self, door: Door) -> None:
        """A content-length longer than the body."""
        async with listening(door.gateway.app) as port:
            head = b"POST /runs HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
            await self._talk(port, head, b'{"flow_name": "f"}', close=True)
            await self._talk(port, b"POST /runs/yaml HTTP/1.1\r\nHost: x\r\nContent-Le", close=True)
            answer = await self._talk(port, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 ")

    async def test_a_length_shorter_than_the_body_cuts_it(self, door: Door) -> None:
        async with listening(door.gateway.app) as port:
            head = b"POST /runs HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"
            answer = await self._talk(port, head, b'{"flow_name": "f"}', until=b"\r\n")
            assert answer.split()[1] in {b"422", b"400"}  # 400: the server has seen that the rest is no request

    @pytest.mark.parametrize(
        "target",
        [
            b"/runs/%00",
            b"/runs/%ff",
            b"/runs/%c3%28",
            b"/runs/" + b"a" * 10_000,
            b"/runs/a%2Fb",
            b"/runs/..%2f..",
            b"//runs",
        ],
    )
    async def test_a_strange_path_is_not_found(self, door: Door, target: bytes) -> None:
        """FLOW-36"""
        async with listening(door.gateway.app) as port:
            answer = await self._talk(port, b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 404 ")
            assert b"ERR-PYOCO-00" in answer
