"""What packs may be asked, checked before any money moves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.packs import PACKS
from pyoco_server.core.packs.spec import Member, Members, text
from pyoco_server.core.priced.constants import PACK_TYPES

MARKER = "marker-7a1f"
check = PACKS["decision"].check


def test_every_pack_has_a_name_that_a_submission_may_carry() -> None:
    assert set(PACKS) <= set(PACK_TYPES)
    assert all(name == spec.name for name, spec in PACKS.items())


@pytest.mark.parametrize(
    "inputs",
    [
        {"question": "x"},
        {"question": "x" * 8_000},
        {"question": "\U0001f600" * 8_000, "context": "", "mode": "brief"},
        {"question": " ", "context": "x" * 100_000, "mode": "full"},
    ],
    ids=["least", "longest question", "of wide characters", "longest context"],
)
def test_a_decision_may_be_asked(inputs: dict[str, Any]) -> None:
    """PRICED-129"""
    assert check(inputs) == ()


@pytest.mark.parametrize(
    ("inputs", "loc", "kind"),
    [
        ({}, ("question",), "missing"),
        ({"question": ""}, ("question",), "length"),
        ({"question": "x" * 8_001}, ("question",), "length"),
        ({"question": None}, ("question",), "type"),
        ({"question": 1}, ("question",), "type"),
        ({"question": ["x"]}, ("question",), "type"),
        ({"question": "x", "context": "x" * 100_001}, ("context",), "length"),
        ({"question": "x", "context": None}, ("context",), "type"),
        ({"question": "x", "mode": "long"}, ("mode",), "value"),
        ({"question": "x", "mode": "BRIEF"}, ("mode",), "value"),
        ({"question": "x", "mode": ""}, ("mode",), "value"),
        ({"question": "x", "mode": ["brief"]}, ("mode",), "value"),
        ({"question": "x", "mode": None}, ("mode",), "value"),
        ({"question": "x", "more": 1}, (), "unknown"),
        ({"question": "x", "Question": "x"}, (), "unknown"),
        ([], (), "type"),
        ("x", (), "type"),
        (None, (), "type"),
    ],
)
def test_a_decision_may_not_be_asked(inputs: Any, loc: tuple[str, ...], kind: str) -> None:
    """PRICED-129"""
    (problem,) = check(inputs)
    assert (problem.loc, problem.type) == (loc, kind)


def test_all_that_is_wrong_is_told_at_once() -> None:
    problems = check({"context": 1, "mode": 2, "a": 3, "b": 4})
    assert [problem.loc for problem in problems] == [("question",), ("context",), ("mode",), ()]
    assert "2 unknown" in problems[-1].msg


def test_what_is_wrong_is_told_without_the_value() -> None:
    """PRICED-171"""
    told = repr(check({"question": [MARKER], "context": {MARKER: 1}, "mode": MARKER, MARKER: MARKER}))
    assert MARKER not in told
    assert MARKER not in repr(check(MARKER))


def test_a_place_inside_an_object_is_a_path() -> None:
    nested = Members({"inner": Member(Members({"name": Member(text(1, 2), is_required=True)}))})
    assert [problem.loc for problem in nested({"inner": {"name": "abc"}})] == [("inner", "name")]
    assert [problem.loc for problem in nested({"inner": {}})] == [("inner", "name")]
    assert nested({}) == ()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=9,
)


@given(inputs=JSON | st.fixed_dictionaries({}, optional={"question": JSON, "context": JSON, "mode": JSON, "x": JSON}))
def test_whatever_is_sent_is_answered_and_never_raises(inputs: Any) -> None:
    problems = check(inputs)
    assert all(problem.msg for problem in problems)
    if not problems:
        assert set(inputs) <= {"question", "context", "mode"}
        assert inputs["question"]
