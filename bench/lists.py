"""Pages of 50 runs over HTTP while more and more runs are stored; the making of the index, its memory, its resuming.

`BENCH_LIST_RUNS=1000,100000 python -m bench lists` for other numbers of runs than those below.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import psutil
import uvloop

from bench.report import heading, percentiles, table
from bench.stack import Stack, _environment, _until, free_port
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.run import Run
from pyoco_server.core.snapshot import encode, to_snapshot
from pyoco_server.core.states import TERMINAL, RunState
from pyoco_server.doors.http.cursors import write_cursor
from pyoco_server.ports.index.port import ListPosition, RunFilter
from pyoco_server.ports.nats.link import open_link

_SIZES = [int(text) for text in os.environ.get("BENCH_LIST_RUNS", "1000,100000,1000000").split(",")]
_ROUNDS = 200
_BUCKET = NatsBackendConfig().runs_kv_bucket
#: More at once, and the server would begin to refuse.
_BURST = 2000
_BEGAN = 1_700_000_000.0


def _run(number: int) -> Run:
    """Ten flows and four tags, so that every page is full even among a thousand runs.

    Nearly all have ended well. Fifty were cancelled, all with one tag and all long ago: the hardest to find.
    """
    status = RunState.FAILED if number % 50 == 0 else RunState.RUNNING if number % 1000 == 8 else RunState.COMPLETED
    status = RunState.CANCELLED if number < 200 and number % 4 == 3 else status
    at = _BEGAN + number * 0.0123
    return Run(
        run_id=str(uuid.UUID(int=random.getrandbits(128), version=4)),
        flow_name=f"flow-{number % 10}",
        tag=f"tag-{number % 4}",
        tags=(f"tag-{number % 4}", "nightly") if number % 20 == 0 else (f"tag-{number % 4}",),
        params={"name": "bench", "number": number},
        submitted_at=at,
        start_time=at + 0.1,
        updated_at=at + 1,
        heartbeat_at=at + 1,
        end_time=at + 1 if status in TERMINAL else None,
        status=status,
        error=f"ZeroDivisionError: division by zero in line {number % 300}" if status is RunState.FAILED else None,
        attempt=1,
        attempt_id="bench",
        worker_id="bench",
    )


async def _fill(nats_url: str, first: int, end: int) -> int:
    """Written in bursts, of which the last message is answered for. Gives the last revision."""
    link = await open_link(nats_url, "bench")
    try:
        last = first
        for start in range(first, end, _BURST):
            runs = [_run(number) for number in range(start, min(start + _BURST, end))]
            messages = [(f"$KV.{_BUCKET}.{run.run_id}", encode(to_snapshot(run))) for run in runs]
            for subject, data in messages[:-1]:
                await link.nc.send(subject, data)
            last = await link.store(*messages[-1])
        assert last == end, f"{end - last} of {end} runs were not stored"
        return last
    finally:
        await link.close()


@dataclass(frozen=True)
class _Gateway:
    port: int
    process: psutil.Process
    ready_seconds: float

    @property
    def mib(self) -> float:
        return float(self.process.memory_info().rss) / 2**20

    @property
    def peak_mib(self) -> float:
        with Path(f"/proc/{self.process.pid}/status").open() as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


@contextlib.contextmanager
def _gateway(nats_url: str, data_dir: str) -> Iterator[_Gateway]:
    """One more gateway, with an index of its own."""
    port = free_port()
    command = [sys.executable, "-m", "pyoco_server.doors.cli.server", "gateway", "--port", str(port)]
    # Without priced runs: their ledger is in the data directory of the first gateway.
    settings = _environment(PYOCO_NATS_URL=nats_url, PYOCO_DATA_DIR=data_dir, PYOCO_PRICED_ENABLED="0")
    process = subprocess.Popen(command, env=settings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        ready = _until(f"http://127.0.0.1:{port}/ready", 600)
        yield _Gateway(port, psutil.Process(process.pid), ready)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _queries(total: int) -> dict[str, dict[str, str]]:
    middle = ListPosition(total, _BEGAN + total * 0.0123 / 2 + 1.5, "")
    deep, deep_flow, deep_search = (
        write_cursor(middle, each) for each in (RunFilter(), RunFilter(flow="flow-3"), RunFilter(search="bench"))
    )
    return {
        "no filter": {},
        "no filter, half way down": {"cursor": deep},
        "status": {"status": "COMPLETED"},
        "rare status": {"status": "CANCELLED"},
        "flow": {"flow": "flow-3"},
        "flow, half way down": {"flow": "flow-3", "cursor": deep_flow},
        "tag": {"tag": "tag-3"},
        "label": {"tag": "nightly"},
        "tag and rare status": {"tag": "tag-3", "status": "CANCELLED"},
        "flow and tag": {"flow": "flow-3", "tag": "tag-3"},
        "flow and tag that never meet": {"flow": "flow-3", "tag": "tag-0"},
        "search: a word of every run": {"q": "bench"},
        "search: a word of every run, half way down": {"q": "bench", "cursor": deep_search},
        "search: the beginning of a word": {"q": "ben"},
        "search: three words": {"q": "flow-3 tag-3 bench"},
        "search: words of errors": {"q": "zerodivisionerror zero"},
        "search: a number, one run": {"q": "bench 777"},
        "search and label": {"q": "flow-0", "tag": "nightly"},
        "search and rare status": {"q": "bench", "status": "CANCELLED"},
        "search: two words that never meet": {"q": "flow-3 tag-0"},
        "updated after": {"updated_after": f"{_BEGAN + total * 0.0123 - 2}"},
    }


def _measure(port: int, total: int) -> dict[str, tuple[float, float]]:
    """p50 and p99 in milliseconds of each query, and of a request that looks at nothing."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    paths = {name: f"/runs?{urlencode(query | {'limit': '50'})}" for name, query in _queries(total).items()}
    paths["GET /health"] = "/health"
    found: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(_ROUNDS):  # interleaved, so that a slow moment hits everybody
        for name, path in paths.items():
            began = time.perf_counter()
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
            found[name].append((time.perf_counter() - began) * 1000)
            assert answer.status == 200, body
            if total and name != "GET /health":
                few = min(50, total // 50) if "errors" in name else 1 if "one run" in name else 50
                assert _count(body) == (0 if "never" in name else few), (name, body[:200])
    connection.close()
    return {name: (percentiles(values)[0], percentiles(values)[2]) for name, values in found.items()}


def _count(body: bytes) -> int:
    page = json.loads(body)
    return len(page["items"] if isinstance(page, dict) else page)


def main(stack: Stack) -> None:
    heading("lists: GET /runs?limit=50 over HTTP, milliseconds, one request at a time, lower is better")
    found: dict[int, dict[str, tuple[float, float]]] = {}
    made: list[tuple[str, ...]] = [
        ("runs", "build s", "runs per s", "resume s", "MiB more than empty", "peak", "after resuming", "file MiB")
    ]
    home = tempfile.mkdtemp(prefix="pyoco-bench-lists-")
    try:
        with _gateway(stack.nats_url, f"{home}/0") as gateway:
            _measure(gateway.port, 0)
            empty, empty_peak = gateway.mib, gateway.peak_mib
        there = 0
        for total in _SIZES:
            uvloop.run(_fill(stack.nats_url, there, total))
            there = total
            _until(f"http://127.0.0.1:{stack.port}/ready", 600)
            _settle(stack, total)
            with _gateway(stack.nats_url, f"{home}/{total}") as gateway:
                build = gateway.ready_seconds
                _measure(gateway.port, total)
                more, peak = gateway.mib - empty, gateway.peak_mib - empty_peak
            with _gateway(stack.nats_url, f"{home}/{total}") as gateway:
                found[total] = _measure(gateway.port, total)
                resume, after = gateway.ready_seconds, gateway.mib - empty
            size = sum(each.stat().st_size for each in Path(f"{home}/{total}/index").iterdir()) / 2**20
            figures = (f"{build:.1f}", f"{total / build:,.0f}", f"{resume:.1f}", f"{more:.0f}", f"{peak:.0f}")
            made.append((f"{total:,}", *figures, f"{after:.0f}", f"{size:.0f}"))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    _print(found)
    print()
    table(made)


def _settle(stack: Stack, total: int) -> None:
    """Wait until the stack's own gateway has taken in everything: it shares the processors."""
    connection = http.client.HTTPConnection("127.0.0.1", stack.port, timeout=30)
    newest = _BEGAN + (total - 1) * 0.0123
    while True:
        connection.request("GET", f"/runs?limit=1&updated_after={newest}")
        answer = connection.getresponse()
        body = answer.read()
        if answer.status == 200 and json.loads(body)["items"]:
            connection.close()
            return
        time.sleep(0.1)


def _print(found: dict[int, dict[str, tuple[float, float]]]) -> None:
    first = min(found)
    head = [text for total in found for text in (f"{total:,} p50", "p99")]
    rows = [("", *head, *(f"ratio {total:,}" for total in found if total != first))]
    for name in found[first]:
        figures = [f"{value:.2f}" for total in found for value in found[total][name]]
        ratios = [f"{found[total][name][0] / found[first][name][0]:.2f}" for total in found if total != first]
        rows.append((name, *figures, *ratios))
    table(rows)
