"""Clients of priced runs: N connections that stay open, each with one request in flight, for a while.

Run in a process of its own, so that measuring costs the measured server no more than a client would:
`python -m bench.priced_load submit|complete|poll PORT CLIENTS SECONDS < {"keys": […], "run_ids": […], "ledger": "…"}`

    submit    a submission under a new key, again and again;
    complete  the same, and the next one only when the run has ended: looked up in the ledger, not by polling;
    poll      a run is read, again and again.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import count
from typing import Any, cast

__all__ = ["BODY"]

#: What is asked for in every submission.
BODY: dict[str, Any] = {
    "pack_type": "decision",
    "inputs": {"question": "Ship on Friday?"},
    "reservation": {"max_cost_usd": "0.2500"},
}
_LOOK_SECONDS = 0.005


class _Client(asyncio.Protocol):
    """Sends the next request as soon as `answered` says so. Knows as much HTTP as uvicorn speaks."""

    def __init__(self, requests: Iterator[bytes], answered: Callable[[_Client, str, bytes], None]) -> None:
        self._requests, self._answered = requests, answered
        self._buffer = b""
        self._sent_at = 0.0
        self.latencies: list[float] = []
        self.counted_at: list[float] = []
        self.statuses: Counter[str] = Counter()
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.send()

    def send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(next(self._requests))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, blank, body = self._buffer.partition(b"\r\n\r\n")
        if not blank:
            return
        lower = head.lower()
        start = lower.index(b"content-length:") + 15
        if len(body) < int(lower[start:].split(b"\r\n", 1)[0]):
            return
        self._buffer = b""
        self._answered(self, head[9:12].decode(), body)

    def count(self, status: str) -> None:
        """What was asked for has happened."""
        now = time.perf_counter()
        self.statuses[status] += 1
        self.latencies.append(now - self._sent_at)
        self.counted_at.append(now)

    def go_on(self, deadline: float) -> None:
        if time.perf_counter() < deadline:
            self.send()
        else:
            self.stop()

    def stop(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the server hung up"))


class _Ledger:
    """Who of those that are waited for has ended: one look for all clients."""

    def __init__(self, url: str) -> None:
        self._is_sqlite = url.startswith("sqlite:")
        if self._is_sqlite:
            self._connection: Any = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        else:
            import psycopg  # noqa: PLC0415 - takes a while

            self._connection = psycopg.connect(url, autocommit=True)
        self.waiting: dict[str, _Client] = {}

    async def watch(self, deadline: float) -> None:
        while time.perf_counter() < deadline:
            for run_id, status in self._ended(self.waiting):
                client = self.waiting.pop(run_id)
                client.count(status)
                client.go_on(deadline)
            await asyncio.sleep(_LOOK_SECONDS)
        for client in self.waiting.values():  # what has not ended by now does not count
            client.stop()

    def _ended(self, run_ids: Collection[str]) -> list[tuple[str, str]]:
        marks = ", ".join(["?" if self._is_sqlite else "%s"] * len(run_ids))
        if not marks:
            return []
        question = f"SELECT run_id, status FROM runs WHERE status IN ('COMPLETED', 'FAILED') AND run_id IN ({marks})"
        return [(str(run_id), status) for run_id, status in self._connection.execute(question, tuple(run_ids))]


def _submissions(address: str, keys: list[str]) -> Iterator[bytes]:
    body, own = json.dumps(BODY).encode(), uuid.uuid4().hex[:16]
    for number in count():
        head = (
            f"POST /v1/runs HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {keys[number % len(keys)]}\r\n"
            f"Idempotency-Key: {own}-{number}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        yield head.encode() + body


def _polls(address: str, keys: list[str], run_ids: list[str]) -> Iterator[bytes]:
    """Run number n belongs to the tenant of key number n."""
    for number in count():
        key, run_id = keys[number % len(keys)], run_ids[number % len(run_ids)]
        yield f"GET /v1/runs/{run_id} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {key}\r\n\r\n".encode()


async def _run(what: str, port: int, clients: int, seconds: float, told: dict[str, Any]) -> dict[str, object]:
    address, keys = f"127.0.0.1:{port}", told["keys"]
    requests = _polls(address, keys, told["run_ids"]) if what == "poll" else _submissions(address, keys)
    ledger = _Ledger(told["ledger"]) if what == "complete" else None
    began = time.perf_counter()
    deadline = began + seconds

    def answered(client: _Client, status: str, body: bytes) -> None:
        if ledger is not None and status == "202":
            if time.perf_counter() < deadline:
                ledger.waiting[json.loads(body)["run_id"]] = client
            else:
                client.stop()
            return
        client.count(status)
        client.go_on(deadline)

    loop = asyncio.get_running_loop()
    making = partial(loop.create_connection, partial(_Client, requests, answered), "127.0.0.1", port)
    made = [client for _, client in [await making() for _ in range(clients)]]
    if ledger is not None:
        await ledger.watch(deadline)
    await asyncio.gather(*(client.done for client in made))
    took = time.perf_counter() - began
    latencies = sorted(second for client in made for second in client.latencies)
    instants = sorted(at for client in made for at in client.counted_at)
    per_second = len(instants) / took
    if ledger is not None and len(instants) > 1:  # from the first end to the last: what is under way is not lost
        per_second = (len(instants) - 1) / (instants[-1] - instants[0])
    return {
        "per_second": per_second,
        "count": len(latencies),
        "p50_ms": latencies[len(latencies) // 2] * 1000 if latencies else 0.0,
        "p99_ms": latencies[int(len(latencies) * 0.99)] * 1000 if latencies else 0.0,
        "statuses": sum((client.statuses for client in made), Counter[str]()),
    }


if __name__ == "__main__":
    import uvloop

    _, what, port, clients, seconds = sys.argv
    told = json.load(sys.stdin)
    json.dump(uvloop.run(_run(what, int(port), int(clients), float(seconds), told)), sys.stdout)
