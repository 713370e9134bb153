"""The dashboard in a real browser, over many stored runs: first rows, keys, filters, frames, and bytes on the wire.

`BENCH_DASHBOARD_RUNS=100000 BENCH_DASHBOARD_SECONDS=60 BENCH_DASHBOARD_ROUNDS=5 python -m bench dashboard`; these are
the defaults.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import uvloop
from playwright.sync_api import Browser, Page

from bench.browser import Wire, bare_site, open_browser, opening, press, scroll
from bench.fill import fill
from bench.report import heading, median, percentiles, table
from bench.stack import Stack, free_port

_RUNS = int(os.environ.get("BENCH_DASHBOARD_RUNS", "100000"))
_SECONDS = float(os.environ.get("BENCH_DASHBOARD_SECONDS", "60"))
_ROUNDS = int(os.environ.get("BENCH_DASHBOARD_ROUNDS", "5"))
#: Fewer than there are with the status that is scrolled through: at the end of a list frames are easy.
_SCROLL_ROWS = min(5_000, _RUNS // 2)
_KEYS = 40
_BUSY_PER_SECOND = 50
_ROW = ".runs-row[data-id]"
_BARE_ROW = ".row"

#: Types the flow's name, and answers with the milliseconds from Enter to the frame in which every row is of that flow.
_FILTER = """([row, flow]) => new Promise((resolve) => {
  const began = performance.now();
  const look = () => {
    const rows = [...document.querySelectorAll(row)];
    const done = rows.length > 0 && rows.every((each) => each.querySelector(".runs-flow-name")?.textContent === flow);
    if (done) resolve(performance.now() - began); else requestAnimationFrame(look);
  };
  const field = document.querySelector("input[list=runs-flows]");
  field.value = flow;
  field.dispatchEvent(new Event("change"));
  requestAnimationFrame(look);
})"""
_FETCH = """async (path) => { const began = performance.now(); await (await fetch(path, { cache: "no-store" })).json();
  return performance.now() - began; }"""


class Api:
    """One connection to the gateway."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        headers = {} if body is None else {"Content-Type": "application/json"}
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self._connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text
        return json.loads(text)

    def submit(self, flow: str, tag: str, **params: Any) -> str:
        return str(self.call("POST", "/runs", {"flow_name": flow, "tag": tag, "params": params})["run_id"])

    def changed_bytes(self, since: float) -> int:
        """Of the lines of all runs that have changed since then, each once."""
        size, query = 0, {"updated_after": f"{since:.3f}", "limit": "200"}
        while True:
            page = self.call("GET", f"/runs?{urlencode(query)}")
            size += sum(len(json.dumps(line, separators=(",", ":"))) for line in page["items"])
            if not page.get("next_cursor"):
                return size
            query = query | {"cursor": page["next_cursor"]}


@contextlib.contextmanager
def _busy(port: int) -> Iterator[None]:
    """Runs come in evenly, and a worker does them."""
    done = threading.Event()

    def submit() -> None:
        api, due = Api(port), time.monotonic()
        while not done.wait(max(0.0, due - time.monotonic())):
            api.submit("noop", "default")
            due = max(due + 1 / _BUSY_PER_SECOND, time.monotonic() - 1)

    thread = threading.Thread(target=submit)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _fill(stack: Stack) -> None:
    """Returns once the list shows everything: it takes runs in in their order."""
    uvloop.run(fill(stack.nats_url, 0, _RUNS))
    api = Api(stack.port)
    api.submit("noop", "bench-last")
    _wait_for_runs(stack.port)


@contextlib.contextmanager
def _packaged(stack: Stack) -> Iterator[str]:
    """A second gateway, whose dashboard is bundled as in an installed package. Gives its address."""
    root, port = Path(__file__).parents[1], free_port()
    with tempfile.TemporaryDirectory() as folder:
        package = shutil.copytree(root / "src" / "pyoco_server", Path(folder, "pyoco_server"))
        bundler = [sys.executable, str(root / "tools" / "bundle_dashboard.py")]
        subprocess.run([*bundler, str(package / "doors" / "dashboard" / "static")], check=True)
        command = [sys.executable, "-m", "pyoco_server.doors.cli.server", "gateway", "--port", str(port)]
        places = {"PYTHONPATH": folder, "PYOCO_NATS_URL": stack.nats_url, "PYOCO_DATA_DIR": str(Path(folder, "data"))}
        alone = {"PYOCO_DISCOVERY": "0", "PYOCO_LOAD_DOTENV": "0", "PYOCO_LOG_LEVEL": "WARNING"}
        environment = {**os.environ, **places, **alone, "PYOCO_PRICED_ENABLED": "0"}
        gateway = subprocess.Popen(command, env=environment, cwd=folder)
        try:
            _wait_for_runs(port)
            yield f"http://127.0.0.1:{port}"
        finally:
            gateway.terminate()
            gateway.wait(20)


def _wait_for_runs(port: int) -> None:
    """Return once the gateway's index has all runs."""
    while True:
        with contextlib.suppress(OSError, AssertionError):
            if Api(port).call("GET", "/runs?tag=bench-last&envelope=true&limit=1")["items"]:
                return
        time.sleep(0.1)


def _openings(browser: Browser, address: str, packaged: str, bare: str, run_id: str) -> None:
    heading(f"dashboard: opening it, {_RUNS:,} runs stored, milliseconds, lower is better")
    pages = {
        "bare HTML": (f"{bare}/short", _BARE_ROW),
        "list of runs, checkout": (f"{address}/#/runs", _ROW),
        "list of runs, package": (f"{packaged}/#/runs", _ROW),
        "page of a run, package": (f"{packaged}/#/runs/{run_id}", "main .badge"),
    }
    found: dict[str, list[dict[str, tuple[float, float]]]] = {name: [] for name in pages}
    for _ in range(_ROUNDS):  # interleaved, so that a slow moment hits everybody
        for name, (url, selector) in pages.items():
            found[name].append(opening(browser, url, selector))
    limit = {cache: median([each[cache][0] for each in found["bare HTML"]]) for cache in ("cold", "warm")}
    rows: list[tuple[str, ...]] = [("", "cache", "first paint", "ratio", "first rows", "ratio")]
    for name, rounds in found.items():
        for cache in ("cold", "warm"):
            values = [median([each[cache][place] for each in rounds]) for place in (0, 1)]
            cells = (cell for value in values for cell in (f"{value:.0f}", f"{value / limit[cache]:.1f}"))
            rows.append((name, cache, *cells))
    table(rows)
    print("ratio: to the first paint of the bare page")


def _interactions(browser: Browser, address: str, bare: str) -> None:
    heading("dashboard: the list of runs under the hands, milliseconds, lower is better")
    rows: list[tuple[str, ...]] = [("", "p50", "p95", "longest", "limit p50", "limit longest", "ratio p50")]

    def tell(name: str, values: list[float], limit: list[float]) -> None:
        (p50, p95, _), (limit_p50, _, _) = percentiles(values), percentiles(limit)
        figures = (p50, p95, max(values), limit_p50, max(limit))
        rows.append((name, *(f"{value:.1f}" for value in figures), f"{p50 / limit_p50:.1f}"))

    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        page, bare_page = context.new_page(), context.new_page()
        bare_page.goto(f"{bare}/")
        bare_page.bring_to_front()
        bare_keys = press(bare_page, "jk", _KEYS)
        bare_frames = scroll(bare_page, _BARE_ROW, _SCROLL_ROWS)[1]
        page.bring_to_front()
        page.goto(f"{address}/#/runs")
        page.wait_for_selector(_ROW)
        tell("j and k, to the frame", press(page, "jjk", _KEYS), bare_keys)
        filtered, fetched = [], []
        for number in range(_ROUNDS * 4):
            filtered.append(float(page.evaluate(_FILTER, [_ROW, f"flow-{number}"])))
            fetched.append(float(page.evaluate(_FETCH, f"runs?flow=flow-{number}&limit=50&envelope=true")))
        tell("filter, to the rows", filtered, fetched)
        page.goto(f"{address}/#/runs?status=COMPLETED")
        page.wait_for_selector(_ROW)
        reached, frames = scroll(page, _ROW, _SCROLL_ROWS)
        tell(f"a frame while scrolling {reached:,.0f} rows", frames, bare_frames)
    table(rows)
    print("limits: the same keys and the same scrolling on a bare page of as many rows; a bare fetch of the same list")


@dataclass
class _Traffic:
    """What one page did in the time."""

    name: str
    wire: Wire
    raw: int = 0

    def line(self) -> tuple[str, ...]:
        per_minute = 60 / _SECONDS
        figures = (self.wire.requests, self.wire.sent / 1024, self.wire.received / 1024, self.raw / 1024)
        ratio = f"{(self.wire.sent + self.wire.received) / self.raw:.2f}" if self.raw else "-"
        return (self.name, *(f"{value * per_minute:,.0f}" for value in figures), ratio)


class _Watcher:
    """The limit of a page that follows a run: the bytes of its stream, and nothing else."""

    def __init__(self, port: int, run_id: str) -> None:
        self.received = 0
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._connection.request("GET", f"/runs/{run_id}/watch?timeout_sec=600")
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        answer = self._connection.getresponse()
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError, AttributeError):
            while data := answer.read1(65536):
                self.received += len(data)


def _traffic(browser: Browser, stack: Stack, run_id: str) -> None:
    heading(f"dashboard: on the wire in a minute, KiB, measured for {_SECONDS:g} s, lower is better")
    address, api = f"http://127.0.0.1:{stack.port}", Api(stack.port)
    rows: list[tuple[str, ...]] = [("", "requests", "sent", "received", "raw", "ratio")]
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        page = context.new_page()
        _settle(page, f"{address}/#/runs", _ROW)
        rows.append(_measured(page, "list of runs, idle").line())
        _settle(page, f"{address}/#/runs/{run_id}", "main h1")
        rows.append(_measured(page, "page of a waiting run, idle").line())
        stack.start_worker(slots=8)
        with _busy(stack.port):
            _settle(page, f"{address}/#/runs", _ROW)
            began = time.time()
            busy = _measured(page, f"list of runs, {_BUSY_PER_SECOND} runs per s")
            busy.raw = api.changed_bytes(began)
            rows.append(busy.line())
            slow = api.submit("slow", "default", n=23, pause=_SECONDS / 20)  # under way a little longer
            _settle(page, f"{address}/#/runs/{slow}", "main h1")
            watcher = _Watcher(stack.port, slow)
            followed = _measured(page, f"page of a run under way, {_BUSY_PER_SECOND} runs per s")
            followed.raw = watcher.received
            rows.append(followed.line())
    table(rows)
    print("raw: for the list, the line of every run that changed, once; for the page of a run, its event stream alone")


def _settle(page: Page, url: str, selector: str) -> None:
    page.goto("about:blank")
    page.goto(url)
    page.wait_for_selector(selector)
    page.wait_for_timeout(1000)  # what comes once comes now


def _measured(page: Page, name: str) -> _Traffic:
    traffic = _Traffic(name, Wire(page))
    page.wait_for_timeout(_SECONDS * 1000)
    return traffic


def main(stack: Stack) -> None:
    _fill(stack)
    address = f"http://127.0.0.1:{stack.port}"
    run_id = Api(stack.port).submit("noop", "bench-nobody")
    try:
        with open_browser() as browser, bare_site(_SCROLL_ROWS + 100) as bare:
            with _packaged(stack) as packaged:
                _openings(browser, address, packaged, bare, run_id)
            _interactions(browser, address, bare)
            _traffic(browser, stack, run_id)
    except FileNotFoundError as error:
        print(f"dashboard: not measured, {error}")
