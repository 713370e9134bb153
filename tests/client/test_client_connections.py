"""How many connections a client needs, and how long it holds one that is of no more use."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import sys
import uuid
from collections.abc import AsyncIterator

from pyoco_server.client.aio import AsyncPyocoHttpClient
from support.waiting import eventually

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _chunk(text: str) -> bytes:
    return f"{len(text.encode()):x}\r\n{text}\r\n".encode()


class _Gateway:
    """Tells every watcher that the run has ended, and ends the stream if it is polite."""

    def __init__(self, *, is_polite: bool) -> None:
        self._is_polite = is_polite
        self.connections = self.streams = self.left = 0
        self.is_left = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET "):
                self.streams += 1
                told = json.dumps({"run_id": "it", "snapshot": {"status": "COMPLETED"}, "ts": 1.0})
                writer.write(_HEAD + _chunk(f"id: {self.streams}\nevent: snapshot\ndata: {told}\n\n"))
                await writer.drain()
                if self._is_polite:
                    await asyncio.sleep(0)  # not with the same bytes
                    writer.write(b"0\r\n\r\n")
        self.is_left.set()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        self.left += 1


@contextlib.asynccontextmanager
async def watched(*, is_polite: bool) -> AsyncIterator[tuple[_Gateway, AsyncPyocoHttpClient]]:
    gateway = _Gateway(is_polite=is_polite)
    server = await asyncio.start_server(gateway.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        async with AsyncPyocoHttpClient(f"http://127.0.0.1:{port}") as client:
            yield gateway, client
        await eventually(lambda: gateway.left == gateway.connections)


async def _statuses(client: AsyncPyocoHttpClient) -> list[str]:
    async with asyncio.timeout(30):
        return [event["snapshot"]["status"] async for event in client.watch_run(str(uuid.uuid4()))]


async def test_one_watch_after_another_takes_one_connection() -> None:
    """The end of the run is not yet the end of the answer: whoever hangs up in between has to connect anew."""
    async with watched(is_polite=True) as (gateway, client):
        for count in range(1, 11):
            assert await _statuses(client) == ["COMPLETED"]
            assert gateway.streams == count
        assert gateway.connections == 1


async def test_a_stream_that_does_not_end_with_its_run_is_left() -> None:
    """FLOW-125 is a gateway's promise; what stands in between has given none."""
    async with watched(is_polite=False) as (gateway, client):
        assert await _statuses(client) == ["COMPLETED"]
        async with asyncio.timeout(30):
            await gateway.is_left.wait()
        assert await _statuses(client) == ["COMPLETED"]
        assert gateway.connections == 2


async def test_the_end_is_told_before_it_is_waited_for() -> None:
    async with watched(is_polite=False) as (gateway, client), asyncio.timeout(30):
        async for event in client.watch_run(str(uuid.uuid4())):
            assert event["snapshot"]["status"] == "COMPLETED"
            assert not gateway.is_left.is_set()  # it is left when the next event is asked for


def test_what_is_not_installed_is_not_searched_for_at_every_step() -> None:
    """httpcore asks for it again and again."""
    assert (importlib.util.find_spec("sniffio") is None) == (sys.modules.get("sniffio", ...) is None)
