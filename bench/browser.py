"""A real browser to measure with: what it paints and when, how long its frames are, what goes over its wire."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

__all__ = ["Wire", "bare_site", "open_browser", "opening", "press", "scroll"]

_NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome", "google-chrome-stable")
_SWITCHES = ("--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-extensions")

#: In the page, before anything of it runs: when the first element came that is looked for.
_WATCH_FOR = """(() => { const look = () => {
  if (document.querySelector("%s")) globalThis.benchSeenAt = performance.now(); else requestAnimationFrame(look);
}; requestAnimationFrame(look); })()"""
_OPENED = """() => globalThis.benchSeenAt !== undefined
  && performance.getEntriesByName("first-contentful-paint").length > 0"""
_TIMES = '() => [performance.getEntriesByName("first-contentful-paint")[0].startTime, globalThis.benchSeenAt]'

#: From the key to behind the frame that shows what it did: a message comes after the painting, a frame callback before.
_LISTEN = """() => { globalThis.benchKeys = []; addEventListener("keydown", (event) => requestAnimationFrame(() => {
  const channel = new MessageChannel();
  channel.port1.onmessage = () => globalThis.benchKeys.push(performance.now() - event.timeStamp);
  channel.port2.postMessage(0);
}), true); }"""

_SCROLL = """async ([selector, rows]) => {
  const height = document.querySelector(selector).getBoundingClientRect().height;
  const frames = [];
  const end = performance.now() + 60_000;
  let last = performance.now();
  while (scrollY < rows * height && performance.now() < end) {
    scrollBy({ top: 500, behavior: "instant" });
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    frames.push(now - last);
    last = now;
  }
  return [scrollY / height, frames.slice(2)];
}"""


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """$CHROMIUM, or the first one on the PATH. Raises FileNotFoundError."""
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        raise FileNotFoundError("there is no browser: run `make programs`, or set CHROMIUM to a Chromium or Chrome")
    switches = [*_SWITCHES, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=switches)
        yield browser
        browser.close()


@contextlib.contextmanager
def bare_site(rows: int) -> Iterator[str]:
    """The limit: a page of plain HTML, this many rows and nothing else. Gives its address; `/short` has one row."""
    row = "<div class=row>COMPLETED flow-1 tag-1 12 s ago 0f8fad5b</div>"
    head = "<!doctype html><title>bare</title><style>.row{height:44px;border-bottom:1px solid #ccc}</style>"
    pages = {"/": (head + row * rows).encode(), "/short": (head + row).encode()}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages.get(self.path, b"")
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def opening(browser: Browser, url: str, selector: str) -> dict[str, tuple[float, float]]:
    """Milliseconds from the start to the first paint, and to the first such element: with an empty cache, and then
    once more in the same browser."""
    found = {}
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        for name in ("cold", "warm"):
            page = context.new_page()
            page.add_init_script(_WATCH_FOR % selector)
            page.goto(url)
            page.wait_for_function(_OPENED)
            paint, seen = page.evaluate(_TIMES)
            found[name] = (float(paint), float(seen))
            page.close()
    return found


def press(page: Page, keys: str, times: int) -> list[float]:
    """Milliseconds from each key to behind the frame that follows it."""
    page.evaluate(_LISTEN)
    for place in range(times):
        page.keyboard.press(keys[place % len(keys)])
        page.wait_for_function("(count) => globalThis.benchKeys.length >= count", arg=place + 1)
    return [float(value) for value in page.evaluate("() => globalThis.benchKeys")]


def scroll(page: Page, selector: str, rows: int) -> tuple[float, list[float]]:
    """How many rows it got down, and how long each frame took on the way, in milliseconds."""
    reached, frames = page.evaluate(_SCROLL, [selector, rows])
    return float(reached), [float(frame) for frame in frames]


class Wire:
    """Counts what a page sends and receives, headers included, compressed as it was."""

    def __init__(self, page: Page) -> None:
        self._received: dict[str, float] = {}
        self.sent = 0
        self.requests = 0
        session = page.context.new_cdp_session(page)
        session.on("Network.requestWillBeSentExtraInfo", self._on_request)
        session.on("Network.responseReceived", self._on_response)
        session.on("Network.dataReceived", self._on_data)
        session.on("Network.loadingFinished", self._on_end)
        session.send("Network.enable")

    @property
    def received(self) -> int:
        return int(sum(self._received.values()))

    def _on_request(self, event: dict[str, Any]) -> None:
        self.requests += 1
        self.sent += 20 + sum(len(name) + len(value) + 4 for name, value in event["headers"].items())

    def _on_response(self, event: dict[str, Any]) -> None:
        self._add(event["requestId"], event["response"]["encodedDataLength"])

    def _on_data(self, event: dict[str, Any]) -> None:
        self._add(event["requestId"], event["encodedDataLength"])

    def _on_end(self, event: dict[str, Any]) -> None:
        """The browser's own sum; a stream has none while it lasts."""
        self._received[event["requestId"]] = event["encodedDataLength"]

    def _add(self, request_id: str, size: float) -> None:
        self._received[request_id] = self._received.get(request_id, 0.0) + size
