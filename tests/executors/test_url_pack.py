"""The url pack, whole: what becomes of each URL, what it costs, and what it never does. It dials loopback alone."""

from __future__ import annotations

import gzip
import re

import pytest

from pyoco_server.config.packs import PackConfig
from pyoco_server.core.packs.spec import Here
from pyoco_server.core.packs.url import URL
from pyoco_server.core.priced.constants import URL_BODY_MAX_BYTES
from pyoco_server.core.web.page import WebPage, read_page
from pyoco_server.errors import SettingError
from pyoco_server.executors.packs.url import executor
from pyoco_server.ports.web.pinned import PinnedWeb
from pyoco_server.wiring.packs import executors
from support.priced.url_packs import BASE, EACH, authority, named, patience, reaching, reasons, run, site
from support.priced.url_sites import (
    NAME,
    PUBLIC,
    Authority,
    Dialled,
    Serve,
    Site,
    page,
    redirect,
    site_of,
)

__all__ = ["authority", "patience", "site"]

HERE = Here(tenant_id="acme", input_bucket="dpp-inputs")


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


def raw(data: bytes) -> Serve:
    return lambda connection: connection.sendall(data)


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

    def read(body: bytes, content_type: str) -> WebPage:
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
