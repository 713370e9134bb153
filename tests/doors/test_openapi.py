"""The OpenAPI document: whole, true, and the same as what is served."""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from contracts.registry import a_worker
from pyoco_server import errors as all_errors
from pyoco_server.core.flow_moves import ask_cancel, claim, conclude
from pyoco_server.core.outcome import Failed, Progress
from pyoco_server.core.run import Owner
from pyoco_server.doors.http.answers import STATUS, error_body, status_of
from pyoco_server.doors.http.app import OPERATIONS
from pyoco_server.doors.http.v1.visit import is_of_payers
from pyoco_server.errors import CATALOGUE, Problem, PyocoError, Refused
from pyoco_server.http_api import create_app
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.runs.port import Stored
from support.gateways import Gateway, fresh_gateway
from support.servers import config_for

DOCUMENT: dict[str, Any] = create_app(config_for("nats://127.0.0.1:1")).openapi()
METHODS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}
#: What the framework serves besides.
NOT_OPERATIONS = {"/openapi.json"}

PROBLEM = {"$ref": "#/components/schemas/ProblemDetails"}
#: A submission is never charged twice.
REQUIRED = {("POST", "/v1/runs", "Idempotency-Key")}
#: The letter, or the run, says all.
BODILESS = {
    ("POST", "/dlq/{letter_id}/requeue"),
    ("POST", "/runs/{run_id}/start"),
    ("POST", "/schedules/{name}/resume"),
}

#: An archive, or what it was packed from.
ARTIFACTS = ("/runs/{run_id}/artifacts", "/runs/{run_id}/artifacts/{name}")
VALUES = ("/runs/{run_id}/result", "/runs/{run_id}/outputs/{task}")

Schema = dict[str, Any]


def resolve(ref: str) -> Schema:
    node: Any = DOCUMENT
    assert ref.startswith("#/")
    for step in ref[2:].split("/"):
        node = node[step]
    assert isinstance(node, dict)
    return node


def nodes(node: Any) -> Iterator[Schema]:
    """Every object in the document."""
    if isinstance(node, dict):
        yield node
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from nodes(inner)


TYPES: dict[str, Any] = {
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
}
#: The words of JSON Schema that our document uses; a new one has to be taught to `faults` below.
WORDS = {
    *("$ref", "anyOf", "type", "enum", "properties", "required", "additionalProperties", "items", "pattern"),
    *("minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems", "default", "format", "description"),
}


def faults(value: Any, schema: Schema, at: str = "$") -> list[str]:
    """Why `value` is not what `schema` says."""
    assert schema.keys() <= WORDS, schema.keys() - WORDS
    if "$ref" in schema:
        return faults(value, resolve(schema["$ref"]), at)
    if "anyOf" in schema:
        every = [faults(value, option, at) for option in schema["anyOf"]]
        return [] if [] in every else [fault for some in every for fault in some]
    kind = schema.get("type", "")
    if kind and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return [f"{at} is {value!r}, not a {kind}"]
    found = [f"{at} is {value!r}"] if value not in schema.get("enum", [value]) else []
    if isinstance(value, str):
        found += [f"{at} does not match"] if not re.search(schema.get("pattern", ""), value) else []
        found += [f"{at} has a wrong length"] if not _fits(len(value), schema, "Length") else []
    if isinstance(value, list):
        found += [f"{at} is too long"] if not _fits(len(value), schema, "Items") else []
        found += [fault for n, item in enumerate(value) for fault in faults(item, schema["items"], f"{at}[{n}]")]
    if isinstance(value, dict):
        found += [f"{at}.{name} is missing" for name in schema.get("required", ()) if name not in value]
        known, more = schema.get("properties", {}), schema.get("additionalProperties", True)
        for name, item in value.items():
            inner = known.get(name, more)
            found += faults(item, inner, f"{at}.{name}") if isinstance(inner, dict) else []
    return found


def _fits(size: int, schema: Schema, what: str) -> bool:
    return bool(schema.get(f"min{what}", 0) <= size <= schema.get(f"max{what}", size))


def operations() -> list[tuple[str, str, Schema]]:
    return [
        (method.upper(), path, item) for path, methods in DOCUMENT["paths"].items() for method, item in methods.items()
    ]


class TestDocument:
    def test_it_says_what_it_is(self) -> None:
        assert DOCUMENT["openapi"].startswith("3.1.")
        assert DOCUMENT["info"].keys() >= {"title", "version"}
        assert all(path.startswith("/") for path in DOCUMENT["paths"])
        assert {method for methods in DOCUMENT["paths"].values() for method in methods} <= METHODS

    def test_every_reference_leads_somewhere(self) -> None:
        references = [node["$ref"] for node in nodes(DOCUMENT) if isinstance(node.get("$ref"), str)]
        assert references
        for reference in references:
            assert resolve(reference)

    def test_every_schema_is_used(self) -> None:
        used = {node["$ref"].rsplit("/", 1)[1] for node in nodes(DOCUMENT) if isinstance(node.get("$ref"), str)}
        assert used == set(DOCUMENT["components"]["schemas"])

    def test_every_schema_is_in_words_that_are_checked(self) -> None:
        for schema in DOCUMENT["components"]["schemas"].values():
            faults({}, schema)
            assert schema["required"] == [name for name in schema["required"] if name in schema["properties"]]
            assert schema["description"]

    def test_operation_ids_are_unique(self) -> None:
        ids = Counter(item["operationId"] for _, _, item in operations())
        assert [name for name, count in ids.items() if count > 1] == []

    def test_what_is_served_is_documented_and_the_other_way_round(self) -> None:
        """FLOW-390"""
        documented = {(method, path) for method, path, _ in operations()}
        assert documented == {(operation.method, operation.path) for operation in OPERATIONS}
        routes = create_app(config_for("nats://127.0.0.1:1")).routes
        assert all(isinstance(route, Route) for route in routes)
        served = {
            (method, route.path)
            for route in routes
            if isinstance(route, Route) and route.path not in NOT_OPERATIONS
            for method in (route.methods or set()) - {"HEAD"}
        }
        assert served == documented

    @pytest.mark.parametrize(("method", "path", "item"), operations(), ids=lambda value: str(value)[:30])
    def test_an_operation_is_documented_whole(self, method: str, path: str, item: Schema) -> None:
        assert item["summary"]
        assert item["tags"]
        in_path = {each["name"] for each in item.get("parameters", ()) if each["in"] == "path"}
        assert in_path == set(re.findall(r"\{(.*?)\}", path))
        names = [(each["in"], each["name"]) for each in item.get("parameters", ())]
        assert len(names) == len(set(names))
        for each in item.get("parameters", ()):
            assert each["description"]
            assert each["schema"]
            assert each["required"] == (each["in"] == "path" or (method, path, each["name"]) in REQUIRED)
        assert ("requestBody" in item) == (method in {"POST", "PATCH", "PUT"} and (method, path) not in BODILESS)
        for answer in item["responses"].values():
            assert answer["description"]
            for content in answer["content"].values():
                assert content["schema"]

    @pytest.mark.parametrize(
        ("operation", "statuses"),
        [
            ("GET /health", "200"),
            ("GET /ready", "200 503"),
            ("POST /runs", "200 401 403 409 413 422 503"),
            ("POST /runs/yaml", "200 401 403 409 413 422 503"),
            ("POST /runs/batch", "200 401 403 413 422 503"),
            ("POST /runs/{run_id}/rerun", "200 401 403 404 409 413 422 503"),
            ("GET /runs", "200 304 401 403 422 503"),
            ("GET /runs/{run_id}", "200 401 403 404 422 503"),
            ("GET /runs/{run_id}/tasks", "200 401 403 404 422 503"),
            ("POST /runs/{run_id}/cancel", "200 401 403 404 409 413 422 503"),
            ("POST /runs/{run_id}/start", "200 401 403 404 409 422 503"),
            ("POST /runs/cancel", "200 401 403 413 422 503"),
            ("GET /runs/{run_id}/logs", "200 401 403 404 422 503"),
            ("GET /runs/{run_id}/logs/stream", "200 204 401 403 404 422 503"),
            ("GET /runs/{run_id}/watch", "200 204 401 403 404 422 503"),
            ("GET /metrics", "200 401 403 503"),
            ("GET /metrics/recent", "200 401 403 422 503"),
            ("GET /queues", "200 401 403 422 503"),
            ("GET /attention", "200 401 403 422 503"),
            ("GET /", "200 304 404 503"),
            ("GET /docs", "200 304 401 403 404 503"),
            ("GET /static/{path}", "200 304 404 503"),
            ("GET /workers", "200 401 403 422 503"),
            ("GET /workers/{worker_id}", "200 401 403 404 422 503"),
            ("PATCH /workers/{worker_id}", "200 401 403 404 413 422 503"),
            ("GET /flows", "200 401 403 422 503"),
            ("GET /flows/{name}", "200 401 403 404 422 503"),
            ("GET /wheels", "200 401 403 422 503"),
            ("GET /wheels/history", "200 401 403 422 503"),
            ("POST /wheels", "200 401 403 409 413 422 503"),
            ("GET /wheels/{wheel_name}", "200 304 401 403 404 422 503"),
            ("DELETE /wheels/{wheel_name}", "200 401 403 404 422 503"),
            ("GET /dlq", "200 401 403 422 503"),
            ("GET /dlq/counts", "200 401 403 422 503"),
            ("GET /dlq/{letter_id}", "200 401 403 404 422 503"),
            ("POST /dlq/redrive", "200 401 403 413 422 503"),
            ("POST /dlq/{letter_id}/redrive", "200 401 403 404 409 413 422 503"),
            ("DELETE /dlq", "200 401 403 422 503"),
            ("DELETE /dlq/{letter_id}", "200 401 403 404 422 503"),
            ("POST /dlq/{letter_id}/requeue", "200 401 403 404 409 410 422 503"),
            ("POST /jobs", "200 401 403 409 413 422 503"),
            ("GET /runs/table", "200 401 403 422 503"),
            ("GET /runs/{run_id}/result", "200 304 416 401 403 404 409 410 422 503 206"),
            ("GET /runs/{run_id}/outputs/{task}", "200 304 416 401 403 404 409 410 422 503 206"),
            ("GET /runs/{run_id}/artifacts", "200 304 401 403 404 409 410 422 503"),
            ("GET /runs/{run_id}/artifacts/{name}", "200 304 401 403 404 409 410 422 503"),
            ("GET /exec/state", "200 401 403 422 503"),
            ("GET /exec/events", "200 401 403 422 503"),
            ("GET /exec/clients/{client_id}", "200 401 403 422 503"),
            ("PUT /exec/clients/{client_id}", "200 401 403 413 422 503"),
            ("GET /exec/acl/{kind}/{id}", "200 401 403 404 422 503"),
            ("PUT /exec/acl/{kind}/{id}", "200 401 403 404 413 422 503"),
            ("DELETE /exec/acl/{kind}/{id}", "200 401 403 404 422 503"),
            ("GET /healthz", "200"),
            ("GET /readyz", "200 503"),
            ("POST /v1/runs", "202 401 402 403 409 422 503"),
            ("POST /v1/inputs", "201 401 403 422 503 200"),
            ("GET /v1/packs", "200 401 422 503"),
            ("GET /v1/runs/{run_id}", "200 401 404 410 422 503"),
            ("GET /v1/runs/{run_id}/envelope", "200 401 404 410 422 503"),
            ("GET /v1/results/{token}", "200 404 422 503"),
            ("POST /mcp/", "200 202 401 403 503 400 404 406 413 415"),
            ("POST /mcp", "200 202 401 403 503 400 404 406 413 415"),
            ("GET /schedules", "200 401 403 422 503"),
            ("POST /schedules", "201 401 403 409 413 422 503"),
            ("POST /schedules/preview", "200 401 403 413 422 503"),
            ("GET /schedules/{name}", "200 304 401 403 404 422 503"),
            ("PUT /schedules/{name}", "200 401 403 409 412 413 422 428 503 201"),
            ("DELETE /schedules/{name}", "200 401 403 404 412 422 503"),
            ("POST /schedules/{name}/pause", "200 401 403 404 413 422 503"),
            ("POST /schedules/{name}/resume", "200 401 403 404 422 503"),
            ("POST /schedules/{name}/trigger", "200 401 402 403 404 409 413 422 503"),
            ("POST /schedules/{name}/backfill", "200 401 403 404 413 422 503"),
            ("GET /schedules/{name}/preview", "200 401 403 404 422 503"),
            ("GET /schedules/{name}/ticks", "200 401 403 404 422 503"),
            ("GET /budgets", "200 401 403 422 503"),
            ("GET /budgets/{tenant_id}", "200 401 403 404 422 503"),
            ("GET /budgets/{tenant_id}/journal", "200 401 403 404 422 503"),
            ("GET /budgets/{tenant_id}/spend", "200 401 403 404 422 503"),
        ],
    )
    def test_every_status_it_can_give_is_documented(self, operation: str, statuses: str) -> None:
        """Section 6 of the contract. A 500 is a defect, and no operation promises one."""
        method, path = operation.split()
        item = DOCUMENT["paths"][path][method.lower()]
        assert " ".join(status for status in item["responses"] if status not in {"408", "429"}) == statuses
        assert ("408" in item["responses"]) == ("requestBody" in item)  # reading a body may time out
        # The entrance gives both, or neither; under /v1 a bad key is a 401, and whoever asks too often is told, too.
        assert ("429" in item["responses"]) == (
            "403" in item["responses"] or path.startswith(("/v1/runs/{run_id}", "/v1/packs"))
        )
        for status, answer in item["responses"].items():
            is_empty = status in {"204", "304", "416"} or (path.startswith("/mcp") and status == "202")
            assert (answer["content"] == {}) == is_empty
            if is_empty:
                continue
            of_any_type = {"/static/{path}", "/v1/results/{token}", "/runs/{run_id}/logs", *ARTIFACTS, *VALUES}
            assert len(answer["content"]) == 1 or path in of_any_type
            if path.startswith("/v1/") and status[0] != "2":
                assert answer["content"] == {"application/problem+json": {"schema": PROBLEM}}
                continue
            if path.startswith("/mcp"):  # the guard's words, or an answer in those of the protocol
                by_guard = answer["content"] == {"application/problem+json": {"schema": PROBLEM}}
                assert by_guard == (status in {"401", "403", "408", "429", "503"})
                continue
            is_error = status[0] != "2" and path != "/readyz"  # which has one shape for both
            for content in answer["content"].values():
                assert (content["schema"] == {"$ref": "#/components/schemas/Error"}) == is_error

    def test_the_table_above_is_whole(self) -> None:
        marks = TestDocument.test_every_status_it_can_give_is_documented.pytestmark  # type: ignore[attr-defined]
        listed = {case[0] for mark in marks for case in mark.args[1]}
        assert listed == {f"{method} {path}" for method, path, _ in operations()}

    def test_a_key_may_be_sent_in_two_ways_or_not_at_all(self) -> None:
        """FLOW-261, FLOW-266: whether one is needed is the server's setting"""
        schemes = DOCUMENT["components"]["securitySchemes"]
        assert schemes["apiKey"] == {"type": "apiKey", "in": "header", "name": "X-API-Key"}
        assert schemes["bearer"] == {"type": "http", "scheme": "bearer"}
        opened = {"/health", "/ready", "/healthz", "/readyz", "/", "/static/{path}", "/v1/results/{token}"}
        closed = [(path, item["security"]) for _, path, item in operations() if path not in opened]
        for path, security in closed:  # PRICED-170: where money is at stake, always
            assert security == [*([] if is_of_payers(path) else [{}]), {"apiKey": []}, {"bearer": []}]


#: Everything that can be raised towards a door.
ERRORS: list[type[PyocoError]] = [
    cls
    for cls in map(vars(all_errors).get, all_errors.__all__)
    if isinstance(cls, type) and issubclass(cls, PyocoError)
]


def made(cls: type[PyocoError], problems: tuple[Problem, ...]) -> list[PyocoError]:
    """With and without a list of what is wrong; some tell facts of their own instead."""
    facts: dict[type[PyocoError], list[PyocoError]] = {
        all_errors.OverBudget: [all_errors.OverBudget(5)],
        all_errors.BelowPrice: [all_errors.BelowPrice("0.0500")],
        all_errors.SendFailed: [all_errors.SendFailed("run-1")],
        all_errors.ResourceMissing: [all_errors.ResourceMissing("PYOCO_WORK")],
        all_errors.RecordUnreadable: [all_errors.RecordUnreadable("run-1", "not JSON")],
        all_errors.RunExpired: [all_errors.RunExpired("run-1")],
        all_errors.JobInDoubt: [all_errors.JobInDoubt(str(uuid.uuid4()), "run-1", all_errors.Unavailable())],
    }
    return facts.get(cls) or [cls("it went wrong"), cls("it went wrong", problems=problems)]


class TestErrors:
    @pytest.mark.parametrize("cls", ERRORS)
    def test_every_error_has_a_status_and_the_documented_body(self, cls: type[PyocoError]) -> None:
        """FLOW-50, FLOW-565"""
        problems = (Problem(("body", 0, "name"), "is wrong", "type"),)
        for error in made(cls, problems):
            body = error_body(error)
            assert faults(body, resolve("#/components/schemas/Error")) == []
            assert body["err_id"][-4:] == body["msg_id"][-4:] == f"{cls.number:04d}"
            assert (body["message"], body["message_ja"]) == (CATALOGUE[cls.number].en, CATALOGUE[cls.number].ja)
            assert ("errors" in body) == (bool(error.problems) or isinstance(error, Refused))
            assert status_of(error) in STATUS.values()

    @pytest.mark.parametrize(
        ("status", "detail", "number"),
        [
            (401, "api key required", 14),
            (403, "api key invalid", 15),
            (404, "run not found", 5),
            (404, "worker not found", 20),
            (404, "wheel not found", 23),
            (409, "same/older version is rejected", 22),
            (413, "workflow file too large", 16),
            (413, "wheel too large", 2),
            (422, "invalid request", 2),
            (422, "invalid list query", 17),
            (422, "invalid workers request", 19),
            (503, "nats unavailable", 3),
        ],
    )
    def test_the_phrases_are_those_of_the_contract(self, status: int, detail: str, number: int) -> None:
        """FLOW-51 to FLOW-62"""
        assert (status, number) in {(status_of(made(cls, ())[0]), cls.number) for cls in ERRORS if cls.phrase == detail}


@pytest.fixture
async def gateway(link: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with fresh_gateway(link, nats_url, tmp_path) as gateway:
        yield gateway


class TestServed:
    async def test_the_document_and_the_page_are_served(self, gateway: Gateway) -> None:
        answer = await gateway.client.get("/openapi.json")
        assert answer.status_code == 200
        assert answer.json() == DOCUMENT
        page = await gateway.client.get("/docs")
        assert page.headers["content-type"].startswith("text/html")
        assert "openapi.json" in page.text

    async def test_every_answer_is_what_the_document_says(self, gateway: Gateway) -> None:
        """A run in each of its stages, and every kind of refusal, against the schemas"""
        run_id = (await gateway.client.post("/runs", json={"flow_name": "f", "params": {"a": [1]}})).json()["run_id"]
        await gateway.backend.registry.announce(a_worker("w"))
        asked = [
            ("GET", "/health", None),
            ("GET", "/ready", None),
            ("POST", "/runs", b'{"flow_name": "f"}'),
            ("POST", "/runs", b"{"),
            ("POST", "/runs", b" " * (5 << 20)),
            ("POST", "/runs/yaml", b""),
            ("GET", "/runs/{run_id}", None),
            ("GET", "/runs", None),
            ("GET", "/runs?include=full", None),
            ("GET", "/runs?limit=0", None),
            ("GET", "/runs/{run_id}/tasks", None),
            ("POST", "/runs/{run_id}/cancel", b"[]"),
            ("POST", "/runs/{run_id}/rerun", b""),
            ("POST", "/runs/{run_id}/rerun", b'{"params": {"b": 1}, "tag": "gpu", "tags": ["x"]}'),
            ("POST", "/runs/{run_id}/rerun", b'{"tag": "a b"}'),
            ("POST", "/runs/batch", b'{"runs": [{"flow_name": "f"}, {"flow_name": ""}, 5]}'),
            ("POST", "/runs/batch", b'{"runs": []}'),
            ("POST", "/runs/batch", b" " * (9 << 20)),
            ("GET", "/workers", None),
            ("GET", "/workers?limit=0", None),
            ("PATCH", "/workers/{worker_id}", b"{}"),
        ]
        cancel = ("POST", "/runs/{run_id}/cancel", b"")
        for status in ("PENDING", "RUNNING", "CANCELLING", "CANCELLED"):
            assert (await gateway.client.get(f"/runs/{run_id}")).json()["status"] == status
            for request in asked:
                await self._check(gateway, *request, run_id)
            await self._move_on(gateway, run_id)
        for request in [*asked, cancel]:
            await self._check(gateway, *request, run_id)
            await self._check(gateway, *request, str(uuid.uuid4()))

    async def test_an_event_is_what_the_document_says(self, gateway: Gateway) -> None:
        run_id = (await gateway.client.post("/runs", json={"flow_name": "f"})).json()["run_id"]
        for _ in range(3):
            await self._move_on(gateway, run_id)
        answer = await gateway.client.get(f"/runs/{run_id}/watch?include=records")
        (content,) = DOCUMENT["paths"]["/runs/{run_id}/watch"]["get"]["responses"]["200"]["content"].items()
        assert answer.headers["content-type"].partition(";")[0] == content[0]
        (data,) = (line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: "))
        event = json.loads(data)
        assert event["snapshot"]["status"] == "CANCELLED"
        assert faults(event, content[1]["schema"]) == []

    async def _check(self, gateway: Gateway, method: str, path: str, body: bytes | None, run_id: str) -> None:
        answer = await gateway.client.request(method, path.replace("{run_id}", run_id), content=body)
        documented = DOCUMENT["paths"][path.partition("?")[0]][method.lower()]["responses"]
        schema = documented[str(answer.status_code)]["content"]["application/json"]["schema"]
        assert faults(answer.json(), schema) == [], (method, path)

    async def _move_on(self, gateway: Gateway, run_id: str) -> None:
        """One stage further in the life of the run."""
        found = await gateway.backend.runs.find(run_id)
        assert isinstance(found, Stored)
        run = found.run
        if run.status == "PENDING":
            run = claim(run, Owner("anna", "instance-1"), "attempt-1", 2.0)
        elif run.status == "RUNNING":
            run = ask_cancel(run, "because", 3.0)
        elif run.status == "CANCELLING":
            progress = Progress(tasks={"a": "FAILED"}, task_records={"a": {"state": "FAILED"}})
            run = conclude(run, Failed(message="it broke", progress=progress), 4.0)
        await gateway.backend.runs.replace(run, found.revision)
