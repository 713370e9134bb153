"""What the gateway's process adds to its application: bounds on what comes before a body, and a word on typos."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from pyoco_server.doors.cli.gateway import BoundedHttp, _Server
from pyoco_server.doors.cli.typos import warn_of_typos
from support.waiting import eventually


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    size = 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    names = b" ".join(name for name, _ in scope["headers"])
    answer = b"%8d" % size
    headers = [(b"content-length", b"%d" % len(answer)), (b"x-seen", names)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server = _Server(uvicorn.Config(hello, port=0, http=BoundedHttp, ws="none", lifespan="off", log_config=None))
    serving = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    yield int(server.servers[0].sockets[0].getsockname()[1])
    server.should_exit = server.force_exit = True
    await serving


async def ask(port: int, *pieces: bytes, size: int = 4096) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    hearing = asyncio.create_task(reader.read(size))  # a refused request is disconnected at once
    try:
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
        async with asyncio.timeout(120):
            return await hearing
    finally:
        writer.close()


async def test_a_head_that_never_ends_is_refused(port: int) -> None:
    start = b"GET / HTTP/1.1\r\nHost: x\r\nX-A: "
    answer = await ask(port, start, *[b"a" * 16_384] * 5)
    assert answer.startswith(b"HTTP/1.1 431 ")


async def test_a_large_head_and_a_larger_body_are_taken(port: int) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 40_000 + b"\r\nContent-Length: 300000\r\n\r\n"
    answer = await ask(port, head + b"b" * 300_000)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"  300000")


@pytest.mark.parametrize("is_in_one_piece", [True, False])
async def test_trailer_fields_are_never_headers(port: int, is_in_one_piece: bool) -> None:
    """SAFE-9. The next request on the same connection has its headers."""
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: X-API-Key\r\n\r\n"
    body = b"3\r\nabc\r\n0\r\nX-API-Key: stolen\r\nIdempotency-Key: k\r\n\r\n"
    after = b"GET / HTTP/1.1\r\nHost: x\r\nX-Next: 1\r\nConnection: close\r\n\r\n"
    pieces = [head + body + after] if is_in_one_piece else [head, body, after]
    first, second = (await ask(port, *pieces, size=-1)).split(b"HTTP/1.1 200 ")[1:]
    assert b"x-seen: host transfer-encoding trailer\r\n" in first
    assert first.endswith(b"       3")
    assert b"x-seen: host x-next connection\r\n" in second


def test_a_misspelt_setting_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("PYOCO_HTTP_AUTH_MOD", "api_key")
    with caplog.at_level(logging.WARNING):
        warn_of_typos()
    assert [record.message for record in caplog.records] == ["unknown setting ignored"]
