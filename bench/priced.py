"""Priced runs per second, through the real door, beside what the database does by itself.

`BENCH_PRICED_SECONDS=1 BENCH_PRICED_STORES=SQLite python -m bench priced` for less than everything.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import httpx

from bench import priced_bare
from bench.priced_load import BODY
from bench.priced_scan import scans
from bench.priced_site import Measured, Site, open_site
from bench.priced_stores import STORES
from bench.report import heading, median, spread, table
from bench.stack import Stack, serve

#: Of each figure, all rounds together.
_SECONDS = float(os.environ.get("BENCH_PRICED_SECONDS", "4"))
_STORES = os.environ.get("BENCH_PRICED_STORES", ",".join(STORES)).split(",")
_ROUNDS = 3
_CLIENTS = (1, 32)
_TENANTS = (1, 100)
#: Priced runs at once on the worker: its default, one per processor.
_SLOTS = int(os.environ.get("BENCH_PRICED_SLOTS", "0"))

_SUBMIT, _COMPLETE, _GET = "submitted", "completed", "GET /v1/runs/{id}"


@dataclass
class _Figures:
    """Of one kind of request, in one place: round for round."""

    ours: list[Measured] = field(default_factory=list)
    #: What the gateway's processor worked for each request: true on a busy machine, too. Not for whole runs: some are
    #: still under way when the time is over.
    cpu_us: list[float] = field(default_factory=list)
    limits: dict[str, list[float]] = field(default_factory=dict)

    def row(self, *names: str) -> tuple[str, ...]:
        rates = [each.per_second for each in self.ours]
        limits = [text for values in self.limits.values() for text in _beside(rates, values)]
        p50, p99 = (median([getattr(each, which) for each in self.ours]) for which in ("p50_ms", "p99_ms"))
        return (*names, f"{median(rates):,.0f}", spread(rates), *limits, f"{p50:.1f}", f"{p99:.1f}", self._cpu())

    def _cpu(self) -> str:
        return f"{median(self.cpu_us):,.0f}" if self.cpu_us else ""


def _beside(rates: list[float], limits: list[float]) -> tuple[str, str]:
    """The limit, and how much of it is reached: compared round for round, so that a slow moment hits both."""
    ratios = [ours / limit for ours, limit in zip(rates, limits, strict=True)]
    return f"{median(limits):,.0f}", f"{median(ratios):.2f}"


_Table = dict[tuple[str, int, int], _Figures]


def _ours(site: Site, figures: _Figures, what: str, clients: int, tenants: int, run_ids: list[str]) -> None:
    gateway = site.gateway()
    before = sum(gateway.cpu_times()[:2])
    measured = site.load(what, clients, tenants, _SECONDS / _ROUNDS, run_ids)
    figures.ours.append(measured)
    if what != "complete":
        figures.cpu_us.append((sum(gateway.cpu_times()[:2]) - before) / max(measured.count, 1) * 1e6)


def _writes(site: Site) -> _Table:
    """Submitted while no worker gets anything, and completed with a worker that does: each client waits for its run."""
    found: _Table = {}
    url, seconds = site.stores.ledger_url, _SECONDS / _ROUNDS
    for _ in range(_ROUNDS):  # interleaved, so that a slow moment hits everybody
        for clients in _CLIENTS:
            for tenants in _TENANTS:
                submitted = found.setdefault((_SUBMIT, clients, tenants), _Figures())
                completed = found.setdefault((_COMPLETE, clients, tenants), _Figures())
                limit = priced_bare.transactions(url, clients, tenants, seconds)
                with site.held():
                    _ours(site, submitted, "submit", clients, tenants, [])
                _ours(site, completed, "complete", clients, tenants, [])
                site.settle()
                for figures in (submitted, completed):
                    figures.limits.setdefault("INSERT + UPDATE", []).append(limit)
    return found


def _reads(site: Site, bare_port: int) -> _Table:
    tenants, run_ids = len(site.keys), [_a_run(site, key) for key in site.keys]
    site.settle()
    found: _Table = {}
    seconds = _SECONDS / _ROUNDS
    for _ in range(_ROUNDS):
        for clients in _CLIENTS:
            figures = found.setdefault((_GET, clients, tenants), _Figures())
            _ours(site, figures, "poll", clients, tenants, run_ids)
            bare = site.load("poll", clients, tenants, seconds, run_ids, bare_port).per_second
            looks = priced_bare.looks(site.stores.ledger_url, clients, run_ids, seconds)
            figures.limits.setdefault("bare FastAPI", []).append(bare)
            figures.limits.setdefault("SELECT", []).append(looks)
    return found


def _a_run(site: Site, key: str) -> str:
    headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "the-run-to-read"}
    answer = httpx.post(f"http://127.0.0.1:{site.running.port}/v1/runs", json=BODY, headers=headers, timeout=30)
    return str(answer.raise_for_status().json()["run_id"])


def _print(title: str, found: dict[str, _Table]) -> None:
    heading(title)
    limits = next(iter(next(iter(found.values())).values())).limits
    beside = [text for name in limits for text in (name, "ratio")]
    rows = [("", "", "clients", "tenants", "per second", "spread", *beside, "p50 ms", "p99 ms", "gateway CPU µs")]
    for store, figures in found.items():
        rows += [each.row(store, what, str(n), str(of)) for (what, n, of), each in figures.items()]
    table(rows)


def main(_: Stack) -> None:
    """On stacks of its own."""
    writes: dict[str, _Table] = {}
    reads: dict[str, _Table] = {}
    with serve("bench.priced_bare:app") as bare:
        for name in _STORES:
            with open_site(name, _SLOTS) as site:
                writes[name] = _writes(site)
                reads[name] = _reads(site, bare)
    _print("priced: runs per second, beside a bare INSERT + UPDATE transaction, as durable; higher is better", writes)
    _print("priced: polls per second, beside a web framework and a database that do nothing else", reads)
    scans([name for name in _STORES if "+" not in name])  # where the money is makes no difference to them
