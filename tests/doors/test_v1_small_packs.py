"""Decision, compliance and eval at the door: what is accepted, and where it says what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from pyoco_server.core.priced.reasons import Reason
from support.priced.gateways import PricedDoor, a_body, check_problem

pytestmark = pytest.mark.asyncio(loop_scope="module")

RULE = {"id": "r", "kind": "MUST_CONTAIN", "value": "x"}
CASE = {"id": "c", "expected": "e", "actual": "a"}


@pytest.mark.parametrize(
    ("pack", "inputs"),
    [
        ("decision", {"question": "a\x00b\x1b\x7f\u2028", "context": "\x00"}),
        ("compliance", {"text": "\x00", "rules": [RULE]}),
        ("eval", {"metric": "CONTAINS", "cases": [CASE]}),
    ],
)
async def test_a_small_pack_is_accepted_control_characters_and_all(
    priced_door: PricedDoor, pack: str, inputs: dict[str, Any]
) -> None:
    """PRICED-129"""
    answer = await priced_door.post(await priced_door.payer(), a_body(pack_type=pack, inputs=inputs))
    assert answer.status_code == 202


@pytest.mark.parametrize(
    ("pack", "inputs", "pointer"),
    [
        ("compliance", {"text": "t", "rules": [RULE, RULE]}, "/inputs/rules/1/id"),
        ("compliance", {"text": "t", "rules": [RULE | {"value": 7}]}, "/inputs/rules/0/value"),
        ("compliance", {"text": "t", "rules": []}, "/inputs/rules"),
        ("eval", {"metric": "EXACT", "cases": [CASE | {"actual": 1}]}, "/inputs/cases/0/actual"),
        ("eval", {"metric": "FUZZY", "cases": [CASE]}, "/inputs/metric"),
    ],
)
async def test_what_is_wrong_is_told_by_its_place_and_costs_nothing(
    priced_door: PricedDoor, pack: str, inputs: dict[str, Any], pointer: str
) -> None:
    """PRICED-129"""
    payer = await priced_door.payer()
    document = check_problem(
        await priced_door.post(payer, a_body(pack_type=pack, inputs=inputs)), Reason.VALIDATION_FAILED
    )
    assert [error["pointer"] for error in document["errors"]] == [pointer]
    assert await priced_door.runs_of(payer) == 0
