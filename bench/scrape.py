"""`GET /metrics` while more and more runs are stored, and what a scrape does to everybody else."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Iterator

import uvloop
from prometheus_client.parser import text_string_to_metric_families

from bench.fill import fill
from bench.report import heading, percentiles, table
from bench.stack import Stack

_ROUNDS = 100
_TOTALS = (0, 10_000, 100_000)
_CHANGED_ROUNDS = 20
#: So many runs of `fill` hold every status of each of 100 flows.
_EVERY_END = 2000


class _Client:
    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def get(self, path: str) -> tuple[float, bytes]:
        """Seconds until the whole answer was here, and the answer."""
        began = time.perf_counter()
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return time.perf_counter() - began, body


def _runs_counted(text: bytes) -> int:
    families = text_string_to_metric_families(text.decode())
    return int(
        sum(sample.value for family in families for sample in family.samples if sample.name == "pyoco_runs_total")
    )


@contextlib.contextmanager
def _scraping(port: int) -> Iterator[None]:
    """Somebody scrapes without a pause."""
    stop = threading.Event()

    def scrape() -> None:
        client = _Client(port)
        while not stop.is_set():
            client.get("/metrics")

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _milliseconds(values: list[float]) -> tuple[str, str]:
    p50, _, p99 = percentiles(values)
    return f"{p50 * 1000:.2f}", f"{p99 * 1000:.2f}"


def _until_counted(client: _Client, total: int) -> None:
    while _runs_counted(client.get("/metrics")[1]) < total:
        time.sleep(0.05)


def _after_ends(stack: Stack, client: _Client, there: int) -> list[float]:
    """Scrapes after each of which a run of every flow has ended in every way: nothing can be written as last time."""
    seconds = []
    for number in range(_CHANGED_ROUNDS):
        uvloop.run(fill(stack.nats_url, there + number * _EVERY_END, _EVERY_END))
        time.sleep(0.5)
        seconds.append(client.get("/metrics")[0])
    return seconds


def main(stack: Stack) -> None:
    heading("metrics: GET /metrics beside GET /health, milliseconds; 100 flows, 200 tags, lower is better")
    rows: list[tuple[str, ...]] = [
        ("runs", "lines", "p50", "p99", "health p50", "p99", "ratio of p50", "health while scraped p50", "p99")
    ]
    client = _Client(stack.port)
    there = 0
    for total in _TOTALS:
        uvloop.run(fill(stack.nats_url, there, total - there))
        there = total
        _until_counted(client, total)
        scrapes, healths = [], []
        for _ in range(_ROUNDS):
            scrapes.append(client.get("/metrics")[0])
            healths.append(client.get("/health")[0])
        with _scraping(stack.port):
            beside = [client.get("/health")[0] for _ in range(_ROUNDS * 10)]
        lines = client.get("/metrics")[1].count(b"\n")
        ratio = percentiles(scrapes)[0] / percentiles(healths)[0]
        figures = (*_milliseconds(scrapes), *_milliseconds(healths), f"{ratio:.0f}", *_milliseconds(beside))
        rows.append((f"{total:,}", f"{lines:,}", *figures))
    table(rows)
    p50, p99 = _milliseconds(_after_ends(stack, client, there))
    print(f"after runs of every flow have ended in every way, at {there:,} runs: p50 {p50}, p99 {p99}")
