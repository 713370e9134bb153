"""The Python door: from `submit()` to the value beside the same by hand and beside peers, and a large value."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from bench.memory_peak import MemoryPeak
from bench.peers.peers import PEERS
from bench.peers.processes import Failed
from bench.peers.servers import Servers
from bench.peers.sizes import Sizes, latencies_ms
from bench.peers.theirs import Theirs
from bench.python_flows import app, blob, noop
from bench.report import heading, median, table
from bench.stack import Stack
from pyoco_server import PyocoHttpClient
from pyoco_server.app.clients import Clients
from pyoco_server.app.submitting import Submitter
from pyoco_server.config import NatsBackendConfig
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import open_link
from pyoco_server.ports.nats.resources import resources_of
from pyoco_server.ports.objects.jetstream import JetStreamObjects

_APP, _BY_HAND = "App: submit().result()", "PyocoHttpClient by hand"
_PEERS = ("celery", "dramatiq", "taskiq-nats")
_ROUNDS, _WARM, _WAITS, _SECONDS = 3, 5, 100, 120.0
_SIZES = Sizes(seconds=1.0, share=_WAITS / 150)
_BLOB, _BLOB_ROUNDS, _PIECE = 50_000_000, 5, 1 << 20

Waits = dict[str, list[dict[str, float]]]


def main(running: Stack) -> None:
    running.app = "bench.python_flows:app"
    running.start_worker()
    url = f"http://127.0.0.1:{running.port}"
    clients = Clients(url, None)
    app.submitter = Submitter(app, clients)
    try:
        with PyocoHttpClient(url) as client:
            noop.submit(0).result(_SECONDS)  # its worker is there
            _round_trips(client)
            _large_values(running)
    finally:
        clients.close()


def _round_trips(client: PyocoHttpClient) -> None:
    heading(f"python: from the submission to the value, ms; {_WAITS} one after another, median of {_ROUNDS} rounds")
    found: Waits = {}
    with contextlib.ExitStack() as ends:
        folder = Path(tempfile.mkdtemp(prefix="pyoco-bench-python-"))
        ends.callback(shutil.rmtree, folder, ignore_errors=True)
        peers = list(_peers(Servers(ends, folder), folder))
        for _ in range(_ROUNDS):
            _add(found, _APP, _timed(lambda number: noop.submit(number).result(_SECONDS)))
            _add(found, _BY_HAND, _timed(lambda number: _by_hand(client, number)))
            for peer in peers:
                _add(found, peer.name, peer.wait())
    base = statistics.median(each["p50"] for each in found[_BY_HAND])
    rows = [("", "p50", "p95", "p99", "p50 times by hand")]
    for name, rounds in found.items():
        p50, p95, p99 = (median([each[part] for each in rounds]) for part in ("p50", "p95", "p99"))
        rows.append((name, f"{p50:.1f}", f"{p95:.1f}", f"{p99:.1f}", f"{p50 / base:.2f}"))
    table(rows)


def _peers(servers: Servers, folder: Path) -> Iterator[Theirs]:
    """Those that can be measured here."""
    for peer in PEERS:
        if peer.name in _PEERS:
            try:
                yield Theirs(peer, servers, _SIZES, folder)
            except (Failed, subprocess.TimeoutExpired) as error:
                print(f"{peer.name} is not measured: {error}")


def _add(found: Waits, name: str, values: dict[str, float]) -> None:
    found.setdefault(name, []).append(values)


def _timed(once: Callable[[int], int]) -> dict[str, float]:
    seconds = []
    for number in range(_WARM + _WAITS):
        began = time.perf_counter()
        if once(number) != number:
            raise RuntimeError("another value came back")
        seconds.append(time.perf_counter() - began)
    return latencies_ms(seconds[_WARM:])


def _by_hand(client: PyocoHttpClient, number: int) -> int:
    run_id = client.submit_run("noop", {"number": number})["run_id"]
    client.wait_run(run_id, _SECONDS)
    return int(client.read_run_result(run_id))


def _large_values(running: Stack) -> None:
    heading(f"python: a result of {_BLOB / 1e6:.0f} MB, MB/s, median of {_BLOB_ROUNDS} interleaved rounds")
    gateway, expected = running.gateway(), bytes(_BLOB)
    blob.submit(_BLOB).result(_SECONDS)  # its parts are loaded
    ours: list[tuple[float, float]] = []
    alone: list[tuple[float, float]] = []
    grown: list[tuple[float, float]] = []
    for _ in range(_BLOB_ROUNDS):
        began = time.perf_counter()
        with MemoryPeak(gateway) as storing:
            run = blob.submit(_BLOB)
            run.wait(_SECONDS)
        up, began = time.perf_counter() - began, time.perf_counter()
        with MemoryPeak(gateway) as reading:
            value = run.result(_SECONDS)
        ours.append((up, time.perf_counter() - began))
        if value != expected:
            raise RuntimeError("another value came back")
        del value
        grown.append((storing.grown_mib, reading.grown_mib))
        alone.append(asyncio.run(_store_alone(running.nats_url, expected)))
    rates = [[_BLOB / 1e6 / median([pair[way] for pair in pairs]) for way in (0, 1)] for pairs in (ours, alone)]
    rows = [("", "up", "down"), ("from submit() to the end; result()", *(f"{rate:.0f}" for rate in rates[0]))]
    rows.append(("object store alone", *(f"{rate:.0f}" for rate in rates[1])))
    rows.append(("ratio; wanted: 0.5", *(f"{rates[0][way] / rates[1][way]:.2f}" for way in (0, 1))))
    rows.append(
        ("gateway grows by, MiB; at most 10 MB", *(f"{max(pair[way] for pair in grown):.1f}" for way in (0, 1)))
    )
    table(rows)


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), _PIECE):
        yield data[start : start + _PIECE]


async def _store_alone(url: str, data: bytes) -> tuple[float, float]:
    """The same bytes into and out of the object store, without a run and without HTTP."""
    config = NatsBackendConfig(nats_url=url, wheel_object_store_bucket="bench_raw")
    link = await open_link(url, "bench")
    try:
        await ensure(link, [one for one in resources_of(config) if one.name == "OBJ_bench_raw"])
        store = JetStreamObjects(link, "bench_raw")
        began = time.perf_counter()
        info = await store.put("blob", _pieces(data), len(data) * 2)
        up, began = time.perf_counter() - began, time.perf_counter()
        async for _ in store.read(info):
            pass
        down = time.perf_counter() - began
        await store.delete("blob")
        return up, down
    finally:
        await link.close()
