"""A caller cannot find out whether a run of another tenant exists."""

from __future__ import annotations

import json
import uuid
from typing import Any

import httpx
import pytest

from pyoco_server.core.priced.reasons import Reason
from support.priced.gateways import Payer, PricedDoor, check_problem, costs_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: PRICED-79: what may differ.
COUNTERS = {"x-trace-id", "x-ratelimit-remaining", "x-ratelimit-reset"}

MALFORMED = [
    "not-a-uuid",
    "5b0c",
    "00000000-0000-0000-0000-00000000000g",
    "{}",
    "..",
    "%00",
    "%FF",
    "ü",
    "x" * 2000,
    "a%2Fb",
    "'; DROP TABLE runs; --",
]


def told(answer: httpx.Response) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Everything a stranger can see, apart from what may differ."""
    headers = {name: value for name, value in answer.headers.items() if name not in COUNTERS}
    body = {name: value for name, value in answer.json().items() if name not in {"instance", "trace_id"}}
    headers["content-length"] = ""  # the path is in the body
    return answer.status_code, headers, body


async def ask(door: PricedDoor, payer: Payer, run_id: str) -> httpx.Response:
    answer = await door.get(payer, run_id)
    assert answer.headers["content-type"] == "application/problem+json"
    return answer


@pytest.mark.parametrize("state", ["queued", "completed", "failed"])
async def test_a_foreign_run_is_as_one_that_never_was(priced_door: PricedDoor, state: str) -> None:
    """PRICED-78, PRICED-79"""
    owner, stranger = await priced_door.payer(), await priced_door.payer("3.0000")
    run_id = await priced_door.submitted(owner)
    if state == "completed":
        await priced_door.completed(run_id, {"answer_text": "yes"})
    if state == "failed":
        await priced_door.failed(run_id, Reason.PACK_FAILED)
    foreign, missing = await ask(priced_door, stranger, run_id), await ask(priced_door, stranger, str(uuid.uuid4()))
    assert told(foreign) == told(missing)
    assert len(foreign.content) == len(missing.content)
    assert "run_id" not in check_problem(foreign, Reason.RUN_NOT_FOUND)
    assert costs_of(foreign) == ("0.0000", "0.0000", "3.0000", "0")  # PRICED-83: its own budget


@pytest.mark.parametrize("run_id", MALFORMED)
async def test_a_malformed_id_is_as_a_run_that_never_was(priced_door: PricedDoor, run_id: str) -> None:
    """PRICED-79"""
    payer = await priced_door.payer()
    malformed = await priced_door.get(payer, run_id)
    missing = await priced_door.get(payer, str(uuid.uuid4()))
    # `..` is a step that clients take themselves.
    if malformed.request.url.path.startswith("/v1/runs/"):
        assert told(malformed) == told(missing)


async def test_an_upper_case_id_is_not_another_name_of_a_run(priced_door: PricedDoor) -> None:
    """PRICED-79: one run, one address"""
    payer = await priced_door.payer()
    run_id = await priced_door.submitted(payer)
    if run_id.upper() != run_id:
        check_problem(await priced_door.get(payer, run_id.upper()), Reason.RUN_NOT_FOUND)


async def test_a_key_of_the_same_tenant_sees_the_run(priced_door: PricedDoor) -> None:
    """PRICED-78: the owner is the tenant"""
    payer = await priced_door.payer()
    run_id = await priced_door.submitted(payer)
    second = Payer(payer.tenant_id, await priced_door.key(payer.tenant_id))
    assert (await priced_door.get(second, run_id)).status_code == 200


async def test_asking_costs_a_token_whether_the_run_is_there_or_not(priced_door: PricedDoor) -> None:
    """PRICED-79, PRICED-174"""
    owner, stranger = await priced_door.payer(), await priced_door.payer()
    run_id = await priced_door.submitted(owner)
    await priced_door.priced.ledger.transact(lambda tx: tx.tenants.set_rate_limit(stranger.tenant_id, 60))
    left = [
        int((await priced_door.get(stranger, each)).headers["x-ratelimit-remaining"])
        for each in (run_id, str(uuid.uuid4()), "nonsense")
    ]
    assert left == [59, 58, 57]


async def test_the_problem_is_one_fixed_text(priced_door: PricedDoor) -> None:
    """PRICED-79: byte by byte, but for the two members"""
    payer = await priced_door.payer()
    answer = await priced_door.get(payer, "nonsense", {"X-Trace-Id": "t"})
    assert json.loads(answer.content) == {
        "type": "urn:dpp:problem:run-not-found",
        "title": "The run was not found",
        "status": 404,
        "detail": "There is nothing here.",
        "instance": "/v1/runs/nonsense",
        "reason_code": "RUN_NOT_FOUND",
        "trace_id": "t",
    }
