"""`/mcp/` on a real socket, as the official client uses it, and as nobody should."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import os
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from starlette.types import Receive, Scope, Send

from pyoco_server.actions.priced.tenants import limit_tenant
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.doors.mcp.tools import TOOLS
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.loops.priced.fetching import Files
from pyoco_server.loops.priced.pack_lane import PackLane
from pyoco_server.ports.inputs.scratch import Scratch
from support.agents import CONTRACT, Mode, Said, agent_over_http, call
from support.doctor_commands import a_worker
from support.gateways import listening
from support.priced.gateways import Payer, PricedDoor, check_problem
from support.priced.pack_scenes import TESTS, naughty_hosts
from support.priced.points import watched

pytestmark = pytest.mark.asyncio(loop_scope="module")

DECISION, GET, OCR = "dpp_decision_run_submit", "dpp_run_get", "dpp_ocr_run_submit"
ASK: dict[str, Any] = {"question": "Ship on Friday?", "max_cost_usd": 0.25}
MODES: list[Mode] = ["legacy", "auto"]
INITIALIZE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
}
LIST: dict[str, Any] = {"jsonrpc": "2.0", "id": 7, "method": "tools/list"}


@dataclass(frozen=True)
class Hatch:
    """A gateway behind a socket."""

    door: PricedDoor
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp/"

    async def post(
        self, payer: Payer | None, body: Any, headers: dict[str, str] | None = None, path: str = "/mcp/"
    ) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        return await self.door.client.post(
            path, content=content, headers={**sent, **(payer.headers if payer else {}), **(headers or {})}
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hatch(priced_door: PricedDoor) -> AsyncIterator[Hatch]:
    async with listening(priced_door.gateway.app) as port:
        yield Hatch(priced_door, port)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Any:
    """Whatever is sent: nothing is logged with a traceback, and nobody changes where logs go."""
    handlers = list(logging.getLogger().handlers)
    yield
    assert [each for each in caplog.records if each.exc_info or each.levelno >= logging.ERROR] == []
    assert logging.getLogger().handlers == handlers


def problem(said: Said, reason: Reason, status: int) -> Said:
    assert said.is_error
    assert (said["reason_code"], said["status"]) == (reason, status)
    assert {"type", "title", "detail", "instance", "trace_id"} < said.keys()
    return said


@pytest.mark.parametrize("mode", MODES)
async def test_an_agent_finds_the_tools_with_the_forms_of_the_contract(hatch: Hatch, mode: Mode) -> None:
    """Section 22, over both kinds of the protocol"""
    payer = await hatch.door.payer()
    async with agent_over_http(hatch.url, payer.headers, mode) as agent:
        tools = {each.name: each for each in (await agent.list_tools()).tools}
        assert agent.server_info is not None
        assert agent.server_info.name == "pyoco-server"
    assert set(tools) == set(TOOLS)
    for name, form in CONTRACT.items():
        assert tools[name].input_schema == form | {"additionalProperties": False}
        assert tools[name].output_schema is not None
    hints = tools[GET].annotations
    assert hints is not None
    assert hints.read_only_hint


@pytest.mark.parametrize("mode", MODES)
async def test_an_agent_uploads_a_file_and_names_it_to_ocr(hatch: Hatch, mode: Mode) -> None:
    """SAFE-3: of the largest size; the same bytes again are the same file"""
    payer = await hatch.door.payer()
    content = os.urandom(8 * 1_048_576)
    file = {"name": "scan.png", "content_base64": base64.b64encode(content).decode(), "content_type": "image/png"}
    async with agent_over_http(hatch.url, payer.headers, mode) as agent:
        stored = await call(agent, "dpp_input_upload", **file)
        assert not stored.is_error
        assert (stored["sha256"], stored["bytes"]) == (hashlib.sha256(content).hexdigest(), len(content))
        assert stored["content_type"] == "image/png"
        assert (await call(agent, "dpp_input_upload", **file))["input_file"] == stored["input_file"]
        receipt = await call(agent, OCR, input_files=[stored["input_file"]], max_cost_usd=0.25)
        assert receipt["status"] == "QUEUED"
    bucket, _, key = stored["input_file"].removeprefix("s3://").partition("/")
    assert bucket == hatch.door.priced.inputs.bucket
    head = await hatch.door.priced.inputs.head(key)
    assert head is not None
    assert head.size_bytes == len(content)


async def test_an_agent_is_told_what_is_missing_for_a_pack(hatch: Hatch) -> None:
    """SAFE-3: over MCP as over HTTP, and in the list of packs"""
    payer = await hatch.door.payer()
    lacking = a_worker(packs=("decision",), packs_missing={"ocr": "no OCR engine"})

    async def living() -> list[WorkerRecord]:
        return [lacking]

    bucket, key = hatch.door.priced.config.pack_input_bucket, f"dpp/{payer.tenant_id}/{uuid.uuid4()}/a.png"
    object.__setattr__(hatch.door.priced, "living_workers", living)  # the bundle is frozen, and shared by the module
    try:
        async with agent_over_http(hatch.url, payer.headers, "auto") as agent:
            refused = await call(agent, OCR, input_files=[f"s3://{bucket}/{key}"], max_cost_usd=0.25)
        listed = await hatch.door.client.get("/v1/packs", headers=payer.headers)
    finally:
        object.__setattr__(hatch.door.priced, "living_workers", None)
    problem(refused, Reason.VALIDATION_FAILED, 422)
    assert refused["errors"] == [{"pointer": "/pack_type", "message": "ocr cannot be executed now: no OCR engine"}]
    packs = {each["pack_type"]: each for each in listed.json()["items"]}
    assert packs["ocr"] == {"pack_type": "ocr", "available": False, "missing": ["no OCR engine"], "provides": None}
    assert packs["decision"]["available"]
    nobody = (await hatch.door.client.get("/v1/packs", headers=payer.headers)).json()["items"]
    assert {each["available"] for each in nobody} == {None}


@pytest.mark.parametrize("mode", MODES)
async def test_an_agent_submits_polls_and_reads_the_result(
    hatch: Hatch, mode: Mode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PRICED-217, PRICED-219: with a worker that really works; the receipt is the one of POST /v1/runs"""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    payer = await hatch.door.payer()
    worker = PackLane(hatch.door.priced, naughty_hosts(1), 1, ("decision",), files=Files(Scratch(tmp_path)))
    await worker.start()
    try:
        async with agent_over_http(hatch.url, payer.headers, mode) as agent:
            receipt = await call(agent, DECISION, question="Ship on Friday?", context="Yes, we do.", max_cost_usd=0.29)
            assert not receipt.is_error
            assert receipt.keys() == {"run_id", "status", "reservation", "poll", "meta", "idempotency_key"}
            assert receipt["reservation"]["max_cost_usd"] == "0.2900"
            uuid.UUID(receipt["idempotency_key"])
            seen = [await call(agent, GET, run_id=receipt["run_id"])]
            while seen[-1]["status"] not in {"COMPLETED", "FAILED"}:
                assert seen[-1]["result"] is None
                await asyncio.sleep(0.02)
                seen.append(await call(agent, GET, run_id=receipt["run_id"]))
    finally:
        await worker.stop(0.5)
    assert seen[-1]["status"] == "COMPLETED"
    address = seen[-1]["result"]["presigned_url"]
    assert address.startswith(f"http://127.0.0.1:{hatch.port}/v1/results/")
    async with httpx.AsyncClient(timeout=60) as anyone:
        envelope = (await anyone.get(address)).json()
    assert envelope["run_id"] == receipt["run_id"]


async def test_the_program_of_the_guide_runs(hatch: Hatch) -> None:
    """Section 22: as it is printed, but for the address"""
    guide = (TESTS.parent / "docs" / "guides" / "use-from-an-agent.md").read_text(encoding="utf-8")
    source = guide.partition("```python\n")[2].partition("```")[0].replace("http://127.0.0.1:8000/mcp/", hatch.url)
    assert hatch.url in source
    program: dict[str, Any] = {"__name__": "program"}
    exec(source, program)
    payer = await hatch.door.payer()
    deciding = asyncio.create_task(program["decide"]("Ship?", payer.headers["Authorization"].removeprefix("Bearer ")))
    async with asyncio.timeout(120):
        while not await hatch.door.runs_of(payer):
            await asyncio.sleep(0.02)
        lines = await hatch.door.priced.ledger.read(lambda tx: tx.journal.lines(payer.tenant_id, None, 10))
        [run_id] = [line.run_id for line in lines if line.kind == "RESERVE"]
        assert run_id is not None
        await hatch.door.completed(run_id, {"answer_text": "Yes."})
        said = await deciding
    assert said["status"] == "COMPLETED"
    drained = await program["decide"]("Ship?", (await hatch.door.payer("0.1000")).headers["Authorization"][7:])
    assert drained["reason_code"] == "BUDGET_DRAINED"


async def test_a_run_is_shown_as_the_http_api_shows_it(hatch: Hatch) -> None:
    """PRICED-74: members without a value included"""
    payer = await hatch.door.payer()
    async with agent_over_http(hatch.url, payer.headers) as agent:
        run_id = (await call(agent, DECISION, **ASK))["run_id"]
        waiting = await call(agent, GET, run_id=run_id)
        assert waiting == (await hatch.door.get(payer, run_id)).json()
        assert waiting["result"] is None
        await hatch.door.failed(run_id, Reason.PACK_FAILED, "no luck")
        failed = await call(agent, GET, run_id=run_id)
    assert not failed.is_error
    assert (failed["status"], failed["result"]["reason_code"]) == ("FAILED", "PACK_FAILED")


@pytest.mark.parametrize("mode", MODES)
async def test_the_same_key_twice_is_one_run(hatch: Hatch, mode: Mode) -> None:
    """PRICED-217, PRICED-73; and another submission under it is a conflict"""
    payer, key = await hatch.door.payer(), f"agent-{uuid.uuid4()}"
    async with agent_over_http(hatch.url, payer.headers, mode) as agent:
        first = await call(agent, DECISION, **ASK, idempotency_key=key)
        second = await call(agent, DECISION, **ASK, idempotency_key=key)
        assert first == second
        assert first["idempotency_key"] == key
        other = await call(agent, DECISION, **(ASK | {"max_cost_usd": 0.26}), idempotency_key=key)
    problem(other, Reason.IDEMPOTENCY_CONFLICT, 409)
    assert other.texts[1] == f"idempotency_key of this call: {key}"
    assert await hatch.door.runs_of(payer) == 1


@pytest.mark.parametrize("mode", MODES)
async def test_errors_of_the_server_come_as_problem_documents(hatch: Hatch, mode: Mode) -> None:
    """PRICED-219: 402, 404 for a stranger's run and for none, 422; as POST and GET /v1/runs answer"""
    payer, stranger = await hatch.door.payer("0.2000"), await hatch.door.payer()
    foreign = await hatch.door.submitted(stranger)
    async with agent_over_http(hatch.url, payer.headers, mode) as agent:
        drained = problem(await call(agent, DECISION, **ASK), Reason.BUDGET_DRAINED, 402)
        plain = (await hatch.door.post(payer)).json()
        assert {**drained, "trace_id": ""} == {**plain, "trace_id": ""}
        unknown = (await hatch.door.get(payer, str(uuid.uuid4()))).json()
        for run_id in (foreign, str(uuid.uuid4()), "no-id", "../budgets", ".", "%2e%2e/x"):
            gone = problem(await call(agent, GET, run_id=run_id), Reason.RUN_NOT_FOUND, 404)
            assert {**gone, "trace_id": "", "instance": ""} == {**unknown, "trace_id": "", "instance": ""}
        refused = await call(agent, DECISION, question="", max_cost_usd=0.1)
        problem(refused, Reason.VALIDATION_FAILED, 422)
        assert refused["errors"][0]["pointer"] == "/inputs/question"
        many = await call(agent, DECISION, question="q", max_cost_usd=0.1, min_reliability_score=0.12345)
        assert problem(many, Reason.VALIDATION_FAILED, 422)["errors"][0]["pointer"].endswith("min_reliability_score")
    assert await hatch.door.runs_of(payer) == 0


@pytest.mark.parametrize("mode", MODES)
async def test_bad_money_never_reaches_the_api(hatch: Hatch, mode: Mode) -> None:
    """PRICED-216: over the wire, where a number may have become a double"""
    payer = await hatch.door.payer()
    async with agent_over_http(hatch.url, payer.headers, mode) as agent:
        for cost in (0.12345, 0.005, True, "0.1", None, 0, 1e10):
            said = await call(agent, DECISION, question="q", max_cost_usd=cost)
            assert problem(said, Reason.VALIDATION_FAILED, 422)["errors"][0]["pointer"] == "/max_cost_usd"
        for cost, usd in ((0.1, "0.1000"), (5e-2, "0.0500"), (2, "2.0000"), (0.0657, "0.0657")):
            said = await call(agent, DECISION, question="q", max_cost_usd=cost)
            assert said["reservation"]["max_cost_usd"] == usd
    nan = {"name": DECISION, "arguments": {"question": "q", "max_cost_usd": float("nan")}}
    answer = await hatch.post(payer, {**LIST, "method": "tools/call", "params": nan})
    assert answer.json()["result"]["isError"] is True
    assert await hatch.door.runs_of(payer) == 4


async def test_a_run_id_leads_to_the_run_alone(hatch: Hatch) -> None:
    """PRICED-79: not to what lies below it, though it is the caller's own"""
    payer = await hatch.door.payer()
    run_id = await hatch.door.submitted(payer)
    await hatch.door.completed(run_id, {"answer_text": "Yes."})
    async with agent_over_http(hatch.url, payer.headers) as agent:
        for more in ("/envelope", "%2Fenvelope", "%2fenvelope", "/", "?x=1"):
            problem(await call(agent, GET, run_id=run_id + more), Reason.RUN_NOT_FOUND, 404)
        assert (await call(agent, GET, run_id=run_id))["status"] == "COMPLETED"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_between_tries", [False, True])
async def test_a_gateway_that_stops_in_a_submission_tells_its_key(
    hatch: Hatch, mode: Mode, is_between_tries: bool
) -> None:
    """PRICED-217, PRICED-219: the run is paid for; with the key it is found again"""
    payer, door, app = await hatch.door.payer(), hatch.door, hatch.door.gateway.app
    tasks: list[asyncio.Task[Any]] = []
    held = asyncio.Event()

    async def noted(scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        await app(scope, receive, send)

    async def hold(point: str) -> None:
        if is_between_tries and point == "submit.after_mark_reserved":
            held.set()
            raise DependencyUnavailable("the store is away")
        if point == "submit.after_send":
            held.set()
            await asyncio.Event().wait()

    async with listening(noted) as port, agent_over_http(f"http://127.0.0.1:{port}/mcp/", payer.headers, mode) as agent:  # type: ignore[arg-type]
        with door.with_priced(watched(door.priced, hold)):
            calling = asyncio.create_task(call(agent, DECISION, **ASK))
            await asyncio.wait_for(held.wait(), 120)
            app.state.stopping = True
            try:
                tasks[-1].cancel()  # as the server does with what takes too long
                said = await asyncio.wait_for(calling, 120)
            finally:
                app.state.stopping = False
        problem(said, Reason.DEPENDENCY_UNAVAILABLE, 503)
        assert said["instance"] == "/v1/runs"
        key = said.texts[1].removeprefix("idempotency_key of this call: ")
        assert str(uuid.UUID(key)) == key
        assert await door.runs_of(payer) == 1
        receipt = await call(agent, DECISION, **ASK, idempotency_key=key)
    assert not receipt.is_error
    assert await door.runs_of(payer) == 1


async def test_fifty_calls_at_once_are_fifty_runs(hatch: Hatch) -> None:
    """PRICED-217: each has a key of its own"""
    payer = await hatch.door.payer("100.0000")
    async with agent_over_http(hatch.url, payer.headers) as agent:
        receipts = await asyncio.gather(*(call(agent, DECISION, **ASK) for _ in range(50)))
    assert len({each["run_id"] for each in receipts}) == 50
    assert len({each["idempotency_key"] for each in receipts}) == 50
    assert await hatch.door.runs_of(payer) == 50


async def test_without_a_good_key_nothing_is_shown(hatch: Hatch) -> None:
    """PRICED-62, PRICED-170: as under `/v1`, also while authentication is off; before any message is read"""
    for headers in ({}, {"Authorization": "Bearer nonsense"}, {"X-API-Key": "nonsense"}, {"Authorization": "Basic x"}):
        for path in ("/mcp/", "/mcp"):
            answer = await hatch.post(None, b"not even JSON", headers, path)
            check_problem(answer, Reason.AUTH_INVALID)
            assert answer.headers["www-authenticate"] == "Bearer"


async def test_every_way_to_send_a_key_works(hatch: Hatch) -> None:
    """The same keys as at every door"""
    payer = await hatch.door.payer()
    plain = payer.headers["Authorization"].removeprefix("Bearer ")
    called = {**LIST, "method": "tools/call", "params": {"name": DECISION, "arguments": ASK}}
    for headers in ({"X-API-Key": plain}, {"Authorization": f"bearer {plain}"}):
        for path in ("/mcp/", "/mcp"):
            answer = await hatch.post(None, called, headers, path)
            assert answer.json()["result"]["isError"] is False
    assert await hatch.door.runs_of(payer) == 4


async def test_a_trace_id_goes_through_to_the_run(hatch: Hatch) -> None:
    """PRICED-64"""
    payer = await hatch.door.payer()
    called = {**LIST, "method": "tools/call", "params": {"name": DECISION, "arguments": ASK}}
    for told, wanted in (("my-trace", "my-trace"), ("no good!", None)):
        answer = await hatch.post(payer, called, {"X-Trace-Id": told})
        found = answer.json()["result"]["structuredContent"]["meta"]["trace_id"]
        assert found == wanted or (wanted is None and found.startswith("t_"))


async def test_another_sites_page_is_refused_and_a_proxys_name_is_not(hatch: Hatch) -> None:
    """No page may use a key that its browser has; whatever name a proxy gives us is fine"""
    payer = await hatch.door.payer()
    foreign = await hatch.post(payer, LIST, {"Origin": "https://evil.example"})
    assert foreign.status_code == 403
    assert (await hatch.post(payer, LIST, {"Sec-Fetch-Site": "cross-site"})).status_code == 403
    assert (await hatch.post(payer, LIST, {"Host": "pyoco.example.org"})).status_code == 200


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "PATCH", "HEAD"])
async def test_there_is_no_stream_and_no_session_to_end(hatch: Hatch, method: str) -> None:
    """Streamable HTTP without sessions: 405, and no token of the rate limit is taken"""
    payer = await hatch.door.payer()
    answer = await hatch.door.client.request(method, "/mcp/", headers=payer.headers)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b"\xff\xfe", -32700),
        (b"[" * 100_000, -32700),
        (b'{"jsonrpc": "2.0", "id": ' + b"9" * 5000 + b', "method": "ping"}', -32700),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "\\ud800"}', -32700),
        (b"[]", -32600),
        (json.dumps([LIST, LIST]).encode(), -32600),
        (b"7", -32600),
        (b"null", -32600),
        (b"{}", -32600),
        ({**LIST, "jsonrpc": "1.0"}, -32600),
        ({**LIST, "id": 2**60}, -32600),
        ({**LIST, "id": "x" * 257}, -32600),
        ({**LIST, "id": None}, -32600),
        ({**LIST, "id": True}, -32600),
        ({**LIST, "id": 1.5}, -32600),
        ({**LIST, "id": {"a": "secret"}}, -32600),
        ({**LIST, "method": 7}, -32600),
        ({**LIST, "method": "x" * 257}, -32600),
        ({**LIST, "params": ["secret"]}, -32600),
        ({"jsonrpc": "2.0", "id": 1, "result": {}}, -32600),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.parametrize("version", [None, "2026-07-28"])
async def test_what_is_no_message_is_told_so(hatch: Hatch, body: Any, code: int, version: str | None) -> None:
    """A JSON-RPC error without anything that was sent"""
    payer = await hatch.door.payer(None)
    answer = await hatch.post(payer, body, {"MCP-Protocol-Version": version} if version else None)
    assert answer.status_code == 400
    document = answer.json()
    assert (document["jsonrpc"], document["id"], document["error"]["code"]) == ("2.0", None, code)
    assert "secret" not in answer.text
    assert answer.headers["cache-control"] == "no-store"


async def test_what_cannot_be_served_is_a_clear_answer(hatch: Hatch) -> None:
    """Unknown tools, methods and versions; bodies too large, and of another kind"""
    payer = await hatch.door.payer(None)
    unknown = await hatch.post(payer, {**LIST, "method": "tools/call", "params": {"name": "rm", "arguments": {}}})
    assert (unknown.status_code, unknown.json()["id"]) == (200, 7)
    assert unknown.json()["error"]["code"] == -32602
    assert "dpp_run_get" in unknown.json()["error"]["message"]
    method = await hatch.post(payer, {**LIST, "method": "resources/list"})
    assert method.json()["error"]["code"] == -32601
    deep = json.loads("[" * 500 + "]" * 500)
    for params in ({}, {"name": 7}, {"name": DECISION, "arguments": [1]}, {"name": DECISION, "arguments": {"x": deep}}):
        answer = await hatch.post(payer, {**LIST, "method": "tools/call", "params": params})
        assert answer.status_code in {200, 400}
        assert "error" in answer.json() or answer.json()["result"]["isError"]
    version = await hatch.post(payer, LIST, {"MCP-Protocol-Version": "1999-01-01"})
    assert version.status_code == 400
    assert "error" in version.json()
    large = await hatch.post(payer, b" " * 262_145)
    assert (large.status_code, large.json()["error"]["code"]) == (413, -32600)
    for headers in ({"Content-Type": "text/plain"}, {"Content-Type": ""}):
        assert (await hatch.post(payer, LIST, headers)).status_code == 415
    for protocol in ({}, {"MCP-Protocol-Version": "2026-07-28"}):
        other = await hatch.post(payer, LIST, {"Accept": "text/html", **protocol})
        assert other.status_code == 406
        assert "Accept" in other.json()["error"]["message"]
    told = await hatch.post(payer, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert (told.status_code, told.content) == (202, b"")


async def test_a_version_nobody_knows_is_answered_with_one_that_is_served(hatch: Hatch) -> None:
    """The handshake of 2025: the client decides whether it can go on"""
    payer = await hatch.door.payer(None)
    asked = {**INITIALIZE, "params": INITIALIZE["params"] | {"protocolVersion": "1999-01-01"}}
    answer = await hatch.post(payer, asked)
    assert answer.json()["result"]["protocolVersion"].startswith("20")
    assert "mcp-session-id" not in answer.headers


async def test_a_gateway_without_priced_runs_says_so(hatch: Hatch) -> None:
    """As `/v1` does there"""
    payer = await hatch.door.payer()
    with hatch.door.with_priced(None):
        check_problem(await hatch.post(payer, LIST), Reason.DEPENDENCY_UNAVAILABLE)


async def test_the_rate_limit_is_the_one_of_the_api(hatch: Hatch) -> None:
    """PRICED-173: listing costs nothing; a refusal by it is a problem as any other"""
    payer = await hatch.door.payer()
    await limit_tenant(hatch.door.priced, payer.tenant_id, 1)
    async with agent_over_http(hatch.url, payer.headers) as agent:
        for _ in range(3):
            await agent.list_tools(cache_mode="bypass")
        assert not (await call(agent, DECISION, **ASK)).is_error
        limited = await call(agent, DECISION, **ASK)
    problem(limited, Reason.RATE_LIMITED, 429)
