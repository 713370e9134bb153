"""Delayed runs: how late they start, and what a hundred thousand of them cost while they wait."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping

import msgspec
import psutil
import uvloop

from bench.report import heading, median, percentiles, table
from bench.stack import Stack
from bench.submit import load
from pyoco_server.actions.submit import submit
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.delays import Delay
from pyoco_server.core.run import Caller, Submission
from pyoco_server.ports.nats.link import open_link
from pyoco_server.ports.runs.port import Stored
from pyoco_server.wiring import backend as wiring

_DUE, _WAITING = 1_000, 100_000
#: The due runs are submitted so long before their time, and are spread over so long.
_AHEAD_SECONDS, _SPREAD_SECONDS = 10.0, 60.0
_REST_SECONDS = 20.0
_ROUNDS = 3
_AT_ONCE = 200
_DAY = 86_400.0
_PLAIN = {"flow_name": "noop", "params": {"name": "bench"}}


def _ask(delay: Delay) -> Submission:
    return Submission(flow_name="noop", tag="default", tags=("default",), params={"name": "bench"}, delay=delay)


async def _fill(nats_url: str, count: int, delay_of: Callable[[int], Delay]) -> list[str]:
    """Their ids."""
    async with wiring.open_backend(NatsBackendConfig(nats_url=nats_url), "bench") as backend:
        filled: list[str] = []
        for start in range(0, count, _AT_ONCE):
            numbers = range(start, min(start + _AT_ONCE, count))
            some = await asyncio.gather(*(submit(backend, Caller(), _ask(delay_of(each))) for each in numbers))
            filled += [stored.run.run_id for stored in some]
        return filled


async def _lateness(stack: Stack, spread_seconds: float) -> tuple[list[float], list[float]]:
    """Seconds from the time of each run until its release was seen, and until its work began."""
    first = time.time() + _AHEAD_SECONDS
    run_ids = set(await _fill(stack.nats_url, _DUE, lambda number: Delay(until=first + spread_seconds * number / _DUE)))
    released: dict[str, float] = {}
    started: dict[str, float] = {}
    async with (
        wiring.open_backend(NatsBackendConfig(nats_url=stack.nats_url), "bench") as backend,
        contextlib.aclosing(backend.runs.changes()) as changes,
    ):
        async for change in changes:
            for item in change.items:
                if not isinstance(item, Stored) or item.run.run_id not in run_ids or item.run.waits_for_time:
                    continue
                run = item.run
                assert run.not_before is not None
                released.setdefault(run.run_id, time.time() - run.not_before)
                if run.start_time is not None:
                    started.setdefault(run.run_id, run.start_time - run.not_before)
            if len(started) == _DUE:
                return list(released.values()), list(started.values())
    raise RuntimeError("the feed of runs has ended")


def _late(stack: Stack) -> None:
    heading(f"{_DUE:,} delayed runs: milliseconds after their time, one keeper, one worker")
    stack.start_worker()
    time.sleep(2.5)
    rows: list[tuple[str, ...]] = [("", "released, p50", "released, p99", "started, p50", "started, p99")]
    for name, seconds in (("all in the same second", 0.0), (f"spread over {_SPREAD_SECONDS:.0f} s", _SPREAD_SECONDS)):
        cells = [name]
        for values in uvloop.run(_lateness(stack, seconds)):
            half, _, most = percentiles(values)
            cells += [f"{half * 1000:,.1f}", f"{most * 1000:,.1f}"]
        rows.append(tuple(cells))
    stack.stop_workers()
    table(rows)


class _State(msgspec.Struct):
    messages: int


class _Info(msgspec.Struct):
    state: _State


async def _alarms(nats_url: str) -> int:
    link = await open_link(nats_url, "bench")
    try:
        return (await link.api("STREAM.INFO.PYOCO_CLOCK", {}, _Info)).state.messages
    finally:
        await link.close()


def _settled(stack: Stack) -> int:
    """Return the number of alarms, once the keeper has set all of them."""
    before, now = -1, 0
    while now != before:
        time.sleep(2)
        before, now = now, uvloop.run(_alarms(stack.nats_url))
    return now


def _mib(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 2**20


def _cpu(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


def _rate(stack: Stack, body: Mapping[str, object]) -> float:
    return load(stack.port, 32, body=json.dumps(body).encode())


def _waiting(stack: Stack, keeper: psutil.Process) -> None:
    heading(f"{_WAITING:,} delayed runs that wait: memory, processor time at rest, and other submissions beside them")
    processes = {"gateway": stack.gateway(), "keeper": keeper, "NATS": stack.nats()}
    plain = [_rate(stack, _PLAIN) for _ in range(_ROUNDS)]
    delayed = [_rate(stack, _PLAIN | {"delay": _DAY}) for _ in range(_ROUNDS)]
    _rest(processes)
    before = {name: _mib(process) for name, process in processes.items()}
    known = _settled(stack)
    began = time.perf_counter()
    uvloop.run(_fill(stack.nats_url, _WAITING, lambda _: Delay(seconds=_DAY)))
    filled = time.perf_counter() - began
    while uvloop.run(_alarms(stack.nats_url)) < known + _WAITING:
        time.sleep(0.2)
    print(f"stored in {filled:.1f} s; all alarms set after {time.perf_counter() - began:.1f} s")
    shares = _rest(processes)
    rows: list[tuple[str, ...]] = [("", "MiB before", "MiB with them", "of one CPU at rest")]
    rows += [
        (name, f"{before[name]:.0f}", f"{_mib(process):.0f}", f"{shares[name]:.1%}")
        for name, process in processes.items()
    ]
    table(rows)
    beside = [_rate(stack, _PLAIN) for _ in range(_ROUNDS)]
    base = median(plain)
    print()
    table(
        [
            ("accepted per second, 32 connections", "", "ratio"),
            ("plain runs, none waits", f"{base:,.0f}", "1.00"),
            ("delayed runs", f"{median(delayed):,.0f}", f"{median(delayed) / base:.2f}"),
            (f"plain runs beside {_WAITING:,} that wait", f"{median(beside):,.0f}", f"{median(beside) / base:.2f}"),
        ]
    )


def _rest(processes: dict[str, psutil.Process]) -> dict[str, float]:
    """Of one processor, while nobody asks for anything; after what was under way has settled."""
    time.sleep(10)
    used, began = {name: _cpu(process) for name, process in processes.items()}, time.monotonic()
    time.sleep(_REST_SECONDS)
    seconds = time.monotonic() - began
    return {name: (_cpu(process) - used[name]) / seconds for name, process in processes.items()}


def main(stack: Stack) -> None:
    with stack.keeping() as keeper:
        _late(stack)
        _waiting(stack, keeper)
