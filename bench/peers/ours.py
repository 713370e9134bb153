"""Ours, measured as the peers are: the same jobs, the same load, the same windows of time."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable

import uvloop

from bench import drain
from bench.peers.figures import OURS
from bench.peers.sizes import Sizes, latencies_ms
from bench.peers.theirs import SETTLE_SECONDS, loads
from bench.stack import Stack, stack
from pyoco_server import AsyncPyocoHttpClient, PyocoNatsClient
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.states import RunState
from pyoco_server.ports.runs.port import Stored
from pyoco_server.wiring import backend as wiring

__all__ = ["LIBRARY", "THREADS", "Library", "Ours", "Threads"]

THREADS = "pyoco-server, threads"
LIBRARY = "pyoco-server, no HTTP"
_RESOLVER = "bench.peers.flows:resolve"
_NOOPS, _CHAINS, _WAITS = 2000, 1000, 200
_WARM, _WARM_DRAIN = 10, 40
#: For one figure, as the peers have.
_SECONDS_MAX = 90.0


class _Drained:
    """As many workers as are asked for, warm, and then each kind of job in turn."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes

    def drain(self, processes: int) -> dict[str, float]:
        with stack() as running:
            self._prepare(running)
            for _ in range(processes):
                running.start_worker()
            return uvloop.run(self._drained(running, processes))

    def _prepare(self, running: Stack) -> None:
        running.resolver = _RESOLVER
        uvloop.run(_make_consumer(running.nats_url))

    async def _drained(self, running: Stack, processes: int) -> dict[str, float]:
        nats_url = running.nats_url
        warm = [run_id for kind in ("noop", "chain") for run_id in await drain.fill(nats_url, _WARM_DRAIN, kind)]
        async with asyncio.timeout(_SECONDS_MAX):
            await drain.drained(nats_url, warm)
        await asyncio.sleep(SETTLE_SECONDS)
        found = {}
        for kind, full in (("noop", _NOOPS), ("chain", _CHAINS)):
            count = self._sizes.count(full)
            running.freeze_workers()
            run_ids = await drain.fill(nats_url, count, kind)
            async with asyncio.timeout(_SECONDS_MAX):
                found[f"{kind} {processes}"] = await drain.drained(nats_url, run_ids, running.thaw_workers)
            await asyncio.sleep(SETTLE_SECONDS)
        return found


class Ours(_Drained):
    """`pyoco-server up` without its keeper, and workers as a user starts them.

    They have a slot for each processor, and each slot is a host process.
    """

    name = OURS

    def http(self) -> dict[str, float]:
        with stack() as running:
            return loads(running.port, self._sizes.seconds)

    def wait(self) -> dict[str, float]:
        with stack() as running:
            self._prepare(running)
            running.start_worker()
            return latencies_ms(uvloop.run(self._waited(running)))

    async def _waited(self, running: Stack) -> list[float]:
        """The client's quickest way: submit, then watch until the end, both over HTTP."""
        async with AsyncPyocoHttpClient(f"http://127.0.0.1:{running.port}") as client:

            async def once() -> None:
                run_id = (await client.submit_run("noop"))["run_id"]
                statuses = [event["snapshot"]["status"] async for event in client.watch_run(run_id)]
                assert statuses[-1] == "COMPLETED", statuses

            return await _timed(once, self._sizes.count(_WAITS))


class Threads(_Drained):
    """A worker whose flows run in threads of its own process, as most peers' do. Our command offers no such worker."""

    name = THREADS

    def _prepare(self, running: Stack) -> None:
        super()._prepare(running)
        running.worker_command = [sys.executable, "-m", "bench.peers.threads_worker"]


class Library:
    """Without the gateway between: `PyocoNatsClient`, and the records followed as they change."""

    name = LIBRARY

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes

    def call(self) -> dict[str, float]:
        with stack() as running:
            return {f"call {n}": uvloop.run(self._called(running.nats_url, n)) for n in (1, 32)}

    async def _called(self, nats_url: str, callers: int) -> float:
        client = await PyocoNatsClient.connect(NatsBackendConfig(nats_url=nats_url))
        await asyncio.gather(*(client.submit_run("noop", {"name": "bench"}) for _ in range(callers)))
        done, began = 0, time.perf_counter()

        async def repeat() -> None:
            nonlocal done
            while time.perf_counter() < began + self._sizes.seconds:
                await client.submit_run("noop", {"name": "bench"})
                done += 1

        await asyncio.gather(*(repeat() for _ in range(callers)))
        rate = done / (time.perf_counter() - began)
        await client.close()
        return rate

    def wait(self) -> dict[str, float]:
        with stack() as running:
            running.resolver = _RESOLVER
            running.start_worker()
            return latencies_ms(uvloop.run(self._waited(running.nats_url)))

    async def _waited(self, nats_url: str) -> list[float]:
        config = NatsBackendConfig(nats_url=nats_url)
        client = await PyocoNatsClient.connect(config)
        ended: dict[str, asyncio.Future[RunState]] = defaultdict(asyncio.get_running_loop().create_future)

        async def once() -> None:
            status = await ended[await client.submit_run("noop", {})]
            assert status == RunState.COMPLETED, status

        async with wiring.open_backend(config, "bench") as backend:

            async def follow() -> None:
                async for change in backend.runs.changes():
                    for item in change.items:
                        if not isinstance(item, Stored) or not item.run.is_terminal:
                            continue
                        if not (end := ended[item.run.run_id]).done():  # it may be written once more
                            end.set_result(item.run.status)

            following = asyncio.create_task(follow())
            try:
                return await _timed(once, self._sizes.count(_WAITS))
            finally:
                following.cancel()
                await asyncio.wait({following}, timeout=1)
                await client.close()


async def _timed(once: Callable[[], Awaitable[None]], count: int) -> list[float]:
    """Seconds of each, after some that are not counted, the first of which waits for the worker to start."""
    seconds = []
    async with asyncio.timeout(_SECONDS_MAX):
        for _ in range(_WARM + count):
            began = time.perf_counter()
            await once()
            seconds.append(time.perf_counter() - began)
    return seconds[_WARM:]


async def _make_consumer(nats_url: str) -> None:
    """The queue's, so that it can be held before a worker has come."""
    async with wiring.open_backend(NatsBackendConfig(nats_url=nats_url), "bench") as backend:
        await (await backend.queue.open_intake(["default"], lambda _: None)).close()
