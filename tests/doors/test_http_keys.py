"""One entrance for every way in, keys that end, and the patience with bad ones (section 14 of the contract)."""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import pytest_asyncio
from starlette.routing import Route

from pyoco_server.client.calls import key_headers
from pyoco_server.doors.http.app import OPERATIONS
from pyoco_server.doors.http.v1.visit import is_of_payers
from pyoco_server.http_api import create_app
from pyoco_server.loops import key_uses
from pyoco_server.ports.nats.link import Link, open_link
from support.gateways import Gateway, error, fresh_gateway, listening, open_gateway
from support.http_keys import BAD, MISSING, REFUSED, a_key, ask, gateway
from support.servers import config_for
from support.waiting import eventually

__all__ = ["gateway"]

OPEN = {operation.path for operation in OPERATIONS if operation.open and not operation.tail}
#: Whatever is written below it is the dashboard's: a file, or none.
FILES = "/static/"
NOT_FOUND, NOT_ALLOWED = error(2, "not found"), error(2, "method not allowed")
NO_PATH = error(2, "bad request target")


# Every way in


def spellings(path: str) -> set[str]:
    """The path as it is, and in spellings that try to bypass the check."""
    first, _, rest = path[1:].partition("/")
    return {
        path,
        f"{path}/",
        f"/{path}",
        f"//{path}",
        f"/.{path}",
        f"/..{path}",
        f"{path}/.",
        f"{path}/..",
        f"/health/..{path}",
        f"/static/..{path}",
        f"/static/.{path}",
        f"/static{path}",
        f"/static/{path}",
        f"/static/v-0/../..{path}",
        f"/static/%2e%2e{path}",
        f"/static/..;{path}",
        f"/static/..\\{path[1:]}",
        f"/static%2f..{path}",
        f"/static{path.replace('/', '%2f')}",
        f"/staticx/..{path}",
        f"//static/..{path}",
        f"/health{path}",
        f"/health/../..{path}",
        f"{path}/../health",
        f"{path}//health",
        f"{path};/health",
        f"{path}?/health",
        f"{path}#/health",
        f"{path}\x00",
        f"{path} ",
        f" {path}",
        path[1:],
        path.upper(),
        path.title(),
        f"/{first}//{rest}",
        f"/{first}/./{rest}",
        f"/x/../{first}/{rest}",
        path.replace("/", "\\"),
        path.replace("/", "%2f"),
        "".join(f"%{ord(letter):02x}" for letter in path),
        f"http://gateway{path}",
        f"{path}%2e%2e",
    }


def everywhere() -> list[str]:
    """Every path the application serves, the framework's own included."""
    routes = create_app(config_for("nats://127.0.0.1:1")).routes
    paths = {route.path for route in routes if isinstance(route, Route)} | {each.path for each in OPERATIONS}
    return sorted(re.sub(r"\{.*?\}", str(uuid.UUID(int=0)), path) for path in paths)


METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT", "NONSENSE", "get", "")


def under_v1(method: str, path: str) -> set[tuple[int, str]]:
    """PRICED-81, PRICED-170: a signed address needs no key; everything else does."""
    if not path.startswith("/v1/results/"):
        return {(401, "AUTH_INVALID")}
    if method not in {"GET", "HEAD"}:
        return {(405, "VALIDATION_FAILED")}
    return {(404, "RUN_NOT_FOUND"), (503, "DEPENDENCY_UNAVAILABLE")}  # 503: this gateway has no ledger


def below_files(method: str) -> tuple[int, Any]:
    """The answer to whatever is no file: what was not even asked for needs no key."""
    return (404, NOT_FOUND) if method in {"GET", "HEAD"} else (405, NOT_ALLOWED)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def closed(module_nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """One for all tests without an accepted key."""
    link = await open_link(module_nats_url, "tests")
    async with fresh_gateway(
        link, module_nats_url, tmp_path_factory.mktemp("data"), http_auth_mode="api_key"
    ) as gateway:
        yield gateway
    await link.close()


@pytest.mark.asyncio(loop_scope="module")
class TestEveryWayIn:
    @pytest.fixture
    def gateway(self, closed: Gateway) -> Gateway:
        return closed

    @pytest.mark.parametrize("methods_each", [5, len(METHODS)], ids=["some methods", "every method"])
    async def test_asks_for_a_key_however_it_is_written(self, gateway: Gateway, methods_each: int) -> None:
        """FLOW-45, FLOW-46, FLOW-262: closed unless it is, letter by letter, a path that is listed as open. Each
        spelling of each path, with some of the methods in turn or with all of them"""
        turn = cycle(METHODS)
        for path in [*everywhere(), "/", "/nothing", "/static/app.js", "/dashboard", "/metrics"]:
            for spelling in sorted(spellings(path)):
                for read in sorted({spelling, unquote(spelling)} - OPEN):
                    for method in islice(turn, methods_each):
                        status, body = await ask(gateway, method, read, raw_path=spelling.encode())
                        wanted = below_files(method) if read.startswith(FILES) else (401, MISSING)
                        if not (read.startswith("/") and spelling.startswith("/")):
                            wanted = 400, NO_PATH
                        elif is_of_payers(read):
                            told = status, json.loads(body)["reason_code"]
                            assert told in under_v1(method, read), (method, spelling)
                            continue
                        assert (status, json.loads(body)) == wanted, (method, spelling)

    async def test_that_is_open_has_nothing_behind_it(self, gateway: Gateway) -> None:
        """FLOW-45: any method but a look is not allowed, rather than passed on"""
        for path in sorted(OPEN):
            for method in METHODS:
                status, _ = await ask(gateway, method, path)
                assert status in ({200, 503} if method in {"GET", "HEAD"} else {405}), (
                    method,
                    path,
                )  # 503: not ready yet

    async def test_under_another_root_is_closed_too(self, gateway: Gateway) -> None:
        """FLOW-45: mounting the application elsewhere opens no path"""
        for root in ("/api", "/health", "/runs"):
            for path in ("/runs", f"{root}/runs", f"{root}/workers", f"{root}/docs", f"{root}/openapi.json"):
                status, _ = await ask(gateway, "GET", path, root_path=root)
                assert status == 401, (root, path)

    async def test_is_closed_on_a_real_socket(self, gateway: Gateway) -> None:
        """FLOW-45: as bytes on the wire"""
        targets = [
            b"/runs",
            b"//runs",
            b"/./runs",
            b"/health/../runs",
            b"/%72uns",
            b"/runs/",
            b"/workers?x=/health",
        ]
        targets += [b"/static", b"/Static/main.js", b"//static/main.js", b"/static;/main.js", b"/x/../static/main.js"]
        targets += [
            b"*",
            b"http://gateway/runs",
            b"/health%2f..%2fruns",
            b"/health%00",
            b"/health;x",
            b"/Health",
            b"/ready/",
        ]
        async with listening(gateway.app) as port:
            for target in targets:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                method = b"OPTIONS" if target == b"*" else b"GET"
                writer.write(b"%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % (method, target))
                async with asyncio.timeout(120):
                    answer = await reader.read()
                writer.close()
                status = b"400" if target == b"*" else b"401"
                assert answer.startswith(b"HTTP/1.1 %s " % status), (target, answer)

    async def test_below_the_dashboards_files_leads_to_files_alone(self, gateway: Gateway) -> None:
        """FLOW-45, FLOW-258: open for anybody, and no way from there to anything else, as bytes on the wire"""
        ways = [b"/static/../%s", b"/static/%%2e%%2e/%s", b"/static/%%2e%%2e%%2f%s", b"/static%%2f..%%2f%s"]
        ways += [b"/static//%s", b"/static/./%s", b"/static/%s", b"/static/%%00/../%s", b"http://gateway/static/../%s"]
        async with listening(gateway.app) as port:
            for way in ways:
                for rest in (b"runs", b"workers", b"openapi.json", b"docs", b"runs%3Flimit=1"):
                    for method, status in ((b"GET", b"404"), (b"POST", b"405"), (b"DELETE", b"405")):
                        reader, writer = await asyncio.open_connection("127.0.0.1", port)
                        target = way % rest
                        writer.write(b"%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % (method, target))
                        async with asyncio.timeout(120):
                            answer = await reader.read()
                        writer.close()
                        assert answer.startswith(b"HTTP/1.1 %s " % status), (method, target, answer)


class TestAKey:
    async def test_in_the_address_opens_nothing(self, gateway: Gateway) -> None:
        """FLOW-258, FLOW-261: addresses end up in logs and histories"""
        headers, _ = await a_key(gateway)
        plain = headers["X-API-Key"]
        for name in ["X-API-Key", "x-api-key", "api_key", "key", "token", "access_token", "bearer"]:
            answer = await gateway.client.get("/runs", params={name: plain})
            assert (answer.status_code, answer.json()) == (401, MISSING), name
            answer = await gateway.client.get(f"/{plain}/runs")
            assert answer.status_code == 401, name

    async def test_in_a_cookie_or_as_a_password_opens_nothing(self, gateway: Gateway) -> None:
        """FLOW-261"""
        plain = (await a_key(gateway))[0]["X-API-Key"]
        for headers in (
            {"Cookie": f"X-API-Key={plain}"},
            {"Authorization": plain},
            {"Authorization": f"Token {plain}"},
        ):
            assert (await gateway.client.get("/runs", headers=headers)).status_code == 401
        assert (await gateway.client.get("/runs", auth=("pyoco", plain))).status_code == 401

    async def test_in_the_header_of_the_settings_counts_before_a_bearer(self, gateway: Gateway) -> None:
        """FLOW-261; DESIGN 9.7: right or wrong, in whichever order they come"""
        good = (await a_key(gateway))[0]["X-API-Key"].encode()
        bad = BAD["X-API-Key"].encode()
        for mine, bearer, status in ((good, bad, 200), (bad, good, 403), (good, good, 200), (b"", good, 200)):
            both = [(b"X-API-Key", mine), (b"Authorization", b"Bearer " + bearer)]
            for headers in (both, both[::-1]):
                assert (await gateway.client.get("/runs", headers=headers)).status_code == status

    async def test_sent_twice_counts_where_it_comes_first(self, gateway: Gateway) -> None:
        good, bad = (await a_key(gateway))[0]["X-API-Key"].encode(), BAD["X-API-Key"].encode()
        for name, form in ((b"X-API-Key", b"%s"), (b"Authorization", b"Bearer %s")):
            for values, status in (((good, bad), 200), ((bad, good), 403), ((b"", good), 200)):
                headers = [(name, form % value) for value in values]
                assert (await gateway.client.get("/runs", headers=headers)).status_code == status, values

    async def test_may_be_configured_to_come_as_authorization(self, link: Link, nats_url: str, tmp_path: Path) -> None:
        """FLOW-261: also as the clients and the dashboard send it, which know the name of the header alone"""
        named = {"http_auth_mode": "api_key", "http_api_key_header": "Authorization"}
        async with fresh_gateway(link, nats_url, tmp_path, **named) as gateway:
            plain = (await a_key(gateway))[0]["X-API-Key"]
            sent = key_headers(plain, "Authorization")["Authorization"]
            tried = (f"Bearer {plain}", sent, BAD["X-API-Key"], "Bearer", "")
            statuses = [
                (await gateway.client.get("/runs", headers={"Authorization": each})).status_code for each in tried
            ]
            assert statuses == [200, 200, 403, 401, 401]

    async def test_that_has_expired_is_refused_like_any_other_bad_one(self, gateway: Gateway) -> None:
        """FLOW-52, FLOW-263: the answer does not tell which"""
        expired, _ = await a_key(gateway, expires_at=time.time() - 1)
        revoked, _ = await a_key(gateway, revoked_at=1.0)
        lasting, _ = await a_key(gateway, expires_at=time.time() + 3600)
        answers = [await gateway.client.get("/runs", headers=headers) for headers in (expired, revoked, BAD)]
        assert {(answer.status_code, answer.content, tuple(answer.headers.items())) for answer in answers} == {
            (403, answers[0].content, tuple(answers[0].headers.items()))
        }
        assert answers[0].json() == REFUSED
        assert (await gateway.client.get("/runs", headers=lasting)).status_code == 200

    async def test_stops_at_the_moment_it_expires(self, gateway: Gateway) -> None:
        """FLOW-265"""
        headers, record = await a_key(gateway, expires_at=2_000_000_000.0)
        state = gateway.app.state.gateway
        for now, status in ((1_999_999_999.9, 200), (2_000_000_000.0, 403)):
            state.backend = replace(state.backend, clock=lambda now=now: now)
            assert (await gateway.client.get("/workers", headers=headers)).status_code == status
        assert record.revoked_at is None

    async def test_whose_record_cannot_be_read_opens_nothing(
        self, gateway: Gateway, link: Link, tmp_path: Path
    ) -> None:
        """FLOW-263"""
        headers, record = await a_key(gateway)
        odd = {
            "key_id": record.key_id,
            "tenant_id": "a",
            "key_hash": record.key_hash,
            "created_at": 1,
            "expires_at": "x",
        }
        await link.store(f"$KV.{gateway.config.auth_kv_bucket}.{record.key_id}", json.dumps(odd).encode())
        async with open_gateway(replace(gateway.config, data_dir=str(tmp_path / "other"))) as other:
            for following in (True, False):
                if not following:
                    await other.backend.keys.stop()
                answer = await other.client.get("/workers", headers=headers)
                assert (answer.status_code, answer.json()) == (403, REFUSED)

    async def test_that_is_used_says_so_after_a_while(self, gateway: Gateway) -> None:
        headers, record = await a_key(gateway)
        before = time.time()
        for _ in range(5):
            assert (await gateway.client.get("/workers", headers=headers)).status_code == 200
        await gateway.client.get("/workers", headers=BAD)
        found = await gateway.backend.keys.find(record.key_id)
        assert found == record  # nothing is written on the way of a request
        gateway.app.state.gateway.key_uses.nudge()

        async def is_written() -> bool:
            found = await gateway.backend.keys.find(record.key_id)
            return found is not None and before <= (found.last_used_at or 0) <= time.time()

        await eventually(is_written)
        assert [each.key_id for each in await gateway.backend.keys.all()] == [record.key_id]

    async def test_that_was_used_says_so_when_the_gateway_stops(
        self, gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(key_uses, "_LAST_SECONDS", 60.0)  # a busy machine needs longer
        headers, record = await a_key(gateway)

        async def is_written(since: float) -> bool:
            found = await gateway.backend.keys.find(record.key_id)
            return found is not None and (found.last_used_at or 0) >= since

        async with open_gateway(replace(gateway.config, data_dir=str(tmp_path / "other"))) as other:
            assert (await other.client.get("/workers", headers=headers)).status_code == 200
            other.app.state.gateway.key_uses.nudge()
            await eventually(lambda: is_written(0.1))
            again = time.time()
            assert (await other.client.get("/workers", headers=headers)).status_code == 200
        await eventually(lambda: is_written(again))


async def test_without_authentication_no_uses_are_collected(link: Link, nats_url: str, tmp_path: Path) -> None:
    """FLOW-266: but for those under `/v1`, which asks for keys all the same"""
    async with fresh_gateway(link, nats_url, tmp_path) as gateway:
        for _ in range(20):
            assert (await gateway.client.get("/workers", headers=BAD)).status_code == 200
        assert gateway.app.state.gateway.key_uses._uses == {}
        assert gateway.app.state.gateway.slowdown._addresses == {}
