"""A gateway that answers by a script, one turn per request: for answers that a real one would never give.

async with scripted(cut, answer({"status": "ok"})) as server:
    ...                     # the first request is dropped, the second one answered
    assert [asked.path for asked in server.asked] == ["/runs", "/runs"]
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "Asked",
    "Scripted",
    "Turn",
    "answer",
    "cut",
    "event",
    "forwarding",
    "hang",
    "raw",
    "scripted",
    "stream",
    "upstream",
]


@dataclass(frozen=True)
class Asked:
    """A request as it came in."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


#: Answers one request. The connection is closed afterwards.
Turn = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Scripted:
    """The server, and what it was asked."""

    turns: list[Turn]
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    #: When each request was there, by the event loop's clock.
    at: list[float] = field(default_factory=list)
    #: Set for each turn that is over: answered, or left by the client.
    over: list[asyncio.Event] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        over = asyncio.Event()
        try:
            asked = await _read(reader)
            if asked is None:
                return
            self.asked.append(asked)
            self.at.append(asyncio.get_running_loop().time())
            self.over.append(over)
            turn = self.turns.pop(0) if self.turns else answer({"detail": "not in the script"}, 418)
            turning = asyncio.ensure_future(turn(asked, writer))
            leaving = asyncio.ensure_future(reader.read(1))
            await asyncio.wait({turning, leaving}, return_when=asyncio.FIRST_COMPLETED)
            turning.cancel()
            leaving.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await turning
        finally:
            writer.close()
            over.set()


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    method, path, _ = head[0].split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
    body = bytearray()
    if headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
    else:
        body += await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(method, path, headers, bytes(body))


@contextlib.asynccontextmanager
async def scripted(*turns: Turn) -> AsyncIterator[Scripted]:
    """Listens on a port of its own. When the script is over every request is answered with 418."""
    script = Scripted(list(turns))
    serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving[asyncio.ensure_future(script.serve(reader, writer))] = writer

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    script.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield script
    finally:
        server.close()
        for task, writer in serving.items():
            task.cancel()
            writer.close()
        await asyncio.gather(*serving, return_exceptions=True)
        await asyncio.gather(*(writer.wait_closed() for writer in serving.values()), return_exceptions=True)


def answer(content: Any, status: int = 200, **headers: str) -> Turn:
    """JSON, or bytes as they are. `retry_after="1"` becomes `Retry-After: 1`."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    lines = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return raw(f"HTTP/1.1 {status} Word\r\n{head}\r\n".encode() + body)


def raw(data: bytes) -> Turn:
    """These bytes, then the end of the connection."""

    async def turn(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return turn


async def cut(_asked: Asked, _writer: asyncio.StreamWriter) -> None:
    """The request is read, and the connection is closed without a word."""


async def hang(_asked: Asked, _writer: asyncio.StreamWriter) -> None:
    """The request is read, and never answered."""
    await asyncio.Event().wait()


def event(revision: int, status: str, name: str = "snapshot", **more: Any) -> bytes:
    """One event of a watch, as the gateway sends it."""
    snapshot = {"run_id": "r", "status": status, "updated_at": float(revision), **more}
    data = json.dumps({"run_id": "r", "snapshot": snapshot, "ts": 1.5})
    return f"id: {revision}\nevent: {name}\ndata: {data}\n\n".encode()


def stream(*frames: bytes, then: str = "end", retry_ms: int | None = 1) -> Turn:
    """An event stream. `then`: `end` in order, `cut` in the middle, or `hang`."""

    async def turn(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        first = () if retry_ms is None else (b"retry: %d\n\n" % retry_ms,)
        for frame in (*first, *frames):
            writer.write(b"%x\r\n%s\r\n" % (len(frame), frame))
        if then == "end":
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        if then == "hang":
            await asyncio.Event().wait()

    return turn


def forwarding(url: str, lose: Callable[[Asked], bool]) -> Turn:
    """Hands the request to a real gateway and its answer back, or keeps the answer: the client never learns of it."""

    async def turn(asked: Asked, writer: asyncio.StreamWriter) -> None:
        async with upstream(url, asked) as reader:
            received = await reader.read()
        if not lose(asked):
            writer.write(received)
            await writer.drain()

    return turn


@contextlib.asynccontextmanager
async def upstream(url: str, asked: Asked) -> AsyncIterator[asyncio.StreamReader]:
    """The same request, sent to a real gateway. Gives what it answers, to the end of the connection."""
    host, port = url.removeprefix("http://").split(":")
    reader, sending = await asyncio.open_connection(host, int(port))
    try:
        kept = {name: value for name, value in asked.headers.items() if name not in {"connection", "transfer-encoding"}}
        kept |= {"connection": "close", "content-length": str(len(asked.body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in kept.items())
        sending.write(f"{asked.method} {asked.path} HTTP/1.1\r\n{head}\r\n".encode() + asked.body)
        yield reader
    finally:
        sending.close()
        with contextlib.suppress(OSError):
            await sending.wait_closed()
