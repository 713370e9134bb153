"""A small HTTP load generator: N connections, each with one request in flight, for a while or for a count.

Run in a process of its own, so that measuring costs the measured server no more than a client would:
`python -m bench.load HOST PORT PATH CONNECTIONS SECONDS [METHOD [HEADER ...]] < body`
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import cast


class _Client(asyncio.Protocol):
    """Sends the same request again as soon as it has been answered. Knows as much HTTP as uvicorn speaks."""

    def __init__(self, request: bytes, deadline: float, done: asyncio.Future[None]) -> None:
        self._request, self._deadline, self._done = request, deadline, done
        self._buffer = b""
        self._sent_at = 0.0
        self.latencies: list[float] = []
        self.statuses: dict[str, int] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, blank, rest = self._buffer.partition(b"\r\n\r\n")
        if not blank:
            return
        lower = head.lower()
        start = lower.index(b"content-length:") + 15
        length = int(lower[start:].split(b"\r\n", 1)[0])
        if len(rest) < length:
            return
        status = head[9:12].decode()
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.latencies.append(time.perf_counter() - self._sent_at)
        self._buffer = b""
        if time.perf_counter() < self._deadline:
            self._send()
        elif not self._done.done():
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(exc or ConnectionError("the server hung up"))


def request_of(address: str, path: str, body: bytes, method: str = "POST", headers: Sequence[str] = ()) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {address}", *headers]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def run(host: str, port: int, connections: int, seconds: float, request: bytes) -> dict[str, object]:
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    clients = []
    for _ in range(connections):
        done: asyncio.Future[None] = loop.create_future()
        _, client = await loop.create_connection(partial(_Client, request, began + seconds, done), host, port)
        clients.append((client, done))
    await asyncio.gather(*(done for _, done in clients))
    took = time.perf_counter() - began
    latencies = sorted(second for client, _ in clients for second in client.latencies)
    statuses: dict[str, int] = {}
    for client, _ in clients:
        for status, count in client.statuses.items():
            statuses[status] = statuses.get(status, 0) + count
    return {
        "per_second": len(latencies) / took,
        "count": len(latencies),
        "p50_ms": latencies[len(latencies) // 2] * 1000,
        "p99_ms": latencies[int(len(latencies) * 0.99)] * 1000,
        "statuses": statuses,
    }


if __name__ == "__main__":
    import uvloop

    _, host, port, path, connections, seconds, *more = sys.argv
    request = request_of(f"{host}:{port}", path, sys.stdin.buffer.read(), more[0] if more else "POST", more[1:])
    json.dump(uvloop.run(run(host, int(port), int(connections), float(seconds), request)), sys.stdout)
