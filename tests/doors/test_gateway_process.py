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
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"8")]})
    await send({"type": "http.response.body", "body": b"%8d" % size})


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server = _Server(uvicorn.Config(hello, port=0, http=BoundedHttp, ws="none", lifespan="off", log_config=None))
    serving = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    yield int(server.servers[0].sockets[0].getsockname()[1])
    server.should_exit = server.force_exit = True
    await serving


async def ask(port: int, *pieces: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    hearing = asyncio.create_task(reader.read(4096))  # before it speaks: who is told off meanwhile is cut off as well
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


def test_a_misspelt_setting_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("PYOCO_HTTP_AUTH_MOD", "api_key")
    with caplog.at_level(logging.WARNING):
        warn_of_typos()
    assert [record.message for record in caplog.records] == ["an unknown setting does nothing"]
