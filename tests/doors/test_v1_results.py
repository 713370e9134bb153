"""`/v1/results/{token}`: a signed address opens one object for a while, and nothing else opens anything."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from pyoco_server.core.priced.envelope import Artifact
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.core.priced.result_token import sign
from pyoco_server.doors.http import byte_stream
from pyoco_server.doors.http.html_headers import HTML_HEADERS
from pyoco_server.doors.http.state import DOWNLOADS_OF_TENANT_MAX
from pyoco_server.errors import DependencyUnavailable
from support.gateways import listening
from support.priced.gateways import PricedDoor, check_problem
from support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def an_address(door: PricedDoor) -> str:
    """The path of a stored envelope."""
    payer = await door.payer()
    run_id = await door.submitted(payer)
    await door.completed(run_id, {"answer_text": "yes"})
    return urlsplit(str((await door.get(payer, run_id)).json()["result"]["presigned_url"])).path


async def test_whoever_holds_the_address_gets_the_bytes(priced_door: PricedDoor) -> None:
    """PRICED-66, PRICED-81: without a key, as with any presigned address"""
    path = await an_address(priced_door)
    answer = await priced_door.client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert answer.headers["etag"] == f'"{hashlib.sha256(answer.content).hexdigest()}"'
    assert answer.headers["content-length"] == str(len(answer.content))
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-disposition"] == "attachment"
    assert answer.headers["x-trace-id"]
    assert answer.json()["data"] == {"answer_text": "yes"}


async def test_head_gives_the_headers_alone(priced_door: PricedDoor) -> None:
    """PRICED-81"""
    path = await an_address(priced_door)
    whole, head = await priced_door.client.get(path), await priced_door.client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    same = {"content-type", "content-length", "etag"}
    assert {name: head.headers[name] for name in same} == {name: whole.headers[name] for name in same}


async def test_a_page_that_a_pack_wrote_is_a_file_to_a_browser(priced_door: PricedDoor) -> None:
    """No script of a result runs in the origin of the gateway."""
    payer = await priced_door.payer()
    run_id = await priced_door.submitted(payer)
    page = Artifact(name="page.html", content_type="text/html", data=b"<script>alert(1)</script>")
    await priced_door.completed(run_id, {}, [page])
    [artifact] = (await priced_door.get(payer, run_id)).json()["result"]["artifacts"]
    answer = await priced_door.client.get(artifact["presigned_url"])
    assert answer.headers["content-type"] == "text/html"
    assert answer.headers["content-disposition"] == "attachment"
    assert answer.headers.get_list("content-security-policy") == ["sandbox", HTML_HEADERS["Content-Security-Policy"]]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_nothing_else_opens_anything(priced_door: PricedDoor, method: str) -> None:
    """PRICED-81: forged, changed, expired, of another secret, of a missing object, rubbish: all alike"""
    path = await an_address(priced_door)
    payload, signature = path.rpartition("/")[2].split(".")
    secret, ahead = priced_door.priced.config.results_secret.encode(), int(time.time()) + 60
    tokens = [
        f"{payload}.{signature[:-2]}AA",
        f"{payload[:-2]}AA.{signature}",
        f"{payload}.{signature}x",
        f"{payload}.",
        f".{signature}",
        payload,
        sign("dpp/a/2026/01/01/x/pack_envelope.json", ahead, secret),
        sign("dpp/a/2026/01/01/x/pack_envelope.json", ahead, b"another secret"),
        sign("dpp/a/2026/01/01/x/pack_envelope.json", 1, secret),
        "",
        "a/b",
        "x" * 5000,
        "%00",
        "ü",
    ]
    for token in tokens:
        answer = await priced_door.client.request(method, f"/v1/results/{token}")
        if method == "GET":
            check_problem(answer, Reason.RUN_NOT_FOUND)
        assert answer.status_code == 404, token
        assert "x-dpp-cost-used" not in answer.headers


async def test_it_opens_until_its_expiry_and_not_at_it(priced_door: PricedDoor) -> None:
    """PRICED-81"""
    payer = await priced_door.payer()
    run_id = await priced_door.submitted(payer)
    run = await priced_door.completed(run_id, {"answer_text": "yes"})
    assert run.result is not None
    secret, now = priced_door.priced.config.results_secret.encode(), int(priced_door.gateway.backend.clock())
    for expires_at, status in ((now + 30, 200), (now - 1, 404)):
        answer = await priced_door.client.get(f"/v1/results/{sign(run.result.key, expires_at, secret)}")
        assert answer.status_code == status


async def test_an_outage_is_not_told_as_a_missing_result(priced_door: PricedDoor) -> None:
    """PRICED-211"""
    path = await an_address(priced_door)
    with priced_door.with_priced(replace(priced_door.priced, results=_Away(priced_door.priced.results))):
        answer = await priced_door.client.get(path)
    check_problem(answer, Reason.DEPENDENCY_UNAVAILABLE)
    assert answer.headers["retry-after"] == "5"


async def test_who_does_not_read_is_cut_off_and_has_a_turn_until_then(
    priced_door: PricedDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PRICED-81: an address needs no key, and what it leads to is in memory whole"""
    monkeypatch.setattr(byte_stream, "_SEND_SECONDS", 0.5)
    payer, size = await priced_door.payer(), 24_000_000
    run_id = await priced_door.submitted(payer)
    await priced_door.completed(
        run_id, {}, [Artifact(name="a.bin", content_type="application/x-bin", data=bytes(size))]
    )
    [artifact] = (await priced_door.get(payer, run_id)).json()["result"]["artifacts"]
    downloads = priced_door.gateway.app.state.gateway.downloads
    async with listening(priced_door.gateway.app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=65_536)
        writer.write(f"GET {urlsplit(artifact['presigned_url']).path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert b" 200 OK" in await reader.readuntil(b"\r\n\r\n")
        assert downloads.taken == 1
        await eventually(lambda: downloads.taken == 0)
        got = 0
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(1 << 20):
                got += len(chunk)
        writer.close()
    assert got < size


async def test_who_reads_slowly_is_in_no_other_tenant_s_way(priced_door: PricedDoor) -> None:
    """PRICED-81: a place is taken until the last byte is, and each result belongs to a tenant"""
    paths, envelopes = [], []
    for payer in (await priced_door.payer(), await priced_door.payer()):
        run_id = await priced_door.submitted(payer)
        await priced_door.completed(run_id, {"answer_text": "yes"})
        paths.append(urlsplit((await priced_door.get(payer, run_id)).json()["result"]["presigned_url"]).path)
        envelopes.append((f"/v1/runs/{run_id}/envelope", payer.headers))
    is_taking, stop = asyncio.Event(), asyncio.Event()

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(_: Any) -> None:
        if priced_door.gateway.app.state.gateway.downloads.taken == DOWNLOADS_OF_TENANT_MAX:
            is_taking.set()
        await stop.wait()

    scope = {"type": "http", "method": "GET", "path": paths[0], "headers": [], "query_string": b""}
    slow = [
        asyncio.create_task(priced_door.gateway.app(dict(scope), receive, send)) for _ in range(DOWNLOADS_OF_TENANT_MAX)
    ]
    await is_taking.wait()
    for path, headers in ((paths[0], {}), envelopes[0]):
        check_problem(await priced_door.client.get(path, headers=headers), Reason.DEPENDENCY_UNAVAILABLE)
    for path, headers in ((paths[1], {}), envelopes[1]):
        assert (await priced_door.client.get(path, headers=headers)).status_code == 200
    stop.set()
    await asyncio.gather(*slow)
    assert (await priced_door.client.get(paths[0])).status_code == 200


async def test_a_result_of_many_pieces_comes_whole(priced_door: PricedDoor) -> None:
    """PRICED-81"""
    payer, data = await priced_door.payer(), bytes(range(256)) * 4_000
    run_id = await priced_door.submitted(payer)
    await priced_door.completed(run_id, {}, [Artifact(name="a.bin", content_type="application/x-bin", data=data)])
    [artifact] = (await priced_door.get(payer, run_id)).json()["result"]["artifacts"]
    answer = await priced_door.client.get(artifact["presigned_url"])
    assert (answer.content, answer.headers["content-length"]) == (data, str(len(data)))
    assert priced_door.gateway.app.state.gateway.downloads.taken == 0


async def test_it_can_only_be_read(priced_door: PricedDoor) -> None:
    path = await an_address(priced_door)
    answer = await priced_door.client.delete(path)
    check_problem(answer, Reason.VALIDATION_FAILED, 405)
    assert answer.headers["allow"] == "GET, HEAD"


async def test_an_address_is_in_no_log_line(priced_door: PricedDoor, caplog: pytest.LogCaptureFixture) -> None:
    """PRICED-171: the log must not contain what opens the result"""
    path = await an_address(priced_door)
    with (
        caplog.at_level(0),
        priced_door.with_priced(replace(priced_door.priced, results=_Away(priced_door.priced.results))),
    ):
        await priced_door.client.get(path)
        await priced_door.client.delete(path)
        await priced_door.client.delete(path, headers={"Sec-Fetch-Site": "cross-site"})
        with priced_door.with_settings(dashboard_read_only=True):
            await priced_door.client.delete(path, headers={"Sec-Fetch-Site": "same-origin"})
    told = [f"{record.getMessage()} {vars(record)}" for record in caplog.records if record.name.startswith("pyoco")]
    assert told
    assert not [line for line in told if path.rpartition("/")[2] in line]


async def test_a_stop_that_cuts_a_download_off_does_not_tell_its_address(
    priced_door: PricedDoor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PRICED-171"""
    path, is_sending = await an_address(priced_door), asyncio.Event()

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(_: Any) -> None:
        is_sending.set()
        await asyncio.Event().wait()

    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
    monkeypatch.setattr(priced_door.gateway.app.state, "stopping", True, raising=False)
    with caplog.at_level(0):
        sending = asyncio.create_task(priced_door.gateway.app(scope, receive, send))
        await is_sending.wait()
        sending.cancel()
        await sending
    told = [f"{record.getMessage()} {vars(record)}" for record in caplog.records if record.name.startswith("pyoco")]
    assert [line for line in told if "download aborted" in line]
    assert not [line for line in told if path.rpartition("/")[2] in line]
    assert priced_door.gateway.app.state.gateway.downloads.taken == 0


async def test_a_stop_that_gives_a_request_up_does_not_tell_its_address(
    priced_door: PricedDoor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PRICED-171"""
    path, results = await an_address(priced_door), _Hanging(priced_door.priced.results)
    monkeypatch.setattr(priced_door.gateway.app.state, "stopping", True, raising=False)
    with caplog.at_level(0), priced_door.with_priced(replace(priced_door.priced, results=results)):
        asking = asyncio.create_task(priced_door.client.get(path))
        await results.is_asked.wait()
        asking.cancel()
        check_problem(await asking, Reason.DEPENDENCY_UNAVAILABLE)
    told = [f"{record.getMessage()} {vars(record)}" for record in caplog.records if record.name.startswith("pyoco")]
    assert [line for line in told if "request abandoned" in line]
    assert not [line for line in told if path.rpartition("/")[2] in line]


class _Away:
    """A store of results that opens tokens, and answers nothing."""

    def __init__(self, results: Any) -> None:
        self._results = results

    def __getattr__(self, name: str) -> Any:
        return getattr(self._results, name)

    async def get(self, key: str) -> Any:
        raise DependencyUnavailable("away")


class _Hanging(_Away):
    """One that is asked, and never answers."""

    def __init__(self, results: Any) -> None:
        super().__init__(results)
        self.is_asked = asyncio.Event()

    async def get(self, key: str) -> Any:
        self.is_asked.set()
        await asyncio.Event().wait()
