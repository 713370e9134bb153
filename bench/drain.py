"""Finished runs per second: queued one-task flows, beside `Engine.run` of the same flow in one thread."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import msgspec
import uvloop

from bench.report import heading, median, spread, table
from bench.stack import Stack
from pyoco_server import wiring
from pyoco_server.actions.submit import submit
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.run import Caller, Submission
from pyoco_server.ports.nats.link import open_link

_RUNS = 2000
_ROUNDS = 3
_FLOOR = """
import sys, time
from pyoco.core.engine import Engine
from pyoco.core.models import RunContext
from examples.flows import FLOWS
from pyoco_server.executors.flow.engine import _SILENCE
flow, n = FLOWS["noop"], int(sys.argv[1])
for i in range(200):
    Engine(trace_backend=_SILENCE).run(flow, params={}, run_context=RunContext(run_id=str(i)))
began = time.perf_counter()
for i in range(n):
    Engine(trace_backend=_SILENCE).run(flow, params={}, run_context=RunContext(run_id=str(i)))
print(n / (time.perf_counter() - began))
"""


def floor() -> float:
    """The engine alone, in a process of its own: no queue, no record, no isolation."""
    done = subprocess.run([sys.executable, "-c", _FLOOR, str(_RUNS)], capture_output=True, check=True, timeout=60)
    return float(done.stdout)


class _Consumer(msgspec.Struct):
    num_pending: int
    num_ack_pending: int


async def fill(nats_url: str, runs: int, flow_name: str = "noop") -> None:
    ask = Submission(flow_name=flow_name, tag="default", tags=("default",), params={"name": "bench"})
    async with wiring.open_backend(NatsBackendConfig(nats_url=nats_url), "bench") as backend:
        for start in range(0, runs, 200):
            await asyncio.gather(*(submit(backend, Caller(), ask) for _ in range(min(200, runs - start))))


async def _hold(nats_url: str, until: str) -> None:
    """Let the queue deliver nothing before `until`; an instant that has passed lets it go on."""
    link = await open_link(nats_url, "bench")
    await link.api("CONSUMER.PAUSE.PYOCO_WORK.pyoco_worker_default", {"pause_until": until}, dict[str, object])
    await link.close()


async def _drained(nats_url: str, runs: int) -> float:
    """Runs per second from the first finished one to the last."""
    link = await open_link(nats_url, "bench")
    try:
        first: tuple[float, int] | None = None
        while True:
            info = await link.api("CONSUMER.INFO.PYOCO_WORK.pyoco_worker_default", {}, _Consumer)
            left = info.num_pending + info.num_ack_pending
            now = time.perf_counter()
            if first is None and left < runs:
                first = now, left
            if left == 0 and first is not None:
                return first[1] / (now - first[0])
            await asyncio.sleep(0.01)
    finally:
        await link.close()


def drain(stack: Stack, workers: int, slots: int | None = None) -> float:
    # Filled while nothing is delivered, to workers that are warm: start-up is measured elsewhere.
    uvloop.run(_hold(stack.nats_url, "2099-01-01T00:00:00Z"))
    for _ in range(workers):
        stack.start_worker(slots)
    uvloop.run(fill(stack.nats_url, _RUNS))
    time.sleep(2)
    try:
        uvloop.run(_hold(stack.nats_url, "2000-01-01T00:00:00Z"))
        return uvloop.run(_drained(stack.nats_url, _RUNS))
    finally:
        stack.stop_workers()


def main(stack: Stack) -> None:
    heading(f"drain: {_RUNS:,} queued one-task flows, finished runs per second, higher is better")
    stack.start_worker()  # makes the consumer, once
    time.sleep(2)
    stack.stop_workers()
    found: dict[str, list[float]] = {}
    for _ in range(_ROUNDS):
        found.setdefault("Engine.run in one thread (the floor)", []).append(floor())
        found.setdefault("1 worker process", []).append(drain(stack, 1))
        found.setdefault("2 worker processes, 1 slot each", []).append(drain(stack, 2, 1))
    base = median(found["Engine.run in one thread (the floor)"])
    rows = [("", "per second", "spread", "ratio to the floor")]
    rows += [(name, f"{median(v):,.0f}", spread(v), f"{median(v) / base:.2f}") for name, v in found.items()]
    table(rows)
