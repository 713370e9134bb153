"""Runs submitted by the clock, whatever the answers do; or a count of them as fast as they are taken.

In a process of its own: `python -m bench.soak_load PORT NATS_URL < plan`. It prints a JSON line for each
`every_seconds` (or `every_count`), and a last one for the whole. SIGTERM ends it early, with that last line.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import cast

import msgspec
import uvloop

from bench.load import request_of
from bench.priced_load import _submissions
from bench.report import percentiles
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.states import TERMINAL
from pyoco_server.ports.nats.client import Raw
from pyoco_server.ports.nats.link import open_link

__all__ = ["ByClock", "Fill", "Plan", "Told", "Whole"]

#: Requests under way at once. More arrive: they wait for a connection, and that counts as their latency.
_CONNECTIONS_MAX = 256
_REST_SECONDS_MAX = 2.0
#: So far behind, nothing is measured but the queue in this process.
_BEHIND_MAX = 20_000
#: After the last arrival: for what still runs.
_LAST_SECONDS = 30.0
_ACCEPTED = frozenset({200, 202})
_BOUNDARY = "soak"
_FORM = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="exec_name"\r\n\r\nnoop\r\n--{_BOUNDARY}--\r\n'.encode()


class Fill(msgspec.Struct, tag="fill"):
    """So many runs of one kind, as fast as they are taken."""

    count: int
    kind: str
    connections: int
    every_count: int


class ByClock(msgspec.Struct, tag="clock"):
    """Arrivals drawn by chance with this mean, as many people make them: not one after another's answer."""

    rate: float
    seconds: float
    #: The share of each kind; they sum up to 1.
    kinds: dict[str, float]
    every_seconds: float
    #: Of tenants that packs are asked for by.
    keys: list[str] = []
    seed: int = 1


Plan = Fill | ByClock


class Told(msgspec.Struct):
    """What came since the last line. Milliseconds; arrivals are counted from when they were due."""

    sent: int
    accepted: int
    ended: int
    #: By kind: p50, p95, p99, max.
    submit_ms: dict[str, tuple[float, ...]]
    end_ms: dict[str, tuple[float, ...]]
    seconds: float


class Whole(Told):
    """The last line: of everything."""

    #: By what went wrong: an HTTP status that was not 200, or the name of an error.
    refused: dict[str, int]
    #: By terminal state.
    ends: dict[str, int]
    #: Accepted, and not seen to end.
    open: int


class _Answer(msgspec.Struct):
    run_id: str


class _Record(msgspec.Struct):
    status: str


_read_answer = msgspec.json.Decoder(_Answer).decode
_read_record = msgspec.json.Decoder(_Record).decode


class _Connection(asyncio.Protocol):
    """One request at a time. Knows as much HTTP as the gateway speaks."""

    def __init__(self) -> None:
        self._buffer = b""
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def ask(self, request: bytes) -> asyncio.Future[tuple[int, bytes]]:
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, blank, rest = self._buffer.partition(b"\r\n\r\n")
        if not blank:
            return
        lower = head.lower()
        start = lower.index(b"content-length:") + 15
        if len(rest) < int(lower[start:].split(b"\r\n", 1)[0]):
            return
        self._buffer = b""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((int(head[9:12]), rest))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("the gateway hung up"))


class _Pool:
    """Connections, as many as are needed at once and no more than a bound."""

    def __init__(self, port: int, connections_max: int) -> None:
        self._port, self._room = port, asyncio.Semaphore(connections_max)
        self._free: list[tuple[float, _Connection]] = []

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        async with self._room:
            connection = self._take()
            if connection is None:
                loop = asyncio.get_running_loop()
                _, connection = await loop.create_connection(_Connection, "127.0.0.1", self._port)
            answer = await connection.ask(request)
            self._free.append((time.perf_counter(), connection))
            return answer

    def _take(self) -> _Connection | None:
        """The one that was used last. A gateway hangs up on those that rest for long: we do so first."""
        while self._free:
            used_at, connection = self._free.pop()
            if time.perf_counter() - used_at < _REST_SECONDS_MAX and not connection.transport.is_closing():
                return connection
            connection.transport.close()
        return None

    def close(self) -> None:
        for _, connection in self._free:
            connection.transport.close()


_Seconds = defaultdict[str, list[float]]


class _Book:
    """What is known of every run: when it was due, when it was accepted, when it ended."""

    def __init__(self) -> None:
        self.sent = self.accepted = self.ended = 0
        self.refused: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        #: Accepted and under way: what it is, and when it was due.
        self.open: dict[str, tuple[str, float]] = {}
        #: Ended, though the answer has not come yet: when.
        self._early: dict[str, float] = {}
        #: An end may be written once more, with a note that it was told of.
        self._ended: set[str] = set()
        #: Seconds by kind: since the last line, and before it.
        self._submits, self._all_submits = _Seconds(list), _Seconds(list)
        self._lasted, self._all_lasted = _Seconds(list), _Seconds(list)
        self._told = (0, 0, 0, time.perf_counter())
        self._began = time.perf_counter()

    def accept(self, run_id: str, kind: str, due_at: float) -> None:
        self.accepted += 1
        self._submits[kind].append(time.perf_counter() - due_at)
        ended_at = self._early.pop(run_id, None)
        if ended_at is None:
            self.open[run_id] = kind, due_at
        else:
            self._note_end(kind, ended_at - due_at)

    def on_record(self, message: Raw) -> None:
        """Every write of every run passes here: only the ends are looked at closely."""
        if not message.data:
            return
        status = _read_record(message.data).status
        run_id = message.subject.rpartition(".")[2]
        if status not in TERMINAL or run_id in self._ended:
            return
        self._ended.add(run_id)
        self.ends[status] += 1
        known = self.open.pop(run_id, None)
        if known is not None:
            self._note_end(known[0], time.perf_counter() - known[1])
        else:
            self._early[run_id] = time.perf_counter()

    def _note_end(self, kind: str, seconds: float) -> None:
        self.ended += 1
        self._lasted[kind].append(seconds)

    def line(self) -> Told:
        """Since the last one."""
        sent, accepted, ended, at = self._told
        self._told = self.sent, self.accepted, self.ended, time.perf_counter()
        told = Told(
            self.sent - sent,
            self.accepted - accepted,
            self.ended - ended,
            _milliseconds(self._submits),
            _milliseconds(self._lasted),
            time.perf_counter() - at,
        )
        self._close()
        return told

    def _close(self) -> None:
        for some, all_of_them in ((self._submits, self._all_submits), (self._lasted, self._all_lasted)):
            for kind, seconds in some.items():
                all_of_them[kind] += seconds
            some.clear()

    def whole(self) -> Whole:
        self._close()
        return Whole(
            self.sent,
            self.accepted,
            self.ended,
            _milliseconds(self._all_submits),
            _milliseconds(self._all_lasted),
            time.perf_counter() - self._began,
            dict(self.refused),
            dict(self.ends),
            len(self.open),
        )


def _milliseconds(seconds: _Seconds) -> dict[str, tuple[float, ...]]:
    return {kind: tuple(each * 1000 for each in (*percentiles(some), max(some))) for kind, some in seconds.items()}


def _print(line: Told) -> None:
    print(json.dumps(msgspec.to_builtins(line)), flush=True)


def _requests(port: int, keys: list[str]) -> dict[str, Iterator[bytes]]:
    """By kind, one after another."""
    address = f"127.0.0.1:{port}"
    flow = json.dumps({"flow_name": "noop", "params": {"name": "soak"}}).encode()
    form = [f"Content-Type: multipart/form-data; boundary={_BOUNDARY}", f"Content-Length: {len(_FORM)}"]
    return {
        "flow": itertools.repeat(request_of(address, "/runs", flow)),
        "program": itertools.repeat(request_of(address, "/jobs", b"", headers=form) + _FORM),
        "pack": _submissions(address, keys),
    }


class _Generator:
    def __init__(self, port: int, connections_max: int, keys: list[str]) -> None:
        self.book = _Book()
        self._pool = _Pool(port, connections_max)
        self._requests = _requests(port, keys)
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(self, kind: str, due_at: float) -> None:
        self.book.sent += 1
        try:
            status, body = await self._pool.ask(next(self._requests[kind]))
        except OSError as error:
            self.book.refused[type(error).__name__] += 1
            return
        if status in _ACCEPTED:
            self.book.accept(_read_answer(body).run_id, kind, due_at)
        else:
            self.book.refused[str(status)] += 1

    async def fill(self, plan: Fill) -> None:
        left = iter(range(plan.count))

        async def one_after_another() -> None:
            for number in left:
                await self.submit(plan.kind, time.perf_counter())
                if (number + 1) % plan.every_count == 0:
                    _print(self.book.line())

        await asyncio.gather(*(one_after_another() for _ in range(plan.connections)))

    async def by_clock(self, plan: ByClock) -> None:
        began = time.perf_counter()
        telling = asyncio.create_task(self._tell(began, plan))
        try:
            for due_at, kind in _arrivals(plan, began):
                pause = due_at - time.perf_counter()
                if pause > 0:
                    await asyncio.sleep(pause)
                if len(self._tasks) > _BEHIND_MAX:
                    raise RuntimeError(f"{_BEHIND_MAX} submissions wait for an answer: this rate is too much")
                task = asyncio.create_task(self.submit(kind, due_at))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            await telling
        finally:
            telling.cancel()

    async def _tell(self, began: float, plan: ByClock) -> None:
        lines = max(1, round(plan.seconds / plan.every_seconds))
        for number in range(1, lines + 1):
            await asyncio.sleep(max(0.0, began + number * plan.every_seconds - time.perf_counter()))
            _print(self.book.line())

    async def settle(self) -> None:
        """Until all that was accepted has ended."""
        deadline = time.perf_counter() + _LAST_SECONDS
        while (self._tasks or self.book.open) and time.perf_counter() < deadline:
            await asyncio.sleep(0.02)

    def close(self) -> None:
        self._pool.close()


def _arrivals(plan: ByClock, began: float) -> Iterator[tuple[float, str]]:
    chance = random.Random(plan.seed)
    kinds, shares = list(plan.kinds), list(plan.kinds.values())
    at = began
    while True:
        at += chance.expovariate(plan.rate)
        if at >= began + plan.seconds:
            return
        yield at, chance.choices(kinds, shares)[0]


async def _run(port: int, nats_url: str, plan: Plan) -> None:
    link = await open_link(nats_url, "soak")
    if isinstance(plan, Fill):
        generator = _Generator(port, plan.connections, [])
    else:
        generator = _Generator(port, _CONNECTIONS_MAX, plan.keys)
    if isinstance(plan, ByClock):
        await link.nc.listen(f"$KV.{NatsBackendConfig().runs_kv_bucket}.>", generator.book.on_record)
        await link.nc.flush()
    work = generator.fill(plan) if isinstance(plan, Fill) else generator.by_clock(plan)
    working = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, working.cancel)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await working
            if isinstance(plan, ByClock):
                await generator.settle()
    finally:
        _print(generator.book.whole())
        generator.close()
        await link.close()


if __name__ == "__main__":
    _, port, nats_url = sys.argv
    uvloop.run(_run(int(port), nats_url, msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)))
