"""What makes two priced submissions the same, and what makes them differ."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from pyoco_server.core.priced.canonical import NotCanonical
from pyoco_server.core.priced.payload_hash import payload_hash

ASK: dict[str, Any] = {
    "pack_type": "decision",
    "inputs": {"question": "Ship on Friday?"},
    "timebox_sec": 90,
    "max_cost_usd": "0.2500",
    "artifacts": {},
    "min_reliability_e4": 8000,
    "profile_version": "PROFILE_DPP_0_4_2_2",
}

#: PRICED-86: what is changed, how the document reads, its length, its hash.
VECTORS: list[tuple[dict[str, Any], str, int, str]] = [
    (
        {},
        '{"artifacts":{},"inputs":{"question":"Ship on Friday?"},"max_cost_usd":"0.2500",'
        '"min_reliability_score":"0.8000","pack_type":"decision","profile_version":"PROFILE_DPP_0_4_2_2",'
        '"timebox_sec":90}',
        193,
        "a8e9cc309624ab37af31b9c8e844cc29470fc3cc67e5253abecd86fc4032d687",
    ),
    (
        {
            "inputs": {"question": "Ship on Friday?", "mode": "brief", "context": "배송 일정"},
            "max_cost_usd": "1.0000",
            "min_reliability_e4": 9500,
            "timebox_sec": 30,
        },
        '{"artifacts":{},"inputs":{"context":"배송 일정","mode":"brief","question":"Ship on Friday?"},'
        '"max_cost_usd":"1.0000","min_reliability_score":"0.9500","pack_type":"decision",'
        '"profile_version":"PROFILE_DPP_0_4_2_2","timebox_sec":30}',
        234,
        "a7779f6eb58bf3ca83ef42d7cb00827f46da660ed31641e17960f1b80f701b56",
    ),
]


@pytest.mark.parametrize(("change", "document", "size", "digest"), VECTORS, ids=["short", "korean"])
def test_the_hash_is_the_one_of_the_contract(change: dict[str, Any], document: str, size: int, digest: str) -> None:
    """PRICED-84, PRICED-86"""
    assert len(document.encode()) == size
    assert hashlib.sha256(document.encode()).hexdigest() == digest
    assert payload_hash(**ASK | change) == digest


@pytest.mark.parametrize(
    "inputs",
    [
        '{"b": {"y": 1, "x": [1, 2]}, "a": "\\u00e9"}',
        '{"a":"é","b":{"x":[1,2],"y":1}}',
        '\n{ "b" : { "x" : [1.0, 2e0], "y" : 10e-1 }, "a" : "\\u00E9" }',
    ],
)
def test_how_the_body_was_written_down_does_not_matter(inputs: str) -> None:
    """PRICED-87"""
    expected = payload_hash(**ASK | {"inputs": {"a": "é", "b": {"x": [1, 2], "y": 1}}})
    assert payload_hash(**ASK | {"inputs": json.loads(inputs)}) == expected


@pytest.mark.parametrize(("e4", "text"), [(0, "0.0000"), (57, "0.0057"), (500, "0.0500"), (10_000, "1.0000")])
def test_a_score_is_hashed_as_a_text_of_four_decimals(e4: int, text: str) -> None:
    """PRICED-84"""
    document = VECTORS[0][1].replace("0.8000", text)
    assert payload_hash(**ASK | {"min_reliability_e4": e4}) == hashlib.sha256(document.encode()).hexdigest()


CHANGES: list[dict[str, Any]] = [
    {"pack_type": "eval"},
    {"inputs": {}},
    {"inputs": {"question": "Ship on Friday? "}},
    {"inputs": {"question": "Ship on Friday?", "mode": "brief"}},  # a pack's default, written out
    {"inputs": {"question": ["Ship on Friday?"]}},
    {"timebox_sec": 89},
    {"max_cost_usd": "0.2501"},
    {"artifacts": {"include_markdown": False}},
    {"artifacts": {"include_markdown": True}},
    {"min_reliability_e4": 7999},
    {"min_reliability_e4": 0},
    {"min_reliability_e4": 10_000},
    {"profile_version": "PROFILE_DPP_0_4_2_3"},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_everything_that_changes_the_work_changes_the_hash(change: dict[str, Any]) -> None:
    """PRICED-84, PRICED-87"""
    assert payload_hash(**ASK | change) != payload_hash(**ASK)


def test_no_two_changes_meet() -> None:
    """PRICED-84"""
    assert len({payload_hash(**ASK | change) for change in CHANGES}) == len(CHANGES)


def test_an_integer_too_large_for_a_double_is_refused_with_its_place_in_the_body() -> None:
    """PRICED-85"""
    with pytest.raises(NotCanonical) as caught:
        payload_hash(**ASK | {"inputs": {"n": [1, 2**53]}})
    assert caught.value.pointer == "/inputs/n/1"
