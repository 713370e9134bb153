"""Finished runs per second: queued one-task flows, beside `Engine.run` of the same flow in one thread."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import uvloop

from bench.report import heading, median, spread, table
from bench.stack import Stack
from pyoco_server.actions.submit import submit
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.run import Caller, Submission
from pyoco_server.core.states import RunState
from pyoco_server.ports.nats.link import open_link
from pyoco_server.ports.runs.port import Stored
from pyoco_server.wiring import backend as wiring

_RUNS = 2000
_ROUNDS = 3
_FLOOR = """
import sys, time
from pyoco.core.engine import Engine
from pyoco.core.models import RunContext
from examples.flows import FLOWS
from pyoco_server.executors.flow.engine import SILENCE
flow, n = FLOWS["noop"], int(sys.argv[1])
for i in range(200):
    Engine(trace_backend=SILENCE).run(flow, params={}, run_context=RunContext(run_id=str(i)))
began = time.perf_counter()
for i in range(n):
    Engine(trace_backend=SILENCE).run(flow, params={}, run_context=RunContext(run_id=str(i)))
print(n / (time.perf_counter() - began))
"""


def floor() -> float:
    """The engine alone, in a process of its own: no queue, no record, no isolation."""
    done = subprocess.run([sys.executable, "-c", _FLOOR, str(_RUNS)], capture_output=True, check=True, timeout=60)
    return float(done.stdout)


class _Consumer(msgspec.Struct):
    num_pending: int
    num_ack_pending: int


async def fill(nats_url: str, runs: int, flow_name: str = "noop") -> list[str]:
    """Their ids."""
    ask = Submission(flow_name=flow_name, tag="default", tags=("default",), params={"name": "bench"})
    async with wiring.open_backend(NatsBackendConfig(nats_url=nats_url), "bench") as backend:
        filled: list[str] = []
        for start in range(0, runs, 200):
            some = await asyncio.gather(*(submit(backend, Caller(), ask) for _ in range(min(200, runs - start))))
            filled += [stored.run.run_id for stored in some]
        return filled


def _nobody_waits() -> None:
    """The workers are at it already."""


async def drained(nats_url: str, run_ids: Sequence[str], release: Callable[[], None] = _nobody_waits) -> float:
    """Runs per second, from the moment the workers are let go to the last one's end.

    Raises RuntimeError unless each of them is COMPLETED: an empty queue says nothing of how they ended.
    """
    rate = await _until_empty(nats_url, len(run_ids), release)
    ends = await _ends(nats_url, run_ids)
    if ends != {RunState.COMPLETED: len(run_ids)}:
        raise RuntimeError(f"of {len(run_ids):,} runs ended {dict(ends)}")
    return rate


async def _until_empty(nats_url: str, runs: int, release: Callable[[], None]) -> float:
    link = await open_link(nats_url, "bench")
    try:
        began = time.perf_counter()
        release()
        while True:
            info = await link.api("CONSUMER.INFO.PYOCO_WORK.pyoco_worker_default", {}, _Consumer)
            if info.num_pending + info.num_ack_pending == 0:
                return runs / (time.perf_counter() - began)
            await asyncio.sleep(0.01)
    finally:
        await link.close()


async def _ends(nats_url: str, run_ids: Sequence[str]) -> Counter[RunState]:
    """How many of them are in each state, by their records."""
    statuses: dict[str, RunState] = {}
    async with (
        wiring.open_backend(NatsBackendConfig(nats_url=nats_url), "bench") as backend,
        contextlib.aclosing(backend.runs.changes()) as changes,
    ):
        async for change in changes:
            statuses |= {item.run.run_id: item.run.status for item in change.items if isinstance(item, Stored)}
            if change.caught_up:
                break
    return Counter(statuses[run_id] for run_id in run_ids if run_id in statuses)


def drain(stack: Stack, workers: int, slots: int | None = None) -> float:
    return measured(stack, workers, slots).per_second


@dataclass(frozen=True)
class Drained:
    per_second: float
    #: Processor time of NATS, gateway, workers and hosts for each run: less noisy than a rate.
    cpu_ms: float


def measured(
    stack: Stack, workers: int, slots: int | None = None, runs: int = _RUNS, flow_name: str = "noop", **environment: str
) -> Drained:
    # Filled while nobody takes anything, for workers that are warm: start-up is measured elsewhere. They stand still: a
    # consumer that is paused would begin again only with their next question, up to two seconds later.
    for _ in range(workers):
        stack.start_worker(slots, **environment)
    time.sleep(2)
    uvloop.run(_warmed(stack.nats_url))
    stack.freeze_workers()
    try:
        run_ids = uvloop.run(fill(stack.nats_url, runs, flow_name))
        before = stack.cpu_seconds()
        rate = uvloop.run(drained(stack.nats_url, run_ids, stack.thaw_workers))
        return Drained(rate, (stack.cpu_seconds() - before) / runs * 1e3)
    finally:
        stack.thaw_workers()
        stack.stop_workers()


async def _warmed(nats_url: str) -> None:
    await drained(nats_url, await fill(nats_url, 40))


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
