"""Resident memory of gateway and worker, at rest and after many runs; and how long a cold start takes."""

from __future__ import annotations

import time

import psutil
import uvloop

from bench.drain import drained, fill
from bench.report import heading, table
from bench.stack import Stack

_RUNS = 10_000


def _mib(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 2**20


def main(stack: Stack) -> None:
    heading(f"memory: MiB at rest and after {_RUNS:,} runs")
    worker = psutil.Process(stack.start_worker().pid)
    time.sleep(2.5)
    gateway = stack.gateway()

    def sizes() -> dict[str, float]:
        hosts = [_mib(host) for host in worker.children()]
        return {"gateway": _mib(gateway), "worker": _mib(worker), "host (largest)": max(hosts)}

    before = sizes()
    run_ids = uvloop.run(fill(stack.nats_url, _RUNS))
    uvloop.run(drained(stack.nats_url, run_ids))
    time.sleep(1)
    after = sizes()
    stack.stop_workers()
    rows = [("", "at rest", f"after {_RUNS:,} runs")]
    rows += [(name, f"{before[name]:.0f}", f"{after[name]:.0f}") for name in before]
    table(rows)
    print(f"cold start of `pyoco-server up` (embedded NATS, gateway) to /ready: {stack.ready_seconds:.2f} s")
