"""The url pack, whole: what becomes of each URL, what it costs, and what it never does. It dials loopback alone."""

from __future__ import annotations

import gzip
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pyoco_server.core.packs.spec import Here
from pyoco_server.core.packs.url import URL
from pyoco_server.core.priced.constants import URL_BODY_MAX_BYTES
from pyoco_server.core.priced.envelope import PackResult
from pyoco_server.core.web.page import Page, read_page
from pyoco_server.errors import SettingError
from pyoco_server.executors.packs.port import Context, Execute, PackError
from pyoco_server.executors.packs.url import executor
from pyoco_server.pack_config import PackConfig
from pyoco_server.ports.web.pinned import PinnedWeb
from pyoco_server.wiring_packs import executors
from support.priced.url_sites import (
    NAME,
    PUBLIC,
    Authority,
    Dialled,
    NowhereElse,
    Serve,
    Site,
    page,
    redirect,
    silent,
    site_of,
)

HERE = Here(tenant_id="acme", input_bucket="dpp-inputs")
BASE, EACH = 5_000, 2_000


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who does not say how long a fetch may take has no busy machine in mind."""
    monkeypatch.setattr("pyoco_server.executors.packs.url.FETCH_TIMEOUT_SECONDS_MAX", 100)


@pytest.fixture
def site(authority: Authority) -> Iterator[Site]:
    with site_of(authority, {"/": page("<title>Home</title><p>Hello")}) as site:
        yield site


def context(seconds: float = 200.0) -> Context:
    return Context(
        run_id="5b0c6f7e-5a3f-4a3c-8f0e-1c3f6c1f2a10",
        tenant_id="acme",
        trace_id=None,
        deadline=time.monotonic() + seconds,
        min_reliability_score=0.8,
        artifacts={},
    )


def run(
    execute: Execute,
    urls: list[str],
    ctx: Context | None = None,
    defects: dict[str, int] | None = None,
    **more: Any,
) -> PackResult:
    """Checked as every result is: each URL is in exactly one list (PRICED-146), the whole can be stored, and nothing
    went wrong but what was foreseen."""
    result = execute({"urls": urls, **more}, ctx or context())
    told = [*result.data["results"], *result.discard_log, *result.blocked_log]
    assert sorted(row["url"] for row in told) == sorted(urls)
    assert result.meta == ({"url": {"defects": defects}} if defects else {})
    json.dumps([result.data, list(told)], ensure_ascii=False, allow_nan=False).encode()
    return result


def reaching(site: Site, **more: Any) -> Execute:
    """As a deployment does that lets tests reach one place, by real sockets; and no other one, whatever it does."""

    def look_up(_: str) -> list[str]:
        raise AssertionError("a name was looked up")

    web = PinnedWeb(str(site.authority.ca_file), look_up=look_up, network=NowhereElse(site.port))
    return executor(PackConfig(url_pack_test_allow=site.place, **more), web)


def named(site: Site, names: dict[str, list[str]], dialled: Dialled | None = None, **more: Any) -> Execute:
    """With a resolver that knows these names, and a network in which every address is that site."""

    def look_up(name: str) -> list[str]:
        if name not in names:
            raise socket.gaierror(-2, "unknown")
        return names[name]

    web = PinnedWeb(str(site.authority.ca_file), look_up=look_up, network=dialled or Dialled(site.port))
    return executor(PackConfig(**more), web)


def reasons(result: PackResult) -> list[str]:
    return [row["reason"] for row in (*result.discard_log, *result.blocked_log)]


def test_pages_are_fetched_and_paid_for(site: Site) -> None:
    """PRICED-127, PRICED-146: duplicates too, in the order of the inputs"""
    site.paths["/gone"] = page("no more", "410 Gone", Content_Type="text/plain")
    site.paths["/moved"] = redirect("/")
    urls = [site.url("/moved#part"), site.url("/gone"), site.url("/moved#part"), "nonsense", "https://10.0.0.1/"]
    assert URL.check({"urls": urls}, HERE) == ()
    result = run(reaching(site), urls)
    first, gone, again = result.data["results"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", first.pop("fetched_at"))
    assert first == {
        "url": site.url("/moved#part"),
        "final_url": site.url("/"),
        "status_code": 200,
        "content_type": "text/html; charset=utf-8",
        "title": "Home",
        "text_excerpt": "Hello",
        "flags": [],
    }
    assert (gone["status_code"], gone["text_excerpt"], "title" in gone) == (410, "no more", False)
    assert again["url"] == first["url"]
    assert result.discard_log == [{"url": "nonsense", "reason": "INVALID_URL"}]
    assert result.blocked_log == [{"url": "https://10.0.0.1/", "resolved_ip": "10.0.0.1", "reason": "PRIVATE_IP"}]
    assert result.actual_cost_usd_micros == BASE + 3 * EACH


def test_it_is_put_together_by_its_settings(site: Site) -> None:
    config = PackConfig(url_pack_ca_file=str(site.authority.ca_file), url_pack_test_allow=site.place)
    assert len(run(executors({"url": ""}, config)["url"], [site.url()]).data["results"]) == 1


def test_prices_are_settings(site: Site) -> None:
    """PRICED-127"""
    execute = reaching(site, price_url_base_usd_micros=7, price_url_each_usd_micros=11)
    assert run(execute, [site.url()] * 2).actual_cost_usd_micros == 29


HOSTS = [
    ("127.0.0.1", "LOOPBACK"),
    ("127.1", "LOOPBACK"),
    ("2130706433", "LOOPBACK"),
    ("0x7f000001", "LOOPBACK"),
    ("0177.0.0.1", "LOOPBACK"),
    ("017700000001", "LOOPBACK"),
    ("１２７.０.０.１", "LOOPBACK"),
    ("127.0.0.1.", "LOOPBACK"),
    ("[::1]", "LOOPBACK"),
    ("[::ffff:127.0.0.1]", "LOOPBACK"),
    ("[::ffff:7f00:1]", "LOOPBACK"),
    ("[64:ff9b::127.0.0.1]", "LOOPBACK"),
    ("[2002:7f00:1::]", "LOOPBACK"),
    ("0.0.0.0", "UNSPECIFIED"),
    ("0", "UNSPECIFIED"),
    ("[::]", "UNSPECIFIED"),
    ("169.254.169.254", "LINK_LOCAL"),
    ("2852039166", "LINK_LOCAL"),
    ("[fe80::1]", "LINK_LOCAL"),
    ("[::ffff:169.254.169.254]", "LINK_LOCAL"),
    ("10.0.0.1", "PRIVATE_IP"),
    ("192.168.0.1", "PRIVATE_IP"),
    ("100.100.100.200", "PRIVATE_IP"),
    ("[fd00:ec2::254]", "PRIVATE_IP"),
    ("224.0.0.1", "MULTICAST"),
    ("[ff02::1]", "MULTICAST"),
    ("255.255.255.255", "RESERVED"),
    ("198.18.0.1", "RESERVED"),
    ("[64:ff9b::8.8.8.8]", "RESERVED"),
    ("[2001:db8::1]", "RESERVED"),
]


def test_nothing_that_is_not_public_is_connected(site: Site) -> None:
    """PRICED-136, PRICED-144: nobody pays for it either"""
    dialled = Dialled()
    execute = named(site, {}, dialled)
    result = run(execute, [f"https://{host}/" for host, _ in HOSTS])
    assert reasons(result) == [why for _, why in HOSTS]
    assert len(result.blocked_log) == len(HOSTS)
    assert dialled.places == []
    assert result.actual_cost_usd_micros == BASE


def test_a_redirect_is_judged_at_every_hop(site: Site) -> None:
    """PRICED-138: the first hop was connected, and costs; the second one never is"""
    dialled = Dialled(site.port)
    names = {NAME: [PUBLIC], "inside.example.com": [PUBLIC, "10.0.0.7"]}
    locations = {
        **{f"https://{host}/": why for host, why in HOSTS if host.isascii()},
        "http://site.example.com/": "NON_HTTPS",
        "//u:p@site.example.com/": "INVALID_URL",
        "//site.example.com:22/": "PORT_NOT_ALLOWED",
        "https://inside.example.com/": "PRIVATE_IP",
        "https://unknown.example.com/": "DNS_FAILURE",
        "file:///etc/passwd": "NON_HTTPS",
        "/\\evil": "INVALID_URL",
    }
    for number, location in enumerate(locations):
        site.paths[f"/{number}"] = redirect(location)
        site.paths[f"/first/{number}"] = redirect(f"/{number}", "308 Permanent Redirect")
    for way in ("", "/first"):
        urls = [f"https://{NAME}{way}/{number}" for number in range(len(locations))]
        results = [run(named(site, names, dialled), urls[at : at + 30]) for at in range(0, len(urls), 30)]
        found = {row["url"]: row["reason"] for each in results for row in (*each.discard_log, *each.blocked_log)}
        assert [found[url] for url in urls] == list(locations.values())
        assert sum(each.actual_cost_usd_micros for each in results) == len(results) * BASE + len(urls) * EACH
    assert set(dialled.places) == {(PUBLIC, 443)}


def test_a_name_that_changes_between_two_hops_is_looked_up_again(site: Site) -> None:
    """PRICED-137, PRICED-138: public at first, and inside after the redirect"""
    answers = iter([[PUBLIC], ["192.168.0.1"]])
    dialled = Dialled(site.port)
    site.paths["/"] = redirect("/again")
    web = PinnedWeb(str(site.authority.ca_file), look_up=lambda _: next(answers), network=dialled)
    result = run(executor(PackConfig(), web), [f"https://{NAME}/"])
    assert result.blocked_log == [{"url": f"https://{NAME}/", "resolved_ip": "192.168.0.1", "reason": "PRIVATE_IP"}]
    assert dialled.places == [(PUBLIC, 443)]


@pytest.mark.parametrize(("hops", "is_there"), [(0, False), (2, False), (3, True), (5, True)])
def test_so_many_redirects_are_followed_and_not_one_more(site: Site, hops: int, is_there: bool) -> None:
    """PRICED-138, PRICED-145: nor is anything else asked for, such as `robots.txt`"""
    for number in range(3):
        site.paths[f"/{number}"] = redirect(f"/{number + 1}")
    site.paths["/3"] = page("here")
    result = run(reaching(site), [site.url("/0")], max_redirect_hops=hops)
    assert reasons(result) == ([] if is_there else ["TOO_MANY_REDIRECTS"])
    assert len(site.heads) == min(hops, 3) + 1


def test_redirects_without_end_and_without_a_place(site: Site) -> None:
    """PRICED-138: a redirect that names no place is an answer like others"""
    site.paths |= {
        "/self": redirect("/self"),
        "/nowhere": page("x", "302 Found"),
        "/300": page("x", "304 Not Modified"),
    }
    result = run(reaching(site), [site.url("/self"), site.url("/nowhere"), site.url("/300")], max_redirect_hops=5.0)
    assert reasons(result) == ["TOO_MANY_REDIRECTS"]
    assert [row["status_code"] for row in result.data["results"]] == [302, 304]


def raw(data: bytes) -> Serve:
    return lambda connection: connection.sendall(data)


def test_the_exempt_place_is_exempt_and_no_other(site: Site) -> None:
    dialled = Dialled()
    config = PackConfig(url_pack_test_allow=site.place)
    execute = executor(config, PinnedWeb(look_up=lambda _: ["127.0.0.1"], network=dialled))
    others = ["https://127.0.0.1/", f"https://127.1:{site.port}/", f"https://localhost:{site.port}/"]
    others += [f"https://127.0.0.1:{site.port - 1}/", f"http://{site.place}/", "https://localhost/"]
    result = run(execute, others)
    assert sorted(reasons(result)) == ["LOOPBACK"] * 2 + ["NON_HTTPS"] + ["PORT_NOT_ALLOWED"] * 3
    assert dialled.places == []
    assert reasons(run(execute, [f"https://{site.place}/"])) == ["CONNECT_FAILED"]
    assert dialled.places == [("127.0.0.1", site.port)]


def test_large_bodies_are_cut_or_not_begun(site: Site) -> None:
    """PRICED-139"""
    big = b"<title>Big</title>" + b"x" * URL_BODY_MAX_BYTES
    huge = b"HTTP/1.1 200 OK\r\nContent-Length: 20971521\r\n\r\n"
    site.paths |= {
        "/fits": page(b"x" * URL_BODY_MAX_BYTES, Content_Type="text/plain"),
        "/big": page(big),
        "/bomb": page(gzip.compress(b"<p>boom</p>" + b"\0" * 50_000_000), Content_Encoding="gzip"),
        "/huge": raw(huge),
        "/endless": raw(b"HTTP/1.1 200 OK\r\n\r\n" + big * 2),
    }
    result = run(reaching(site), [site.url(path) for path in ("/fits", "/big", "/bomb", "/endless", "/huge")])
    assert [row["flags"] for row in result.data["results"]] == [[], ["TRUNCATED"], ["TRUNCATED"], ["TRUNCATED"]]
    assert result.data["results"][1]["title"] == "Big"
    assert result.data["results"][2]["text_excerpt"] == "boom"
    assert reasons(result) == ["CONTENT_TOO_LARGE"]
    assert result.actual_cost_usd_micros == BASE + 5 * EACH


def test_odd_bodies_are_results_with_a_flag(site: Site) -> None:
    """PRICED-139: never a crash"""
    site.paths |= {
        "/gzip": page(gzip.compress(b"<p>zipped"), Content_Encoding="gzip"),
        "/br": page(b"\x0b\x02", Content_Encoding="br"),
        "/broken": page(b"not gzip", Content_Encoding="gzip"),
        "/half": raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 99\r\n\r\nhalf"),
        "/none": raw(b"HTTP/1.1 204 No Content\r\n\r\n"),
        "/odd": page(b"\xff\x00\x01ok", Content_Type="text/plain; charset=\xff"),
        "/upgrade": raw(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nxyz"),
    }
    paths = list(site.paths)[1:]
    result = run(reaching(site), [site.url(path) for path in paths])
    rows = result.data["results"]
    flags = {row["url"].removeprefix(site.url("")): row["flags"] for row in rows}
    assert flags == {
        "/gzip": [],
        "/br": ["ENCODING_UNKNOWN"],
        "/broken": ["ENCODING_BROKEN"],
        "/half": ["INCOMPLETE"],
        "/none": [],
        "/odd": [],
    }
    assert [row.get("text_excerpt") for row in rows] == ["zipped", None, None, "half", None, "\ufffdok"]
    assert reasons(result) == ["CONNECT_FAILED"]  # another protocol than HTTP, for which nobody asked


def test_a_page_made_to_hurt_is_a_result_like_others(site: Site) -> None:
    """PRICED-146: a number of 5000 digits is none that Python reads"""
    site.paths["/hurts"] = page(f"<title>&#{'1' * 5_000};</title><p>&#{'1' * 5_000};")
    rows = run(reaching(site), [site.url("/hurts"), site.url()]).data["results"]
    assert [(row["title"], row["flags"]) for row in rows] == [("\ufffd", []), ("Home", [])]


def test_a_defect_costs_one_url_and_is_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """PRICED-146: before the answer and after it; by types, without a word of what was in it"""

    def look_up(name: str) -> list[str]:
        if name == "broken.example.com":
            raise ZeroDivisionError(name)
        return [PUBLIC]

    def read(body: bytes, content_type: str) -> Page:
        if b"secret" in body:
            raise LookupError(body)
        return read_page(body, content_type)

    monkeypatch.setattr("pyoco_server.executors.packs.url.read_page", read)
    site.paths["/secret"] = page("secret")
    web = PinnedWeb(str(site.authority.ca_file), look_up=look_up, network=Dialled(site.port))
    urls = ["https://broken.example.com/", f"https://{NAME}/secret", f"https://{NAME}/", f"https://{NAME}/secret"]
    result = run(executor(PackConfig(), web), urls, defects={"ZeroDivisionError": 1, "LookupError": 2})
    assert result.discard_log == [{"url": urls[0], "reason": "CONNECT_FAILED"}]
    rows = [(row["status_code"], row["flags"], row.get("title")) for row in result.data["results"]]
    assert rows == [(200, ["UNREADABLE"], None), (200, [], "Home"), (200, ["UNREADABLE"], None)]
    assert result.actual_cost_usd_micros == BASE + 3 * EACH


def test_others_are_fetched_while_a_page_is_read(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """PRICED-141: clocks go on, too"""
    begun, fetched = threading.Event(), threading.Event()

    def read(body: bytes, content_type: str) -> Page:
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
    over, seconds = threading.Event(), 1

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
        for seconds in (1, 5, 10):  # a busy machine may need more than a second for the one that is in time
            result = run(reaching(site), [site.url(path) for path in paths], fetch_timeout_sec=seconds)
            if result.data["results"]:
                break
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


def test_faults_of_servers_have_names(site: Site, authority: Authority) -> None:
    dialled = Dialled(site.port, dead=frozenset({"1.1.1.1"}))
    names = {"dead.example.com": ["1.1.1.1"], "other.example.com": [PUBLIC], NAME: [PUBLIC]}
    site.paths["/smtp"] = raw(b"220 smtp.example.com\r\n")
    urls = ["https://unknown.example.com/", "https://dead.example.com/", "https://other.example.com/"]
    result = run(named(site, names, dialled), [*urls, f"https://{NAME}/smtp"])
    assert reasons(result) == ["DNS_FAILURE", "CONNECT_FAILED", "TLS_FAILED", "CONNECT_FAILED"]
    assert result.actual_cost_usd_micros == BASE + 3 * EACH


def test_urls_beyond_the_number_that_was_asked_for_are_discarded(site: Site) -> None:
    """PRICED-146"""
    result = run(reaching(site), [site.url()] * 3, max_urls=1.0)
    assert reasons(result) == ["OVER_MAX_URLS"] * 2
    assert site.connections == 1


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
        for seconds in (1.5, 6.0, 24.0):  # a busy machine may need longer for the first one, and to begin the others
            ctx = context(40.0 + seconds)
            result = run(reaching(site), urls, ctx)
            if result.actual_cost_usd_micros == BASE + 9 * EACH:
                break
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


def test_http_is_fetched_where_it_is_allowed_and_was_asked_for(authority: Authority) -> None:
    """PRICED-135, PRICED-140"""
    with site_of(authority, {"/": page("plain http")}, tls=False) as site:
        dialled = Dialled(site.port)
        url = f"http://{NAME}/"
        execute = named(site, {NAME: [PUBLIC]}, dialled, url_pack_allow_http=True)
        assert reasons(run(execute, [url])) == ["NON_HTTPS"]
        assert reasons(run(named(site, {NAME: [PUBLIC]}, dialled), [url], allow_https_only=False)) == ["NON_HTTPS"]
        assert dialled.places == []
        [row] = run(execute, [url], allow_https_only=False).data["results"]
        assert (row["text_excerpt"], dialled.places) == ("plain http", [(PUBLIC, 80)])
        assert reasons(run(execute, ["http://127.0.0.1/"], allow_https_only=False)) == ["LOOPBACK"]


def test_strange_urls_are_told_as_they_were_given(site: Site) -> None:
    """PRICED-146"""
    urls = ["", " ", "https://", "x" * 2048, "https://example.com/\x00", "https://\u202eexample.com/", "\U0001f600"]
    result = run(named(site, {}), urls)
    assert [row["url"] for row in result.discard_log] == urls
    assert set(reasons(result)) == {"INVALID_URL"}


def test_a_file_without_certificates_stops_the_start() -> None:
    with pytest.raises(SettingError, match="PYOCO_URL_PACK_CA_FILE"):
        executors({"url": ""}, PackConfig(url_pack_ca_file="missing.pem"))
