"""`/v1/results/{token}`: a signed address opens one object for a while, and nothing else opens anything."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from priced_gateways import PricedDoor, check_problem
from pyoco_server.core.priced.envelope import Artifact
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.core.priced.result_token import sign
from pyoco_server.errors import DependencyUnavailable

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
    """Nobody's script runs under the gateway's name."""
    payer = await priced_door.payer()
    run_id = await priced_door.submitted(payer)
    page = Artifact(name="page.html", content_type="text/html", data=b"<script>alert(1)</script>")
    await priced_door.completed(run_id, {}, [page])
    [artifact] = (await priced_door.get(payer, run_id)).json()["result"]["artifacts"]
    answer = await priced_door.client.get(artifact["presigned_url"])
    assert answer.headers["content-type"] == "text/html"
    assert answer.headers["content-disposition"] == "attachment"
    assert answer.headers["content-security-policy"] == "sandbox"


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


async def test_it_can_only_be_read(priced_door: PricedDoor) -> None:
    path = await an_address(priced_door)
    answer = await priced_door.client.delete(path)
    check_problem(answer, Reason.VALIDATION_FAILED, 405)
    assert answer.headers["allow"] == "GET, HEAD"


async def test_an_address_is_in_no_log_line(priced_door: PricedDoor, caplog: pytest.LogCaptureFixture) -> None:
    """PRICED-171: whoever reads the log must not be able to read the result"""
    path = await an_address(priced_door)
    with (
        caplog.at_level(0),
        priced_door.with_priced(replace(priced_door.priced, results=_Away(priced_door.priced.results))),
    ):
        await priced_door.client.get(path)
        await priced_door.client.delete(path)
    told = [f"{record.getMessage()} {vars(record)}" for record in caplog.records if record.name.startswith("pyoco")]
    assert told
    assert not [line for line in told if path.rpartition("/")[2] in line]


class _Away:
    """A store of results that opens tokens, and answers nothing."""

    def __init__(self, results: Any) -> None:
        self._results = results

    def __getattr__(self, name: str) -> Any:
        return getattr(self._results, name)

    async def get(self, key: str) -> Any:
        raise DependencyUnavailable("away")
