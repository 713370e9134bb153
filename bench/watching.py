"""From the start of a run's write to the event in a watcher's hand, with 1, 100 and 1,000 watchers on one gateway.

The watchers are a process of their own: `python -m bench.watching PORT NATS_URL WATCHERS RUNS ROUNDS`.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import cast

import uvloop

from bench.report import heading, percentiles, table
from bench.stack import Stack
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.flow_moves import accept, beat, claim
from pyoco_server.core.outcome import Progress
from pyoco_server.core.run import Caller, Owner, Submission
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.client import Raw
from pyoco_server.ports.nats.link import open_link
from pyoco_server.ports.runs.port import Stored
from pyoco_server.wiring import backend as wiring

_ASK = Submission(flow_name="noop", tag="bench-nobody", tags=("bench",), params={"name": "bench"})
#: Between two writes: each event is measured alone.
_PAUSE_SECONDS = 0.005
_LIMIT_ROUNDS = 200
_WARM = 20


class _Watcher(asyncio.Protocol):
    """Notes when each event came. Knows as much HTTP as it needs: an event is one write of the server."""

    def __init__(self, run_id: str, began: asyncio.Future[None], on_event: Callable[[], None]) -> None:
        self._run_id, self._began, self._on_event = run_id, began, on_event
        self.arrivals: dict[int, float] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        request = f"GET /runs/{self._run_id}/watch?timeout_sec=600 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(request.encode())

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        for event in data.split(b"\n\n"):  # a heartbeat may come together with what follows it
            at = event.find(b"id: ")
            if at < 0:
                continue
            revision = int(event[at + 4 : event.index(b"\n", at)])
            if not self._began.done():
                self._began.set_result(None)
            elif b"event: snapshot" in event and revision not in self.arrivals:
                self.arrivals[revision] = now
                self._on_event()


class _Clients:
    """The watchers, and the writer."""

    def __init__(self, backend: Backend, port: int) -> None:
        self._backend, self._port = backend, port
        self._watchers: list[list[_Watcher]] = []
        self._runs: list[Stored] = []
        self._missing = 0
        self._all_there = asyncio.Event()

    async def make_runs(self, runs: int) -> None:
        for _ in range(runs):
            run = accept(_ASK, Caller(), self._backend.new_id(), time.time())
            run = claim(run, Owner("bench", "bench"), "attempt", time.time())
            made = await self._backend.runs.create(run)
            assert isinstance(made, Stored)
            self._runs.append(made)
            self._watchers.append([])

    async def watch(self, watchers: int) -> None:
        loop = asyncio.get_running_loop()
        for n in range(watchers):
            began: asyncio.Future[None] = loop.create_future()
            index = n % len(self._runs)
            make = partial(_Watcher, self._runs[index].run.run_id, began, self.on_event)
            _, watcher = await loop.create_connection(make, "127.0.0.1", self._port)
            self._watchers[index].append(watcher)
            await began

    @property
    def last(self) -> Stored:
        """The last of the runs."""
        return self._runs[-1]

    def leave(self) -> None:
        for watcher in (each for some in self._watchers for each in some):
            watcher.transport.close()

    def on_event(self) -> None:
        self._missing -= 1
        if self._missing == 0:
            self._all_there.set()

    async def write(self, n: int, expected: int) -> tuple[int, float]:
        """One change of a run, and `expected` to hear of it. Which run, and when the write began."""
        index = n % len(self._runs)
        stored = self._runs[index]
        # Something new each time: a mere heartbeat would be no event.
        run = beat(stored.run, Progress(tasks={"a": "RUNNING", "n": str(stored.revision)}), time.time())
        self._missing = expected
        self._all_there.clear()
        began = time.perf_counter()
        written = await self._backend.runs.replace(run, stored.revision)
        assert isinstance(written, Stored)
        self._runs[index] = written
        async with asyncio.timeout(10):
            await self._all_there.wait()
        return index, began

    async def heard(self, n: int) -> list[float]:
        """Seconds until each watcher of the run had it."""
        watchers = self._watchers[n % len(self._runs)]
        index, began = await self.write(n, len(watchers))
        seconds = [watcher.arrivals.pop(self._runs[index].revision) - began for watcher in watchers]
        await asyncio.sleep(_PAUSE_SECONDS)
        return seconds


async def _measure(port: int, nats_url: str, watchers: int, runs: int, rounds: int) -> dict[str, list[float]]:
    config = NatsBackendConfig(nats_url=nats_url)
    link = await open_link(nats_url, "bench")
    async with wiring.open_backend(config, "bench") as backend:
        clients = _Clients(backend, port)
        await clients.make_runs(runs)
        limit, at = [], 0.0

        def on_bare(_: Raw) -> None:
            nonlocal at
            at = time.perf_counter()
            clients.on_event()

        bare = await link.nc.listen(f"$KV.{config.runs_kv_bucket}.>", on_bare)
        await link.nc.flush()
        for n in range(_WARM + _LIMIT_ROUNDS):
            _, began = await clients.write(n, 1)
            limit.append(at - began)
            await asyncio.sleep(_PAUSE_SECONDS)
        await bare.unsubscribe()
        link.nc.forget(bare)
        await clients.watch(watchers)
        heard = [await clients.heard(n) for n in range(_WARM + rounds)]
    await link.close()
    return {"heard": [second for seconds in heard[_WARM:] for second in seconds], "limit": limit[_WARM:]}


def _run(stack: Stack, watchers: int, runs: int, rounds: int) -> dict[str, list[float]]:
    command = [sys.executable, "-m", "bench.watching", str(stack.port), stack.nats_url]
    command += [str(watchers), str(runs), str(rounds)]
    result = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=300)
    found: dict[str, list[float]] = json.loads(result.stdout)
    return found


def main(stack: Stack) -> None:
    heading("watch: from the write to the event, milliseconds, lower is better")
    rows: list[tuple[str, ...]] = [("", "watchers", "p50", "p95", "p99", "limit p50", "ratio")]
    for watchers, rounds in ((1, 400), (100, 300), (1000, 60)):
        for name, runs in (("each on a run of its own", watchers), ("all on one run", 1)):
            if watchers == runs == 1 and name != "all on one run":
                continue
            found = _run(stack, watchers, runs, rounds)
            values, limit = percentiles(found["heard"]), percentiles(found["limit"])[0]
            cells = (f"{value * 1000:.1f}" for value in (*values, limit))
            rows.append((name, f"{watchers:,}", *cells, f"{values[0] / limit:.1f}"))
    table(rows)
    print("limit: a bare subscriber on the bucket's subject hears of the same write, right before the watchers come")


if __name__ == "__main__":
    _, port, nats_url, *numbers = sys.argv
    json.dump(uvloop.run(_measure(int(port), nats_url, *map(int, numbers))), sys.stdout)
