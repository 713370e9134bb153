"""Priced runs and budgets over HTTP for callers without the tenant's key, in every authentication mode."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from doors.test_openapi import DOCUMENT, faults
from pyoco_server.actions.priced.project import show_row
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.doors.http.app import OPERATIONS
from pyoco_server.doors.http.operations import Operation
from pyoco_server.ports.nats.link import open_link
from support.gateways import submit
from support.priced.gateways import Payer, PricedDoor, fresh_priced_gateway
from support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: SAFE-5
PUBLIC = {"run_id", "kind", "status", "pack_type", "redacted"}
TIMES = {"submitted_at", "updated_at", "heartbeat_at", "start_time", "end_time"}

BELOW_A_RUN = [each for each in OPERATIONS if each.path.startswith("/runs/{run_id}")]
BELOW_BUDGETS = [each for each in OPERATIONS if each.path.startswith("/budgets/{tenant_id}")]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["none", "api_key"])
async def door(
    request: pytest.FixtureRequest, module_nats_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[PricedDoor]:
    link = await open_link(module_nats_url, "tests")
    folder = tmp_path_factory.mktemp(request.param)
    async with fresh_priced_gateway(link, module_nats_url, folder, http_auth_mode=request.param) as door:
        yield door
    await link.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def payer(door: PricedDoor) -> Payer:
    return await door.payer()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run_id(door: PricedDoor, payer: Payer) -> str:
    """A priced run that has ended, and whose end every list shows."""
    run_id = await door.submitted(payer)
    await listed(door, await door.completed(run_id, {"answer_text": "yes"}))
    return run_id


async def listed(door: PricedDoor, row: PricedRun) -> None:
    """Shown as every process does after a commit; returns once lists have it."""
    backend = door.gateway.backend
    assert await show_row(backend.runs, row)
    revision = await backend.runs.newest()
    await eventually(lambda: backend.index.applied(revision, 1))


def is_open(door: PricedDoor) -> bool:
    return door.gateway.config.http_auth_mode == "none"


async def strangers(door: PricedDoor) -> list[dict[str, str]]:
    """The headers of callers without the tenant's valid key."""
    another = (await door.payer()).headers
    return [another, {}, {"X-API-Key": "nonsense"}] if is_open(door) else [another]


async def answer_of(door: PricedDoor, each: Operation, headers: dict[str, str], **names: str) -> tuple[int, Any, Any]:
    path = each.path
    for name, value in ({"name": "result.json", "task": "a"} | names).items():
        path = path.replace(f"{{{name}}}", value)
    assert "{" not in path, f"give {path} values, and let it pass the owner guard"
    sent: dict[str, Any] = {"json": {}} if each.method in {"POST", "PUT", "PATCH"} else {}
    answer = await door.client.request(each.method, path, headers=headers, **sent)
    told = answer.json() if "json" in answer.headers.get("content-type", "").removesuffix("/x-ndjson") else answer.text
    return answer.status_code, told, sorted(answer.headers)


@pytest.mark.parametrize("each", BELOW_A_RUN, ids=lambda each: f"{each.method} {each.path}")
async def test_every_route_below_a_run_answers_strangers_as_for_an_unknown_run(
    door: PricedDoor, run_id: str, each: Operation
) -> None:
    """SAFE-5, LOG-6: a new route below /runs/{run_id} is among these, and has to pass."""
    for headers in await strangers(door):
        told = await answer_of(door, each, headers, run_id=run_id)
        assert told[0] == 404, told
        assert told == await answer_of(door, each, headers, run_id=str(uuid.uuid4()))


@pytest.mark.parametrize("each", BELOW_A_RUN, ids=lambda each: f"{each.method} {each.path}")
async def test_every_route_below_a_run_knows_the_run_of_the_key(
    door: PricedDoor, payer: Payer, run_id: str, each: Operation
) -> None:
    """SAFE-5, LOG-6: a valid key is honoured in mode `none`, too. Priced runs have no files or tasks."""
    status, _, _ = await answer_of(door, each, payer.headers, run_id=run_id)
    assert status == (
        404 if "/artifacts" in each.path or "/outputs" in each.path else 409 if each.method == "POST" else 200
    )


@pytest.mark.parametrize("each", BELOW_BUDGETS, ids=lambda each: each.path)
async def test_every_route_below_budgets_answers_strangers_as_for_an_unknown_tenant(
    door: PricedDoor, payer: Payer, each: Operation
) -> None:
    """SAFE-5"""
    for headers in await strangers(door):
        told = await answer_of(door, each, headers, tenant_id=payer.tenant_id)
        assert told[0] == 404, told
        assert told == await answer_of(door, each, headers, tenant_id="nobody")
    assert (await answer_of(door, each, payer.headers, tenant_id=payer.tenant_id))[0] == 200


async def test_no_route_of_runs_or_budgets_is_left_out() -> None:
    """SAFE-5: what is not below a run or a tenant, by name."""
    walked = {each.path for each in BELOW_A_RUN + BELOW_BUDGETS}
    rest = {each.path for each in OPERATIONS if each.path.startswith(("/runs", "/budgets"))} - walked
    assert rest == {"/runs", "/runs/table", "/runs/yaml", "/runs/batch", "/runs/cancel", "/budgets"}


async def lines(door: PricedDoor, headers: dict[str, str], **query: str) -> list[dict[str, Any]]:
    answer = await door.client.get("/runs", params=query, headers=headers)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()
    return found


@pytest.mark.parametrize("include", [{}, {"include": "full"}, {"include": "records"}], ids=str)
async def test_lists_show_priced_runs_redacted_to_callers_without_a_key(
    door: PricedDoor, payer: Payer, run_id: str, include: dict[str, str]
) -> None:
    """SAFE-5"""
    [whole] = await lines(door, payer.headers, kind="pack", **include)
    assert (whole["run_id"], whole["cost"]["used_usd"]) == (run_id, "0.0500")
    assert "redacted" not in whole
    assert await lines(door, (await door.payer()).headers, kind="pack", **include) == []
    if not is_open(door):
        assert (await door.client.get("/runs")).status_code == 401
        return
    for query in ({"kind": "pack"}, {"run_id": run_id[:8]}, {"flow": "decision"}):
        [line] = await lines(door, {}, **query, **include)
        assert {name: line[name] for name in PUBLIC} == {
            "run_id": run_id,
            "kind": "pack",
            "status": "COMPLETED",
            "pack_type": "decision",
            "redacted": True,
        }
        assert line.keys() <= PUBLIC | TIMES
        assert line["submitted_at"] == whole["submitted_at"]
        assert faults(line, DOCUMENT["components"]["schemas"]["RunSummary"]) == []
    text = (await door.client.get("/runs", params={"kind": "pack"} | include)).text
    assert payer.tenant_id not in text


async def test_a_search_finds_no_priced_run_by_what_its_list_hides(door: PricedDoor, payer: Payer, run_id: str) -> None:
    """SAFE-5, CLI-16"""
    assert [run["run_id"] for run in await lines(door, payer.headers, q="packs decision")] == [run_id]
    if is_open(door):
        [line] = await lines(door, {}, q=f"{run_id[:8]} decision")
        assert (line["run_id"], line["redacted"]) == (run_id, True)
        assert await lines(door, {}, q="packs") == []
        answer = await door.client.get("/runs/table", params={"q": "decision"})
        assert "content-length" not in answer.headers
        table = answer.text
        assert table.splitlines()[1].startswith(f"{run_id},COMPLETED,pack,,,,")
        assert "0.05" not in table
        assert payer.tenant_id not in table
    assert await lines(door, (await door.payer()).headers, q="decision") == []


async def test_other_runs_are_not_redacted(door: PricedDoor, payer: Payer) -> None:
    """SAFE-5: of flows, nothing changes; a run that was submitted with a key belongs to its tenant."""
    mine = await submit(door.gateway, payer.headers)
    [line] = await lines(door, payer.headers, run_id=mine)
    assert line["flow_name"] == "hello"
    assert (await door.client.get(f"/runs/{mine}", headers=payer.headers)).json()["tenant_id"] == payer.tenant_id
    if is_open(door):
        assert (await door.client.get(f"/runs/{mine}")).json()["flow_name"] == "hello"
        assert (await lines(door, {}, run_id=mine))[0]["flow_name"] == "hello"


async def test_a_validator_of_one_caller_never_validates_the_list_of_another(
    door: PricedDoor, payer: Payer, run_id: str
) -> None:
    """SAFE-5: neither does a shared cache keep a list, nor is a 304 given for the copy of another caller."""
    callers = [payer.headers, (await door.payer(tenant_id="None")).headers, (await door.payer()).headers]
    callers += [{}] if is_open(door) else []

    async def ask(headers: dict[str, str], etag: str | None = None) -> httpx.Response:
        more = {} if etag is None else {"If-None-Match": etag}
        return await door.client.get("/runs", params={"kind": "pack"}, headers=headers | more)

    answers = [await ask(headers) for headers in callers]
    tags = [answer.headers["etag"] for answer in answers]
    assert len(set(tags)) == len(callers)
    assert {answer.headers["cache-control"] for answer in answers} == {"private, no-cache"}
    for headers, own in zip(callers, tags, strict=True):
        assert [(await ask(headers, tag)).status_code for tag in tags] == [304 if tag == own else 200 for tag in tags]


async def test_many_priced_runs_are_cancelled_for_a_stranger_as_unknown_ones_are(door: PricedDoor, run_id: str) -> None:
    """SAFE-5"""
    for headers in await strangers(door):
        told = [
            (await door.client.post("/runs/cancel", json={"run_ids": [each]}, headers=headers)).json()
            for each in (run_id, str(uuid.uuid4()))
        ]
        assert told[0] == told[1]
        assert told[0]["not_found"] == 1


async def test_attention_and_metrics_name_neither_tenant_nor_amount(door: PricedDoor, payer: Payer) -> None:
    """SAFE-5"""
    for path in ("/attention", "/queues", "/workers", "/metrics", "/metrics/recent", "/dlq", "/exec/state"):
        answer = await door.client.get(path)
        if is_open(door):
            assert answer.status_code == 200, path
            assert payer.tenant_id not in answer.text
            assert "usd" not in answer.text, path
        else:
            assert answer.status_code in {200, 401}, path


async def test_a_revoked_key_opens_nothing_in_any_mode(door: PricedDoor) -> None:
    """SAFE-5"""
    payer = await door.payer()
    run_id = await door.submitted(payer)
    await listed(door, await door.row(run_id))
    key = payer.headers["Authorization"].split("_")[1]

    async def is_refused() -> bool:
        return (await door.client.get(f"/budgets/{payer.tenant_id}", headers=payer.headers)).status_code in {403, 404}

    assert await door.gateway.backend.keys.revoke(key, door.gateway.backend.clock())
    await eventually(is_refused)
    answer = await door.client.get(f"/runs/{run_id}", headers=payer.headers)
    assert answer.status_code == (404 if is_open(door) else 403)
    assert payer.tenant_id not in json.dumps(answer.json())
