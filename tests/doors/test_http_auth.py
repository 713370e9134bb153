"""Who may come in over HTTP, and whose runs they see (section 14 of the contract), on a real NATS server."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
import secrets
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from starlette.routing import Route
from starlette.types import Message

from pyoco_server.core.api_key import make_key
from pyoco_server.core.run import Run
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.doors.http.app import OPERATIONS
from pyoco_server.doors.http.slowdown import Slowdown
from pyoco_server.doors.http.v1.visit import is_of_payers
from pyoco_server.errors import HostRefused
from pyoco_server.http_api import create_app
from pyoco_server.ports.nats.link import Link, open_link
from support.gateways import Gateway, error, fresh_gateway, listening, open_gateway, stock_of
from support.servers import config_for
from support.waiting import eventually

#: FLOW-45. Whoever adds a path here says that the whole world may call it.
OPEN = {
    "/health",
    "/ready",
    "/healthz",
    "/readyz",
    "/",
    f"/static/{uuid.UUID(int=0)}",
    f"/v1/results/{uuid.UUID(int=0)}",
}

MISSING = error(14, "api key required")
REFUSED = error(15, "api key invalid")
UNKNOWN_RUN = error(5, "run not found")


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(module_nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """One for all of them: tests have keys, and where it matters tenants, of their own. Authentication is on. What is
    slow on purpose is tested in `test_http_keys.py`."""
    link = await open_link(module_nats_url, "tests")
    closed = {"http_auth_mode": "api_key", "auth_pepper": "pepper"}
    async with fresh_gateway(link, module_nats_url, tmp_path_factory.mktemp("data"), **closed) as gateway:
        gateway.app.state.gateway.slowdown = Slowdown(sleep=at_once)
        yield gateway
    await link.close()


@pytest.fixture
def link(link_of_module: Link) -> Link:
    return link_of_module


async def at_once(_: float) -> None:
    """Instead of a sleep."""


async def a_key(gateway: Gateway, tenant: str = "team-a") -> dict[str, str]:
    """The headers of somebody who may come in."""
    pepper = gateway.config.auth_pepper
    plain, record = make_key(tenant, pepper, time.time(), secrets.token_hex, secrets.token_urlsafe)
    assert await gateway.backend.keys.add(record)
    return {"X-API-Key": plain}


def key_id(headers: dict[str, str]) -> str:
    return headers["X-API-Key"].split("_")[1]


async def submit(gateway: Gateway, headers: dict[str, str], **body: Any) -> str:
    answer = await gateway.client.post("/runs", json={"flow_name": "hello"} | body, headers=headers)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["run_id"])


def everything() -> list[tuple[str, str]]:
    """Every method on every path that the application serves, the framework's own ones included."""
    routes = create_app(config_for("nats://127.0.0.1:1")).routes
    served = [(method, route.path) for route in routes if isinstance(route, Route) for method in route.methods or ()]
    ours = [(operation.method, operation.path) for operation in OPERATIONS]
    return sorted({(method, re.sub(r"\{.*?\}", str(uuid.UUID(int=0)), path)) for method, path in served + ours})


async def test_the_walk_sees_every_operation() -> None:
    assert {path for _, path in everything()} >= {"/docs", "/openapi.json", "/health", "/runs", "/runs/yaml"}


class TestEntrance:
    async def test_a_path_that_is_not_listed_as_open_asks_for_a_key(self, gateway: Gateway) -> None:
        """FLOW-45, FLOW-51, FLOW-262; DESIGN 9.15 for /docs and /openapi.json"""
        for method, path in everything():
            answer = await gateway.client.request(method, path)
            assert (answer.status_code == 401) == (path not in OPEN), (method, path)
            if path not in OPEN:
                told = answer.json() if method != "HEAD" else {}
                payers = is_of_payers(path) and told.get("reason_code") == "AUTH_INVALID"
                assert method == "HEAD" or told == MISSING or payers, (method, path)
                assert answer.headers["www-authenticate"] == "Bearer", (method, path)

    async def test_a_path_nobody_thought_of_asks_for_a_key(self, gateway: Gateway) -> None:
        """FLOW-45"""
        cases: list[tuple[str, str]] = [
            ("GET", "/nothing"),
            ("GET", "/static"),
            ("GET", "/health/"),
            ("GET", "/health/more"),
            ("GET", "/x//health"),
            ("GET", "/HEALTH"),
            ("GET", "/runs/..%2Fhealth"),
            ("OPTIONS", "/runs"),
            ("DELETE", "/runs"),
            ("NONSENSE", "/runs"),
        ]
        for method, path in cases:
            answer = await gateway.client.request(method, path)
            assert (answer.status_code, answer.json()) == (401, MISSING), (method, path)

    async def test_a_target_that_is_no_path_opens_nothing(self, gateway: Gateway) -> None:
        """FLOW-45: read in one way it is open, in another it is an operation that asks for a key"""
        cases: list[bytes] = [
            b"PATCH %2Fstatic/workers/w1",
            b"PATCH %2fhealth/workers/w1",
            b"POST %2Fstatic/runs",
            b"GET static/runs",
            b"GET %2Fstatic/main.js",
            b"GET http://gateway/runs",
            b"OPTIONS *",
        ]
        await gateway.backend.registry.announce(
            WorkerRecord(
                worker_id="w1",
                instance_id="i",
                state=WorkerState.IDLE,
                tags=(),
                last_seen_at=time.time(),
                last_heartbeat_at=time.time(),
            )
        )
        body = b'{"hidden":true}'
        async with listening(gateway.app, "h11") as port:
            for line in cases:
                ask = b"%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" % line
                async with asyncio.timeout(120):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(ask + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
                    answer = await reader.read()
                    writer.close()
                head, _, said = answer.partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 400 "), (line, answer)
                assert json.loads(said) == error(2, "bad request target"), line
                assert not [each for each in await gateway.backend.registry.all() if each.hidden], line

    async def test_an_open_path_leads_to_open_operations_alone(self, gateway: Gateway) -> None:
        """FLOW-45: should a server ever hand on a path and a raw path that do not fit together"""
        wanted = [("PATCH", b"/workers/a%2Fb"), ("GET", b"/runs/a%2Fb"), ("GET", b"/workers/%2f")]
        for method, raw_path in wanted:
            answered: list[Message] = []

            async def send(message: Message, answered: list[Message] = answered) -> None:
                answered.append(message)

            async def receive() -> Message:
                return {"type": "http.request", "body": b"", "more_body": False}

            scope = {"type": "http", "method": method, "path": "/static/x", "raw_path": raw_path, "query_string": b""}
            request = scope | {"headers": [(b"host", b"x")], "client": None, "server": None, "scheme": "http"}
            await gateway.app(request | {"http_version": "1.1", "root_path": ""}, receive, send)
            status = answered[0]["status"]
            # A file is looked for where the path is an open one for this method; all else asks for a key.
            assert status == (404 if method == "GET" else 401), (method, raw_path)

    async def test_the_key_is_looked_at_first(self, gateway: Gateway) -> None:
        """FLOW-46"""
        cases: list[tuple[str, str, bytes]] = [
            ("POST", "/runs", b"{"),
            ("POST", "/runs/yaml", b"--B"),
            ("GET", "/runs?limit=0", b""),
            ("GET", f"/runs/{uuid.uuid4()}", b""),
            ("POST", "/runs", b" " * (5 << 20)),
        ]
        for method, path, body in cases:
            without = await gateway.client.request(method, path, content=body)
            assert (without.status_code, without.json()) == (401, MISSING), (method, path)
            wrong = await gateway.client.request(method, path, content=body, headers={"X-API-Key": "wrong"})
            assert (wrong.status_code, wrong.json()) == (403, REFUSED), (method, path)
            right = await gateway.client.request(method, path, content=body, headers=await a_key(gateway))
            assert right.status_code in {404, 413, 422}, (method, path)

    async def test_a_body_is_not_read_before_the_key(self, gateway: Gateway) -> None:
        """FLOW-46"""
        taken = 0

        async def body() -> AsyncIterator[bytes]:
            nonlocal taken
            while True:
                taken += 1
                yield b"x" * 1024

        answer = await gateway.client.post("/runs", content=body())
        assert answer.status_code == 401
        assert taken == 0

    async def test_no_key_is_401(self, gateway: Gateway) -> None:
        """FLOW-51, FLOW-262"""
        cases: list[dict[str, str]] = [
            {},
            {"X-API-Key": ""},
            {"Authorization": ""},
            {"Authorization": "Bearer"},
            {"Authorization": "Bearer  "},
            {"Authorization": "Basic cHlvY286cHlvY28="},
            {"X-Other-Key": "pyoco_0123456789abcdef_" + "x" * 43},
        ]
        for headers in cases:
            answer = await gateway.client.get("/runs", headers=headers)
            assert (answer.status_code, answer.json()) == (401, MISSING), headers

    async def test_a_wrong_key_is_403_and_nobody_learns_why(self, gateway: Gateway) -> None:
        """FLOW-52, FLOW-263"""
        right, revoked = await a_key(gateway), await a_key(gateway)
        await gateway.backend.keys.revoke(key_id(revoked), time.time())
        plain = right["X-API-Key"]
        other_pepper, record = make_key("team-a", "salt", 1.0, secrets.token_hex, secrets.token_urlsafe)
        await gateway.backend.keys.add(record)
        wrong = {
            "unknown": f"pyoco_0123456789abcdef_{'x' * 43}",
            "wrong secret": plain[:-1] + ("x" if plain[-1] != "x" else "y"),
            "revoked": revoked["X-API-Key"],
            "another pepper": other_pepper,
            "an id alone": key_id(right),
            "cut": plain[:-1],
            "with more": plain + "x",
            "upper case": plain.upper(),
            "no key at all": "hello",
            "a subject": "*",
            "long": "x" * 10_000,
            "not ASCII": "é\xff",
            "two keys": f"{plain}, {plain}",
        }
        answers = {}
        for name, key in wrong.items():
            for header, value in ((b"X-API-Key", key), (b"Authorization", f"Bearer {key}")):
                answer = await gateway.client.get("/runs", headers=[(header, value.encode("latin-1"))])
                answers[name, header] = (answer.status_code, answer.content, tuple(answer.headers.items()))
        assert len(set(answers.values())) == 1, answers
        status, content, _ = next(iter(answers.values()))
        assert (status, json.loads(content)) == (403, REFUSED)
        assert (await gateway.client.get("/runs", headers=right)).status_code == 200

    async def test_one_key_two_ways_to_send_it(self, gateway: Gateway) -> None:
        """FLOW-261; DESIGN 9.7"""
        cases: list[str] = ["X-API-Key: {}", "x-api-key: {}", "Authorization: Bearer {}", "authorization: bearer {}"]
        for form in cases:
            name, _, value = form.format((await a_key(gateway))["X-API-Key"]).partition(": ")
            assert (await gateway.client.get("/runs", headers={name: value})).status_code == 200, form

    async def test_an_empty_header_leaves_room_for_the_other(self, gateway: Gateway) -> None:
        """FLOW-262"""
        plain = (await a_key(gateway))["X-API-Key"]
        both = {"X-API-Key": "", "Authorization": f"Bearer {plain}"}
        assert (await gateway.client.get("/runs", headers=both)).status_code == 200

    async def test_the_header_is_a_setting(self, link: Link, nats_url: str, tmp_path: Path) -> None:
        """FLOW-261"""
        named = {"http_auth_mode": "api_key", "http_api_key_header": "X-Team-Key"}
        async with fresh_gateway(link, nats_url, tmp_path, **named) as gateway:
            plain = (await a_key(gateway))["X-API-Key"]
            tried = ({"X-Team-Key": plain}, {"X-API-Key": plain}, {"Authorization": f"Bearer {plain}"})
            statuses = [(await gateway.client.get("/runs", headers=headers)).status_code for headers in tried]
            assert statuses == [200, 401, 200]
            document = (await gateway.client.get("/openapi.json", headers={"X-Team-Key": plain})).json()
            assert document["components"]["securitySchemes"]["apiKey"]["name"] == "X-Team-Key"

    async def test_nothing_is_written_for_somebody_who_may_not_come_in(self, gateway: Gateway, link: Link) -> None:
        """FLOW-46"""
        before = await stock_of(gateway.config, link)
        for headers in ({}, {"X-API-Key": "wrong"}):
            assert (await gateway.client.post("/runs", json={"flow_name": "f"}, headers=headers)).is_client_error
        assert await stock_of(gateway.config, link) == before

    async def test_without_authentication_a_key_is_not_looked_at(
        self, link: Link, nats_url: str, tmp_path: Path
    ) -> None:
        """FLOW-266"""
        async with fresh_gateway(link, nats_url, tmp_path) as gateway:
            run_id = await submit(gateway, {"X-API-Key": "nonsense", "Authorization": "Bearer nonsense"})
            snapshot = (await gateway.client.get(f"/runs/{run_id}")).json()
            assert not {"tenant_id", "api_key_id"} & snapshot.keys()

    async def test_a_revoked_key_is_refused_everywhere_within_a_second(self, gateway: Gateway) -> None:
        """FLOW-265, as DESIGN 9.5 reads it"""
        async with open_gateway(gateway.config) as other:
            headers = await a_key(gateway)

            async def is_answered(status: int) -> bool:
                return (await other.client.get("/runs", headers=headers)).status_code == status

            await eventually(lambda: is_answered(200))
            await gateway.backend.keys.revoke(key_id(headers), time.time())
            assert (await gateway.client.get("/runs", headers=headers)).status_code == 403
            await eventually(lambda: is_answered(403), 5)  # a second, on a machine that is not busy

    async def test_no_key_is_ever_logged(self, gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
        """FLOW-49, FLOW-268, FLOW-531"""
        caplog.set_level(logging.DEBUG)
        right, revoked = await a_key(gateway), await a_key(gateway)
        await gateway.backend.keys.revoke(key_id(revoked), time.time())
        sent = [right["X-API-Key"], revoked["X-API-Key"], "a-typo-of-a-key"]
        for key in sent:
            for headers in ({"X-API-Key": key}, {"Authorization": f"Bearer {key}"}):
                for method, path in (("POST", "/runs"), ("GET", f"/runs/{uuid.uuid4()}"), ("GET", "/runs?limit=0")):
                    answer = await gateway.client.request(method, path, headers=headers)
                    assert key not in answer.text
        told = "".join(f"{record.__dict__}{record.getMessage()}{record.exc_text}" for record in caplog.records)
        assert "request answered with an error" in told
        # The secret is what stands behind the second underscore; it may hold others.
        assert [key for key in sent if key.split("_", 2)[-1] in told] == []
        assert "pepper" not in told


class TestTenants:
    async def test_a_run_carries_who_asked_for_it(self, gateway: Gateway, link: Link) -> None:
        """FLOW-272, FLOW-304, FLOW-342"""
        headers = await a_key(gateway, "team-a")
        run_id = await submit(gateway, headers, tag="gpu")
        snapshot = (await gateway.client.get(f"/runs/{run_id}", headers=headers)).json()
        assert (snapshot["tenant_id"], snapshot["api_key_id"]) == ("team-a", key_id(headers))
        asked = {"last_by_subj": f"{gateway.config.work_subject_prefix}.gpu"}
        found = await link.api(f"STREAM.MSG.GET.{gateway.config.work_stream}", asked, dict[str, Any])
        job = json.loads(base64.b64decode(found["message"]["data"]))
        assert (job["tenant_id"], job["api_key_id"]) == ("team-a", key_id(headers))

    async def test_nobody_can_say_that_they_are_somebody_else(self, gateway: Gateway) -> None:
        """FLOW-44, FLOW-272"""
        headers = await a_key(gateway, "team-a")
        run_id = await submit(gateway, headers, tenant_id="team-b", api_key_id="x", params={"tenant_id": "team-b"})
        assert (await gateway.client.get(f"/runs/{run_id}", headers=headers)).json()["tenant_id"] == "team-a"

    async def test_two_keys_of_one_tenant_see_the_same_runs(self, gateway: Gateway) -> None:
        """FLOW-273"""
        one, other = await a_key(gateway, "team-a"), await a_key(gateway, "team-a")
        run_id = await submit(gateway, one)
        assert (await gateway.client.get(f"/runs/{run_id}", headers=other)).status_code == 200
        assert (await gateway.client.post(f"/runs/{run_id}/cancel", headers=other)).status_code == 200

    async def test_a_run_says_which_key_did_what_to_it(self, gateway: Gateway) -> None:
        """FLOW-272: a key's id is no secret."""
        one, other = await a_key(gateway, "team-a"), await a_key(gateway, "team-a")
        run_id = await submit(gateway, one)
        before = (await gateway.client.get(f"/runs/{run_id}", headers=one)).json()
        assert before["last_change"]["by"] == {"kind": "api_key", "id": key_id(one)}
        await gateway.client.post("/runs/cancel", json={"run_ids": [run_id]}, headers=other)
        after = (await gateway.client.get(f"/runs/{run_id}", headers=one)).json()
        assert after["cancel_requested_by"] == key_id(other)
        assert after["last_change"]["what"] == "cancel_requested"
        assert after["last_change"]["by"] == {"kind": "api_key", "id": key_id(other)}

    async def test_another_tenant_s_run_is_an_unknown_run(self, gateway: Gateway) -> None:
        """FLOW-188, FLOW-273, FLOW-275: byte for byte"""
        cases: list[tuple[str, str]] = [("GET", ""), ("GET", "?include=full"), ("GET", "/tasks"), ("POST", "/cancel")]
        mine, yours = await a_key(gateway, "team-a"), await a_key(gateway, "team-b")
        theirs = await submit(gateway, yours)
        nobody_s = Run(
            run_id=str(uuid.uuid4()), flow_name="f", tag="t", submitted_at=1.0, updated_at=1.0, heartbeat_at=1.0
        )
        await gateway.backend.runs.create(nobody_s)
        for method, end in cases:
            answers = [
                await gateway.client.request(method, f"/runs/{run_id}{end}", headers=mine)
                for run_id in (uuid.uuid4(), theirs, nobody_s.run_id, "no-id")
            ]
            assert {(answer.status_code, answer.content, tuple(answer.headers.items())) for answer in answers} == {
                (404, answers[0].content, tuple(answers[0].headers.items()))
            }, (method, end)
            assert answers[0].json() == UNKNOWN_RUN, (method, end)
            untouched = (await gateway.client.get(f"/runs/{theirs}", headers=yours)).json()
            assert untouched["status"] == "PENDING", (method, end)

    async def test_a_list_holds_one_s_own_runs(self, gateway: Gateway) -> None:
        """FLOW-113, FLOW-274, FLOW-275: others are left out before the limit counts"""
        mine, yours = await a_key(gateway, "team-d"), await a_key(gateway, "team-e")
        own = [await submit(gateway, mine, tag="gpu") for _ in range(2)]
        for _ in range(3):
            await submit(gateway, yours, tag="gpu")
        await gateway.backend.runs.create(
            Run(run_id=str(uuid.uuid4()), flow_name="hello", tag="gpu", submitted_at=1, updated_at=9e9, heartbeat_at=1)
        )
        for query in ("", "&include=full", "&tag=gpu", "&status=PENDING", "&flow=hello", "&kind=flow"):
            answer = await gateway.client.get(f"/runs?limit=2{query}", headers=mine)
            assert [run["run_id"] for run in answer.json()] == own[::-1], query
        assert len((await gateway.client.get("/runs", headers=yours)).json()) == 3
        assert (await gateway.client.get("/runs", headers=await a_key(gateway, "team-c"))).json() == []

    async def test_without_authentication_every_run_is_seen(self, gateway: Gateway, tmp_path: Path) -> None:
        """FLOW-275"""
        run_id = await submit(gateway, await a_key(gateway))
        opened = replace(gateway.config, http_auth_mode="none", data_dir=str(tmp_path / "other"))
        async with open_gateway(opened) as other:
            assert (await other.client.get(f"/runs/{run_id}")).status_code == 200

            async def is_listed() -> bool:
                listed = (await other.client.get("/runs?limit=200")).json()
                return run_id in [run["run_id"] for run in listed]

            await eventually(is_listed)

    async def test_a_tenant_cannot_act_on_another_s_run_by_a_bad_request(self, gateway: Gateway) -> None:
        """FLOW-273: not even the kind of refusal tells that the run exists"""
        mine, yours = await a_key(gateway, "team-a"), await a_key(gateway, "team-b")
        theirs = await submit(gateway, yours)
        answers = [
            await gateway.client.post(f"/runs/{run_id}/cancel", content=b"[]", headers=mine)
            for run_id in (theirs, uuid.uuid4())
        ]
        assert answers[0].content == answers[1].content
        assert answers[0].status_code == answers[1].status_code


async def test_a_page_of_another_site_cannot_act(link: Link, nats_url: str, tmp_path: Path) -> None:
    """Without keys everybody who reaches the port may act; somebody else's web page in a user's browser is nobody."""
    async with fresh_gateway(link, nats_url, tmp_path) as gateway:
        body, headers = {"flow_name": "f"}, {"Sec-Fetch-Site": "cross-site"}
        assert (await gateway.client.post("/runs", json=body, headers=headers)).status_code == 403
        assert (await gateway.client.get("/runs", headers=headers)).status_code == 200
        headers = {"Sec-Fetch-Site": "same-origin"}
        assert (await gateway.client.post("/runs", json=body, headers=headers)).status_code == 200


async def test_a_browser_that_says_only_where_its_page_came_from_is_believed(
    link: Link, nats_url: str, tmp_path: Path
) -> None:
    """Over plain http a browser leaves `Sec-Fetch-Site` out, and sends `Origin` all the same."""
    cases: list[tuple[dict[str, str], int]] = [
        ({"Origin": "http://elsewhere.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://gateway.example.elsewhere.example"}, 403),
        ({"Origin": "http://"}, 403),
        ({"Origin": "http://[::2]", "Host": "[::1]:8000"}, 403),
        ({"Origin": "http://elsewhere.example", "X-Forwarded-Host": "runs.example, elsewhere.example"}, 403),
        ({"Origin": "http://gateway.example"}, 200),
        ({"Origin": "http://gateway.example:8000"}, 200),
        ({"Origin": "http://GATEWAY.example", "Host": "Gateway.Example:80"}, 200),
        ({"Origin": "http://[::1]:3000", "Host": "[::1]:8000"}, 200),
        ({"Origin": "https://runs.example", "X-Forwarded-Host": "runs.example"}, 200),
        ({"Origin": "https://runs.example", "X-Forwarded-Host": "runs.example:443"}, 200),
        ({"Origin": "https://runs.example", "X-Forwarded-Host": "runs.example , inner:8080"}, 200),
        ({"Origin": "http://elsewhere.example", "Sec-Fetch-Site": "same-origin"}, 200),
    ]
    async with fresh_gateway(link, nats_url, tmp_path) as gateway:
        for headers, status in cases:
            more = {"Host": "gateway.example", **headers}
            answer = await gateway.client.post("/runs", json={"flow_name": "f"}, headers=more)
            assert answer.status_code == status, headers


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
                "cross-site request: the page came from https://runs.example, but this gateway was asked as "
                "127.0.0.1:8000; let the proxy pass Host or X-Forwarded-Host",
            ),
        )
        odd = [(b"Host", b"h\xc3\xa9 <b>" + b"x" * 5000), (b"Origin", b"\xff" * 5000), (b"X-Forwarded-Host", b",,")]
        detail = (await gateway.client.post("/runs", json=body, headers=odd)).json()["detail"]
        assert detail.isascii()
        assert detail.isprintable()
        assert len(detail) < 700
        headers |= {"Sec-Fetch-Site": "cross-site"}
        answer = await gateway.client.post("/runs", json=body, headers=headers)
        assert answer.json() == error(2, "cross-site request")


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
