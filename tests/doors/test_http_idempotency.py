"""`Idempotency-Key` over HTTP: one key, one run, at every gateway (DESIGN 9.4)."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyoco_server.core.api_key import make_key
from pyoco_server.ports.nats.link import Link, Patience
from pyoco_server.wiring import backend as wiring
from support.backends import jobs_left, messages_of
from support.doors_support import check_refusal
from support.faults import FaultyLink
from support.gateways import FLOW_YAML, Gateway, error, fresh_gateway, ids, open_gateway, stock_of, submit_yaml

KEY = "Idempotency-Key"
REPLAYED = "idempotency-replayed"
REUSED = error(26, "idempotency key reused")


async def send(gateway: Gateway, key: str, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    content = {"flow_name": "hello"} | body
    return await gateway.client.post("/runs", json=content, headers={KEY: key} | (headers or {}))


async def send_yaml(gateway: Gateway, key: str, text: str = FLOW_YAML, flow_name: str = "main") -> httpx.Response:
    files = {"workflow": ("flow.yaml", text.encode(), "application/yaml")}
    return await gateway.client.post("/runs/yaml", files=files, data={"flow_name": flow_name}, headers={KEY: key})


class TestKey:
    async def test_a_repeat_is_answered_with_the_first_answer(self, gateway: Gateway, link: Link) -> None:
        first = await send(gateway, "k", params={"a": 1, "b": 2})
        assert first.status_code == 200
        assert REPLAYED not in first.headers
        for body in ({"params": {"b": 2, "a": 1}}, {"params": {"a": 1, "b": 2}, "tag": "default", "tags": ["default"]}):
            again = await send(gateway, "k", **body)
            assert (again.status_code, again.content) == (200, first.content)
            assert again.headers[REPLAYED] == "true"
        assert await ids(gateway) == [first.json()["run_id"]]
        assert len(await jobs_left(link, gateway.config)) == 1

    async def test_another_submission_under_the_key_is_409(self, gateway: Gateway, link: Link) -> None:
        """FLOW-50"""
        first = await send(gateway, "k")
        before = await stock_of(gateway.config, link)
        for other in ({"params": {"x": 1}}, {"tag": "gpu"}, {"flow_name": "bye"}):
            answer = await send(gateway, "k", **other)
            assert (answer.status_code, answer.json()) == (409, REUSED)
        assert (await send_yaml(gateway, "k")).status_code == 409
        after = await stock_of(gateway.config, link)
        files = f"OBJ_{gateway.config.workflow_object_store_bucket}"
        assert after | {files: 0} == before | {files: 0}
        assert (await send(gateway, "k")).content == first.content

    async def test_an_upload_counts_once_too(self, gateway: Gateway, link: Link) -> None:
        """FLOW-82"""
        first = await send_yaml(gateway, "k")
        again = await send_yaml(gateway, "k")
        assert (again.content, again.headers[REPLAYED]) == (first.content, "true")
        for other in (await send_yaml(gateway, "k", FLOW_YAML + "\n"), await send_yaml(gateway, "k", flow_name="x")):
            assert (other.status_code, other.json()) == (409, REUSED)
        [job] = await jobs_left(link, gateway.config)
        assert job["body"]["workflow_yaml"] == FLOW_YAML

    async def test_many_at_once_on_two_gateways_get_one_run(self, gateway: Gateway, link: Link, tmp_path: Path) -> None:
        settings = {name: getattr(gateway.config, name) for name in gateway.config.__dataclass_fields__}
        config = type(gateway.config)(**settings | {"data_dir": str(tmp_path / "other")})
        async with open_gateway(config) as other:
            answers = await asyncio.gather(*(send(each, "k") for each in [gateway, other] * 10))
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.content for answer in answers}) == 1
        assert len([answer for answer in answers if REPLAYED not in answer.headers]) == 1
        assert len({job["body"]["run_id"] for job in await jobs_left(link, gateway.config)}) == 1

    async def test_a_refused_submission_uses_no_key_up(self, gateway: Gateway) -> None:
        """FLOW-70"""
        assert (await send(gateway, "k", tag="a b")).status_code == 422
        assert (await send(gateway, "k", params={"x": "x" * 300_000})).status_code == 422
        assert (await send(gateway, "k")).status_code == 200

    async def test_the_key_is_stored_nowhere_and_logged_nowhere(
        self, gateway: Gateway, link: Link, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Only a digest: what users call their submissions may tell a lot about them."""
        with caplog.at_level(logging.DEBUG):
            await send(gateway, "order-4711")
            await send(gateway, "order-4711", tag="gpu")
        stored = [
            json.dumps(message)
            for stream in await stock_of(gateway.config, link)
            for message in await messages_of(link, stream)
        ]
        assert len(stored) == 3
        assert "order-4711" not in "".join(stored)
        assert "order-4711" not in "".join(str(vars(record)) for record in caplog.records)


class TestForm:
    async def test_visible_characters_make_a_key(self, gateway: Gateway) -> None:
        for key in ["x", "!", "~", '"quoted"', "a" * 255, "order/4711?x=1#y", "  padded\t"]:
            assert (await send(gateway, key)).status_code == 200, key
            assert (await send(gateway, key.strip())).headers[REPLAYED] == "true", key

    async def test_anything_else_is_422_before_the_body_is_read(self, gateway: Gateway, link: Link) -> None:
        """FLOW-50"""
        before = await stock_of(gateway.config, link)
        for key in [b"", b" ", b"a" * 256, b"a b", b"a\tb", b"\xc3\xa9", b"\x7f", b"\x00", b"\xff"]:
            for path in ["/runs", "/runs/yaml", "/runs/batch", "/runs/x/rerun"]:
                answer = await gateway.client.post(path, content=b"{", headers=[(KEY.encode(), key)])
                assert answer.status_code == 422, (key, path)
                [problem] = check_refusal(answer)
                assert problem["loc"] == ["header", "Idempotency-Key"], (key, path)
                assert await stock_of(gateway.config, link) == before, (key, path)

    async def test_two_keys_are_none(self, gateway: Gateway) -> None:
        for keys in (["a", "b"], ["a", "a"]):
            headers = [(KEY, key) for key in keys]
            [problem] = check_refusal(await gateway.client.post("/runs", json={"flow_name": "f"}, headers=headers))
            assert (problem["loc"], problem["type"]) == (["header", "Idempotency-Key"], "repeated")

    async def test_without_a_key_nothing_changes(self, gateway: Gateway, link: Link) -> None:
        """FLOW-78"""
        answers = [await gateway.client.post("/runs", json={"flow_name": "hello"}) for _ in range(2)]
        assert len({answer.json()["run_id"] for answer in answers}) == 2
        assert not any(REPLAYED in answer.headers for answer in answers)
        assert (await stock_of(gateway.config, link))[f"KV_{gateway.config.receipts_kv_bucket}"] == 0


class TestTenants:
    @pytest.fixture
    async def gateway(self, link: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
        async with fresh_gateway(link, nats_url, tmp_path, http_auth_mode="api_key", auth_pepper="pepper") as gateway:
            yield gateway

    @staticmethod
    async def _caller(gateway: Gateway, tenant: str) -> dict[str, str]:
        pepper = gateway.config.auth_pepper
        plain, record = make_key(tenant, pepper, time.time(), secrets.token_hex, secrets.token_urlsafe)
        assert await gateway.backend.keys.add(record)
        return {"X-API-Key": plain}

    async def test_tenants_neither_see_nor_meet_each_others_keys(self, gateway: Gateway) -> None:
        """FLOW-273: another tenant's key is neither replayed nor refused."""
        anna, bert, ben = [await self._caller(gateway, tenant) for tenant in ("team-a", "team-b", "team-b")]
        first = await send(gateway, "k", anna)
        theirs = await send(gateway, "k", bert)
        other = await send(gateway, "k2", bert, params={"x": 1})
        assert {answer.status_code for answer in (first, theirs, other)} == {200}
        assert not any(REPLAYED in answer.headers for answer in (first, theirs, other))
        assert first.json()["run_id"] != theirs.json()["run_id"]
        assert (await send(gateway, "k2", anna)).status_code == 200  # no 409: it is another key
        # Of one tenant, any key to the door will do.
        assert (await send(gateway, "k", ben)).content == theirs.content
        assert (await send(gateway, "k2", ben)).json() == REUSED

    async def test_a_batch_and_a_rerun_keep_to_their_tenant(self, gateway: Gateway) -> None:
        anna, bert = [await self._caller(gateway, tenant) for tenant in ("team-a", "team-b")]
        batch = {"runs": [{"flow_name": "f"}, {"flow_name": "f", "idempotency_key": "mine"}]}
        answers = [
            (await gateway.client.post("/runs/batch", json=batch, headers={KEY: "k"} | who)).json()
            for who in (anna, bert)
        ]
        assert [answer["accepted"] for answer in answers] == [2, 2]
        run_ids = [item["run_id"] for answer in answers for item in answer["items"]]
        assert len(set(run_ids)) == 4
        for who, run_id, status in ((anna, run_ids[0], 200), (bert, run_ids[2], 200), (bert, run_ids[0], 404)):
            answer = await gateway.client.post(f"/runs/{run_id}/rerun", headers={KEY: "again"} | who)
            assert answer.status_code == status, answer.text


class TestOutage:
    @pytest.fixture
    async def faulty(self, monkeypatch: pytest.MonkeyPatch) -> list[FaultyLink]:
        links: list[FaultyLink] = []

        async def open_link(url: str, name: str, _: Patience) -> Link:
            links.append(FaultyLink(Patience(unanswered_seconds=0.0)))
            await links[-1].open(url, name, 5.0)
            return links[-1]

        monkeypatch.setattr(wiring, "open_link", open_link)
        return links

    async def test_503_is_answered_by_sending_it_again(
        self, faulty: list[FaultyLink], gateway: Gateway, link: Link
    ) -> None:
        """FLOW-47, FLOW-62, FLOW-73: whatever was stored, the repeat leads to one run."""
        cases: list[list[str]] = [
            *(["unheard"], ["before"], ["after"]),  # the receipt
            *(["", "unheard"], ["", "before"], ["", "after"]),  # the record
            *(["", "", "unheard"], ["", "", "after"], ["", "", "unheard", "unheard"], ["", "", "after", "before"]),
        ]
        accepted: list[str] = []
        for number, faults in enumerate(cases):
            key = f"k{number}"
            faulty[0].faults.extend(faults)
            answer = await send(gateway, key)
            assert (answer.status_code, answer.json()) == (503, error(3, "nats unavailable")), faults
            assert answer.headers["retry-after"] == "1", faults
            again = await send(gateway, key)
            assert again.status_code == 200, faults
            assert (await send(gateway, key)).content == again.content, faults
            assert not faulty[0].faults, faults
            accepted.append(again.json()["run_id"])
            assert sorted(await ids(gateway)) == sorted(accepted), faults


async def test_the_answer_to_a_submission_without_a_key_is_as_it_was(gateway: Gateway) -> None:
    """FLOW-69"""
    answer = await submit_yaml(gateway)
    assert answer.json() == {"run_id": answer.json()["run_id"], "status": "PENDING"}
