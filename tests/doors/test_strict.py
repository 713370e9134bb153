"""What a request may not have: members, form parts and parameters that its operation does not know."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import pytest

from pyoco_server.core.unknown import UNKNOWN_MAX, nearest_of
from pyoco_server.doors.http.app import OPERATIONS
from pyoco_server.doors.http.operations import Operation
from support.doors_support import FLOW_YAML, NAME, SOMEONE, Door, check_refusal, disposition, form, workflow
from support.priced.gateways import PricedDoor, a_body

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH_VALUES = {"kind": "client", "name": "stdout.txt", "letter_id": "1", "wheel_name": "a-1-py3-none-any.whl"}
#: STRICT-2: pages, static files, health and metrics; agents speak a protocol of their own.
ANY_QUERY = {"/", "/docs", "/static/{path}", "/health", "/healthz", "/ready", "/readyz", "/metrics", "/mcp", "/mcp/"}
#: STRICT-3. All others answer ERR-PYOCO-0002.
NUMBERS = {
    "/runs": 17,
    "/runs/table": 17,
    "/runs/{run_id}/logs": 17,
    "/runs/{run_id}/logs/stream": 17,
    "/workers": 19,
    "/workers/{worker_id}": 19,
}


def concrete(operation: Operation) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: PATH_VALUES.get(match[1], SOMEONE), operation.path)


def label(value: Any) -> str:
    return f"{value.method} {value.path}" if isinstance(value, Operation) else ""


async def test_only_pages_health_and_metrics_take_any_query() -> None:
    """STRICT-2"""
    assert {operation.path for operation in OPERATIONS if operation.any_query} == ANY_QUERY


@pytest.mark.parametrize(
    "operation", [each for each in OPERATIONS if not each.any_query and not each.problems], ids=label
)
async def test_an_unknown_parameter_is_refused(door: Door, operation: Operation) -> None:
    """STRICT-1 to STRICT-4"""
    answer = await door.send(operation.method, f"{concrete(operation)}?xyzzy=1")
    if operation.method == "HEAD":
        return
    number = NUMBERS.get(operation.path, 2) if operation.path != "/runs" or operation.method == "GET" else 2
    (problem,) = [each for each in check_refusal(answer, number) if each["type"] == "unknown_member"]
    assert (problem["loc"], problem["nearest"]) == (["query", "xyzzy"], None)
    assert all(name in problem["msg"] for name in operation.query_names)


@pytest.mark.parametrize(
    "operation", [each for each in OPERATIONS if each.query_names and not each.problems], ids=label
)
async def test_a_misspelt_parameter_is_refused_with_the_one_that_was_meant(door: Door, operation: Operation) -> None:
    """STRICT-4, STRICT-5"""
    for name in operation.query_names:
        answer = await door.send(operation.method, f"{concrete(operation)}?{name.upper()}z=1")
        number = NUMBERS.get(operation.path, 2)
        (problem,) = [each for each in check_refusal(answer, number) if each["type"] == "unknown_member"]
        assert problem["nearest"] == name
        assert problem["msg"] == f"is unknown; did you mean {name}?"


@pytest.mark.parametrize("path", ["/v1/packs", f"/v1/runs/{SOMEONE}", f"/v1/runs/{SOMEONE}/envelope", "/v1/results/x"])
async def test_a_priced_operation_refuses_it_with_a_problem_document(priced_door: PricedDoor, path: str) -> None:
    """STRICT-1, STRICT-2"""
    payer = await priced_door.payer()
    answer = await priced_door.client.get(f"{path}?xyzzy=1", headers=payer.headers)
    assert (answer.status_code, answer.json()["reason_code"]) == (422, "VALIDATION_FAILED"), answer.text
    assert answer.json()["errors"][0]["message"].startswith("the query parameter xyzzy is unknown")


async def test_a_misspelt_member_of_a_priced_submission_is_named_with_the_one_that_was_meant(
    priced_door: PricedDoor,
) -> None:
    """STRICT-2, STRICT-4"""
    payer = await priced_door.payer()
    answer = await priced_door.post(payer, a_body(artefacts={}))
    assert answer.status_code == 422
    assert answer.json()["errors"] == [{"pointer": "/artefacts", "message": "is unknown; did you mean artifacts?"}]


HELLO = {"flow_name": "hello"}


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/runs", {"flowname": "hello"}, {"flow_name": "missing", "flowname": "flow_name"}),
        ("/runs", HELLO | {"parms": {}, "Tags": []}, {"parms": "params", "Tags": "tags"}),
        ("/runs", HELLO | {"status": "COMPLETED", "params": 1}, {"params": "type", "status": "tags"}),
        ("/runs/batch", {"runs": [HELLO], "idempotency_key": "k"}, {"idempotency_key": None}),
        (f"/runs/{SOMEONE}/rerun", {"parms": {}}, {"parms": "params"}),
        (f"/runs/{SOMEONE}/cancel", {"raeson": "x"}, {"raeson": "reason"}),
        ("/runs/cancel", {"all": True, "flwo": "x"}, {"flwo": "flow"}),
        ("/dlq/redrive", {"all": True, "reson": "x", "limit": 0}, {"limit": "type", "reson": "reason"}),
        ("/dlq/1/redrive", {"tga": "x"}, {"tga": "tag"}),
    ],
)
async def test_an_unknown_member_is_refused_together_with_all_other_problems(
    door: Door, path: str, body: dict[str, Any], expected: dict[str, str | None]
) -> None:
    """STRICT-1, STRICT-2, STRICT-4; each expected problem is the name that was meant, or its type"""
    problems = check_refusal(await door.send("POST", path, json.dumps(body)))
    found = {each["loc"][1]: each["nearest"] if each["type"] == "unknown_member" else each["type"] for each in problems}
    assert found == expected
    assert all(each["loc"][0] == "body" and len(each["loc"]) == 2 for each in problems)


async def test_an_item_of_a_batch_is_refused_alone(door: Door) -> None:
    """STRICT-2"""
    body = {"runs": [HELLO, HELLO | {"prams": {}}, HELLO]}
    answer = await door.send("POST", "/runs/batch", json.dumps(body))
    items = answer.json()["items"]
    door.accepted += 1  # two of three; `send` has counted one
    assert [item.get("status_code") for item in items] == [None, 422, None]
    (problem,) = items[1]["error"]["errors"]
    assert (problem["loc"], problem["nearest"]) == (["body", "runs", 1, "prams"], "params")


async def test_free_members_are_not_looked_into(door: Door) -> None:
    """STRICT-1: inside `params` every name is free"""
    body = HELLO | {"params": {"flowname": {"status": 1}, "xyzzy": [{"x": 1}]}}
    assert (await door.post(json.dumps(body))).status_code == 200


async def test_an_unknown_part_of_an_upload_is_refused_together_with_all_other_problems(door: Door) -> None:
    """STRICT-1, STRICT-2"""
    parts = form(workflow(FLOW_YAML), (disposition("flowname"), b"x"), (disposition("tag"), b"a.b"))
    problems = check_refusal(await door.upload(parts))
    assert [(each["loc"][1], each["type"], each.get("nearest")) for each in problems] == [
        ("flow_name", "missing", None),
        ("tag", "value", None),
        ("flowname", "unknown_member", "flow_name"),
    ]
    extra = form(workflow(FLOW_YAML), NAME, (disposition("comment"), b"nobody knows"))
    assert check_refusal(await door.upload(extra))[0]["loc"] == ["body", "comment"]


async def test_an_unknown_part_of_a_job_is_refused(door: Door) -> None:
    """STRICT-1 to STRICT-3, GRID-156"""
    parts = form((disposition("exec_name"), b"calcA"), (disposition("args"), b"1"), (disposition("colour"), b"red"))
    answer = await door.send("POST", "/jobs", parts, **{"content-type": "multipart/form-data; boundary=B"})
    body = answer.json()
    assert (answer.status_code, body["err_id"], body["code"]) == (422, "ERR-PYOCO-0002", "BAD_SCHEMA")
    assert [(each["loc"], each["nearest"]) for each in body["errors"]] == [
        (["body", "args"], "arg"),
        (["body", "colour"], None),
    ]


async def test_a_body_of_nothing_but_unknown_members_gets_a_short_answer(door: Door) -> None:
    """Sizes are bounded: names, problems, and the time to compare them"""
    body = HELLO | {f"{n}" * 5 + "x" * 5000: 1 for n in range(150)}
    problems = check_refusal(await door.post(json.dumps(body)))
    assert len(problems) == UNKNOWN_MAX
    assert max(len(each["loc"][1]) for each in problems) <= 128


@pytest.mark.parametrize(
    ("name", "known", "nearest"),
    [
        ("stauts", ["status", "flow", "tag"], "status"),
        ("flowname", ["flow_name", "params", "tag"], "flow_name"),
        ("parms", ["flow_name", "params", "tag"], "params"),
        ("STATUS", ["status"], "status"),
        ("ab", ["abd", "abc"], "abc"),
        ("xyzzy", ["status", "flow"], None),
        ("", ["status"], None),
        ("x" * 100_000, ["x" * 60], None),
    ],
)
async def test_the_nearest_name(name: str, known: list[str], nearest: str | None) -> None:
    """STRICT-5"""
    assert nearest_of(name, known) == nearest


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/runs", HELLO | {"params": {"a": 1}, "tag": "gpu", "tags": ["x"]}),
        ("POST", "/runs", HELLO | {"params": None, "tag": None, "tags": None}),
        ("GET", "/runs?status=PENDING&flow=hello&tag=gpu&limit=5&include=full&include=nonsense", None),
        ("GET", f"/runs?workflow_yaml_sha256={'a' * 64}&updated_after=1.5&envelope=true", None),
        ("GET", "/workers?scope=all&state=IDLE&include_hidden=true&tag=gpu&limit=5", None),
        ("GET", "/wheels/history?limit=5&wheel_name=a-1-py3-none-any.whl&action=upload", None),
    ],
)
async def test_the_documented_calls_of_the_earlier_client_are_accepted(
    door: Door, method: str, path: str, body: Any
) -> None:
    """STRICT-6, FLOW-92: values of `include` stay free, and so do headers"""
    headers = {"X-Request-Purpose": str(uuid.uuid4())}
    answer = await door.send(method, path, None if body is None else json.dumps(body), **headers)
    assert answer.status_code == 200, answer.text


async def test_the_documented_calls_that_concern_a_run_are_accepted(door: Door) -> None:
    """STRICT-6"""
    run_id = (await door.post(json.dumps(HELLO))).json()["run_id"]
    for path in (f"/runs/{run_id}?include=records", f"/runs/{run_id}?include=nonsense", f"/runs/{run_id}/tasks"):
        assert (await door.send("GET", path)).status_code == 200, path
    cancelled = await door.send("POST", f"/runs/{SOMEONE}/cancel", b'{"reason": null}')
    assert cancelled.status_code == 404  # and not 422
