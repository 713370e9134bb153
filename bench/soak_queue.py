"""Long queues: how fast they fill, what every look costs while they wait, and how fast they are worked off."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from dataclasses import dataclass, field

import msgspec
import uvloop

from bench.report import heading, markdown, percentiles
from bench.soak_load import Fill, Told, Whole
from bench.soak_site import MIB, Sample, SoakSite, Verdict, loading
from pyoco_server.ports.nats.link import open_link

__all__ = ["QueuePlan", "wait_long"]

_NEVER, _LONG_AGO = "2099-01-01T00:00:00Z", "2000-01-01T00:00:00Z"
_STREAMS = {"flow": "PYOCO_WORK", "program": "PYOCO_EXEC"}
_CONNECTIONS = 32
#: Of a queue, what is worked off while hosts are started.
_WARM_SHARE = 0.05
_DRAIN_SECONDS_MAX = 120.0
#: By how much more CPU a run of a long queue may take. Rates are told, and not judged: others use the machine as well.
_CPU_TIMES_MAX = 1.5
#: A look may take this many times as long with the long queue, and this many milliseconds more, before it is a fault.
_TIMES_MAX, _MORE_MS_MAX = 10.0, 50.0
#: With fewer, nothing is judged: it takes no time at all, and a moment of noise is many times that.
_JUDGED_RUNS_MIN = 10_000


@dataclass(frozen=True)
class QueuePlan:
    runs: int
    jobs: int
    #: How long a queue is watched while it is worked off.
    drain_seconds: float
    rounds: int

    #: Queues to compare with: a few seconds of work.
    short_runs: int
    short_jobs: int


@dataclass(frozen=True)
class _Drained:
    per_second: float
    #: By part: microseconds of CPU for each that was finished. Tells a slow way from a busy machine.
    cpu_us: dict[str, float]


@dataclass
class _Found:
    plan: QueuePlan
    #: By stage, by question: p50 and p99 in milliseconds.
    looks: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    #: By kind: the first lines and the last ones of a fill, and the processes before and after it.
    fills: dict[str, tuple[list[Told], Sample, Sample]] = field(default_factory=dict)
    #: By kind: from a short queue and from a long one.
    drains: dict[str, list[_Drained]] = field(default_factory=dict)
    judged: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def wait_long(site: SoakSite, plan: QueuePlan) -> Verdict:
    """Prints what there is, even when it is cut short."""
    heading(f"{plan.runs:,} flows and {plan.jobs:,} jobs of programs in their queues, one gateway")
    found = _Found(plan)
    try:
        _measure(site, found)
    finally:
        _print(found)
    return Verdict(found.judged, found.faults)


def _measure(site: SoakSite, found: _Found) -> None:
    plan = found.plan
    one_run = _submit_one(site)
    _look(site, found, "empty", one_run, None)
    for kind, count in (("flow", plan.short_runs), ("program", plan.short_jobs)):
        if count:
            _fill(site, count, kind)
            _drain(site, found, kind)
    for kind, count in (("flow", plan.runs), ("program", plan.jobs)):
        before = site.sample()
        lines = _fill(site, count, kind)
        found.fills[kind] = lines, before, site.sample()
        one_job = None if kind == "flow" else _newest(site, "exec")
        _look(site, found, f"{count:,} {kind}s wait", _newest(site, "flow", "PENDING"), one_job)
        _drain(site, found, kind)
    _look(site, found, "partly worked off", one_run, one_job)
    _judge(found)


def _get(connection: http.client.HTTPConnection, path: str) -> bytes:
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, (path, answer.status, body[:200])
    return body


def _connection(site: SoakSite) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", site.running.port, timeout=60)


def _submit_one(site: SoakSite) -> str:
    """A run for which there is no worker: it waits for ever."""
    connection = _connection(site)
    body = json.dumps({"flow_name": "noop", "tag": "nobody"})
    connection.request("POST", "/runs", body, {"Content-Type": "application/json"})
    run_id = json.loads(connection.getresponse().read())["run_id"]
    connection.close()
    return str(run_id)


def _newest(site: SoakSite, kind: str, status: str | None = None) -> str:
    """The last in the queue: more than a thousand are ahead of it."""
    connection = _connection(site)
    query = f"kind={kind}&limit=1" + (f"&status={status}" if status else "")
    page = json.loads(_get(connection, f"/runs?{query}"))
    connection.close()
    return str((page["items"] if isinstance(page, dict) else page)[0]["run_id"])


def _look(site: SoakSite, found: _Found, stage: str, run_id: str, job_id: str | None) -> None:
    """Every question in turn, so that a slow moment hits all of them."""
    paths = {
        "`GET /health`, which looks at nothing": "/health",
        "`GET /runs?limit=50`": "/runs?limit=50",
        "`GET /runs?status=PENDING&limit=50`": "/runs?status=PENDING&limit=50",
        "`GET /runs?flow=noop&tag=default&limit=50`": "/runs?flow=noop&tag=default&limit=50",
        "`GET /runs?kind=exec&limit=50`": "/runs?kind=exec&limit=50",
        "`GET /runs/{run_id}`, why a flow waits": f"/runs/{run_id}",
        "`GET /runs/{run_id}`, why a job waits": f"/runs/{job_id or run_id}",
        "`GET /queues`": "/queues",
        "`GET /attention`": "/attention",
        "`GET /workers`": "/workers",
        "`GET /metrics`": "/metrics",
        "`GET /metrics/recent`": "/metrics/recent",
        "`GET /exec/state`": "/exec/state",
    }
    connection = _connection(site)
    took: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(found.plan.rounds):
        for name, path in paths.items():
            began = time.perf_counter()
            _get(connection, path)
            took[name].append((time.perf_counter() - began) * 1000)
    connection.close()
    found.looks[stage] = {name: (percentiles(values)[0], percentiles(values)[2]) for name, values in took.items()}
    print(f"  looked, {stage}", flush=True)


def _fill(site: SoakSite, count: int, kind: str) -> list[Told]:
    with loading(site, Fill(count, kind, _CONNECTIONS, max(1, count // 10))) as told:
        *lines, whole = told
    assert isinstance(whole, Whole)
    assert (whole.accepted, whole.refused) == (count, {}), whole
    print(f"  {count:,} {kind}s queued in {whole.seconds:.1f} s", flush=True)
    return [*lines, whole]


class _State(msgspec.Struct):
    messages: int


class _Info(msgspec.Struct):
    state: _State


def _drain(site: SoakSite, found: _Found, kind: str) -> None:
    """Flows are held back while jobs are worked off."""
    stays = 1 if kind == "flow" else 0  # the run that nobody takes
    if kind == "program":
        uvloop.run(_hold_flows(site.running.nats_url, _NEVER))
    site.start_worker()
    try:
        drained = uvloop.run(_rate(site, _STREAMS[kind], stays, found.plan.drain_seconds))
    finally:
        site.stop_worker()
    found.drains.setdefault(kind, []).append(drained)
    print(f"  {kind}s worked off: {drained.per_second:,.0f} per second", flush=True)
    if kind == "program":
        uvloop.run(_hold_flows(site.running.nats_url, _LONG_AGO))


async def _hold_flows(nats_url: str, until: str) -> None:
    """Let the queue deliver none before `until`; an instant that has passed lets it go on. A worker made it before."""
    link = await open_link(nats_url, "bench")
    await link.api("CONSUMER.PAUSE.PYOCO_WORK.pyoco_worker_default", {"pause_until": until}, dict[str, object])
    await link.close()


async def _rate(site: SoakSite, stream: str, stays: int, seconds: float) -> _Drained:
    """Finished per second, once the worker is warm, for so many seconds or until the queue is empty."""
    link = await open_link(site.running.nats_url, "bench")

    async def left() -> tuple[float, int]:
        count = (await link.api(f"STREAM.INFO.{stream}", {}, _Info)).state.messages - stays
        return time.perf_counter(), count

    try:
        began, all_of_them = await left()
        at, count = began, all_of_them
        while count > all_of_them * (1 - _WARM_SHARE):
            if at - began > _DRAIN_SECONDS_MAX:
                raise TimeoutError(f"{stream}: {count} of {all_of_them} are still there")
            await asyncio.sleep(0.02)
            at, count = await left()
        used = {name: held.cpu_seconds for name, held in site.held().items()}
        first_at, first = at, count = await left()
        while count > 0 and at - first_at < seconds:
            await asyncio.sleep(0.02)
            at, count = await left()
        finished = max(1, first - count)
        cpu = {name: (held.cpu_seconds - used[name]) / finished * 1e6 for name, held in site.held().items()}
        return _Drained(finished / (at - first_at), cpu)
    finally:
        await link.close()


def _print(found: _Found) -> None:
    print()
    _print_fills(found)
    _print_looks(found)
    _print_drains(found)


def _print_fills(found: _Found) -> None:
    head = ("queued over HTTP", "s", "per s", "first tenth, per s", "last tenth, per s", "gateway, MiB", "NATS, MiB")
    rows: list[tuple[str, ...]] = [(*head, "streams, B each", "index, B each")]
    for kind, (lines, before, after) in found.fills.items():
        *parts, whole = lines
        first, last = (part.accepted / part.seconds for part in (parts[0], parts[-1]))
        held = [
            f"{before.held[name].rss / MIB:.0f} to {after.held[name].rss / MIB:.0f}" for name in ("gateway", "NATS")
        ]
        each = [
            (after.streams.size_bytes - before.streams.size_bytes) / whole.accepted,
            (after.index_bytes - before.index_bytes) / whole.accepted,
        ]
        figures = (f"{whole.seconds:.1f}", f"{whole.accepted / whole.seconds:,.0f}", f"{first:,.0f}", f"{last:,.0f}")
        rows.append((f"{whole.accepted:,} {kind}s", *figures, *held, *(f"{value:,.0f}" for value in each)))
    markdown(rows)


def _print_looks(found: _Found) -> None:
    if not found.looks:
        return
    print()
    first = next(iter(found.looks.values()))
    rows: list[tuple[str, ...]] = [("p50 (p99), ms", *found.looks, "largest ratio")]
    for name in first:
        values = [look[name] for look in found.looks.values()]
        ratio = max(p50 for p50, _ in values) / first[name][0]
        rows.append((name, *(f"{p50:.1f} ({p99:.1f})" for p50, p99 in values), f"{ratio:.1f}"))
    markdown(rows)


def _print_drains(found: _Found) -> None:
    rows: list[tuple[str, ...]] = [
        ("worked off", "short queue, per s", "long queue, per s", "ratio", "CPU for each, us", "ratio")
    ]
    for kind, some in found.drains.items():
        if len(some) < 2:
            rows.append((f"{kind}s", "", f"{some[0].per_second:,.0f}", "", _told_cpu(some[0]), ""))
            continue
        short, long = some
        ratios = (long.per_second / short.per_second, sum(long.cpu_us.values()) / sum(short.cpu_us.values()))
        rates = [f"{each.per_second:,.0f}" for each in some]
        rows.append((f"{kind}s", *rates, f"{ratios[0]:.2f}", _told_cpu(long), f"{ratios[1]:.2f}"))
    print()
    markdown(rows)


def _told_cpu(drained: _Drained) -> str:
    return ", ".join(f"{name} {value:,.0f}" for name, value in drained.cpu_us.items())


def _judge(found: _Found) -> None:
    if found.plan.runs < _JUDGED_RUNS_MIN:
        return
    found.judged.append("every look")
    empty = found.looks["empty"]
    for stage, look in found.looks.items():
        for name, (p50, _) in look.items():
            if p50 > empty[name][0] * _TIMES_MAX and p50 > empty[name][0] + _MORE_MS_MAX:
                found.faults.append(f"{name} takes {p50:.0f} ms instead of {empty[name][0]:.1f}, {stage}")
    for kind, some in found.drains.items():
        cpu = [sum(each.cpu_us.values()) for each in some]
        if len(cpu) < 2:
            continue
        found.judged.append(f"CPU of {kind}s")
        if cpu[1] > cpu[0] * _CPU_TIMES_MAX:
            found.faults.append(f"{kind}s of a long queue take {cpu[1]:,.0f} us of CPU instead of {cpu[0]:,.0f}")
