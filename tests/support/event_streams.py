"""An event stream read from a real socket, byte by byte as strict as can be: the head, the chunks, the frames."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Event", "Stream", "watching"]


@dataclass(frozen=True)
class Event:
    id: int
    name: str
    data: dict[str, Any]

    @property
    def snapshot(self) -> dict[str, Any]:
        found: dict[str, Any] = self.data["snapshot"]
        return found

    @property
    def status(self) -> str:
        return str(self.snapshot["status"])


class Stream:
    """One answer. A connection that breaks in the middle of a body raises; only a clean end is an end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._text = ""
        self.status = 0
        self.headers: dict[str, str] = {}
        #: What came before the first event.
        self.retry_ms = 0

    async def read_head(self) -> None:
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        self.status = int(lines[0].split()[1])
        pairs = (line.partition(": ") for line in lines[1:])
        self.headers = {name.lower(): value for name, _, value in pairs}

    async def chunk(self) -> bytes:
        """The next piece of the body; empty at its clean end."""
        size = int(await self._reader.readuntil(b"\r\n"), 16)
        data = await self._reader.readexactly(size + 2)
        assert data.endswith(b"\r\n")
        return data[:-2]

    async def body(self) -> bytes:
        """A body that is no stream."""
        return await self._reader.readexactly(int(self.headers.get("content-length", 0)))

    async def next(self, seconds: float = 60.0) -> Event | None:
        """The next event; None at the clean end of the stream."""
        async with asyncio.timeout(seconds):
            while "\n\n" not in self._text:
                data = await self.chunk()
                if not data:
                    assert self._text == "", "the stream ended within a frame"
                    return None
                self._text += data.decode()
        frame, self._text = self._text.split("\n\n", 1)
        if frame.startswith("retry: "):
            self.retry_ms = int(frame.removeprefix("retry: "))
            return await self.next(seconds)
        return _event(frame)

    async def rest(self, seconds: float = 60.0) -> list[Event]:
        """All that comes until the clean end."""
        found = []
        async with asyncio.timeout(seconds):
            while (event := await self.next(seconds)) is not None:
                found.append(event)
        return found

    def leave(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        """Disconnect without closing the stream."""
        self._writer.transport.abort()


def _event(frame: str) -> Event:
    """FLOW-121: exactly these lines, in this order."""
    lines = frame.split("\n")
    assert [line.partition(": ")[0] for line in lines] == ["id", "event", "data"], lines
    number, name, data = (line.partition(": ")[2] for line in lines)
    document = json.loads(data, parse_constant=_not_strict)
    assert list(document) == ["run_id", "snapshot", "ts"]
    return Event(int(number), name, document)


def _not_strict(word: str) -> None:
    raise AssertionError(f"{word} is not strict JSON")


@contextlib.asynccontextmanager
async def watching(
    port: int,
    run_id: str,
    query: str = "",
    *,
    method: str = "GET",
    receive_bytes: int | None = None,
    **headers: str,
) -> AsyncIterator[Stream]:
    """`GET /runs/{run_id}/watch`, up to and including the head of the answer. Headers are given with `_` for `-`."""
    sock = socket.socket()
    if receive_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 16)
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
    writer.write(f"{method} /runs/{run_id}/watch{query} HTTP/1.1\r\nHost: x\r\n{''.join(lines)}\r\n".encode())
    stream = Stream(reader, writer)
    try:
        async with asyncio.timeout(60):
            await stream.read_head()
        yield stream
    finally:
        writer.close()
