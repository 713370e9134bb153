"""`POST /v1/runs`: what is accepted, what it answers, and what it costs to ask again."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from typing import Any

import pytest

from pyoco_server.core.priced.reasons import Reason
from pyoco_server.core.states.priced import Money, Status
from support.priced.gateways import BODY, PricedDoor, a_body, check_problem, costs_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_submission_is_answered_with_a_receipt(priced_door: PricedDoor) -> None:
    """PRICED-72, PRICED-82, PRICED-83: the receipt of the contract, and the balance after reserving"""
    payer = await priced_door.payer("10.0000")
    answer = await priced_door.post(payer)
    assert answer.status_code == 202, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    run_id, trace_id = body["run_id"], body["meta"]["trace_id"]
    assert body == {
        "run_id": str(uuid.UUID(run_id, version=4)),
        "status": "QUEUED",
        "reservation": {"max_cost_usd": "0.2500", "timebox_sec": 90, "min_reliability_score": 0.8},
        "poll": {"href": f"/v1/runs/{run_id}", "recommended_interval_ms": 1500},
        "meta": {"trace_id": trace_id, "profile_version": "PROFILE_DPP_0_4_2_2"},
    }
    assert costs_of(answer) == ("0.2500", "0.0000", "9.7500", "0")
    assert answer.headers["cache-control"] == "no-store"
    assert "idempotency-replayed" not in answer.headers
    row = await priced_door.row(run_id)
    assert (row.status, row.money, row.reserved_usd_micros) == (Status.QUEUED, Money.RESERVED, 250_000)
    assert row.enqueued_at is not None


async def test_everything_that_may_be_asked_for_is_recorded(priced_door: PricedDoor) -> None:
    """PRICED-69, PRICED-86: the second vector's hash, among others"""
    payer = await priced_door.payer()
    body = {
        "pack_type": "decision",
        "inputs": {"mode": "brief", "context": "배송 일정", "question": "Ship on Friday?"},
        "reservation": {"max_cost_usd": "1.0000", "timebox_sec": 30, "min_reliability_score": 0.95},
        "options": {"inline": 1},
        "meta": {"client_version": "x" * 64, "profile_version": "PROFILE_DPP_0_4_2_2"},
    }
    answer = await priced_door.post(payer, body)
    assert answer.status_code == 202, answer.text
    assert answer.json()["reservation"] == {"max_cost_usd": "1.0000", "timebox_sec": 30, "min_reliability_score": 0.95}
    row = await priced_door.row(answer.json()["run_id"])
    assert row.payload_hash == "a7779f6eb58bf3ca83ef42d7cb00827f46da660ed31641e17960f1b80f701b56"
    assert (row.timebox_sec, row.min_reliability_e4, row.inline, row.artifacts) == (30, 9500, 1, {})
    assert row.minimum_fee_usd_micros == 20_000
    inputs = await priced_door.priced.ledger.read(lambda tx: tx.runs.inputs(row.run_id))
    assert inputs == body["inputs"]


@pytest.mark.parametrize(
    ("written", "shown", "e4"),
    [
        ("0", 0.0, 0),
        ("1", 1.0, 10_000),
        ("0.0001", 0.0001, 1),
        ("0.1", 0.1, 1000),
        ("1.0000", 1.0, 10_000),
        ("8e-1", 0.8, 8000),
    ],
)
async def test_a_score_is_read_and_shown_as_it_was_written(
    priced_door: PricedDoor, written: str, shown: float, e4: int
) -> None:
    """PRICED-69, PRICED-72"""
    payer = await priced_door.payer()
    body = json.dumps(BODY).replace('"0.2500"', f'"0.2500", "min_reliability_score": {written}').encode()
    answer = await priced_door.post(payer, body)
    assert answer.status_code == 202, answer.text
    assert answer.json()["reservation"]["min_reliability_score"] == shown
    assert (await priced_door.row(answer.json()["run_id"])).min_reliability_e4 == e4


@pytest.mark.parametrize(("written", "seconds"), [("1", 1), ("90", 90), ("90.0", 90), ("9e1", 90)])
async def test_a_whole_number_of_seconds_may_be_written_with_a_point(
    priced_door: PricedDoor, written: str, seconds: int
) -> None:
    """PRICED-69: an integer as JSON Schema has it"""
    payer = await priced_door.payer()
    body = json.dumps(BODY).replace('"0.2500"', f'"0.2500", "timebox_sec": {written}').encode()
    answer = await priced_door.post(payer, body)
    assert answer.status_code == 202, answer.text
    assert answer.json()["reservation"]["timebox_sec"] == seconds


class TestReplay:
    async def test_the_same_again_gets_the_same_receipt_and_costs_nothing(self, priced_door: PricedDoor) -> None:
        """PRICED-73, PRICED-87: key order, whitespace, written-out defaults and trace ids do not matter"""
        payer = await priced_door.payer("1.0000")
        first = await priced_door.post(payer, key="same-key-1")
        other_text = json.dumps(
            {
                "reservation": {"timebox_sec": 90, "max_cost_usd": "0.2500", "min_reliability_score": 0.8},
                "meta": {"trace_id": "another-trace", "profile_version": "PROFILE_DPP_0_4_2_2"},
                "options": {"inline": 1},
                **{name: BODY[name] for name in ("inputs", "pack_type")},
            },
            indent=3,
        ).encode()
        for body in (BODY, other_text):
            again = await priced_door.post(payer, body, key="same-key-1")
            assert (again.status_code, again.content) == (202, first.content)
            assert again.headers["idempotency-replayed"] == "true"
            assert again.headers["x-trace-id"] == first.headers["x-trace-id"]
            assert costs_of(again) == ("0.2500", "0.0000", "0.7500", "0")
        assert await priced_door.runs_of(payer) == 1

    async def test_after_the_end_the_receipt_is_the_same_and_the_costs_are_current(
        self, priced_door: PricedDoor
    ) -> None:
        """PRICED-73"""
        payer = await priced_door.payer("1.0000")
        first = await priced_door.post(payer, key="same-key-1")
        await priced_door.completed(first.json()["run_id"], {"answer_text": "yes"}, tokens=7)
        again = await priced_door.post(payer, key="same-key-1")
        assert (again.status_code, again.content) == (202, first.content)
        assert costs_of(again) == ("0.2500", "0.0500", "0.9500", "7")

    @pytest.mark.parametrize(
        "change",
        [
            {"inputs": {"question": "Ship on Monday?"}},
            {"inputs": {"question": "Ship on Friday?", "mode": "brief"}},
            {"reservation": {"max_cost_usd": "0.2501"}},
            {"reservation": {"max_cost_usd": "0.2500", "timebox_sec": 89}},
            {"reservation": {"max_cost_usd": "0.2500", "min_reliability_score": 0.81}},
            {"artifacts": {"include_markdown": False}},
        ],
    )
    async def test_another_submission_under_the_key_is_a_conflict(
        self, priced_door: PricedDoor, change: dict[str, Any]
    ) -> None:
        """PRICED-87, PRICED-88"""
        payer = await priced_door.payer("1.0000")
        await priced_door.post(payer, key="same-key-1")
        answer = await priced_door.post(payer, a_body(**change), key="same-key-1")
        check_problem(answer, Reason.IDEMPOTENCY_CONFLICT)
        assert "retry-after" not in answer.headers
        assert costs_of(answer) == ("0.0000", "0.0000", "0.7500", "0")
        assert await priced_door.runs_of(payer) == 1

    async def test_a_key_belongs_to_its_tenant(self, priced_door: PricedDoor) -> None:
        """PRICED-68"""
        anna, bert = await priced_door.payer(), await priced_door.payer()
        ids = {(await priced_door.post(each, key="same-key-1")).json()["run_id"] for each in (anna, bert)}
        assert len(ids) == 2

    async def test_many_at_once_under_one_key_are_one_run(self, priced_door: PricedDoor) -> None:
        """PRICED-104"""
        payer = await priced_door.payer("10.0000")
        answers = await asyncio.gather(*(priced_door.post(payer, key="same-key-1") for _ in range(16)))
        accepted = [answer.json()["run_id"] for answer in answers if answer.status_code == 202]
        assert accepted
        assert len(set(accepted)) == 1
        for answer in answers:
            if answer.status_code != 202:
                check_problem(answer, Reason.IDEMPOTENCY_IN_PROGRESS)
                assert answer.headers["retry-after"] == "1"
        assert await priced_door.balance(payer) == 9_750_000


class TestTraceIds:
    async def test_the_body_counts_before_the_header(self, priced_door: PricedDoor) -> None:
        """PRICED-64"""
        payer = await priced_door.payer()
        body, header = a_body(meta={"trace_id": "of-the-body"}), {"X-Trace-Id": "of-the-header"}
        for sent, wanted in ((body, "of-the-body"), (BODY, "of-the-header")):
            answer = await priced_door.post(payer, sent, headers=header)
            assert answer.headers["x-trace-id"] == answer.json()["meta"]["trace_id"] == wanted
            assert (await priced_door.row(answer.json()["run_id"])).trace_id == wanted

    @pytest.mark.parametrize("header", [None, "", "a b", "x" * 65, "ü", "a\tb"])
    async def test_without_a_good_one_it_is_made(self, priced_door: PricedDoor, header: str | None) -> None:
        """PRICED-64: a bad header value is replaced"""
        payer = await priced_door.payer()
        headers = [(name.encode(), value.encode()) for name, value in payer.headers.items()]
        headers += [(b"idempotency-key", b"some-key-1")]
        headers += [] if header is None else [(b"x-trace-id", header.encode())]
        answer = await priced_door.client.post("/v1/runs", json=BODY, headers=headers)
        assert answer.status_code == 202, answer.text
        assert re.fullmatch("t_[0-9a-f]{32}", answer.headers["x-trace-id"])

    async def test_a_problem_carries_it_too(self, priced_door: PricedDoor) -> None:
        """PRICED-64, PRICED-67"""
        payer = await priced_door.payer("0.0001")
        answer = await priced_door.post(payer, a_body(meta={"trace_id": "of-the-body"}))
        assert check_problem(answer, Reason.BUDGET_DRAINED)["trace_id"] == "of-the-body"
        answer = await priced_door.post(payer, b"{", headers={"X-Trace-Id": "of-the-header"})
        assert check_problem(answer, Reason.VALIDATION_FAILED)["trace_id"] == "of-the-header"
