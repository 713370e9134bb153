"""Which addresses the url pack connects to, redirects included."""

from __future__ import annotations

import pytest

from pyoco_server.config.packs import PackConfig
from pyoco_server.executors.packs.url import executor
from pyoco_server.ports.web.pinned import PinnedWeb
from support.priced.url_packs import BASE, EACH, authority, named, patience, reaching, reasons, run, site
from support.priced.url_sites import (
    NAME,
    PUBLIC,
    Dialled,
    Site,
    page,
    redirect,
)

__all__ = ["authority", "patience", "site"]

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
