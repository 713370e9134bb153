"""A large wheel up and down over HTTP, beside the same bytes into and out of the object store without us."""

from __future__ import annotations

import asyncio
import io
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import nats

from bench.memory_peak import MemoryPeak
from bench.report import heading, median, table
from bench.stack import Stack
from bench.wheel_files import make_wheel
from pyoco_server.config import NatsBackendConfig
from pyoco_server.http_client import PyocoHttpClient
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import open_link
from pyoco_server.ports.nats.resources import resources_of
from pyoco_server.ports.objects.jetstream import JetStreamObjects

_SIZE = 200_000_000
_ROUNDS = 3
_MEGABYTE = 1e6
_PIECE = 1 << 20


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


async def _raw(url: str, path: Path) -> tuple[float, float]:
    """Our own loop over the object store, alone: no HTTP, no check of what is in the file."""
    config = NatsBackendConfig(nats_url=url, wheel_object_store_bucket="bench_raw")
    link = await open_link(url, "bench")
    try:
        await ensure(link, [one for one in resources_of(config) if one.name == "OBJ_bench_raw"])
        store = JetStreamObjects(link, "bench_raw")
        began = time.perf_counter()
        info = await store.put(path.name, _pieces(path), _SIZE * 2)
        up = time.perf_counter() - began
        began = time.perf_counter()
        async for _ in store.read(info):
            pass
        down = time.perf_counter() - began
        await store.delete(path.name)
        return up, down
    finally:
        await link.close()


async def _library(url: str, path: Path) -> tuple[float, float]:
    """The same with nats-py's own object store."""
    nc = await nats.connect(url)
    try:
        store = await nc.jetstream().create_object_store("bench_library")
        began = time.perf_counter()
        with path.open("rb") as file:
            await store.put(path.name, file)
        up = time.perf_counter() - began
        began = time.perf_counter()
        await store.get(path.name, writeinto=io.BytesIO())
        down = time.perf_counter() - began
        await store.delete(path.name)
        return up, down
    finally:
        await nc.close()


def main(running: Stack) -> None:
    heading(f"a wheel of {_SIZE / _MEGABYTE:,.0f} MB up and down: MB/s, median of {_ROUNDS} interleaved rounds")
    rates: dict[str, list[tuple[float, float]]] = {"over HTTP": [], "object store alone": [], "nats-py alone": []}
    grown: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as home, PyocoHttpClient(f"http://127.0.0.1:{running.port}") as client:
        gateway = running.gateway()
        for count in range(_ROUNDS):
            path = make_wheel(Path(home), "bench_large", f"{count + 1}.0", _SIZE)
            with MemoryPeak(gateway) as filling:
                up = _timed(lambda path=path: client.upload_wheel(path.name, path))  # type: ignore[misc]
            with MemoryPeak(gateway) as emptying:
                down = _timed(lambda path=path: client.download_wheel(path.name, Path(home) / "back.whl"))  # type: ignore[misc]
            client.delete_wheel(path.name)
            grown.append((filling.grown_mib, emptying.grown_mib))
            rates["over HTTP"].append((up, down))
            rates["object store alone"].append(asyncio.run(_raw(running.nats_url, path)))
            rates["nats-py alone"].append(asyncio.run(_library(running.nats_url, path)))
            path.unlink()
    size = _SIZE / _MEGABYTE
    shown = {name: [size / median([pair[way] for pair in pairs]) for way in (0, 1)] for name, pairs in rates.items()}
    rows = [["", "up", "down"], *([name, f"{up:.0f}", f"{down:.0f}"] for name, (up, down) in shown.items())]
    alone = shown["object store alone"]
    rows.append(["over HTTP / alone", *(f"{shown['over HTTP'][way] / alone[way]:.2f}" for way in (0, 1))])
    rows.append(["gateway grows by, MiB", *(f"{max(pair[way] for pair in grown):.0f}" for way in (0, 1))])
    table(rows)
