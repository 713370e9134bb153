"""Accepted runs per second by batches, beside single submissions and beside a publisher that knows no gateway."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable

import httpx
import uvloop

from bench.report import heading, median, spread, table
from bench.stack import Stack
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.flow_moves import accept
from pyoco_server.core.job import encode_job, job_of
from pyoco_server.core.run import Caller, Submission
from pyoco_server.core.snapshot import encode, to_snapshot
from pyoco_server.ports.nats.link import open_link
from pyoco_server.wiring import backend as wiring

_ITEMS = 1000
_SECONDS = 3.0
_ROUNDS = 3
_AT_ONCE = 250
_RUN = {"flow_name": "noop", "params": {"name": "bench"}}
_ASK = Submission(flow_name="noop", tag="default", tags=("default",), params={"name": "bench"})
_ONE = json.dumps(_RUN).encode()
_MANY = json.dumps({"runs": [_RUN] * _ITEMS}).encode()


def _load(port: int, path: str, connections: int, body: bytes) -> float:
    """Requests per second, from a process of its own."""
    command = [sys.executable, "-m", "bench.load", "127.0.0.1", str(port), path, str(connections), str(_SECONDS)]
    result = json.loads(subprocess.run(command, input=body, capture_output=True, check=True, timeout=60).stdout)
    assert set(result["statuses"]) == {"200"}, result
    return float(result["per_second"])


async def _published(nats_url: str) -> float:
    """The same two messages for each run, one after the other, and many runs at once: no checks, no answers to read but
    the acknowledgements, and nothing made anew but the ids."""
    config = NatsBackendConfig(nats_url=nats_url)
    link = await open_link(nats_url, "bench")
    ids = wiring._Ids()
    run = accept(_ASK, Caller(), ids(), time.time())
    record, job = encode(to_snapshot(run)), encode_job(job_of(run, _ASK, 1))
    done, end = 0, time.perf_counter() + _SECONDS

    async def one() -> None:
        nonlocal done
        while time.perf_counter() < end:
            run_id = ids()
            await link.store(
                f"$KV.{config.runs_kv_bucket}.{run_id}", record, {"Nats-Expected-Last-Subject-Sequence": "0"}
            )
            await link.store(f"{config.work_subject_prefix}.default", job, {"Nats-Msg-Id": run_id})
            done += 1

    await asyncio.gather(*(one() for _ in range(_AT_ONCE)))
    await link.close()
    return done / _SECONDS


def _check(port: int) -> None:
    answer = httpx.post(f"http://127.0.0.1:{port}/runs/batch", content=_MANY, timeout=30).json()
    assert (answer["accepted"], answer["refused"]) == (_ITEMS, 0), answer
    assert len({item["run_id"] for item in answer["items"]}) == _ITEMS


def _rest(stack: Stack) -> None:
    """Wait until the gateway has indexed what the last measurement left behind."""
    gateway = stack.gateway()
    for _ in range(100):
        if gateway.cpu_percent(0.2) < 10:
            return
    raise TimeoutError("the gateway does not come to rest")


def main(stack: Stack) -> None:
    heading(f"batch: accepted runs per second in batches of {_ITEMS:,}, higher is better")
    _check(stack.port)
    measures: dict[str, Callable[[], float]] = {
        "POST /runs, 32 connections": lambda: _load(stack.port, "/runs", 32, _ONE),
        "the two publishes alone, no gateway": lambda: uvloop.run(_published(stack.nats_url)),
        "POST /runs/batch, 1 connection": lambda: _ITEMS * _load(stack.port, "/runs/batch", 1, _MANY),
        "POST /runs/batch, 2 connections": lambda: _ITEMS * _load(stack.port, "/runs/batch", 2, _MANY),
    }
    found: dict[str, list[float]] = {}
    for _ in range(_ROUNDS):  # interleaved, so that a slow moment hits everybody
        for name, measure in measures.items():
            _rest(stack)
            found.setdefault(name, []).append(measure())
    single, bare = (median(found[name]) for name in list(measures)[:2])
    rows = [("", "per second", "spread", "ratio to single", "ratio to the publishes")]
    for name, values in found.items():
        rate = median(values)
        rows.append((name, f"{rate:,.0f}", spread(values), f"{rate / single:.2f}", f"{rate / bare:.2f}"))
    table(rows)
