"""Authentication over HTTP, and whose runs a caller sees (section 14 of the contract), on a real NATS server."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.routing import Route
from starlette.types import Message

from pyoco_server.core.api_key import make_key
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.doors.http.app import OPERATIONS
from pyoco_server.doors.http.v1.visit import is_of_payers
from pyoco_server.http_api import create_app
from pyoco_server.ports.nats.link import Link
from support.authenticated_gateways import a_key, gateway, key_id, link, submit
from support.gateways import Gateway, error, fresh_gateway, listening, open_gateway, stock_of
from support.servers import config_for
from support.waiting import eventually

__all__ = ["gateway", "link"]

#: FLOW-45. The paths that need no key.
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
pytestmark = pytest.mark.asyncio(loop_scope="module")


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

    async def test_without_authentication_an_invalid_key_is_ignored(
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
