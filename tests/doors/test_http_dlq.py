"""`/dlq`: dead letters listed, counted and read over HTTP."""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from contracts.dead_letters import NOW, a_letter
from pyoco_server.core.api_key import make_key
from pyoco_server.core.outcome import DeadReason
from pyoco_server.core.run import Caller
from pyoco_server.ports.nats.link import Link
from support.burials import bury_letter, bury_letters, died
from support.dead_letters_http import NOT_FOUND, ask, get, ids
from support.doors_support import check_refusal
from support.gateways import Gateway, fresh_gateway


class TestList:
    async def test_an_empty_list(self, gateway: Gateway) -> None:
        assert (await gateway.client.get("/dlq")).content == b'{"items":[],"next_cursor":null,"next":null}'

    async def test_a_letter_shows_what_is_known_newest_first(self, gateway: Gateway) -> None:
        """FLOW-331 to FLOW-334"""
        old, run = await died(gateway.backend, Caller("t", "k"), flow_name="f", tag="gpu", tags=("x",))
        new = await bury_letter(gateway.backend, a_letter(reason=DeadReason.INVALID_JOB, error=None))
        items = (await get(gateway, "/dlq"))["items"]
        assert items[0] == {
            "id": str(new),
            "timestamp": NOW,
            "reason": "invalid_job",
            "error": None,
            "tag": "default",
        }
        assert items[1] == {
            "id": str(old),
            "timestamp": items[1]["timestamp"],
            "reason": "timeout",
            "error": "it broke",
            "tag": "gpu",
            "run_id": run.run_id,
            "flow_name": "f",
            "tags": ["x"],
            "worker_id": "anna",
            "num_delivered": 1,
            "tenant_id": "t",
            "api_key_id": "k",
        }
        assert abs(items[1]["timestamp"] - time.time()) < 60

    async def test_filters_choose_and_combine(self, gateway: Gateway) -> None:
        a, b, c, d = await bury_letters(
            gateway.backend,
            a_letter(flow_name="f", tag="gpu", tags=("x",), run_id="r1"),
            a_letter(flow_name="f", tag="cpu", tags=("gpu", "日本"), run_id="r1", reason="max_deliver"),
            a_letter(flow_name="g&h=1", tag="cpu", reason="moon phase"),
            a_letter(tag="cpu"),
        )
        table: dict[str, list[int]] = {
            "": [d, c, b, a],
            "?reason=timeout": [d, a],
            "?reason=moon%20phase": [c],
            "?reason=TIMEOUT": [],
            "?flow=f": [b, a],
            "?flow=g%26h%3D1": [c],
            "?flow=": [d],
            "?tag=gpu": [b, a],
            "?tag=%E6%97%A5%E6%9C%AC": [b],
            "?tag=default": [],
            "?run_id=r1": [b, a],
            "?run_id=": [],
            "?run_id=r1&reason=timeout": [a],
            "?tag=gpu&flow=f&reason=max_deliver&run_id=r1": [b],
            "?tag=gpu&limit=1": [b],
            "?tag=%27%20OR%201%3D1--": [],
        }
        for query, wanted in table.items():
            assert await ids(gateway, query) == wanted, query

    async def test_pages_go_through_all_of_them_once(self, gateway: Gateway) -> None:
        there = await bury_letters(gateway.backend, *[a_letter()] * 120)
        assert len(await ids(gateway)) == 50
        assert len(await ids(gateway, "?limit=200")) == 120
        seen: list[int] = []
        cursor = ""
        for _ in range(10):
            page = await get(gateway, f"/dlq?limit=17{cursor}")
            seen += [int(item["id"]) for item in page["items"]]
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
            # What comes and goes meanwhile changes nothing for those that stay.
            await bury_letter(gateway.backend, a_letter())
            await ask(gateway, "DELETE", f"/dlq/{seen[-1]}")
        assert seen == there[::-1]

    async def test_a_bad_query_is_refused(self, gateway: Gateway) -> None:
        """ERR-PYOCO-0017"""
        cases: list[tuple[str, str]] = [
            *((f"limit={limit}", "limit") for limit in ("0", "201", "-1", "x", "", "1.0", "1e2", "9" * 5000, "٣")),
            *((f"{name}={'x' * 513}", name) for name in ("reason", "flow", "tag", "run_id")),
            *((f"{name}=a&{name}=b", name) for name in ("reason", "flow", "tag", "run_id")),
            *(
                (f"cursor={cursor}", "cursor")
                for cursor in (
                    "",
                    "x",
                    "1",
                    "%00",
                    "日本",
                    "a" * 5000,
                    "====",
                    base64.urlsafe_b64encode(b"dlq1.0").decode().rstrip("="),
                    base64.urlsafe_b64encode(b"dlq1.01").decode().rstrip("="),
                    base64.urlsafe_b64encode(b"dlq1.-5").decode().rstrip("="),
                    base64.urlsafe_b64encode(b"dlq1.5 OR 1=1").decode().rstrip("="),
                    base64.urlsafe_b64encode(b"dlq1.99999999999999999999").decode().rstrip("="),
                    base64.urlsafe_b64encode(b"dlq2.5").decode().rstrip("="),
                    base64.urlsafe_b64encode(b"dlq1.55").decode(),  # its padding was never ours
                    "ZGxxMS41NT",
                    "ZGxxMS4yNg*",
                )
            ),
        ]
        for query, name in cases:
            answer = await gateway.client.get(f"/dlq?{query}")
            assert answer.status_code == 422, query[:80]
            problems = check_refusal(answer, 17)
            assert [problem["loc"] for problem in problems] == [["query", name]], query[:80]

    async def test_every_bad_value_is_told(self, gateway: Gateway) -> None:
        problems = check_refusal(await gateway.client.get(f"/dlq?limit=0&cursor=x&tag={'x' * 600}"), 17)
        assert {problem["loc"][1] for problem in problems} == {"limit", "cursor", "tag"}
        problems = check_refusal(await gateway.client.get("/dlq?limit=1&limit=2&reason=a&reason=b"), 17)
        assert [problem["loc"][1] for problem in problems] == ["reason", "limit"]

    async def test_counts_by_reason_and_flow(self, gateway: Gateway) -> None:
        assert await get(gateway, "/dlq/counts") == {"total": 0, "groups": []}
        letters = [
            *[a_letter(flow_name="f", timestamp=NOW + n) for n in range(3)],
            *[a_letter(reason="max_deliver", flow_name="f")] * 2,
            a_letter(reason="invalid_job"),
        ]
        there = await bury_letters(gateway.backend, *letters)
        groups: list[dict[str, Any]] = [
            {"reason": "timeout", "flow_name": "f", "count": 3, "newest_at": NOW + 2},
            {"reason": "max_deliver", "flow_name": "f", "count": 2, "newest_at": NOW},
            {"reason": "invalid_job", "flow_name": None, "count": 1, "newest_at": NOW},
        ]
        assert await get(gateway, "/dlq/counts") == {"total": 6, "groups": groups}
        await ask(gateway, "DELETE", f"/dlq/{there[2]}")
        await ask(gateway, "DELETE", f"/dlq/{there[5]}")
        groups = [groups[1], groups[0] | {"count": 2, "newest_at": NOW + 1}]
        assert await get(gateway, "/dlq/counts") == {"total": 4, "groups": groups}


class TestOne:
    async def test_shows_the_letter_and_what_its_run_is_now(self, gateway: Gateway) -> None:
        letter_id, run = await died(gateway.backend)
        [line] = (await get(gateway, "/dlq"))["items"]
        assert await get(gateway, f"/dlq/{letter_id}") == line | {"run_status": "FAILED", "redrivable": True}
        assert line["run_id"] == run.run_id

    async def test_without_a_run_says_that_it_cannot_be_redriven(self, gateway: Gateway) -> None:
        letter_id = await bury_letter(gateway.backend, a_letter())
        letter = await get(gateway, f"/dlq/{letter_id}")
        assert letter["redrivable"] is False
        assert "run_status" not in letter

    async def test_that_is_not_there_is_404(self, gateway: Gateway) -> None:
        await bury_letter(gateway.backend, a_letter())
        for letter_id in ["0", "2", "01", "-1", "x", "1.0", "9" * 19, "9" * 500, "%31%20", "٣", "1%00"]:
            for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/redrive")):
                answer = await ask(gateway, method, f"/dlq/{letter_id}{path}")
                assert (answer.status_code, answer.json()) == (404, NOT_FOUND), (method, letter_id)


class TestTenants:
    @pytest.fixture
    async def closed(self, link: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
        async with fresh_gateway(link, nats_url, tmp_path, http_auth_mode="api_key") as gateway:
            yield gateway

    async def a_key(self, gateway: Gateway, tenant: str) -> dict[str, str]:
        plain, record = make_key(tenant, "", time.time(), secrets.token_hex, secrets.token_urlsafe)
        assert await gateway.backend.keys.add(record)
        return {"X-API-Key": plain}

    async def test_each_has_its_own_and_nobody_has_what_is_nobodys(self, closed: Gateway) -> None:
        """FLOW-273 to FLOW-275"""
        anna, bert = await self.a_key(closed, "a"), await self.a_key(closed, "b")
        mine, run = await died(closed.backend, Caller("a", "k"))
        theirs, _ = await died(closed.backend, Caller("b", "k"))
        nobodys = await bury_letter(closed.backend, a_letter())
        assert await ids(closed, **anna) == [mine]
        assert await ids(closed, f"?run_id={run.run_id}", **bert) == []
        assert (await get(closed, "/dlq/counts", **bert))["total"] == 1
        for other in (theirs, nobodys):
            for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/redrive")):
                answer = await ask(closed, method, f"/dlq/{other}{path}", **anna)
                assert (answer.status_code, answer.json()) == (404, NOT_FOUND)
        assert (await ask(closed, "DELETE", "/dlq?all=true", **bert)).json()["deleted"] == 1
        redriven = (await ask(closed, "POST", "/dlq/redrive", {"all": True}, **anna)).json()
        assert (redriven["matched"], redriven["redriven"]) == (1, 1)
        [again] = (await closed.client.get("/runs?status=PENDING", headers=anna)).json()
        assert (await closed.client.get(f"/runs/{again['run_id']}", headers=anna)).json()["tenant_id"] == "a"
        assert await closed.backend.dead_letters.find(nobodys) is not None
        assert (await closed.client.get("/dlq")).status_code == 401
