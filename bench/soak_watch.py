"""Many watchers on one gateway: what each of them costs, and when they hear of a change while runs go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil
import uvloop

from bench.report import heading, markdown, percentiles
from bench.soak_load import ByClock
from bench.soak_site import MIB, SoakSite, Verdict, loading
from bench.watching import _Clients
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.flow_moves import beat
from pyoco_server.core.outcome import Progress
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.runs.port import Stored
from pyoco_server.wiring import backend as wiring

__all__ = ["WatchPlan", "watch_many"]

#: Bytes in an event of the run that slow watchers do not read, and between two of its changes.
_FAT_BYTES, _FAT_PAUSE_SECONDS = 32_768, 0.05
#: What a slow watcher's system takes before it lets nothing more in.
_RECEIVE_BYTES = 4096
_SETTLE_SECONDS = 1.0
#: A watcher may cost this much, and slow ones may put the others off by so many times, before it is a fault.
_KIB_EACH_MAX, _TIMES_MAX, _MORE_MS_MAX = 60.0, 5.0, 50.0
_JUDGED_WATCHERS_MIN = 100


@dataclass(frozen=True)
class WatchPlan:
    watchers: int
    slow: int
    #: Of runs beside them.
    rate: float
    seconds: float


@dataclass
class _Stage:
    p50_ms: float
    p99_ms: float
    changes: int
    #: Of the gateway.
    cpu: float
    rss: int


@dataclass
class _Found:
    plan: WatchPlan
    before_rss: int = 0
    with_all_rss: int = 0
    after_rss: int = 0
    handles: tuple[int, int] = (0, 0)
    stages: dict[str, _Stage] = field(default_factory=dict)


def watch_many(site: SoakSite, plan: WatchPlan) -> Verdict:
    """Prints what there is, even when it is cut short."""
    heading(f"{plan.watchers:,} watchers on one gateway, {plan.slow} of another kind that read nothing")
    found = _Found(plan)
    site.start_worker()
    try:
        uvloop.run(_measure(site, found))
    finally:
        _print(found)
    return Verdict(_judged(found), _faults(found))


async def _measure(site: SoakSite, found: _Found) -> None:
    plan, gateway = found.plan, site.running.gateway()
    async with wiring.open_backend(NatsBackendConfig(nats_url=site.running.nats_url), "soak") as backend:
        clients = _Clients(backend, site.running.port)
        await clients.make_runs(plan.watchers + 1)  # the last one is for those who read nothing
        await asyncio.sleep(_SETTLE_SECONDS)
        found.before_rss, handles = gateway.memory_info().rss, gateway.num_fds()
        await clients.watch(plan.watchers)
        await asyncio.sleep(_SETTLE_SECONDS)
        found.with_all_rss = gateway.memory_info().rss
        await _stage(found, "nothing else goes on", clients, gateway)
        beside = ByClock(plan.rate, 4 * plan.seconds + 60, {"flow": 1.0}, 1.0)
        with loading(site, beside):
            await _stage(found, f"{plan.rate:g} flows/s beside them", clients, gateway)
            with _slow_watchers(site.running.port, clients, plan.slow):
                fattening = asyncio.create_task(_fatten(backend, clients))
                try:
                    await _stage(found, f"and {plan.slow} that read nothing, at first", clients, gateway)
                    await _stage(found, "the same, once their sockets are full", clients, gateway)
                    if fattening.done():
                        fattening.result()  # it goes on for ever, unless it failed
                finally:
                    fattening.cancel()
                    await asyncio.gather(fattening, return_exceptions=True)
        clients.leave()
        await asyncio.sleep(_SETTLE_SECONDS)
        found.after_rss, found.handles = gateway.memory_info().rss, (handles, gateway.num_fds())


async def _stage(found: _Found, name: str, clients: _Clients, gateway: psutil.Process) -> None:
    """One change after another, each of another run, for a while."""
    began, used = time.perf_counter(), gateway.cpu_times()
    took: list[float] = []
    changes = 0
    while time.perf_counter() < began + found.plan.seconds:
        took += await clients.heard(changes % found.plan.watchers)
        changes += 1
    after = gateway.cpu_times()
    cpu = (after.user + after.system - used.user - used.system) / (time.perf_counter() - began)
    p50, _, p99 = (seconds * 1000 for seconds in percentiles(took))
    found.stages[name] = _Stage(p50, p99, changes, cpu, gateway.memory_info().rss)
    print(f"  {name}: {changes:,} changes, p50 {p50:.1f} ms, p99 {p99:.1f} ms", flush=True)


@contextlib.contextmanager
def _slow_watchers(port: int, clients: _Clients, count: int) -> Iterator[None]:
    """They ask, and never read an answer."""
    request = f"GET /runs/{clients.last.run.run_id}/watch?timeout_sec=600 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with contextlib.ExitStack() as opened:
        for _ in range(count):
            one = opened.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
            one.connect(("127.0.0.1", port))
            one.sendall(request)
        yield


async def _fatten(backend: Backend, clients: _Clients) -> None:
    """Large changes of one run, one after another: what its watchers do not read has to stay somewhere."""
    stored = clients.last
    while True:
        filler = os.urandom(_FAT_BYTES // 2).hex()
        run = beat(stored.run, Progress(tasks={"a": "RUNNING", "filler": filler}), time.time())
        written = await backend.runs.replace(run, stored.revision)
        assert isinstance(written, Stored)
        stored = written
        await asyncio.sleep(_FAT_PAUSE_SECONDS)


def _kib_each(found: _Found) -> float:
    return (found.with_all_rss - found.before_rss) / found.plan.watchers / 1024


def _print(found: _Found) -> None:
    if not found.stages:
        print("nothing was measured")
        return
    print()
    rows = [("from the write to the event", "p50, ms", "p99, ms", "changes", "gateway, CPU", "gateway, MiB")]
    for name, stage in found.stages.items():
        figures = (f"{stage.p50_ms:.1f}", f"{stage.p99_ms:.1f}", f"{stage.changes:,}", f"{stage.cpu:.0%}")
        rows.append((name, *figures, f"{stage.rss / MIB:.0f}"))
    markdown(rows)
    sizes = [f"{rss / MIB:.0f}" for rss in (found.before_rss, found.with_all_rss, found.after_rss)]
    told = "gateway, MiB: {} without watchers, {} with all of them, {} after they left".format(*sizes)
    print(
        f"\n{told}: {_kib_each(found):.1f} KiB each; file handles {found.handles[0]} before, {found.handles[1]} after"
    )


def _judged(found: _Found) -> list[str]:
    more = ["memory of a watcher", "what slow ones do to others"]
    return ["file handles", *(more if found.plan.watchers >= _JUDGED_WATCHERS_MIN else ())]


def _faults(found: _Found) -> list[str]:
    faults = []
    if _kib_each(found) > _KIB_EACH_MAX and found.plan.watchers >= _JUDGED_WATCHERS_MIN:
        faults.append(f"a watcher takes {_kib_each(found):.0f} KiB")
    if found.handles[1] > found.handles[0] + 4:
        faults.append("file handles of the gateway grew from {} to {}".format(*found.handles))
    # While their sockets take it in they are as costly as any others: that is told, and not judged.
    _, beside, _, slow = found.stages.values()
    is_judged = found.plan.watchers >= _JUDGED_WATCHERS_MIN
    for name, now, before in (("p50", slow.p50_ms, beside.p50_ms), ("p99", slow.p99_ms, beside.p99_ms)):
        if is_judged and now > before * _TIMES_MAX and now > before + _MORE_MS_MAX:
            faults.append(f"slow watchers put the others off: {name} {now:.0f} ms instead of {before:.0f}")
    return faults
