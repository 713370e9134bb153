"""What nobody should send: it is refused with an error body, read no further than needed, and leaves no trace."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateways import Gateway, error, fresh_gateway, listening, stock_of
from pyoco_server.ports.nats.link import Link, open_link

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON_BYTES_MAX = 1024 * 1024
YAML_BYTES_MAX = 262_144
FLOW_YAML = b"flow:\n  graph: a >> b\n  defaults: {x: 1}\n"
SOMEONE = str(uuid.UUID(int=7, version=4))


class Door:
    """A gateway that keeps count of what it accepted."""

    def __init__(self, gateway: Gateway, link: Link) -> None:
        self.gateway, self._link = gateway, link
        self.accepted = 0

    async def send(self, method: str, path: str, content: Any = None, **headers: str) -> httpx.Response:
        answer = await self.gateway.client.request(method, path, content=content, headers=headers)
        if answer.status_code == 200 and method == "POST":
            self.accepted += 1
        return answer

    async def post(self, body: Any, **headers: str) -> httpx.Response:
        return await self.send("POST", "/runs", body, **headers)

    async def upload(self, body: Any, content_type: str = "multipart/form-data; boundary=B") -> httpx.Response:
        return await self.send("POST", "/runs/yaml", body, **{"content-type": content_type})

    async def check(self) -> None:
        """FLOW-70: one record and one job for each answer of 200, and nothing else anywhere."""
        config = self.gateway.config
        stock = await stock_of(config, self._link)
        used = {f"KV_{config.runs_kv_bucket}": self.accepted, config.work_stream: self.accepted}
        assert stock == dict.fromkeys(stock, 0) | used


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def whole_module(nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Door]:
    link = await open_link(nats_url, "tests")
    async with fresh_gateway(link, nats_url, tmp_path_factory.mktemp("data")) as gateway:
        yield Door(gateway, link)
    await link.close()


@pytest_asyncio.fixture(loop_scope="module")
async def door(whole_module: Door) -> AsyncIterator[Door]:
    """Whatever a test sends, it leaves no trace unless it was accepted."""
    yield whole_module
    await whole_module.check()


def check_refusal(answer: httpx.Response, number: int = 2, status: int = 422) -> list[dict[str, Any]]:
    """FLOW-50, FLOW-59, FLOW-60: five fields, both languages, and what is wrong where. Returns the problems."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = json.loads(answer.content.decode())
    problems: list[dict[str, Any]] = body.pop("errors")
    assert problems
    for problem in problems:
        assert problem.keys() == {"loc", "msg", "type"}
        assert problem["msg"]
    phrase = body.pop("detail")
    assert phrase in (problems, "invalid request")
    assert body | {"detail": ""} == error(number, "")
    return problems


class TestJson:
    @pytest.mark.parametrize(
        ("body", "loc"),
        [
            (b"", ["body"]),
            (b" ", ["body"]),
            (b"{", ["body"]),
            (b'{"flow_name": "f"}x', ["body"]),
            (b"flow_name=hello", ["body"]),
            (b"null", ["body"]),
            (b"[]", ["body"]),
            (b'"flow_name"', ["body"]),
            (b"1", ["body"]),
            (b'[{"flow_name": "f"}]', ["body"]),
            (b"\xef\xbb\xbf{}", ["body"]),
            (b'{"flow_name": "\xff"}', ["body"]),
            (b'{"flow_name": "\xed\xa0\x80"}', ["body"]),
            ('{"flow_name": "f"}'.encode("utf-16"), ["body"]),
            (b'{"flow_name": "\\ud800"}', ["body"]),
            (b'{"flow_name": "\\ude00\\ud83d"}', ["body"]),
            (b'{"flow_name": "a\x00b"}', ["body"]),
            (b"\x00" * 1000, ["body"]),
            (b"{}", ["body", "flow_name"]),
            (b'{"params": {}}', ["body", "flow_name"]),
            (b'{"flow_name": ""}', ["body", "flow_name"]),
            (b'{"flow_name": null}', ["body", "flow_name"]),
            (b'{"flow_name": 1}', ["body", "flow_name"]),
            (b'{"flow_name": ["f"]}', ["body", "flow_name"]),
            (b'{"flow_name": {}}', ["body", "flow_name"]),
            (b'{"flow_name": true}', ["body", "flow_name"]),
            (b'{"flow_name": "%s"}' % (b"x" * 513), ["body", "flow_name"]),
            (b'{"flow_name": "f", "params": []}', ["body", "params"]),
            (b'{"flow_name": "f", "params": "{}"}', ["body", "params"]),
            (b'{"flow_name": "f", "params": 0}', ["body", "params"]),
            (b'{"flow_name": "f", "params": false}', ["body", "params"]),
            (b'{"flow_name": "f", "params": {1: 2}}', ["body"]),
            (b'{"flow_name": "f", "params": {"a": NaN}}', ["body"]),
            (b'{"flow_name": "f", "params": {"a": Infinity}}', ["body"]),
            (b'{"flow_name": "f", "params": {"a": -Infinity}}', ["body"]),
            (b'{"flow_name": "f", "params": {"a": 1e400}}', ["body", "params"]),
            (b'{"flow_name": "f", "params": {"a": [-1e400]}}', ["body", "params", 0]),
            (b'{"flow_name": "f", "params": {"a": %s}}' % (b"9" * 5000), ["body", "params"]),
            (b'{"flow_name": "f", "params": {"a": 01}}', ["body"]),
            (b'{"flow_name": "f", "params": {"a": "\\udfff"}}', ["body"]),
            (b'{"flow_name": "f", "params": {"\\ud800": 1}}', ["body"]),
            (b'{"flow_name": "f", "tag": 1}', ["body", "tag"]),
            (b'{"flow_name": "f", "tag": ["a"]}', ["body", "tag"]),
            (b'{"flow_name": "f", "tag": ""}', ["body", "tag"]),
            (b'{"flow_name": "f", "tag": "a.b"}', ["body", "tag"]),
            (b'{"flow_name": "f", "tag": "a b"}', ["body", "tag"]),
            (b'{"flow_name": "f", "tag": "*"}', ["body", "tag"]),
            (b'{"flow_name": "f", "tag": ">"}', ["body", "tag"]),
            (b'{"flow_name": "f", "tag": "a\\n"}', ["body", "tag"]),
            (b'{"flow_name": "f", "tag": "\\u0000"}', ["body", "tag"]),
            ('{"flow_name": "f", "tag": "é"}'.encode(), ["body", "tag"]),
            ('{"flow_name": "f", "tag": "\u0661"}'.encode(), ["body", "tag"]),
            (b'{"flow_name": "f", "tag": "%s"}' % (b"x" * 129), ["body", "tag"]),
            (b'{"flow_name": "f", "tags": "a"}', ["body", "tags"]),
            (b'{"flow_name": "f", "tags": {"a": 1}}', ["body", "tags"]),
            (b'{"flow_name": "f", "tags": ["a", 1]}', ["body", "tags", 1]),
            (b'{"flow_name": "f", "tags": [null]}', ["body", "tags", 0]),
            (b'{"flow_name": "f", "tags": [["a"]]}', ["body", "tags", 0]),
            (b'{"flow_name": "f", "tags": %s}' % json.dumps(["x"] * 101).encode(), ["body", "tags"]),
            (b'{"flow_name": "f", "tags": ["%s"]}' % (b"x" * 513), ["body", "tags"]),
            (b'{"flow_name": "f", "params": {"a": %s%s}}' % (b"[" * 10_000, b"]" * 10_000), ["body"]),
            (b'{"flow_name": "f", "params": %s1%s}' % (b'{"a":' * 10_000, b"}" * 10_000), ["body"]),
            (b'{"flow_name": "f", "params": {"a": %s%s}}' % (b"[" * 100, b"]" * 100), ["body", "params"]),
            (b'{"flow_name": "f", "unknown": %s%s}' % (b"[" * 10_000, b"]" * 10_000), ["body"]),
            (b"[" * 100_000, ["body"]),
        ],
        ids=lambda value: value.decode(errors="replace")[:40] if isinstance(value, bytes) else "",
    )
    async def test_a_body_that_is_no_submission_is_refused(self, door: Door, body: bytes, loc: list[str | int]) -> None:
        """FLOW-33, FLOW-50, FLOW-59, FLOW-65 to FLOW-68, FLOW-70"""
        answer = await door.post(body)
        problems = check_refusal(answer)
        assert [problem["loc"] for problem in problems] == [loc]
        assert answer.json()["detail"] == problems

    @pytest.mark.parametrize(
        ("body", "loc"),
        [
            (b"[]", ["body"]),
            (b'"because"', ["body"]),
            (b"null", ["body"]),
            (b"{", ["body"]),
            (b'{"reason": 1}', ["body", "reason"]),
            (b'{"reason": ["a"]}', ["body", "reason"]),
            (b'{"reason": {}}', ["body", "reason"]),
            (b'{"reason": "%s"}' % (b"x" * 4097), ["body", "reason"]),
            (b'{"reason": "\\ud800"}', ["body"]),
            (b"\xff", ["body"]),
        ],
    )
    async def test_a_cancel_request_of_another_shape_is_refused(
        self, door: Door, body: bytes, loc: list[str | int]
    ) -> None:
        """FLOW-115"""
        problems = check_refusal(await door.send("POST", f"/runs/{SOMEONE}/cancel", body))
        assert [problem["loc"] for problem in problems] == [loc]


async def call(
    app: Any, path: str, chunks: AsyncIterator[bytes], headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any], int]:
    """An ASGI request whose body arrives piece by piece. Gives status, error body, and how many bytes were taken."""
    taken = 0
    answer: list[Any] = []

    async def receive() -> dict[str, Any]:
        nonlocal taken
        try:
            chunk = await anext(chunks)
        except StopAsyncIteration:
            return {"type": "http.request", "body": b"", "more_body": False}
        taken += len(chunk)
        return {"type": "http.request", "body": chunk, "more_body": True}

    async def send(message: Any) -> None:
        answer.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
        "server": ("gateway", 80),
        "client": ("test", 1),
    }
    async with asyncio.timeout(20):
        await app(scope, receive, send)
    return answer[0]["status"], json.loads(b"".join(part.get("body", b"") for part in answer[1:])), taken


async def endless(start: bytes, piece: bytes) -> AsyncIterator[bytes]:
    yield start
    while True:
        yield piece


FORM_START = b'--B\r\nContent-Disposition: form-data; name="workflow"; filename="f"\r\n\r\n'
FORM = {"content-type": "multipart/form-data; boundary=B"}


class TestTooMuch:
    @pytest.mark.parametrize("declared", [None, "10", "0", "1048576", "nonsense", "-1", "\u00b2"])
    async def test_an_endless_body_is_refused_while_it_comes(self, door: Door, declared: str | None) -> None:
        """A missing or false content-length helps nobody: what has come is counted."""
        headers = {} if declared is None else {"content-length": declared}
        body = endless(b'{"flow_name": "f", "params": {"a": "', b"x" * 65536)
        status, answer, taken = await call(door.gateway.app, "/runs", body, headers)
        assert (status, answer) == (413, error(2, "request body too large"))
        assert JSON_BYTES_MAX < taken <= JSON_BYTES_MAX + 65536

    @pytest.mark.parametrize("declared", ["1048577", "9" * 18, "9" * 19, "9" * 5000, "00001048577"])
    async def test_a_body_declared_too_large_is_not_read_at_all(self, door: Door, declared: str) -> None:
        body = endless(b"{", b"x")
        status, answer, taken = await call(door.gateway.app, "/runs", body, {"content-length": declared})
        assert (status, answer, taken) == (413, error(2, "request body too large"), 0)

    async def test_the_largest_body_is_still_read(self, door: Door) -> None:
        """It fails for another reason: a snapshot holds less (FLOW-71)."""
        start, end = b'{"flow_name": "f", "params": {"a": "', b'"}}'
        exact = start + b"x" * (JSON_BYTES_MAX - len(start) - len(end)) + end
        assert len(exact) == JSON_BYTES_MAX
        check_refusal(await door.post(exact))
        assert (await door.post(exact + b" ")).json() == error(2, "request body too large")

    async def test_an_endless_file_is_refused_at_its_cap(self, door: Door) -> None:
        """FLOW-57, FLOW-84: reading stops once the cap is passed."""
        body = endless(FORM_START, b"#" * 4096)
        status, answer, taken = await call(door.gateway.app, "/runs/yaml", body, FORM)
        assert (status, answer) == (413, error(16, "workflow file too large"))
        assert YAML_BYTES_MAX < taken <= YAML_BYTES_MAX + 2 * 4096

    @pytest.mark.parametrize(
        "start",
        [
            pytest.param(b"\r\n", id="blank lines before the form"),
            pytest.param(b"--B\r\nX-", id="a header without end"),
            pytest.param(b'--B\r\nContent-Disposition: form-data; name="', id="a name without end"),
            pytest.param(b'--B\r\nContent-Disposition: form-data; name="tag"\r\n\r\n', id="a field without end"),
            pytest.param(FORM_START + b"x\r\n--B--\r\n", id="an epilogue without end"),
        ],
    )
    async def test_an_endless_form_ends_somewhere(self, door: Door, start: bytes) -> None:
        """FLOW-83, FLOW-84"""
        for piece in (b"a" * 4096, b"\r\n" * 2048, b"\x00" * 4096):
            status, answer, taken = await call(door.gateway.app, "/runs/yaml", endless(start, piece), FORM)
            assert status in {413, 422}
            assert answer["err_id"] in {"ERR-PYOCO-0002", "ERR-PYOCO-0016"}
            assert taken <= YAML_BYTES_MAX + 65536 + 2 * 4096

    async def test_a_file_of_exactly_the_cap_is_accepted(self, door: Door) -> None:
        """FLOW-84, FLOW-168"""
        exact = FLOW_YAML + b"#" * (YAML_BYTES_MAX - len(FLOW_YAML))
        assert (await door.upload(form(workflow(exact), NAME))).status_code == 200
        over = await door.upload(form(workflow(exact + b"#"), NAME))
        assert (over.status_code, over.json()) == (413, error(16, "workflow file too large"))

    async def test_the_cap_is_a_setting(self, nats_url: str, link_of_module: Link, tmp_path: Path) -> None:
        """FLOW-84, FLOW-168"""
        small = {"workflow_yaml_max_bytes": 100}
        async with fresh_gateway(link_of_module, nats_url, tmp_path, **small) as gateway:
            own = Door(gateway, link_of_module)
            padded = FLOW_YAML + b"#" * (100 - len(FLOW_YAML))
            assert (await own.upload(form(workflow(padded), NAME))).status_code == 200
            assert (await own.upload(form(workflow(padded + b"#"), NAME))).status_code == 413
            await own.check()


@pytest_asyncio.fixture(loop_scope="module")
async def link_of_module(nats_url: str) -> AsyncIterator[Link]:
    link = await open_link(nats_url, "tests")
    yield link
    await link.close()


class TestSockets:
    """Real bytes on a real socket."""

    @staticmethod
    async def _talk(port: int, *pieces: bytes, close: bool = False, until: bytes = b"}") -> bytes:
        """Send, and read until the server has answered; the request is never finished."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            if close:
                return b""
            async with asyncio.timeout(5):
                return await reader.readuntil(until)
        finally:
            writer.close()

    async def test_the_answer_comes_before_the_end_of_a_body_too_large(self, door: Door) -> None:
        """FLOW-84: the sender still has something to say when it is told to stop."""
        head = b"POST /runs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        piece = b"10000\r\n" + b" " * 65536 + b"\r\n"
        async with listening(door.gateway.app) as port:
            answer = await self._talk(port, head, *[piece] * (JSON_BYTES_MAX // 65536 + 1))
            assert answer.startswith(b"HTTP/1.1 413 ")
            assert b"request body too large" in answer

    async def test_a_declared_length_is_answered_before_any_body(self, door: Door) -> None:
        async with listening(door.gateway.app) as port:
            head = b"POST /runs HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n"
            assert (await self._talk(port, head)).startswith(b"HTTP/1.1 413 ")
            head = b"POST /runs/yaml HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n"
            head += b"Content-Type: multipart/form-data; boundary=B\r\n\r\n"
            assert b"ERR-PYOCO-0016" in await self._talk(port, head)

    async def test_a_sender_that_leaves_early_leaves_nothing(self, door: Door) -> None:
        """A content-length longer than the body."""
        async with listening(door.gateway.app) as port:
            head = b"POST /runs HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
            await self._talk(port, head, b'{"flow_name": "f"}', close=True)
            await self._talk(port, b"POST /runs/yaml HTTP/1.1\r\nHost: x\r\nContent-Le", close=True)
            answer = await self._talk(port, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 ")

    async def test_a_length_shorter_than_the_body_cuts_it(self, door: Door) -> None:
        async with listening(door.gateway.app) as port:
            head = b"POST /runs HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"
            answer = await self._talk(port, head, b'{"flow_name": "f"}', until=b"\r\n")
            assert answer.split()[1] in {b"422", b"400"}  # 400: the server has seen that the rest is no request

    @pytest.mark.parametrize(
        "target",
        [
            b"/runs/%00",
            b"/runs/%ff",
            b"/runs/%c3%28",
            b"/runs/" + b"a" * 10_000,
            b"/runs/a%2Fb",
            b"/runs/..%2f..",
            b"//runs",
        ],
    )
    async def test_a_strange_path_is_not_found(self, door: Door, target: bytes) -> None:
        """FLOW-36"""
        async with listening(door.gateway.app) as port:
            answer = await self._talk(port, b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 404 ")
            assert b"ERR-PYOCO-00" in answer


def disposition(name: str, filename: str | None = None) -> bytes:
    file = "" if filename is None else f'; filename="{filename}"'
    return f'Content-Disposition: form-data; name="{name}"{file}'.encode()


def workflow(data: bytes) -> tuple[bytes, bytes]:
    return disposition("workflow", "flow.yaml") + b"\r\nContent-Type: application/yaml", data


def form(*parts: tuple[bytes, bytes], end: bytes = b"--B--\r\n") -> bytes:
    return b"".join(b"--B\r\n" + head + b"\r\n\r\n" + data + b"\r\n" for head, data in parts) + end


NAME = (disposition("flow_name"), b"main")
GOOD = form(workflow(FLOW_YAML), NAME)


class TestForms:
    @pytest.mark.parametrize(
        "content_type",
        [
            "multipart/form-data; boundary=B",
            'Multipart/Form-Data; charset=utf-8; boundary="B"',
        ],
    )
    async def test_a_good_form_is_accepted(self, door: Door, content_type: str) -> None:
        """FLOW-79, FLOW-80"""
        assert (await door.upload(GOOD, content_type)).status_code == 200
        extra = form((disposition("comment"), b"a field nobody knows"), workflow(FLOW_YAML), NAME)
        assert (await door.upload(extra, content_type)).status_code == 200

    @pytest.mark.parametrize(
        "content_type",
        [
            "",
            "multipart/form-data",
            "multipart/form-data; boundary=",
            'multipart/form-data; boundary=""',
            "multipart/form-data; boundary=C",
            "multipart/form-data; boundary=" + "B" * 300,
            "multipart/mixed; boundary=B",
            "application/json",
            "application/x-www-form-urlencoded",
            "text/plain; boundary=B",
            "; boundary=B",
            '"; boundary="',
            "multipart/form-data; boundary*=utf-8''B%",
            "multipart/form-data;" * 100,
        ],
    )
    async def test_a_form_that_does_not_say_where_it_ends_is_refused(self, door: Door, content_type: str) -> None:
        """FLOW-83"""
        assert check_refusal(await door.upload(GOOD, content_type))[0]["loc"] == ["body"]

    @pytest.mark.parametrize("cut", range(0, len(GOOD) - 4, 7))
    async def test_a_form_that_was_cut_is_refused(self, door: Door, cut: int) -> None:
        """FLOW-83"""
        check_refusal(await door.upload(GOOD[:cut]))

    @pytest.mark.parametrize(
        ("body", "loc"),
        [
            pytest.param(form(workflow(FLOW_YAML), NAME, end=b""), ["body"], id="no end"),
            pytest.param(form(), ["body", "workflow"], id="no part"),
            pytest.param(form(NAME), ["body", "workflow"], id="no file"),
            pytest.param(form(workflow(b""), NAME), ["body", "workflow"], id="an empty file"),
            pytest.param(form(workflow(FLOW_YAML)), ["body", "flow_name"], id="no flow name"),
            pytest.param(form(workflow(FLOW_YAML), (disposition("flow_name"), b"")), ["body", "flow_name"], id="empty"),
            pytest.param(
                form(workflow(FLOW_YAML), (disposition("flow_name"), b"x" * 513)), ["body", "flow_name"], id="long name"
            ),
            pytest.param(
                form(workflow(FLOW_YAML), (disposition("flow_name"), b"x" * 5000)), ["body", "flow_name"], id="too long"
            ),
            pytest.param(
                form(workflow(FLOW_YAML), (disposition("flow_name"), b"\xff")), ["body", "flow_name"], id="not UTF-8"
            ),
            pytest.param(
                form(workflow(FLOW_YAML), (disposition("flow_name", "n"), b"n")), ["body", "flow_name"], id="a file"
            ),
            pytest.param(
                form((disposition("workflow"), FLOW_YAML), NAME), ["body", "workflow"], id="the file as a field"
            ),
            pytest.param(form(workflow(FLOW_YAML), workflow(FLOW_YAML), NAME), ["body", "workflow"], id="two files"),
            pytest.param(form(workflow(FLOW_YAML), NAME, NAME), ["body", "flow_name"], id="two names"),
            pytest.param(
                form(workflow(FLOW_YAML), NAME, (disposition("params"), b"{}")),
                ["body", "params"],
                id="FLOW-85: params",
            ),
            pytest.param(
                form(workflow(FLOW_YAML), NAME, (disposition("params", "p.json"), b"")),
                ["body", "params"],
                id="FLOW-85: params as a file",
            ),
            pytest.param(form(workflow(FLOW_YAML), NAME, (disposition("tag"), b"a.b")), ["body", "tag"], id="bad tag"),
            pytest.param(form(workflow(FLOW_YAML), NAME, (disposition("tag"), b"")), ["body", "tag"], id="empty tag"),
            pytest.param(form(workflow(FLOW_YAML), NAME, (disposition("tag"), b"\0")), ["body", "tag"], id="NUL tag"),
            pytest.param(
                form(workflow(FLOW_YAML), NAME, (b"Content-Disposition: form-data", b"x")), ["body"], id="no name"
            ),
            pytest.param(form(workflow(FLOW_YAML), NAME, (disposition(""), b"x")), ["body"], id="an empty name"),
            pytest.param(form(workflow(FLOW_YAML), NAME, (b"X-Other: 1", b"x")), ["body"], id="no disposition"),
            pytest.param(b"--B\r\n\r\nx\r\n--B--\r\n", ["body"], id="no headers"),
            pytest.param(b"--B\r\nno colon\r\n\r\nx\r\n--B--\r\n", ["body"], id="a header without colon"),
            pytest.param(b"--B\r\n\xff: x\r\n\r\nx\r\n--B--\r\n", ["body"], id="a header of no letters"),
            pytest.param(GOOD.replace(b"\r\n", b"\n"), ["body"], id="line feeds alone"),
            pytest.param(b"junk\r\n" + GOOD, ["body"], id="a preamble"),
            pytest.param(
                form(*((disposition(f"p{n}"), b"") for n in range(100)), workflow(FLOW_YAML), NAME),
                ["body"],
                id="100 parts",
            ),
        ],
    )
    async def test_a_broken_form_is_refused(self, door: Door, body: bytes, loc: list[str]) -> None:
        """FLOW-79 to FLOW-81, FLOW-83, FLOW-85"""
        answer = await door.upload(body)
        assert check_refusal(answer)[0]["loc"] == loc
        assert answer.json()["detail"] == answer.json()["errors"]

    async def test_a_form_may_come_byte_by_byte(self, door: Door) -> None:
        async def bytewise() -> AsyncIterator[bytes]:
            for byte in GOOD:
                yield bytes([byte])

        status, answer, _ = await call(door.gateway.app, "/runs/yaml", bytewise(), FORM)
        assert (status, answer["status"]) == (200, "PENDING")
        door.accepted += 1


BOMB = b"a: &a [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (98 + n, 98 + n, b", ".join([b"*%c" % (97 + n)] * 9)) for n in range(9)
)


class TestYaml:
    @pytest.mark.parametrize(
        ("text", "loc"),
        [
            pytest.param(b"\xff\xfe", ["workflow"], id="FLOW-169: not UTF-8"),
            pytest.param(FLOW_YAML.decode().encode("utf-16"), ["workflow"], id="FLOW-169: UTF-16"),
            pytest.param(b"flow: [", ["workflow"], id="FLOW-169: no YAML"),
            pytest.param(b"\tflow: 1", ["workflow"], id="FLOW-169: a tab"),
            pytest.param(b"flow: \x00", ["workflow"], id="FLOW-169: NUL"),
            pytest.param(b'"\\ud800": 1', ["workflow"], id="FLOW-169: half a surrogate pair"),
            pytest.param(b"--- {}\n--- {}\n", ["workflow"], id="FLOW-161: two documents"),
            pytest.param(b"# nothing", ["workflow"], id="FLOW-164: empty"),
            pytest.param(b"[]", ["workflow"], id="FLOW-165: a list"),
            pytest.param(b"hello", ["workflow"], id="FLOW-165: text"),
            pytest.param(b"flow: {graph: a}\nflows: {}", ["workflow", "flows"], id="FLOW-162: flows"),
            pytest.param(b"flow: {graph: a}\ndiscovery: {}", ["workflow", "discovery"], id="FLOW-162: discovery"),
            pytest.param(b"flow: {graph: a}\nnope: 1", ["workflow", "nope"], id="FLOW-163: an unknown key"),
            pytest.param(b"flow: {graph: a, name: x}", ["workflow", "flow", "name"], id="FLOW-163: in flow"),
            pytest.param(b"tasks: {}", ["workflow", "flow"], id="FLOW-164: no flow"),
            pytest.param(b"flow: {}", ["workflow", "flow", "graph"], id="FLOW-164: no graph"),
            pytest.param(b"flow: {graph: ' '}", ["workflow", "flow", "graph"], id="FLOW-164: an empty graph"),
            pytest.param(b"flow: {graph: a}\nversion: 2", ["workflow", "version"], id="FLOW-165: version"),
            pytest.param(b"flow: {graph: a, defaults: []}", ["workflow", "flow", "defaults"], id="FLOW-165: defaults"),
            pytest.param(
                b"flow: {graph: a}\ntasks: {a: {use: x, callable: 'y:z'}}",
                ["workflow", "tasks", "a"],
                id="FLOW-165: two",
            ),
            pytest.param(b"flow: {graph: 'a >> >> b'}", ["workflow", "flow", "graph"], id="FLOW-166: no graph"),
            pytest.param(
                b"flow: {graph: '%s'}" % (b"(" * 5000), ["workflow", "flow", "graph"], id="FLOW-166: too deep"
            ),
            pytest.param(
                b"flow: {graph: a, defaults: {d: 2020-01-01}}",
                ["workflow", "flow", "defaults", "d"],
                id="FLOW-172: a date",
            ),
            pytest.param(
                b"flow: {graph: a, defaults: {d: .nan}}", ["workflow", "flow", "defaults", "d"], id="FLOW-172: NaN"
            ),
            pytest.param(b"flow: {graph: a, defaults: {1: 2}}", ["workflow", "flow", "defaults"], id="FLOW-172: a key"),
            pytest.param(BOMB, ["workflow", "e", 5], id="FLOW-172: a bomb of aliases"),
            pytest.param(b"flow: {graph: a, defaults: {d: &d [*d]}}", None, id="FLOW-172: a value inside itself"),
            pytest.param(b"flow: !!python/object/apply:os.system ['true']", ["workflow", "flow"], id="FLOW-169: a tag"),
            pytest.param(b"flow: {graph: !!python/name:os.system ''}", None, id="FLOW-169: a name of Python"),
            pytest.param(b"flow: " + b"[" * 50_000, None, id="FLOW-169: too deep"),
            pytest.param(b"flow: {graph: a, graph: b}", ["workflow", "flow"], id="a repeated key"),
        ],
    )
    async def test_a_file_that_breaks_the_policy_is_refused(
        self, door: Door, text: bytes, loc: list[str | int] | None
    ) -> None:
        """FLOW-83, FLOW-161 to FLOW-172"""
        began = time.monotonic()
        answer = await door.upload(form(workflow(text), NAME))
        problems = check_refusal(answer)
        assert answer.json()["detail"] == "invalid request"
        assert loc is None or loc in [problem["loc"] for problem in problems]
        assert time.monotonic() - began < 2

    async def test_the_gateway_imports_no_task_code(self, door: Door) -> None:
        """FLOW-167"""
        text = b"flow: {graph: a}\ntasks: {a: {callable: 'antigravity:fly'}, b: {use: nobody/knows}}\n"
        assert (await door.upload(form(workflow(text), NAME))).status_code == 200
        assert "antigravity" not in sys.modules


STRANGE_IDS = [
    "x",
    "yaml",
    "0",
    "None",
    SOMEONE.upper().replace("0", "A"),
    SOMEONE.replace("-", ""),
    f"%7B{SOMEONE}%7D",
    f"urn:uuid:{SOMEONE}",
    f"{SOMEONE}%20",
    f"{SOMEONE}%0A",
    "a" * 10_000,
    "%00",
    "%ff",
    "%2e%2e",
    "*",
    "%3E",
    "a.b",
    "$KV",
    "%E6%97%A5%E6%9C%AC",
    "%7B%7D",
    "%7Brun_id%7D",
    "%20GET",
    "%20POST",
]


class TestPaths:
    @pytest.mark.parametrize(("method", "end"), [("GET", ""), ("GET", "/tasks"), ("POST", "/cancel")])
    @pytest.mark.parametrize("run_id", STRANGE_IDS, ids=lambda run_id: run_id[:40])
    async def test_what_is_no_id_is_answered_like_an_unknown_run(
        self, door: Door, method: str, end: str, run_id: str
    ) -> None:
        """FLOW-36, FLOW-50"""
        answer = await door.send(method, f"/runs/{run_id}{end}")
        assert (answer.status_code, answer.json()) == (404, error(5, "run not found"))

    @pytest.mark.parametrize(
        "path", ["/nothing", "/runs/a%2Fb", f"/runs/{SOMEONE}/nothing", "/runs//tasks", "/%7B%7D", "/%20GET"]
    )
    async def test_a_path_nobody_serves_is_not_found(self, door: Door, path: str) -> None:
        answer = await door.send("GET", path)
        assert (answer.status_code, answer.json()) == (404, error(2, "not found"))

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("DELETE", "/runs"),
            ("PUT", f"/runs/{SOMEONE}"),
            ("GET", f"/runs/{SOMEONE}/cancel"),
            ("POST", "/health"),
            ("POST", f"/runs/{SOMEONE}/tasks"),
            ("PATCH", "/runs/yaml"),
            ("TRACE", "/runs"),
            ("NONSENSE", "/runs"),
        ],
    )
    async def test_a_method_nobody_serves_is_not_allowed(self, door: Door, method: str, path: str) -> None:
        answer = await door.send(method, path)
        assert (answer.status_code, answer.json()) == (405, error(2, "method not allowed"))
        assert answer.headers["allow"]

    @pytest.mark.parametrize(
        ("path", "status"),
        [("/health", 200), ("/runs", 200), (f"/runs/{SOMEONE}", 404), ("/runs?limit=0", 422), ("/nothing", 404)],
    )
    async def test_a_head_is_answered_as_a_get(self, door: Door, path: str, status: int) -> None:
        assert (await door.send("HEAD", path)).status_code == status


class TestQueries:
    @pytest.mark.parametrize(
        ("query", "names"),
        [
            ("status=pending", ["status"]),
            ("status=", ["status"]),
            ("status=PENDING%00", ["status"]),
            ("limit=0", ["limit"]),
            ("limit=201", ["limit"]),
            ("limit=-1", ["limit"]),
            ("limit=", ["limit"]),
            ("limit=1.0", ["limit"]),
            ("limit=1e1", ["limit"]),
            ("limit=%D9%A3", ["limit"]),
            ("limit=%2B5", ["limit"]),
            ("limit=" + "9" * 5000, ["limit"]),
            ("limit=1&limit=0", ["limit"]),
            ("workflow_yaml_sha256=", ["workflow_yaml_sha256"]),
            ("workflow_yaml_sha256=" + "g" * 64, ["workflow_yaml_sha256"]),
            ("workflow_yaml_sha256=" + "a" * 63, ["workflow_yaml_sha256"]),
            ("workflow_yaml_sha256=" + "a" * 65, ["workflow_yaml_sha256"]),
            ("workflow_yaml_sha256=" + "a" * 64 + "%0A", ["workflow_yaml_sha256"]),
            ("kind=program", ["kind"]),
            ("status=x&limit=x&kind=x", ["kind", "limit", "status"]),
            ("cursor=nonsense", ["cursor"]),
            ("updated_after=-1", ["updated_after"]),
            ("updated_after=nan", ["updated_after"]),
            ("updated_after=inf", ["updated_after"]),
        ],
        ids=lambda value: value[:40] if isinstance(value, str) else "",
    )
    async def test_a_bad_value_is_refused_by_name(self, door: Door, query: str, names: list[str]) -> None:
        """FLOW-60, FLOW-97, FLOW-100, FLOW-102, FLOW-104, FLOW-106"""
        problems = check_refusal(await door.send("GET", f"/runs?{query}"), number=17)
        assert sorted(problem["loc"] for problem in problems) == [["query", name] for name in names]

    @pytest.mark.parametrize(
        "query",
        ["flow=%ff", "flow=%00", "tag=%ed%a0%80", "flow=" + "x" * 50_000, "&&&=&", "tag=%", "include=%00&a", "flow"],
    )
    async def test_a_strange_value_finds_nothing_or_is_passed_over(self, door: Door, query: str) -> None:
        answer = await door.send("GET", f"/runs?{query}")
        assert answer.status_code == 200
        assert isinstance(answer.json(), list)


#: Whatever hypothesis finds is answered in milliseconds; the deadline would measure the machine.
THOROUGH = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)
submissions = st.fixed_dictionaries(
    {"flow_name": json_values | st.text(min_size=1)},
    optional={"params": json_values, "tag": json_values, "tags": json_values, "more": json_values},
)
part_names = st.sampled_from(["workflow", "flow_name", "tag", "params", "x"]) | st.text(max_size=5)
pieces = st.sampled_from(
    [
        *(b"--B", b"--B\r\n", b"--B--", b"--", b"\r\n", b"\r\n\r\n", b'"', b";", b":", b"\xff", b"\x00"),
        *(b"Content-Disposition: form-data; ", b'name="workflow"', b'name="flow_name"', b'; filename="f"'),
        *(FLOW_YAML, b"flow:", b"&a ", b"*a", b"!!"),
    ]
)


def check_answer(answer: httpx.Response) -> None:
    """Never a 5xx, and never a refusal without its error body."""
    assert answer.status_code in {200, 413, 422}, answer.text
    body = answer.json()
    if answer.status_code == 200:
        assert body == {"run_id": body["run_id"], "status": "PENDING"}
    else:
        assert error(2, "").keys() <= body.keys()
        assert body["err_id"] in {"ERR-PYOCO-0002", "ERR-PYOCO-0016"}


class TestAnything:
    @THOROUGH
    @given(body=st.binary(max_size=200))
    async def test_any_bytes_are_answered(self, door: Door, body: bytes) -> None:
        """FLOW-50, FLOW-70"""
        check_answer(await door.post(body))
        check_answer(await door.upload(body))

    @THOROUGH
    @given(document=submissions)
    async def test_any_json_is_answered_and_can_be_read_back(self, door: Door, document: dict[str, Any]) -> None:
        """FLOW-50, FLOW-70, FLOW-88"""
        try:
            body = json.dumps(document, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            body = json.dumps(document).encode()
        answer = await door.post(body)
        check_answer(answer)
        if answer.status_code == 200:
            snapshot = (await door.send("GET", f"/runs/{answer.json()['run_id']}")).json()
            assert snapshot["params"] == (document.get("params") or {})
            assert snapshot["flow_name"] == document["flow_name"]

    @THOROUGH
    @given(parts=st.lists(pieces | st.binary(max_size=20), max_size=20))
    async def test_any_form_is_answered(self, door: Door, parts: list[bytes]) -> None:
        """FLOW-50, FLOW-83"""
        check_answer(await door.upload(b"".join(parts)))
        check_answer(await door.upload(b"--B\r\n" + b"".join(parts) + b"\r\n--B--\r\n"))

    @THOROUGH
    @given(name=part_names, head=st.binary(max_size=30), data=st.binary(max_size=50))
    async def test_any_part_is_answered(self, door: Door, name: str, head: bytes, data: bytes) -> None:
        """FLOW-50, FLOW-83"""
        odd = (disposition(name).replace(b"\n", b"") + head, data)
        check_answer(await door.upload(form(workflow(FLOW_YAML), NAME, odd)))

    @THOROUGH
    @given(
        text=st.text(max_size=100) | st.lists(pieces, max_size=10).map(lambda some: b"".join(some).decode("latin-1"))
    )
    async def test_any_file_is_answered(self, door: Door, text: str) -> None:
        """FLOW-50, FLOW-169"""
        check_answer(await door.upload(form(workflow(text.encode("utf-8", "replace")), NAME)))
        quoted = json.dumps(text)
        check_answer(await door.upload(form(workflow(f"flow: {{graph: {quoted}, defaults: {quoted}}}".encode()), NAME)))

    @THOROUGH
    @given(content_type=st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=50))
    async def test_any_content_type_is_answered(self, door: Door, content_type: str) -> None:
        """FLOW-83"""
        for value in (
            content_type,
            f"multipart/form-data; {content_type}",
            f"multipart/form-data; boundary={content_type}",
        ):
            headers = [(b"content-type", value.encode("latin-1"))]
            answer = await door.gateway.client.post("/runs/yaml", content=GOOD, headers=headers)
            check_answer(answer)
            door.accepted += answer.status_code == 200

    @THOROUGH
    @given(segment=st.text(max_size=20), query=st.dictionaries(st.text(max_size=5), st.text(max_size=10), max_size=3))
    async def test_any_path_and_query_is_answered(self, door: Door, segment: str, query: dict[str, str]) -> None:
        """FLOW-36, FLOW-50, FLOW-106"""
        path = quote(segment.encode("utf-8", "replace"), safe="")
        asked = urlencode(query, errors="replace")
        for answer in (
            await door.gateway.client.get(f"/runs/{path}/tasks"),
            await door.gateway.client.get(f"/{path}?{asked}"),
            await door.gateway.client.get(f"/runs?{asked}"),
        ):
            assert answer.status_code < 500
            assert answer.status_code < 400 or error(2, "").keys() <= answer.json().keys()
