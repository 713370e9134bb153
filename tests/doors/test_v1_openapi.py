"""The OpenAPI document of priced runs, and that real answers are what it says."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from pyoco_server.core.priced.envelope import Artifact
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.http_api import create_app
from support.priced.gateways import BODY, PricedDoor, a_body
from support.servers import config_for

pytestmark = pytest.mark.asyncio(loop_scope="module")

DOCUMENT: dict[str, Any] = create_app(config_for("nats://127.0.0.1:1")).openapi()


def check(name: str, value: Any) -> None:
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    jsonschema_rs.validate(schema, value)


async def test_every_answer_is_what_the_document_says(priced_door: PricedDoor) -> None:
    """PRICED-67, PRICED-72, PRICED-74"""
    payer = await priced_door.payer()
    receipt = (await priced_door.post(payer, a_body(options={"inline": 1}))).json()
    check("PricedReceipt", receipt)
    run_id = receipt["run_id"]
    check("PricedRun", (await priced_door.get(payer, run_id)).json())
    artifact = Artifact(name="a.txt", content_type="text/plain", data=b"x")
    await priced_door.completed(run_id, {"answer_text": "yes"}, [artifact])
    shown = (await priced_door.get(payer, run_id)).json()
    check("PricedRun", shown)
    check("PricedResult", shown["result"])
    run_id = await priced_door.submitted(payer)
    await priced_door.failed(run_id, Reason.PACK_FAILED)
    shown = (await priced_door.get(payer, run_id)).json()
    check("PricedRun", shown)
    check("PricedFailure", shown["result"])
    refusals = [
        await priced_door.post(payer, b"{"),
        await priced_door.get(payer, "nonsense"),
        await priced_door.client.get("/v1/runs/x"),
        await priced_door.client.get("/v1/results/x"),
    ]
    for answer in refusals:
        check("ProblemDetails", answer.json())


async def test_probes_and_budgets_are_what_the_document_says(priced_door: PricedDoor) -> None:
    """PRICED-178"""
    payer = await priced_door.payer()
    await priced_door.completed(await priced_door.submitted(payer), {"answer_text": "yes"})
    for path, name in (
        ("/readyz", "PricedReady"),
        ("/budgets", "BudgetList"),
        (f"/budgets/{payer.tenant_id}", "Budget"),
        (f"/budgets/{payer.tenant_id}/journal", "BudgetJournal"),
        (f"/budgets/{payer.tenant_id}/spend", "BudgetSpend"),
    ):
        check(name, (await priced_door.client.get(path, headers=payer.headers)).json())
    with priced_door.with_priced(None):
        check("PricedReady", (await priced_door.client.get("/readyz")).json())


@pytest.mark.parametrize(
    ("change", "is_fine"),
    [
        ({}, True),
        ({"reservation": {"max_cost_usd": "1.0000", "timebox_sec": 90, "min_reliability_score": 1}}, True),
        ({"meta": {"trace_id": "t", "client_version": "1"}, "artifacts": {"include_docx": True}}, True),
        ({"pack_type": "Nonsense"}, False),
        ({"reservation": {"max_cost_usd": "1.00"}}, False),
        ({"reservation": {"max_cost_usd": 1}}, False),
        ({"reservation": {"max_cost_usd": "1.0000", "timebox_sec": 0}}, False),
        ({"options": {"inline": 2}}, False),
        ({"surprise": 1}, False),
        ({"meta": {"profile_version": "x"}}, False),
    ],
)
async def test_the_schema_of_a_submission_is_that_of_the_door(
    priced_door: PricedDoor, change: dict[str, Any], is_fine: bool
) -> None:
    """PRICED-69"""
    schema = {"$ref": "#/components/schemas/PricedSubmission", "components": DOCUMENT["components"]}
    body = BODY | change
    assert jsonschema_rs.is_valid(schema, body) == is_fine
    answer = await priced_door.post(await priced_door.payer(), body)
    assert answer.status_code == (202 if is_fine else 422), answer.text


async def test_no_schema_shows_what_is_internal() -> None:
    """PRICED-29"""
    shown = set(DOCUMENT["components"]["schemas"]["PricedRun"]["properties"])
    assert shown == {"run_id", "status", "money_state", "cost", "result", "meta"}
