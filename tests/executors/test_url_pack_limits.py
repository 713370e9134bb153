"""Time limits, cancellation and parallel fetches of the url pack."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from pyoco_server.config.packs import PackConfig
from pyoco_server.core.web.page import WebPage, read_page
from pyoco_server.executors.packs.port import PackError
from pyoco_server.executors.packs.url import executor
from pyoco_server.ports.web.pinned import PinnedWeb
from support.priced.url_packs import BASE, EACH, authority, context, patience, reaching, reasons, run, site
from support.priced.url_sites import (
    PUBLIC,
    Dialled,
    Serve,
    Site,
    page,
    redirect,
    silent,
)

__all__ = ["authority", "patience", "site"]


def test_others_are_fetched_while_a_page_is_read(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """PRICED-141: clocks go on, too"""
    begun, fetched = threading.Event(), threading.Event()

    def read(body: bytes, content_type: str) -> WebPage:
        if b"long" in body:
            begun.set()
            assert fetched.wait(60)
        return read_page(body, content_type)

    def wait(connection: socket.socket) -> None:
        begun.wait(60)
        redirect("/then")(connection)

    def then(connection: socket.socket) -> None:
        fetched.set()
        page("then")(connection)

    monkeypatch.setattr("pyoco_server.executors.packs.url.read_page", read)
    site.paths |= {"/long": page("long"), "/wait": wait, "/then": then}
    rows = run(reaching(site), [site.url("/long"), site.url("/wait")]).data["results"]
    assert [row["text_excerpt"] for row in rows] == ["long", "then"]


def test_the_end_does_not_wait_for_pages_that_are_read(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """PRICED-142"""
    over = threading.Event()
    monkeypatch.setattr("pyoco_server.executors.packs.url.read_page", lambda *_: over.wait(100))
    monkeypatch.setattr("pyoco_server.executors.packs.url._CUT_SECONDS", 40.0)
    ctx = context(41.0)
    try:
        result = run(reaching(site), [site.url()] * 3, ctx)
    finally:
        over.set()
    assert ctx.seconds_left > 0
    assert reasons(result) == ["TIMEBOX"] * 3


def test_servers_that_take_their_time_are_left(site: Site) -> None:
    """PRICED-141: in the head, in the body, in the answer, from hop to hop; all at once"""
    over, seconds = threading.Event(), 5  # far more than the one that is in time takes

    def drip(head: bytes) -> Serve:
        def serve(connection: socket.socket) -> None:
            connection.sendall(head)
            while not over.wait(0.05):
                connection.sendall(b"x")

        return serve

    def late(connection: socket.socket) -> None:
        over.wait(0.6 * seconds)
        redirect("/late")(connection)

    def hints(connection: socket.socket) -> None:
        while not over.is_set():
            connection.sendall(b"HTTP/1.1 103 Early Hints\r\n\r\n")

    site.paths |= {
        "/silent": silent(over),
        "/head": drip(b"HTTP/1.1 200 OK\r\nX: "),
        "/body": drip(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"),
        "/late": late,
        "/hints": hints,
    }
    paths = ("/silent", "/head", "/body", "/late", "/hints", "/")
    try:
        result = run(reaching(site), [site.url(path) for path in paths], fetch_timeout_sec=seconds)
    finally:
        over.set()
    assert reasons(result) == ["TIMEOUT"] * 5  # and not TIMEBOX
    assert len(result.data["results"]) == 1
    assert result.actual_cost_usd_micros == BASE + 6 * EACH


def test_a_resolver_that_hangs_is_left(site: Site) -> None:
    """PRICED-141: without a connection it costs nothing"""
    hangs = threading.Event()
    web = PinnedWeb(look_up=lambda _: [PUBLIC] if hangs.wait(100) else [], network=Dialled())
    result = run(executor(PackConfig(), web), ["https://a.example/", "https://b.example/"], fetch_timeout_sec=1)
    hangs.set()
    assert reasons(result) == ["TIMEOUT"] * 2
    assert result.actual_cost_usd_micros == BASE


def test_shortly_before_the_end_nothing_is_begun(site: Site) -> None:
    """PRICED-142"""
    result = run(reaching(site), [site.url()] * 3, context(4.9))
    assert reasons(result) == ["TIMEBOX"] * 3
    assert (site.connections, result.actual_cost_usd_micros) == (0, BASE)


def test_what_is_under_way_at_the_end_is_cut_off(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """PRICED-142: the pack completes before its timebox is over, with what it has"""
    over = threading.Event()
    site.paths["/silent"] = silent(over)
    urls = [site.url(), *[site.url("/silent")] * 8, site.url()]
    monkeypatch.setattr("pyoco_server.executors.packs.url._CUT_SECONDS", 40.0)
    try:
        ctx = context(45.0)  # five seconds: far more than the first one takes, and to begin the others
        result = run(reaching(site), urls, ctx)
    finally:
        over.set()
    assert ctx.seconds_left > 0
    assert reasons(result) == ["TIMEBOX"] * 9
    assert result.actual_cost_usd_micros == BASE + 9 * EACH


def test_a_cancelled_run_stops_at_once(site: Site) -> None:
    over, ctx = threading.Event(), context()

    def serve(_: socket.socket) -> None:
        ctx.cancelled.set()
        over.wait(100)

    site.paths["/silent"] = serve
    began = time.monotonic()
    try:
        with pytest.raises(PackError, match="CANCELLED"):
            reaching(site)({"urls": [site.url("/silent")]}, ctx)
    finally:
        over.set()
    assert time.monotonic() - began < 50  # the fetch itself has 100 s


def test_fetches_go_on_beside_each_other_and_not_all_at_once(site: Site) -> None:
    """Eight at a time: the ninth waits"""
    together, most = threading.Semaphore(0), [0, 0]
    lock = threading.Lock()

    def serve(connection: socket.socket) -> None:
        with lock:
            most[0] += 1
            most[1] = max(most)
            if most[0] == 8:
                together.release(30)
        together.acquire(timeout=60)
        with lock:
            most[0] -= 1
        page("x")(connection)

    site.paths["/"] = serve
    assert len(run(reaching(site), [site.url()] * 30).data["results"]) == 30
    assert most[1] == 8
