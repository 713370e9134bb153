"""Which runs a tenant sees over HTTP (section 14 of the contract)."""

from __future__ import annotations

import base64
import json
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.core.run import Run
from pyoco_server.ports.nats.link import Link
from support.authenticated_gateways import a_key, gateway, key_id, link, submit
from support.gateways import Gateway, error, open_gateway
from support.waiting import eventually

__all__ = ["gateway", "link"]

UNKNOWN_RUN = error(5, "run not found")
pytestmark = pytest.mark.asyncio(loop_scope="module")


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
        """FLOW-272, STRICT-1"""
        headers = await a_key(gateway, "team-a")
        claim = {"flow_name": "hello", "tenant_id": "team-b"}
        assert (await gateway.client.post("/runs", json=claim, headers=headers)).status_code == 422
        run_id = await submit(gateway, headers, params={"tenant_id": "team-b"})
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
