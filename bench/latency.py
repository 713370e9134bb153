"""From the submission over HTTP to the terminal record, seen by a client that watches and by one that polls."""

from __future__ import annotations

import asyncio
import time

import httpx
import uvloop

from bench.report import heading, percentiles, table
from bench.stack import Stack
from pyoco_server.config import NatsBackendConfig
from pyoco_server.ports.runs.port import Stored
from pyoco_server.wiring import backend as wiring

_RUNS = 400


async def _watching(stack: Stack) -> list[float]:
    ended: dict[str, asyncio.Event] = {}
    async with (
        wiring.open_backend(NatsBackendConfig(nats_url=stack.nats_url), "bench") as backend,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{stack.port}") as client,
    ):
        caught_up = asyncio.Event()

        async def follow() -> None:
            async for change in backend.runs.changes():
                for item in change.items:
                    if isinstance(item, Stored) and item.run.is_terminal:
                        ended.setdefault(item.run.run_id, asyncio.Event()).set()
                if change.caught_up:
                    caught_up.set()

        following = asyncio.create_task(follow())
        await caught_up.wait()
        seconds = []
        for _ in range(_RUNS):
            began = time.perf_counter()
            answer = await client.post("/runs", json={"flow_name": "noop"})
            await ended.setdefault(answer.json()["run_id"], asyncio.Event()).wait()
            seconds.append(time.perf_counter() - began)
        following.cancel()
        await asyncio.wait({following}, timeout=1)
        return seconds


async def _polling(stack: Stack) -> list[float]:
    seconds = []
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{stack.port}") as client:
        for _ in range(_RUNS // 2):
            began = time.perf_counter()
            run_id = (await client.post("/runs", json={"flow_name": "noop"})).json()["run_id"]
            while (await client.get(f"/runs/{run_id}")).json()["status"] != "COMPLETED":
                await asyncio.sleep(0.002)
            seconds.append(time.perf_counter() - began)
    return seconds


def main(stack: Stack) -> None:
    heading("latency: submission to terminal record seen, milliseconds, one run at a time, lower is better")
    stack.start_worker()
    time.sleep(2.5)
    rows: list[tuple[str, ...]] = [("", "p50", "p95", "p99")]
    for name, measure in (("client watches", _watching), ("client polls every 2 ms", _polling)):
        values = percentiles(uvloop.run(measure(stack)))
        rows.append((name, *(f"{value * 1000:.1f}" for value in values)))
    stack.stop_workers()
    table(rows)
