"""The tools without a server: their forms, the requests they make, and how often they ask."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from pyoco_server.core.priced.constants import REQUEST_BODY_MAX_BYTES
from pyoco_server.core.priced.reasons import HTTP_STATUS, Reason, title_of
from pyoco_server.doors.mcp.calls import Reply, ToolResult, Unreachable, call_tool
from pyoco_server.doors.mcp.forms import FILE_BASE64_LENGTH_MAX
from pyoco_server.doors.mcp.tools import TOOLS, Ask
from support.agents import CONTRACT

VALID: dict[str, dict[str, Any]] = {
    "dpp_url_run_submit": {"urls": ["https://example.org"], "max_cost_usd": 0.1},
    "dpp_ocr_run_submit": {"input_files": ["s3://dpp-inputs/team/a b.png"], "max_cost_usd": 0.1},
    "dpp_decision_run_submit": {"question": "Ship on Friday?", "max_cost_usd": 0.1},
    "dpp_input_upload": {"name": "scan 1.png", "content_base64": "aGVsbG8="},
    "get_run_logs": {"run_id": "5b0c8a52-6d0e-4c5e-9d8f-0d4f3c1b2a19"},
    "dpp_run_get": {"run_id": "5b0c8a52-6d0e-4c5e-9d8f-0d4f3c1b2a19"},
}
DECISION = "dpp_decision_run_submit"
RECEIPT = json.dumps({"run_id": "5b0c", "status": "QUEUED"}).encode()


class Script:
    """A server that answers as written, one line per try; and what it was asked."""

    def __init__(self, *replies: Reply | Unreachable) -> None:
        self._replies = list(replies)
        self.asked: list[Ask] = []
        self.slept: list[float] = []
        self.is_leaving = False

    async def __call__(self, ask: Ask, trace_id: str) -> Reply:
        self.asked.append(ask)
        reply = self._replies.pop(0)
        if isinstance(reply, Unreachable):
            raise reply
        return reply

    async def wait(self, seconds: float) -> bool:
        self.slept.append(seconds)
        return not self.is_leaving

    async def call(self, name: str = DECISION, **arguments: Any) -> ToolResult:
        return await call_tool(TOOLS[name], VALID[name] | arguments, self, "t_1")


def refused(status: int, reason: Reason, retry_after: str | None = None) -> Reply:
    return Reply(status, json.dumps({"reason_code": reason, "status": status}).encode(), retry_after)


def body_of(name: str, **arguments: Any) -> dict[str, Any]:
    ask = TOOLS[name].ask(VALID[name] | arguments)
    assert (ask.method, ask.path) == ("POST", "/v1/runs")
    document: dict[str, Any] = json.loads(ask.body)
    return document


@pytest.mark.parametrize("name", CONTRACT)
def test_a_form_is_the_one_of_the_contract(name: str) -> None:
    """Section 22: the schemas to the letter"""
    assert TOOLS[name].input_form == CONTRACT[name] | {"additionalProperties": False}


def test_there_are_six_tools_and_their_forms_are_json_schema() -> None:
    """Section 22, SAFE-3, LOG-29"""
    assert set(TOOLS) == {*CONTRACT, "dpp_input_upload", "dpp_run_get", "get_run_logs"}
    for tool in TOOLS.values():
        Draft202012Validator.check_schema(tool.input_form)
        Draft202012Validator.check_schema(tool.output_form)
        assert "dpp_run_get" in tool.description or tool.is_reading


def test_a_question_becomes_a_submission_with_the_defaults_written_out() -> None:
    """The mapping of section 22"""
    reservation = {"max_cost_usd": "0.1000", "timebox_sec": 90, "min_reliability_score": 0.8}
    inputs = {"question": "Ship on Friday?"}
    assert body_of(DECISION) == {"pack_type": "decision", "inputs": inputs, "reservation": reservation}
    told = body_of(DECISION, context="c", timebox_sec=30.0, min_reliability_score=0.95, max_cost_usd=2)
    assert told["inputs"] == inputs | {"context": "c"}
    assert told["reservation"] == {"max_cost_usd": "2.0000", "timebox_sec": 30, "min_reliability_score": 0.95}


def test_letters_of_other_scripts_are_sent_as_they_are() -> None:
    """PRICED-71: what `/v1` takes is not made too large by the tool"""
    context = "배송" * 40_000
    assert body_of(DECISION, context=context)["inputs"]["context"] == context
    ask = TOOLS[DECISION].ask(VALID[DECISION] | {"context": context})
    assert len(context.encode()) < len(ask.body) < REQUEST_BODY_MAX_BYTES


def test_addresses_and_files_become_inputs() -> None:
    """PRICED-218, the mapping of section 22"""
    assert body_of("dpp_url_run_submit")["inputs"] == {"urls": ["https://example.org"]}
    plain = body_of("dpp_ocr_run_submit")
    assert plain["inputs"] == {"images": [{"kind": "s3", "bucket": "dpp-inputs", "key": "team/a b.png"}]}
    assert "artifacts" not in plain
    told = body_of("dpp_ocr_run_submit", ocr_profile="P2A", language="jpn", artifacts={"include_docx": True})
    assert (told["inputs"]["ocr_profile"], told["inputs"]["language"]) == ("P2A", "jpn")
    assert told["artifacts"] == {"include_docx": True}
    assert told["reservation"]["min_reliability_score"] == 0.8


def test_a_file_is_sent_as_it_is_and_named_as_input_files_want_it() -> None:
    """SAFE-3"""
    tool = TOOLS["dpp_input_upload"]
    ask = tool.ask(VALID["dpp_input_upload"] | {"content_type": "image/png"})
    assert ask == Ask("POST", "/v1/inputs", b"hello", content_type="image/png", query="name=scan+1.png")
    assert tool.ask(VALID["dpp_input_upload"]).content_type == "application/octet-stream"
    told = {"sha256": "0" * 64, "bytes": 5, "content_type": "image/png", "expires_at": "2026-12-01T00:00:00Z"}
    stored = {"kind": "s3", "bucket": "dpp-inputs", "key": "dpp/t/1/scan.png", "image": {}} | told
    assert tool.read(stored) == {"input_file": "s3://dpp-inputs/dpp/t/1/scan.png"} | told
    body = body_of("dpp_ocr_run_submit", input_files=["s3://dpp-inputs/dpp/t/1/scan.png"])
    assert body["inputs"]["images"] == [{"kind": "s3", "bucket": "dpp-inputs", "key": "dpp/t/1/scan.png"}]


@pytest.mark.parametrize(
    ("arguments", "pointer"),
    [
        ({"content_base64": "aGVsbG8"}, "/content_base64"),
        ({"content_base64": "aGVs\nbG8="}, "/content_base64"),
        ({"content_base64": "é"}, "/content_base64"),
        ({"content_base64": ""}, "/content_base64"),
        ({"content_base64": "A" * (FILE_BASE64_LENGTH_MAX + 4)}, "/content_base64"),
        ({"content_type": "image/png\r\nX-API-Key: other"}, "/content_type"),
        ({"name": ""}, "/name"),
        ({"folder": "x"}, "/folder"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_file_that_cannot_be_sent_is_refused_by_the_tool(arguments: dict[str, Any], pointer: str) -> None:
    """SAFE-3"""
    script = Script()
    tool, given = TOOLS["dpp_input_upload"], VALID["dpp_input_upload"] | arguments
    answer = await call_tool(tool, given, script, "t_1")
    assert (answer.is_error, script.asked) == (True, [])
    assert (answer.document["instance"], answer.document["reason_code"]) == ("/v1/inputs", "VALIDATION_FAILED")
    assert [each["pointer"] for each in answer.document["errors"]] == [pointer]


def test_whether_there_is_a_run_is_for_the_server_to_say() -> None:
    """PRICED-79"""
    run_id = str(uuid.uuid4())
    assert TOOLS["dpp_run_get"].ask({"run_id": run_id}) == Ask("GET", f"/v1/runs/{run_id}")


@pytest.mark.parametrize(
    ("run_id", "shown"),
    [
        ("5b0c", "5b0c"),
        ("../budgets", "..%2Fbudgets"),
        ("a?b#c", "a%3Fb%23c"),
        ("é", "%C3%A9"),
        ("\ud800", "%3F"),
        (f"{uuid.UUID(int=7)}/envelope", f"{uuid.UUID(int=7)}%2Fenvelope"),
        (f"{uuid.UUID(int=7)}%2Fenvelope", f"{uuid.UUID(int=7)}%252Fenvelope"),
        (f"{uuid.UUID(int=7)}\n", f"{uuid.UUID(int=7)}%0A"),
        (str(uuid.UUID(int=10)).upper(), str(uuid.UUID(int=10)).upper()),
    ],
)
async def test_what_is_no_run_id_is_not_found_and_leads_nowhere_else(run_id: str, shown: str) -> None:
    """PRICED-79: the problem of the server, and nothing is sent"""
    script = Script()
    answer = await script.call("dpp_run_get", run_id=run_id)
    assert script.asked == []
    assert answer.is_error
    assert answer.hint is None
    assert answer.document == {
        "type": "urn:dpp:problem:run-not-found",
        "title": title_of(Reason.RUN_NOT_FOUND),
        "status": 404,
        "detail": "There is nothing here.",
        "instance": f"/v1/runs/{shown}",
        "reason_code": "RUN_NOT_FOUND",
        "trace_id": "t_1",
    }


@pytest.mark.parametrize(
    ("name", "arguments", "pointer"),
    [
        *((DECISION, {"max_cost_usd": cost}, "/max_cost_usd")
          for cost in (0.12345, 0.005, float("nan"), float("inf"), True, "0.1", None, 1e22, 10**30, -1, [0.1])),
        (DECISION, {"question": 1}, "/question"),
        (DECISION, {"timebox_sec": 91}, "/timebox_sec"),
        (DECISION, {"timebox_sec": 1.5}, "/timebox_sec"),
        (DECISION, {"timebox_sec": True}, "/timebox_sec"),
        (DECISION, {"min_reliability_score": float("nan")}, "/min_reliability_score"),
        (DECISION, {"min_reliability_score": 1.01}, "/min_reliability_score"),
        (DECISION, {"idempotency_key": "short"}, "/idempotency_key"),
        (DECISION, {"idempotency_key": "x" * 65}, "/idempotency_key"),
        (DECISION, {"idempotency_key": "new\nline: header"}, "/idempotency_key"),
        (DECISION, {"idempotency_key": "schlüssel-eins"}, "/idempotency_key"),
        (DECISION, {"idempotency_key": ""}, "/idempotency_key"),
        (DECISION, {"max_cost": 1}, "/max_cost"),
        (DECISION, {"a secret text": 1}, ""),
        ("dpp_url_run_submit", {"urls": []}, "/urls"),
        ("dpp_url_run_submit", {"urls": ["https://a"] * 31}, "/urls"),
        ("dpp_url_run_submit", {"urls": "https://a"}, "/urls"),
        ("dpp_url_run_submit", {"urls": ["https://a", 7]}, "/urls/1"),
        *(("dpp_ocr_run_submit", {"input_files": ["s3://b/k", file]}, "/input_files/1")
          for file in ("b/k", "s3://b", "s3://b/", "s3:///k", "S3://b/k", "https://b/k", "s3://b b/k", "")),
        ("dpp_ocr_run_submit", {"ocr_profile": "P4"}, "/ocr_profile"),
        ("dpp_ocr_run_submit", {"artifacts": {"include_pdf": True}}, "/artifacts/include_pdf"),
        ("dpp_ocr_run_submit", {"artifacts": {"include_docx": 1}}, "/artifacts/include_docx"),
        ("dpp_ocr_run_submit", {"min_reliability_score": 0.5}, "/min_reliability_score"),
        ("dpp_run_get", {"run_id": ""}, "/run_id"),
        ("dpp_run_get", {"run_id": "x" * 65}, "/run_id"),
    ],
    ids=str,
)  # fmt: skip
async def test_bad_arguments_are_told_where_and_nothing_is_sent(
    name: str, arguments: dict[str, Any], pointer: str
) -> None:
    """PRICED-216, PRICED-218: an error of the tool, in the form of the server's own; it never repeats a value"""
    script = Script()
    answer = await script.call(name, **arguments)
    assert answer.is_error
    assert script.asked == []
    document = answer.document
    [error] = document.pop("errors")
    assert error["pointer"] == pointer
    assert error["message"].startswith(("must ", "is unknown", "a member of it is unknown"))
    assert document == {
        "type": "urn:dpp:problem:validation-failed",
        "title": title_of(Reason.VALIDATION_FAILED),
        "status": 422,
        "detail": "The arguments are not valid. Nothing was submitted.",
        "instance": "/v1/runs",
        "reason_code": "VALIDATION_FAILED",
        "trace_id": "t_1",
    }
    assert answer.hint is None


async def test_everything_that_is_wrong_is_told_at_once() -> None:
    """PRICED-216"""
    answer = await call_tool(TOOLS[DECISION], {"context": 1, "timebox_sec": 0}, Script(), "t_1")
    assert [each["pointer"] for each in answer.document["errors"]] == [
        "/question", "/max_cost_usd", "/context", "/timebox_sec",
    ]  # fmt: skip


async def test_a_receipt_comes_back_with_its_key_beside_it() -> None:
    """PRICED-217, PRICED-219: the caller's key, or one UUID per call"""
    given = await Script(Reply(202, RECEIPT)).call(idempotency_key="my-own-key")
    assert given == ToolResult({"run_id": "5b0c", "status": "QUEUED", "idempotency_key": "my-own-key"})
    first, second = Script(Reply(202, RECEIPT)), Script(Reply(202, RECEIPT))
    keys = [(await each.call()).document["idempotency_key"] for each in (first, second)]
    assert len({str(uuid.UUID(key)) for key in keys}) == 2
    assert first.asked[0].idempotency_key == keys[0]


@pytest.mark.parametrize(
    "trouble",
    [
        Unreachable("away", is_unsent=True),
        Unreachable("cut off"),
        Reply(502, b"<html>"),
        refused(503, Reason.DEPENDENCY_UNAVAILABLE, "5"),
        refused(503, Reason.QUEUE_ENQUEUE_FAILED),
        refused(409, Reason.IDEMPOTENCY_IN_PROGRESS, "1"),
        refused(429, Reason.RATE_LIMITED, "2"),
    ],
    ids=str,
)
async def test_what_may_pass_is_tried_again_with_the_same_key(trouble: Reply | Unreachable) -> None:
    """PRICED-217"""
    script = Script(trouble, Reply(202, RECEIPT))
    answer = await script.call()
    assert not answer.is_error
    assert len(script.asked) == 2
    assert script.asked[0] == script.asked[1]
    told = getattr(trouble, "retry_after", None)
    assert script.slept[0] >= (float(told) if told else 0.1)


@pytest.mark.parametrize(
    "reply",
    [
        refused(402, Reason.BUDGET_DRAINED),
        refused(409, Reason.IDEMPOTENCY_CONFLICT),
        refused(422, Reason.VALIDATION_FAILED),
        refused(429, Reason.RATE_LIMITED, "30"),
        refused(500, Reason.DEPENDENCY_UNAVAILABLE),
        refused(401, Reason.AUTH_INVALID),
    ],
    ids=str,
)
async def test_what_will_not_pass_is_the_answer(reply: Reply) -> None:
    """PRICED-219: the document as the server wrote it; the key stands beside it"""
    script = Script(reply)
    answer = await script.call(idempotency_key="my-own-key")
    assert answer.is_error
    assert answer.document == json.loads(reply.body)
    assert answer.hint == "idempotency_key of this call: my-own-key"
    assert script.slept == []


async def test_patience_ends() -> None:
    """PRICED-217: at most nine tries, all with one key"""
    away = Script(*[Unreachable("The gateway at http://x cannot be reached.")] * 20)
    answer = await away.call()
    assert answer.is_error
    assert answer.document["reason_code"] == "DEPENDENCY_UNAVAILABLE"
    assert answer.document["detail"] == "The gateway at http://x cannot be reached."
    assert len(away.asked) == 9
    assert len({each.idempotency_key for each in away.asked}) == 1


async def test_who_leaves_does_not_try_again_and_tells_the_key() -> None:
    """PRICED-217: what is known is the answer, whatever would have passed"""
    for trouble in (Unreachable("cut off"), refused(503, Reason.DEPENDENCY_UNAVAILABLE, "1")):
        script = Script(trouble, Reply(202, RECEIPT))
        script.is_leaving = True
        answer = await script.call(idempotency_key="my-own-key")
        assert answer.is_error
        assert answer.hint == "idempotency_key of this call: my-own-key"
        assert len(script.asked) == 1


async def test_too_many_requests_are_tried_again_once() -> None:
    """PRICED-219: and not at all unless the server says when"""
    script = Script(*[refused(429, Reason.RATE_LIMITED, "1")] * 3)
    assert (await script.call()).document["reason_code"] == "RATE_LIMITED"
    assert len(script.asked) == 2
    script = Script(*[refused(429, Reason.RATE_LIMITED)] * 2)
    assert (await script.call()).is_error
    assert len(script.asked) == 1


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, b"<html>hello"),
        Reply(302, b"{}"),
        Reply(202, b"[1]"),
        Reply(404, b'{"detail": "not found"}'),
        Reply(200, b'{"reason_code": "x"}'),
        Reply(200, b"[" * 100_000),
        Reply(200, b'{"run_id": "\\ud800"}'),
        Reply(200, b'{"\\udfff": 1}'),
        Reply(200, b'{"run_id": NaN}'),
        Reply(200, b'{"cost": {"used": [1e400]}}'),
        Reply(200, b'{"run_id": ' + b"9" * 5000 + b"}"),
        Reply(200, b'{"a":' * 255 + b"1" + b"}" * 255),
        Reply(402, b'{"reason_code": "BUDGET_DRAINED", "detail": "\\ud83d"}'),
    ],
    ids=lambda reply: f"{reply.status} {reply.body[:24]!r}",
)
async def test_an_answer_that_is_not_ours_is_not_passed_on(reply: Reply) -> None:
    """PRICED-219"""
    answer = await Script(reply).call("dpp_run_get")
    assert answer.is_error
    assert answer.document["reason_code"] == "DEPENDENCY_UNAVAILABLE"
    assert "not a pyoco-server gateway" in answer.document["detail"]
    assert answer.document["instance"] == f"/v1/runs/{VALID['dpp_run_get']['run_id']}"
    json.dumps(answer.document, allow_nan=False, ensure_ascii=False).encode()


def test_who_serves_no_agent_does_not_load_the_sdk() -> None:
    """Half a second, and its memory: not for a gateway that no agent uses, nor for `--help`"""
    code = "import sys\n"
    for module in ("doors.cli.client.group", "doors.mcp.stdio", "doors.mcp.http", "http_api"):
        code += f"import pyoco_server.{module}\n"
        code += f"assert not {{'mcp', 'mcp_types'}} & sys.modules.keys(), {module!r}\n"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_the_guide_tells_of_every_tool_argument_and_reason() -> None:
    """Section 22: the page for whoever connects an agent"""
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "use-from-an-agent.md").read_text(encoding="utf-8")
    for tool in TOOLS.values():
        assert f"`{tool.name}`" in guide
        assert all(f"`{name}`" in guide for name in tool.input_form["properties"])
    assert all(f"| `{reason}` |" in guide for reason in HTTP_STATUS)


async def test_the_last_lines_of_a_run_are_requested_and_shown_without_empty_members() -> None:
    """LOG-29"""
    line = {
        "id": "1.1",
        "attempt": 1,
        "try": 1,
        "seq": 1,
        "ts": 1.0,
        "task": None,
        "stream": "stdout",
        "text": "a" * 5000,
    }
    line |= {"level": None, "cut_bytes": 0}
    script = Script(*[Reply(200, (json.dumps(line) + "\n").encode() * 2)] * 2, Reply(200, b""))
    first = await script.call("get_run_logs")
    shown = {"id": "1.1", "attempt": 1, "ts": 1.0, "stream": "stdout", "text": "a" * 4000, "cut_bytes": 1000}
    assert first == ToolResult({"lines": [shown, shown]})
    Draft202012Validator(TOOLS["get_run_logs"].output_form).validate(first.document)
    await script.call("get_run_logs", task="a&b", tail=5.0, search="ü")
    path = "/runs/5b0c8a52-6d0e-4c5e-9d8f-0d4f3c1b2a19/logs"
    assert script.asked == [
        Ask("GET", path, query="tail=100"),
        Ask("GET", path, query="tail=5&task=a%26b&search=%C3%BC"),
    ]
    assert (await script.call("get_run_logs")).document == {"lines": []}


@pytest.mark.parametrize(
    "arguments", [{"tail": 0}, {"tail": 1001}, {"search": ""}, {"search": "x" * 201}, {"follow": True}]
)
async def test_bad_filters_of_lines_are_refused_by_the_tool(arguments: dict[str, Any]) -> None:
    """LOG-29"""
    script = Script()
    answer = await script.call("get_run_logs", **arguments)
    assert (answer.is_error, answer.document["reason_code"]) == (True, "VALIDATION_FAILED")


@pytest.mark.parametrize(
    ("status", "reason"), [(404, "RUN_NOT_FOUND"), (401, "AUTH_INVALID"), (503, "DEPENDENCY_UNAVAILABLE")]
)
async def test_errors_of_other_routes_become_problem_documents(status: int, reason: str) -> None:
    """LOG-6, LOG-29"""
    body = json.dumps({"err_id": "ERR-PYOCO-0005", "message": "The run was not found."}).encode()
    script = Script(Reply(status, body))
    script.is_leaving = True
    answer = await script.call("get_run_logs")
    assert (answer.is_error, answer.document["reason_code"], answer.document["status"]) == (True, reason, status)
    assert answer.document["err_id"] == "ERR-PYOCO-0005"
    Draft202012Validator(TOOLS["get_run_logs"].output_form).validate(answer.document)
