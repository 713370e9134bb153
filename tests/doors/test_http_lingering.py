"""Bodies that are refused before they have come: the answer arrives, and then the connection is closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
import pytest

from pyoco_server.doors.http import lingering
from support.doors_support import JSON_BYTES_MAX, Door
from support.gateways import error, listening

pytestmark = pytest.mark.asyncio(loop_scope="module")

HEAD = b"POST /runs HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000000\r\n\r\n"
PIECE = bytes(65_536)


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> int:
    """So much of a refused body is read here."""
    monkeypatch.setattr(lingering, "BYTES_MAX", 1024 * 1024)
    return lingering.BYTES_MAX


async def test_a_sender_that_does_not_stop_is_cut_off(door: Door, little: int) -> None:
    """FLOW-84: it is refused at once, and its gigabytes are not read."""
    sent = 0
    async with listening(door.gateway.app) as port, asyncio.timeout(120):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 413 ")
        assert b"\r\nconnection: close\r\n" in head.lower()
        with contextlib.suppress(ConnectionError):
            while sent < 500 * little:
                writer.write(PIECE)
                await writer.drain()
                sent += len(PIECE)
        writer.close()
    assert sent < 50 * little, "the buffers of both machines, and no more"


async def test_a_sender_that_waits_is_left_after_a_while(door: Door) -> None:
    async with listening(door.gateway.app) as port, asyncio.timeout(120):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD)
        assert (await reader.read()).startswith(b"HTTP/1.1 413 ")
        writer.close()


@pytest.mark.parametrize("declared", [True, False])
async def test_who_sends_first_and_listens_then_hears_the_answer(
    door: Door, declared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most clients are like that: after a reset they would have no answer at all."""
    monkeypatch.setattr(lingering, "SECONDS_MAX", 60.0)  # a busy machine needs longer to send all of it
    size = JSON_BYTES_MAX + 40 * len(PIECE)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(size // len(PIECE)):
            yield PIECE

    headers = {"Content-Length": str(size)} if declared else {}
    async with listening(door.gateway.app) as port:
        url = f"http://127.0.0.1:{port}/runs"
        async with httpx.AsyncClient(timeout=60) as client:
            answer = await client.post(url, content=pieces(), headers=headers)
            assert (answer.status_code, answer.json()) == (413, error(2, "request body too large"))
            assert answer.headers["connection"] == "close"
            assert (await client.get(f"http://127.0.0.1:{port}/health")).status_code == 200


async def test_a_blocking_client_hears_it_even_when_it_is_cut_off(door: Door, little: int) -> None:
    def post(port: int) -> httpx.Response:
        pieces = (PIECE for _ in range(100 * little // len(PIECE)))
        return httpx.post(f"http://127.0.0.1:{port}/runs", content=pieces, timeout=120)

    async with listening(door.gateway.app) as port:
        answer = await asyncio.to_thread(post, port)
    assert (answer.status_code, answer.json()) == (413, error(2, "request body too large"))
