"""Logs: how soon a line is seen, what they cost drains and workers, and what followers cost a gateway."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass

import psutil
import uvloop

from bench import drain
from bench.report import heading, median, percentiles, table
from bench.stack import Stack
from bench.talking import FLOOD_LINES, TICKS
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.flow_moves import accept, claim
from pyoco_server.core.run import Caller, Owner, Submission
from pyoco_server.core.run_log.attempt_log import AttemptLog, Limits
from pyoco_server.core.run_log.line import Stream
from pyoco_server.http_client import AsyncPyocoHttpClient, PyocoHttpClient
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.runs.port import Stored
from pyoco_server.wiring import backend as wiring

_ON, _OFF = {"PYOCO_LOGS_ENABLED": "true"}, {"PYOCO_LOGS_ENABLED": "false"}
_ASK = Submission(flow_name="noop", tag="bench-nobody", tags=("bench",), params={})
_FOLLOWERS = 10
_LINES_AT_ONCE = 2000


@dataclass(frozen=True)
class _Plan:
    #: Runs of the flow that tells the time.
    ticking: int
    drain_rounds: int
    drain_runs: int
    stored_lines: int
    floods: int


def main(stack: Stack) -> None:
    _measure(stack, _Plan(ticking=4, drain_rounds=7, drain_runs=2000, stored_lines=1_000_000, floods=20))


def short(stack: Stack) -> None:
    _measure(stack, _Plan(ticking=1, drain_rounds=3, drain_runs=800, stored_lines=200_000, floods=5))


def _measure(stack: Stack, plan: _Plan) -> None:
    stack.resolver = "bench.talking:resolve"
    stack.start_worker()  # makes the consumer, once
    time.sleep(2)
    _latency(stack, plan)
    stack.stop_workers()
    _drains(stack, plan)
    _cpu(stack, plan)
    _memory(stack, plan)


def _latency(stack: Stack, plan: _Plan) -> None:
    heading("logs: from the print to the line in a follower's hand over SSE, milliseconds; p50 below 300")
    seconds = []
    with PyocoHttpClient(f"http://127.0.0.1:{stack.port}") as client:
        for _ in range(plan.ticking):
            run_id = client.submit_run("ticks")["run_id"]
            seconds += [time.time() - float(line["text"]) for line in client.run_logs(run_id, follow=True)]
    if len(seconds) != plan.ticking * TICKS:
        raise RuntimeError(f"{len(seconds)} of {plan.ticking * TICKS} lines were seen")
    values = [f"{value * 1e3:.0f}" for value in percentiles(seconds)]
    table([("", "p50", "p95", "p99"), ("one line after another", *values)])


def _drains(stack: Stack, plan: _Plan) -> None:
    heading(f"logs: drain of {plan.drain_runs:,} flows, logs on and off in turns; ratios above 1: faster with logs")
    rows = [["", "off per s", "on per s", "ratio", "ratios", "off ms", "on ms", "ratio", "wanted"]]
    for flow_name, wanted in (("noop", "0.97"), ("ten_lines", "0.85")):
        off: list[drain.Drained] = []
        on: list[drain.Drained] = []
        for number in range(plan.drain_rounds):
            # Whatever else this machine does: each is the first of two as often as the other.
            for found, variables in ((off, _OFF), (on, _ON))[:: 1 if number % 2 else -1]:
                found.append(drain.measured(stack, 1, None, plan.drain_runs, flow_name, **variables))
        rates = [median([each.per_second for each in some]) for some in (off, on)]
        costs = [median([each.cpu_ms for each in some]) for some in (off, on)]
        ratios = sorted(one.per_second / other.per_second for one, other in zip(on, off, strict=True))
        row = [flow_name, f"{rates[0]:,.0f}", f"{rates[1]:,.0f}", f"{rates[1] / rates[0]:.2f}"]
        row += [f"{ratios[0]:.2f} to {ratios[-1]:.2f}"]
        rows.append([*row, f"{costs[0]:.2f}", f"{costs[1]:.2f}", f"{costs[0] / costs[1]:.2f}", wanted])
    table(rows)
    print("ms: processor time of all processes for each run")


def _cpu(stack: Stack, plan: _Plan) -> None:
    heading(f"logs: processor time for {FLOOD_LINES:,} lines, milliseconds")
    on, off = _flooded(stack, plan, _ON), _flooded(stack, plan, _OFF)
    rows = [("", "on", "off", "difference")]
    rows += [(name, f"{on[name]:.0f}", f"{off[name]:.0f}", f"{on[name] - off[name]:.0f}") for name in on]
    table(rows)


def _flooded(stack: Stack, plan: _Plan, variables: dict[str, str]) -> dict[str, float]:
    worker = psutil.Process(stack.start_worker(1, **variables).pid)
    time.sleep(2)
    try:
        _finish(stack, "flood", 1)
        before = _processor_ms(worker)
        _finish(stack, "flood", plan.floods)
        after = _processor_ms(worker)
    finally:
        stack.stop_workers()
    return {name: (after[name] - before[name]) / plan.floods for name in after}


def _finish(stack: Stack, flow_name: str, runs: int) -> None:
    with PyocoHttpClient(f"http://127.0.0.1:{stack.port}") as client:
        for _ in range(runs):
            client.wait_run(client.submit_run(flow_name)["run_id"])


def _processor_ms(worker: psutil.Process) -> dict[str, float]:
    children = [_used(child) for child in worker.children(recursive=True)]
    return {"worker": _used(worker), "hosts and their guards": sum(children)}


def _used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system) * 1e3


def _memory(stack: Stack, plan: _Plan) -> None:
    heading(f"logs: memory of the gateway with {plan.stored_lines:,} stored lines, MiB; at most 50 more")
    run_ids = uvloop.run(_stored(stack, plan.stored_lines))
    gateway = stack.gateway()
    before = _mib(gateway)
    peak, after, seconds = asyncio.run(_followed(stack, run_ids, plan.stored_lines))
    rows = [("", "MiB", "more")]
    rows += [("before", f"{before:.0f}", ""), (f"{_FOLLOWERS} followers, most", f"{peak:.0f}", f"{peak - before:.0f}")]
    rows += [("with all lines read, still following", f"{after:.0f}", f"{after - before:.0f}")]
    table(rows)
    print(f"the {plan.stored_lines:,} lines were read in {seconds:.1f} s")


async def _stored(stack: Stack, lines: int) -> list[str]:
    """Return the ids of runs that are RUNNING, and have printed this many lines together."""
    async with wiring.open_backend(NatsBackendConfig(nats_url=stack.nats_url), "bench") as backend:
        return [await _printed(backend, lines // _FOLLOWERS) for _ in range(_FOLLOWERS)]


async def _printed(backend: Backend, lines: int) -> str:
    run = claim(accept(_ASK, Caller(), backend.new_id(), time.time()), Owner("bench", "bench"), "attempt", time.time())
    made = await backend.runs.create(run)
    assert isinstance(made, Stored)
    assert backend.logs is not None
    log, after = AttemptLog(Limits(head_bytes=1 << 30)), 0
    for start in range(0, lines, _LINES_AT_ONCE):
        texts = "".join(
            f"line {number} of a task that tells what it does\n" for number in range(start, start + _LINES_AT_ONCE)
        )
        log.feed(Stream.STDOUT, "task", texts.encode(), time.time())
        while (shipment := log.take(time.time())) is not None:
            after = await backend.logs.append(run.run_id, run.attempt, shipment.payload, after)
    return run.run_id


async def _followed(stack: Stack, run_ids: list[str], lines: int) -> tuple[float, float, float]:
    """Return the gateway's memory at most, and once everything was read, and the seconds that took."""
    gateway, counts, peak = stack.gateway(), [0] * len(run_ids), 0.0

    async def follow(client: AsyncPyocoHttpClient, index: int) -> None:
        async for _ in client.run_logs(run_ids[index], follow=True):
            counts[index] += 1

    async with AsyncPyocoHttpClient(f"http://127.0.0.1:{stack.port}") as client:
        began = time.perf_counter()
        following = [asyncio.create_task(follow(client, index)) for index in range(len(run_ids))]
        while sum(counts) < lines:
            peak = max(peak, _mib(gateway))
            await asyncio.sleep(0.02)
        seconds, after = time.perf_counter() - began, _mib(gateway)
        for task in following:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*following)
    return max(peak, after), after, seconds


def _mib(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 2**20
