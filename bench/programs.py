"""Programs that exit at once: jobs per second through a native worker and through a door, beside bare loops."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time

import psutil
import uvloop

from bench.program_doors import measure_doors
from bench.program_site import SLOTS, ProgramSite, a_site, drained, fill, opened, submit
from bench.report import heading, median, percentiles, spread, table
from bench.stack import Stack
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.ports.wakeups.port import Wakeup

_JOBS = int(os.environ.get("BENCH_PROGRAM_JOBS", "2000"))
_ROUNDS = int(os.environ.get("BENCH_PROGRAM_ROUNDS", "3"))
#: The cap of the client: what its own programs may be at once, so that no job waits for another client's.
_CAP = 4 * SLOTS
_PROGRAM = "/bin/true"
_LATENCY_JOBS = 200


def _in_a_process_of_its_own(expression: str) -> float:
    """Bare loops wait for any child: they must have no other."""
    imports = "from bench.bare_exec import bare_exec, fork_exec"
    command = [sys.executable, "-c", f"{imports}; print({expression})"]
    return float(subprocess.run(command, capture_output=True, check=True, timeout=120).stdout)


def gnu_parallel(count: int) -> float | None:
    """None: it is not installed."""
    if shutil.which("parallel") is None:
        return None
    numbers = "\n".join(map(str, range(count))).encode()
    began = time.perf_counter()
    # `-N0`: the program gets no argument. Its output is collected, as by default.
    subprocess.run(["parallel", f"-j{SLOTS}", "-N0", _PROGRAM], input=numbers, check=True, capture_output=True)
    return count / (time.perf_counter() - began)


def native(site: ProgramSite) -> tuple[float, dict[str, float]]:
    """Jobs per second, and microseconds of CPU for each job by who used them."""
    uvloop.run(fill(site.nats_url, _JOBS, _CAP))
    worker = psutil.Process(site.start("nworker", "--id", "bench")[0].pid)
    before = _cpu(site, worker)
    rate = uvloop.run(drained(site.nats_url, _JOBS))
    used = _cpu(site, worker)
    site.stop()
    return rate, {name: (value - before[name]) / _JOBS * 1e6 for name, value in used.items()}


def _cpu(site: ProgramSite, worker: psutil.Process) -> dict[str, float]:
    """Seconds by who used them."""
    own, server = worker.cpu_times(), site.server.cpu_times()
    (runner,) = worker.children()
    theirs = runner.cpu_times()
    return {
        "worker": own.user + own.system,
        "runner of programs": theirs.user + theirs.system,
        "programs": theirs.children_user + theirs.children_system,
        "NATS": server.user + server.system,
    }


async def _latencies(nats_url: str) -> list[float]:
    """Seconds from the submission to the word that the run has ended, one job at a time."""
    async with opened(nats_url) as backend:
        ended: dict[str, asyncio.Event] = {}
        wakeups = programs_of(backend).wakeups

        def heard(_: Wakeup, run_id: str) -> None:
            ended.setdefault(run_id, asyncio.Event()).set()

        listening = await wakeups.listen("default", heard, Wakeup.DONE)
        took = []
        for _ in range(_LATENCY_JOBS):
            began = time.perf_counter()
            run_id = await submit(backend)
            await ended.setdefault(run_id, asyncio.Event()).wait()
            took.append(time.perf_counter() - began)
        await listening.close()
        return took


def _throughput(site: ProgramSite) -> None:
    heading(f"programs: {_JOBS:,} jobs of a program that exits at once, {SLOTS} at a time, per second")
    found: dict[str, list[float]] = {}
    used: dict[str, float] = {}
    for _ in range(_ROUNDS):
        loops = {"posix_spawn in a loop (the limit)": "bare_exec", "fork and exec in a loop": "fork_exec"}
        for name, function in loops.items():
            rate = _in_a_process_of_its_own(f"{function}({_PROGRAM!r}, {_JOBS}, {SLOTS})")
            found.setdefault(name, []).append(rate)
        parallel = gnu_parallel(min(_JOBS, 1000))
        if parallel is not None:
            found.setdefault("GNU parallel", []).append(parallel)
        rate, used = native(site)
        found.setdefault("native worker", []).append(rate)
    base = median(found["posix_spawn in a loop (the limit)"])
    rows = [("", "per second", "spread", "ratio to the limit")]
    rows += [(name, f"{median(v):,.0f}", spread(v), f"{median(v) / base:.2f}") for name, v in found.items()]
    table(rows)
    if "GNU parallel" not in found:
        print("GNU parallel is not installed: apt install parallel")
    told = ", ".join(f"{name} {value:,.0f}" for name, value in used.items())
    print(f"CPU of one job, in microseconds: {told}")


def _latency(site: ProgramSite) -> None:
    heading(f"latency: from submit to the end of a program that exits at once, ms, {_LATENCY_JOBS} jobs one by one")
    site.start("nworker", "--id", "bench")
    uvloop.run(_latencies(site.nats_url))
    took = [seconds * 1000 for seconds in uvloop.run(_latencies(site.nats_url))]
    site.stop()
    p50, p95, p99 = percentiles(took)
    table([("", "p50", "p95", "p99"), ("native worker", f"{p50:.1f}", f"{p95:.1f}", f"{p99:.1f}")])


def main(_: Stack) -> None:
    with a_site() as site:
        _throughput(site)
        _latency(site)
        measure_doors(site, _JOBS, _CAP)
