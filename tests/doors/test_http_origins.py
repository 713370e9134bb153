"""Requests from foreign origins and with foreign Host headers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pyoco_server.errors import HostRefused
from pyoco_server.ports.nats.link import Link
from support.authenticated_gateways import gateway, link
from support.gateways import error, fresh_gateway, listening

__all__ = ["gateway", "link"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


OURS = {"X-Pyoco-Request": "1"}
NEEDED = "a change from a browser needs a JSON content type or the header X-Pyoco-Request: 1"


async def test_only_a_page_of_the_same_origin_can_act(link: Link, nats_url: str, tmp_path: Path) -> None:
    """SAFE-10: as the browser itself says. Reading needs nothing: the browser keeps the answer from the page."""
    async with fresh_gateway(link, nats_url, tmp_path) as gateway:
        for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200), ("x", 403)):
            headers = {"Sec-Fetch-Site": site}
            answer = await gateway.client.post("/runs", json={"flow_name": "f"}, headers=headers | OURS)
            assert answer.status_code == status, site
            if status == 403:
                assert answer.json() == error(2, "cross-origin request")
            assert (await gateway.client.get("/runs", headers=headers)).status_code == 200


async def test_the_origin_is_judged_by_host_and_port_where_the_browser_says_nothing_else(
    link: Link, nats_url: str, tmp_path: Path
) -> None:
    """SAFE-10: over plain http a browser leaves `Sec-Fetch-Site` out, and sends `Origin` or `Referer` all the same."""
    cases: list[tuple[dict[str, str], int]] = [
        ({"Origin": "http://elsewhere.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Origin": "http://gateway.example.elsewhere.example"}, 403),
        ({"Origin": "http://"}, 403),
        ({"Origin": "http://[::2]", "Host": "[::1]:8000"}, 403),
        ({"Origin": "http://elsewhere.example", "X-Forwarded-Host": "runs.example, elsewhere.example"}, 403),
        ({"Origin": "http://gateway.example"}, 200),
        ({"Origin": "http://gateway.example:8000"}, 403),
        ({"Origin": "http://gateway.example", "Host": "gateway.example:8000"}, 403),
        ({"Origin": "http://gateway.example:8000", "Host": "gateway.example:8000"}, 200),
        ({"Origin": "http://GATEWAY.example", "Host": "Gateway.Example:80"}, 200),
        ({"Origin": "http://gateway.example", "Host": "gateway.example:443"}, 403),
        ({"Origin": "http://[::1]:3000", "Host": "[::1]:8000"}, 403),
        ({"Origin": "http://[::1]:8000", "Host": "[::1]:8000"}, 200),
        ({"Origin": "http://[::1]", "Host": "[::1]:80"}, 200),
        ({"Origin": "https://runs.example", "X-Forwarded-Host": "runs.example"}, 200),
        ({"Origin": "https://runs.example", "X-Forwarded-Host": "runs.example:443"}, 200),
        ({"Origin": "https://runs.example", "X-Forwarded-Host": "runs.example , inner:8080"}, 200),
        ({"Origin": "http://elsewhere.example", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "http://elsewhere.example", "Sec-Fetch-Site": "none"}, 403),
        ({"Origin": "http://gateway.example", "Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://elsewhere.example", "Referer": "http://gateway.example/"}, 403),
        ({"Referer": "http://gateway.example/x?y=http://elsewhere.example"}, 200),
        ({"Referer": "http://gateway.example:8000/"}, 403),
        ({"Referer": "http://elsewhere.example/gateway.example"}, 403),
        ({"Referer": "http://gateway.example@elsewhere.example/"}, 403),
        ({"Referer": "http://elsewhere.example/@gateway.example/"}, 403),
        ({"Referer": "http://elsewhere.example?@gateway.example/"}, 403),
        ({"Referer": "http://elsewhere.example#@gateway.example/"}, 403),
        ({"Referer": "http://elsewhere.example\\@gateway.example/"}, 403),
        ({"Referer": "about:blank"}, 403),
    ]
    async with fresh_gateway(link, nats_url, tmp_path) as gateway:
        for headers, status in cases:
            more = {"Host": "gateway.example", **headers}
            answer = await gateway.client.post("/runs", json={"flow_name": "f"}, headers=more)
            assert answer.status_code == status, headers


async def test_a_browser_needs_json_or_our_header_for_every_change(link: Link, nats_url: str, tmp_path: Path) -> None:
    """SAFE-10: what a form or a fetch without permission can send is refused, whatever the origin is said to be."""
    cases: list[tuple[dict[str, str], bool]] = [
        ({"Content-Type": "application/json"}, True),
        ({"Content-Type": "Application/JSON ; charset=utf-8"}, True),
        ({"Content-Type": "application/merge-patch+json"}, True),
        (OURS, True),
        ({"Content-Type": "text/plain", **OURS}, True),
        ({}, False),
        ({"X-Pyoco-Request": "0"}, False),
        ({"Content-Type": "text/plain"}, False),
        ({"Content-Type": "text/plain; x=application/json"}, False),
        ({"Content-Type": "application/x-www-form-urlencoded"}, False),
        ({"Content-Type": "multipart/form-data; boundary=application/json"}, False),
    ]
    asks = [
        ("POST", "/runs"),
        ("POST", "/runs/yaml"),
        ("POST", "/runs/x/cancel"),
        ("DELETE", "/dlq/7"),
        ("PATCH", "/workers/x"),
        ("PUT", "/exec/clients/c"),
        ("POST", "/wheels"),
        ("POST", "/nothing"),
        ("POST", "/v1/inputs"),
        ("POST", "/mcp/"),
    ]
    async with fresh_gateway(link, nats_url, tmp_path) as gateway:
        for page in ({"Sec-Fetch-Site": "same-origin"}, {"Origin": "http://gateway"}, {"Referer": "http://gateway/"}):
            for headers, is_taken in cases:
                for method, path in asks:
                    answer = await gateway.client.request(method, path, content=b"{}", headers=page | headers)
                    assert (answer.status_code == 403) == (not is_taken), (method, path, page, headers)
                    if not is_taken and not path.startswith(("/v1/", "/mcp/")):
                        assert answer.json() == error(2, NEEDED)
        assert (await gateway.client.get("/runs")).json() == []


async def test_programs_need_no_header(link: Link, nats_url: str, tmp_path: Path) -> None:
    """SAFE-10"""
    async with fresh_gateway(link, nats_url, tmp_path) as gateway:
        headers = {"Content-Type": "text/plain", "User-Agent": "Mozilla/5.0", "Sec-Fetch-Mode": "cors"}
        answer = await gateway.client.post("/runs", content=b'{"flow_name": "f"}', headers=headers)
        assert answer.status_code == 200


async def test_a_page_behind_a_proxy_hears_what_the_proxy_must_pass(link: Link, nats_url: str, tmp_path: Path) -> None:
    """Bounded, and plain text, whatever was sent; a page that the browser itself calls foreign learns nothing"""
    body = {"flow_name": "f"}
    async with fresh_gateway(link, nats_url, tmp_path) as gateway:
        headers = {"Host": "127.0.0.1:8000", "Origin": "https://runs.example"}
        answer = await gateway.client.post("/runs", json=body, headers=headers)
        assert (answer.status_code, answer.json()) == (
            403,
            error(
                2,
                "cross-origin request: the page came from https://runs.example, but this gateway was asked as "
                "127.0.0.1:8000; let the proxy pass Host, with its port, or X-Forwarded-Host",
            ),
        )
        odd = [(b"Host", b"h\xc3\xa9 <b>" + b"x" * 5000), (b"Origin", b"\xff" * 5000), (b"X-Forwarded-Host", b",,")]
        detail = (await gateway.client.post("/runs", json=body, headers=odd)).json()["detail"]
        assert detail.isascii()
        assert detail.isprintable()
        assert len(detail) < 700
        headers |= {"Sec-Fetch-Site": "cross-site"}
        answer = await gateway.client.post("/runs", json=body, headers=headers)
        assert answer.json() == error(2, "cross-origin request")


async def test_a_name_that_is_not_ours_is_not_answered(link: Link, nats_url: str, tmp_path: Path) -> None:
    """Whoever owns a name can let it lead to this machine: to a browser our answers are then those of that page. By
    an address, or by `localhost`, nobody's page comes."""
    cases = {
        "runs.example": 200,
        "Runs.Example:8000": 200,
        "runs.example.": 200,
        "localhost": 200,
        "localhost:8000": 200,
        "a.localhost:8000": 200,
        "127.0.0.1:8000": 200,
        "192.0.2.7": 200,
        "[::1]:8000": 200,
        "[2001:db8::7]": 200,
        "": 200,
        "elsewhere.example": 421,
        "elsewhere.example:8000": 421,
        "runs.example.elsewhere.example": 421,
        "a.runs.example": 421,
        "localhost.elsewhere.example": 421,
        "notlocalhost": 421,
        "127.0.0.1.elsewhere.example": 421,
        "[elsewhere.example]": 421,
        "é": 421,
        "x" * 5000: 421,
    }
    async with fresh_gateway(link, nats_url, tmp_path, http_hosts=("runs.example",)) as gateway:
        for host, status in cases.items():
            for path in ("/health", "/runs", "/nothing"):
                answer = await gateway.client.get(path, headers=[(b"Host", host.encode())])
                assert answer.status_code == (404 if (path, status) == ("/nothing", 200) else status), (host, path)
        strange = [
            ("Host", "elsewhere.example"),
            ("X-Forwarded-Host", "runs.example"),
            ("Sec-Fetch-Site", "same-origin"),
        ]
        answer = await gateway.client.post("/runs", json={"flow_name": "f"}, headers=strange)
        assert (answer.status_code, answer.json()) == (421, error(2, HostRefused.phrase))
        answer = await gateway.client.get("/runs", headers=[("Host", "runs.example"), ("Host", "elsewhere.example")])
        assert answer.status_code == 421
        async with listening(gateway.app) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.0\r\n\r\n")
            assert b" 200 OK" in await reader.readuntil(b"\r\n")
            writer.close()


async def test_any_name_is_answered_unless_the_settings_list_some(link: Link, nats_url: str, tmp_path: Path) -> None:
    for hosts in ((), ("*",), ("runs.example", "*")):
        async with fresh_gateway(link, nats_url, tmp_path, http_hosts=hosts) as gateway:
            assert (await gateway.client.get("/runs", headers={"Host": "elsewhere.example"})).status_code == 200
