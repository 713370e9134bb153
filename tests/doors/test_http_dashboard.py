"""`GET /` and `GET /static/{path}`: the dashboard's page and its files, and what a browser may do (section 13)."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import Message, Send

from pyoco_server.doors.dashboard.page import open_dashboard
from pyoco_server.doors.http.html_headers import HTML_HEADERS, with_html_headers
from pyoco_server.ports.nats.link import Link
from support.gateways import Gateway, error, fresh_gateway, listening, submit

NOT_FOUND, READ_ONLY = error(2, "not found"), error(35, "dashboard is read-only")
FRESH, FOR_EVER = "no-cache", "public, max-age=31536000, immutable"
#: As browsers have them, each in another place: over https or on this machine; over plain http; from a page without an
#: origin; from an address that somebody typed; and from a form over plain http.
FROM_A_PAGE = [
    {"Sec-Fetch-Site": "same-origin", "Origin": "http://gateway"},
    {"Origin": "http://gateway"},
    {"sec-fetch-site": "same-origin", "origin": "null"},
    {"sec-fetch-site": "none"},
    {"Referer": "http://gateway/"},
]


async def plain(gateway: Gateway, path: str, **headers: str) -> httpx.Response:
    return await gateway.client.get(path, headers={"Accept-Encoding": "identity"} | headers)


class TestThePage:
    async def test_is_served_with_its_files(self, gateway: Gateway) -> None:
        """FLOW-244, FLOW-245, FLOW-256: ours, as installed"""
        answer = await gateway.client.get("/")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert f'<html lang="{gateway.config.language()}" data-auth="none"' in answer.text
        version = gateway.app.state.dashboard.assets.version
        main = await gateway.client.get(f"/static/v-{version}/main.js")
        style = await gateway.client.get("/static/css/base.css")
        assert [each.status_code for each in (main, style)] == [200, 200]
        assert main.headers["content-type"] == "application/javascript; charset=utf-8"
        assert style.headers["content-type"] == "text/css; charset=utf-8"

    async def test_needs_no_key_and_what_it_shows_does(self, link: Link, nats_url: str, tmp_path: Path) -> None:
        """FLOW-45, FLOW-258"""
        async with fresh_gateway(
            link, nats_url, tmp_path, http_auth_mode="api_key", http_api_key_header="X-Our-Key"
        ) as gateway:
            page = await gateway.client.get("/")
            assert page.status_code == 200
            assert 'data-auth="api_key" data-key-header="X-Our-Key"' in page.text
            for path, status in (("/static/main.js", 200), ("/static/x.js", 404), ("/runs", 401), ("/static", 401)):
                assert (await gateway.client.get(path)).status_code == status, path
            # A key that does not open is not looked at: the page asks for another one.
            assert (await gateway.client.get("/", headers={"X-Our-Key": "no"})).status_code == 200

    async def test_that_is_not_installed_is_missed_by_nobody_else(self, gateway: Gateway, tmp_path: Path) -> None:
        """FLOW-244, FLOW-246"""
        gateway.app.state.dashboard = open_dashboard(gateway.config, "1", tmp_path / "nothing")
        for path in ("/", "/static/main.js", "/static/index.html"):
            answer = await gateway.client.get(path)
            assert (answer.status_code, answer.json()) == (404, NOT_FOUND)
        run_id = await submit(gateway)
        for path in ("/health", f"/runs/{run_id}", "/runs", "/workers", "/openapi.json"):
            assert (await gateway.client.get(path)).status_code == 200


class TestAFile:
    async def test_outside_of_the_folder_is_not_there(self, gateway: Gateway) -> None:
        """FLOW-245: on a real socket, as bytes that no client would send"""
        paths = [b"../page.py", b"..%2fpage.py", b"%2e%2e/page.py", b"..\\page.py", b"/etc/passwd", b"css/../main.js"]
        paths += [b"index.html", b"", b"css", b"css/", b"main.js%00", b"main.js%00.css", b"v-0/../../page.py", b"%ff"]
        async with listening(gateway.app) as port:
            for path in paths:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /static/%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path)
                async with asyncio.timeout(120):
                    answer = await reader.read()
                writer.close()
                assert answer.startswith(b"HTTP/1.1 404 "), (path, answer)

    async def test_is_sent_again_only_when_it_has_changed(self, gateway: Gateway) -> None:
        for path in ("/", "/static/main.js", "/static/v-old/main.js"):
            first = await plain(gateway, path)
            tag = first.headers["etag"]
            assert first.headers["cache-control"] == FRESH
            for same in (tag, f"W/{tag}", f'"x", {tag}', f'"a,b",W/{tag}', "*"):
                again = await plain(gateway, path, **{"If-None-Match": same})
                assert (again.status_code, again.content) == (304, b""), same
                assert again.headers["etag"] == tag
                assert again.headers["cache-control"] == FRESH
                assert "content-type" not in again.headers
            packed = f'{tag[:-1]}-gzip"'
            for other in ('"x"', "", tag.strip('"'), f'"{tag}"', packed, f"W/{packed}"):
                assert (await plain(gateway, path, **{"If-None-Match": other})).status_code == 200, other

    async def test_in_one_form_is_no_copy_of_the_other(self, gateway: Gateway) -> None:
        """What a 304 says of itself is put on the copy: a browser would unpack what is not packed"""
        forms = {
            form: (await gateway.client.get("/", headers={"Accept-Encoding": form})) for form in ("identity", "gzip")
        }
        tags = {form: answer.headers["etag"] for form, answer in forms.items()}
        for form in forms:
            for had, tag in tags.items():
                headers = {"Accept-Encoding": form, "If-None-Match": tag}
                answer = await gateway.client.get("/", headers=headers)
                assert (answer.status_code, answer.headers["etag"]) == (304 if form == had else 200, tags[form])

    async def test_is_kept_for_ever_under_its_version_alone(self, gateway: Gateway) -> None:
        version = gateway.app.state.dashboard.assets.version
        found = {
            path: await plain(gateway, path)
            for path in ("/static/main.js", f"/static/v-{version}/main.js", "/static/v-0123456789abcdef/main.js")
        }
        assert [each.headers["cache-control"] for each in found.values()] == [FRESH, FOR_EVER, FRESH]
        assert len({each.content for each in found.values()}) == 1, "an old page gets the file of today"
        assert (await plain(gateway, f"/static/v-{version}/no.js")).status_code == 404

    async def test_is_packed_for_whoever_takes_it(self, gateway: Gateway) -> None:
        whole = await plain(gateway, "/static/main.js")
        tags = set()
        table = {
            "gzip": True,
            "GZIP;q=0.5": True,
            "br, gzip": True,
            "deflate , gzip ; q=1": True,
            "gzip;q=0": False,
            "gzip; q=0.000": False,
            "identity": False,
            "*": False,
            "xgzip": False,
            "": False,
        }
        for accepted, is_packed in table.items():
            request = gateway.client.build_request("GET", "/static/main.js", headers={"Accept-Encoding": accepted})
            answer = await gateway.client.send(request, stream=True)
            raw = b"".join([part async for part in answer.aiter_raw()])
            assert ("content-encoding" in answer.headers) == is_packed, accepted
            assert (gzip.decompress(raw) if is_packed else raw) == whole.content
            assert int(answer.headers["content-length"]) == len(raw)
            assert answer.headers["vary"] == "Accept-Encoding"
            tags.add((is_packed, answer.headers["etag"]))
        assert len(tags) == len({tag for _, tag in tags}) == 2, "two forms, two tags"

    async def test_is_looked_at_without_its_bytes(self, gateway: Gateway) -> None:
        address = "http://127.0.0.1"
        async with (
            listening(gateway.app) as port,
            httpx.AsyncClient(base_url=f"{address}:{port}", timeout=60) as client,
        ):
            for path in ("/", "/static/main.js"):
                whole, head = await client.get(path), await client.head(path)
                assert (head.status_code, head.content) == (200, b"")
                for name in ("content-type", "content-length", "etag", "cache-control", "content-encoding"):
                    assert head.headers[name] == whole.headers[name]


async def test_a_browser_is_told_to_trust_nothing_else(gateway: Gateway) -> None:
    """FLOW-259: what a run says cannot become code, by the browser's own rules"""
    version = gateway.app.state.dashboard.assets.version
    for path in ("/", "/docs", "/static/main.js", f"/static/v-{version}/main.js", "/static/icon.svg"):
        headers = (await gateway.client.get(path)).headers
        assert headers["content-security-policy"].split("; ") == [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' data:",
            "connect-src 'self'",
            "font-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        ]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cross-origin-opener-policy"] == "same-origin"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert all(each.endswith("=()") for each in headers["permissions-policy"].split(", "))
        assert {"camera=()", "geolocation=()", "microphone=()"} <= set(headers["permissions-policy"].split(", "))
        assert "set-cookie" not in headers
        assert "access-control-allow-origin" not in headers


class TestTheApisPage:
    async def test_names_files_of_ours_alone(self, gateway: Gateway) -> None:
        """SAFE-10: before, it loaded Swagger UI from elsewhere"""
        page = await plain(gateway, "/docs")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        files = re.findall(r'(?:src|href)="([^"]*)"', page.text)
        version = gateway.app.state.dashboard.assets.version
        ours = [name for name in files if name.startswith(f"static/v-{version}/")]
        assert set(files) - set(ours) == {"openapi.json"}
        assert f"static/v-{version}/docs.js" in ours
        assert f"static/v-{version}/views/docs_operation.js" in ours, "loaded at once"
        for name in ours:
            assert (await gateway.client.get(f"/{name}")).status_code == 200, name
        assert "<style" not in page.text
        assert not re.search(r"<script[^>]*>[^<]", page.text)

    async def test_is_the_only_one_about_the_api(self, gateway: Gateway) -> None:
        for path in ("/redoc", "/docs/oauth2-redirect", "/static/docs.html"):
            assert (await gateway.client.get(path)).status_code == 404, path

    async def test_that_is_not_installed_is_missed_by_nobody_else(self, gateway: Gateway, tmp_path: Path) -> None:
        gateway.app.state.dashboard = open_dashboard(gateway.config, "1", tmp_path / "nothing")
        answer = await gateway.client.get("/docs")
        assert (answer.status_code, answer.json()) == (404, NOT_FOUND)
        assert (await gateway.client.get("/openapi.json")).status_code == 200


class TestHtmlAnswers:
    @pytest.mark.parametrize("kind", [b"text/html", b"Text/HTML; charset=utf-8", b"image/svg+xml", b"application/xml"])
    @pytest.mark.parametrize("status", [200, 404, 500])
    async def test_each_has_the_headers_whoever_sends_it(self, kind: bytes, status: int) -> None:
        """SAFE-10: also errors, and files that a pack or a program left. A stricter policy stays beside ours."""
        own = [(b"content-type", kind), (b"x-frame-options", b"SAMEORIGIN"), (b"content-security-policy", b"sandbox")]
        sent: list[Message] = []
        await with_html_headers(_into(sent))({"type": "http.response.start", "status": status, "headers": own})
        found = httpx.Headers(sent[0]["headers"])
        assert sent[0]["status"] == status
        assert found.get_list("content-security-policy") == ["sandbox", HTML_HEADERS["Content-Security-Policy"]]
        for name, value in HTML_HEADERS.items():
            assert name == "Content-Security-Policy" or found.get_list(name) == [value]

    @pytest.mark.parametrize("headers", [[], [(b"content-type", b"application/json")]])
    async def test_others_are_sent_as_they_are(self, headers: list[tuple[bytes, bytes]]) -> None:
        message = {"type": "http.response.start", "status": 200, "headers": headers}
        sent: list[Message] = []
        await with_html_headers(_into(sent))(message)
        assert sent[0] is message

    async def test_the_guard_adds_them_to_the_answers_of_the_framework(self, gateway: Gateway) -> None:
        """SAFE-10"""

        async def page(_: Request) -> Response:
            return HTMLResponse("<p>x", 500)

        gateway.app.router.routes.append(Route("/odd", page))
        answer = await gateway.client.get("/odd")
        assert {name: answer.headers.get(name) for name in HTML_HEADERS} == HTML_HEADERS


def _into(sent: list[Message]) -> Send:
    async def send(message: Message) -> None:
        sent.append(message)

    return send


class TestReadOnly:
    @pytest.fixture
    async def read_only(self, link: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
        async with fresh_gateway(link, nats_url, tmp_path, dashboard_read_only=True) as gateway:
            yield gateway

    async def test_a_page_changes_nothing(self, read_only: Gateway) -> None:
        """FLOW-249: on whichever path, ours or not, before anything is looked at"""
        run_id = await submit(read_only)
        asks = [("POST", "/runs"), ("POST", f"/runs/{run_id}/cancel"), ("PATCH", "/workers/x"), ("DELETE", "/dlq/7")]
        for headers in FROM_A_PAGE:
            for method, path in (*asks, ("POST", "/"), ("PUT", "/nothing"), ("NONSENSE", "/runs")):
                answer = await read_only.client.request(method, path, headers=headers, json={"flow_name": "f"})
                assert (answer.status_code, answer.json()) == (403, READ_ONLY), (method, path, headers)
            run = (await read_only.client.get(f"/runs/{run_id}", headers=headers)).json()
            assert run["status"] == "PENDING", headers
            assert len((await read_only.client.get("/runs", headers=headers)).json()) == 1, headers

    async def test_a_page_may_look(self, read_only: Gateway) -> None:
        for headers in FROM_A_PAGE:
            for method in ("GET", "HEAD"):
                for path in ("/", "/runs", "/workers", "/static/main.js"):
                    assert (await read_only.client.request(method, path, headers=headers)).status_code == 200
            assert (await read_only.client.options("/runs", headers=headers)).status_code == 405
        assert 'data-read-only="true"' in (await read_only.client.get("/")).text

    async def test_programs_are_not_meant(self, read_only: Gateway) -> None:
        """What a program sends of itself is not what a browser adds"""
        run_id = await submit(read_only)
        headers = {"User-Agent": "Mozilla/5.0", "Sec-Fetch-Mode": "cors"}
        answer = await read_only.client.post(f"/runs/{run_id}/cancel", headers=headers)
        assert (answer.status_code, answer.json()["status"]) == (200, "CANCELLING")

    async def test_another_sites_page_hears_the_same_as_ever(self, read_only: Gateway) -> None:
        answer = await read_only.client.post("/runs", headers={"Sec-Fetch-Site": "cross-site", "Origin": "http://x"})
        assert (answer.status_code, answer.json()) == (403, error(2, "cross-origin request"))

    async def test_unless_it_is_set_a_page_may_act(self, gateway: Gateway) -> None:
        for headers in FROM_A_PAGE:
            answer = await gateway.client.post("/runs", headers=headers, json={"flow_name": "f"})
            assert answer.status_code == 200
        assert 'data-read-only="false"' in (await gateway.client.get("/")).text
