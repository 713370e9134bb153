"""Priced runs in the routes that every run has: lists, one run, watch, metrics; and what they refuse."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from doors.test_openapi import DOCUMENT, faults
from pyoco_server.actions.priced.project import show_row
from pyoco_server.core.api_key import make_key
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.doors.cli.client.why import explain
from pyoco_server.doors.http.shown import shown_run
from pyoco_server.doors.http.state import State
from pyoco_server.ports.nats.link import Link
from support.gateways import Gateway, fresh_gateway, stored, submit
from support.priced.shown_packs import a_pack, a_row, completed, disputed, expired, failed, started
from support.waiting import eventually

SCHEMAS = DOCUMENT["components"]["schemas"]


async def a_key(gateway: Gateway, tenant_id: str = "acme") -> dict[str, str]:
    """The headers of a caller of this tenant."""
    plain, record = make_key(tenant_id, "", time.time(), secrets.token_hex, secrets.token_urlsafe)
    assert await gateway.backend.keys.add(record)
    return {"X-API-Key": plain}


@pytest.fixture
async def acme(gateway: Gateway) -> dict[str, str]:
    return await a_key(gateway)


@pytest.fixture
async def gateway(link: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with fresh_gateway(link, nats_url, tmp_path) as gateway:
        state: State = gateway.app.state.gateway
        assert await state.feeder.caught_up(60)
        yield gateway


def young(row: PricedRun) -> PricedRun:
    now_us = int(time.time() * 1_000_000)
    return replace(row, created_at=now_us, updated_at=now_us)


async def show(gateway: Gateway, row: PricedRun) -> PricedRun:
    """As every process does after a commit; returns once lists contain it."""
    assert await show_row(gateway.backend.runs, row)
    revision = await gateway.backend.runs.newest()
    await eventually(lambda: gateway.backend.index.applied(revision, 1))
    return row


async def lines(gateway: Gateway, headers: dict[str, str] | None = None, **query: Any) -> list[dict[str, Any]]:
    answer = await gateway.client.get("/runs", params=query, headers=headers)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()
    for line in found:
        assert faults(line, {"$ref": "#/components/schemas/RunSummary"}) == []
    return found


async def test_a_line_says_what_a_pack_is_and_costs(gateway: Gateway, acme: dict[str, str]) -> None:
    row = await show(gateway, failed(started(young(a_row()))))
    await submit(gateway, acme)
    [line] = await lines(gateway, acme, kind="pack")
    assert line["run_id"] == row.run_id
    assert {name: line[name] for name in ("kind", "status", "flow_name", "priced_status", "money_state")} == {
        "kind": "pack",
        "status": "FAILED",
        "flow_name": "decision",
        "priced_status": "FAILED",
        "money_state": "REFUNDED",
    }
    assert (line["pack_type"], line["reason_code"]) == ("decision", "QUEUE_ENQUEUE_FAILED")
    assert line["cost"]["reserved_usd_micros"] == 1_234_500
    [flow] = await lines(gateway, acme, kind="flow")
    assert not flow.keys() & {"pack", "pack_type", "cost", "money_state", "priced_status", "reason_code"}


async def test_a_list_follows_a_pack_and_ends_with_it(gateway: Gateway, acme: dict[str, str]) -> None:
    row = await show(gateway, young(a_row()))
    begun = time.time() - 5
    for each, status in ((started(row), "RUNNING"), (completed(started(row)), "COMPLETED")):
        await show(gateway, each)
        assert [line["status"] for line in await lines(gateway, acme, kind="pack")] == [status]
    answer = await gateway.client.get("/runs", params={"kind": "pack", "updated_after": begun}, headers=acme)
    assert [line["run_id"] for line in answer.json()["items"]] == [row.run_id]
    await show(gateway, expired(completed(started(row))))
    assert await lines(gateway, acme, kind="pack") == []
    assert (await gateway.client.get(f"/runs/{row.run_id}", headers=acme)).status_code == 404


async def test_pages_of_packs_go_on_where_they_stopped(gateway: Gateway) -> None:
    rows = [await show(gateway, young(a_row())) for _ in range(5)]
    seen: list[str] = []
    query: dict[str, Any] = {"kind": "pack", "limit": 2, "envelope": "true"}
    while True:
        body = (await gateway.client.get("/runs", params=query)).json()
        seen += [line["run_id"] for line in body["items"]]
        if body["next_cursor"] is None:
            break
        query["cursor"] = body["next_cursor"]
    assert seen == [row.run_id for row in reversed(rows)]


async def test_one_pack_is_shown_whole_and_says_why_it_waits(gateway: Gateway, acme: dict[str, str]) -> None:
    row = await show(gateway, young(a_row()))
    body = (await gateway.client.get(f"/runs/{row.run_id}", headers=acme)).json()
    assert faults(body, {"$ref": "#/components/schemas/RunSnapshot"}) == []
    assert (body["money_state"], body["timebox_sec"], body["trace_id"]) == ("RESERVED", 90, row.trace_id)
    assert body["waiting"]["reason"] == "no_worker"
    assert body["last_change"]["what"] == "submitted"
    await show(gateway, started(row))
    body = (await gateway.client.get(f"/runs/{row.run_id}", headers=acme)).json()
    assert "waiting" not in body
    assert body["last_change"]["what"] == "started"
    whole_list = {"kind": "pack", "include": "full"}
    [whole] = (await gateway.client.get("/runs", params=whole_list, headers=acme)).json()
    assert whole["ledger_version"] == 2


async def test_a_watch_shows_each_change(gateway: Gateway, acme: dict[str, str]) -> None:
    row = await show(gateway, young(a_row()))
    watching = asyncio.create_task(
        gateway.client.get(f"/runs/{row.run_id}/watch", params={"timeout_sec": 30}, headers=acme)
    )
    hub = gateway.app.state.gateway.hub
    await eventually(lambda: hub.count == 1)
    await show_row(gateway.backend.runs, completed(started(row)))
    data = [text for text in (await watching).text.splitlines() if text.startswith("data: ")]
    snapshots = [json.loads(text.removeprefix("data: "))["snapshot"] for text in data]
    assert snapshots[-1]["money_state"] == "SETTLED"
    assert snapshots[-1]["cost"]["used_usd_micros"] == 700_050


async def test_a_pack_cannot_be_cancelled_or_run_again(gateway: Gateway, acme: dict[str, str]) -> None:
    row = await show(gateway, young(a_row()))
    before = await stored(gateway, row.run_id)
    for verb, words in (("cancel", "cannot be cancelled"), ("rerun", "cannot be run again")):
        answer = await gateway.client.post(f"/runs/{row.run_id}/{verb}", json={}, headers=acme)
        assert answer.status_code == 409
        body = answer.json()
        assert (body["err_id"], body["detail"]) == ("ERR-PYOCO-0042", "not for runs of this kind")
        [problem] = body["errors"]
        assert words in problem["msg"]
    assert await stored(gateway, row.run_id) == before


async def test_many_are_stopped_without_their_packs(gateway: Gateway, acme: dict[str, str]) -> None:
    row = await show(gateway, young(a_row()))
    flow = await submit(gateway, acme)
    answer = await gateway.client.post("/runs/cancel", json={"all": True}, headers=acme)
    assert {name: answer.json()[name] for name in ("matched", "asked", "failed")} == {
        "matched": 1,
        "asked": 1,
        "failed": 0,
    }
    answer = await gateway.client.post("/runs/cancel", json={"run_ids": [row.run_id, flow]}, headers=acme)
    assert {name: answer.json()[name] for name in ("failed", "already_cancelling")} == {
        "failed": 1,
        "already_cancelling": 1,
    }
    assert (await stored(gateway, row.run_id)).run.status == "PENDING"


async def test_queues_and_attention_know_no_tag_of_packs(gateway: Gateway) -> None:
    row = a_row()
    await show(gateway, row)  # of 2023: it has waited for years
    await show(gateway, started(a_row()))
    assert (await gateway.client.get("/queues")).json()["items"] == []
    items = (await gateway.client.get("/attention")).json()["items"]
    assert [item["kind"] for item in items] == ["packs_without_worker"]
    assert items[0]["facts"] == {"depth": 1, "oldest_at": row.created_at / 1_000_000}


async def test_metrics_tell_packs_by_status_and_money(gateway: Gateway) -> None:
    await show(gateway, young(a_row()))
    await show(gateway, completed(started(young(a_row()))))
    text = (await gateway.client.get("/metrics")).text
    assert 'pyoco_priced_runs{money_state="RESERVED",status="PENDING"} 1.0' in text
    assert 'pyoco_priced_runs{money_state="SETTLED",status="COMPLETED"} 1.0' in text
    assert 'pyoco_runs_total{status="PENDING"} 1.0' in text
    assert "pyoco_queue_depth{" not in text


async def test_a_tenant_sees_its_own_packs_alone(link: Link, nats_url: str, tmp_path: Path) -> None:
    async with fresh_gateway(link, nats_url, tmp_path, http_auth_mode="api_key") as gateway:
        keys = {tenant_id: await a_key(gateway, tenant_id) for tenant_id in ("acme", "other")}
        row = await show(gateway, young(a_row()))

        async def is_let_in() -> bool:
            return (await gateway.client.get("/runs", headers=keys["other"])).status_code == 200

        await eventually(is_let_in)
        assert [line["run_id"] for line in await lines(gateway, keys["acme"], kind="pack")] == [row.run_id]
        assert await lines(gateway, keys["other"], kind="pack") == []
        assert (await gateway.client.get(f"/runs/{row.run_id}", headers=keys["other"])).status_code == 404
        cancel = await gateway.client.post(f"/runs/{row.run_id}/cancel", headers=keys["other"], json={})
        assert cancel.status_code == 404


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (a_row(), "It waits."),
        (started(a_row()), "A worker executes it."),
        (disputed(started(a_row())), "Its money is disputed: it waits for an operator."),
        (completed(started(a_row())), "It is done."),
        (failed(started(a_row())), "It failed: QUEUE_ENQUEUE_FAILED"),
    ],
)
def test_the_command_why_knows_that_a_pack_has_no_tasks_and_is_not_run_again(row: PricedRun, words: str) -> None:
    first, money, *rest = explain(shown_run(a_pack(row)), time.time())
    assert first == words
    assert money.endswith(" USD charged, 1.2345 USD at most.")
    assert not [sentence for sentence in rest if "rerun" in sentence or "dlq" in sentence or "task" in sentence]
