"""What packs may be asked, checked before any money moves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.packs import PACKS
from pyoco_server.core.packs.spec import Here, Member, Members, PackSpec, flag, is_pack_name, text, whole
from pyoco_server.core.priced.constants import PACK_TYPES
from pyoco_server.errors import Problem
from pyoco_server.wiring import packs as wiring_packs

MARKER = "marker-7a1f"
HERE = Here(tenant_id="acme", input_bucket="dpp-inputs")


def check(inputs: Any) -> tuple[Problem, ...]:
    return PACKS["decision"].check(inputs, HERE)


def test_the_packs_of_the_product_are_the_contracts() -> None:
    """The names of 14.1; and each has an executor."""
    assert set(PACKS) <= set(PACK_TYPES)
    assert all(name == spec.name and is_pack_name(name) and not spec.executor for name, spec in PACKS.items())
    assert set(PACKS) == set(wiring_packs._BUILT_IN)


@pytest.mark.parametrize("name", ["", "1st", "_x", "Words", "a-b", "a b", "ä", "a" * 33, "words\n"])
def test_a_pack_is_not_named_like_that(name: str) -> None:
    assert not is_pack_name(name)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(1, None), (9, None), (3.0, None), (0, "range"), (10, "range"), (True, "type"), (2.5, "type"), ("3", "type")],
)
def test_a_whole_number_is_one_however_it_is_written(value: Any, kind: str | None) -> None:
    assert [problem.type for problem in whole(1, 9)(value, ("n",))] == ([] if kind is None else [kind])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_what_is_no_number_at_all_is_no_whole_one(value: float) -> None:
    assert len(whole(1, 9)(value, ("n",))) == 1


def test_a_flag_is_true_or_false() -> None:
    assert flag(True, ()) == flag(False, ()) == ()
    assert [problem.type for value in (0, 1, "true", None) for problem in flag(value, ())] == ["type"] * 4


def test_what_a_pack_asks_beyond_the_form_is_asked_of_the_right_form_alone() -> None:
    seen: list[tuple[Any, Here]] = []

    def beyond(inputs: Any, here: Here) -> tuple[Problem, ...]:
        seen.append((inputs, here))
        return (Problem(("name",), "is somebody else's", "value"),)

    spec = PackSpec(name="some", inputs=Members({"name": Member(text(1, 2), is_required=True)}), beyond=beyond)
    assert [problem.type for problem in spec.check({"name": "abc"}, HERE)] == ["length"]
    assert [problem.type for problem in spec.check([], HERE)] == ["type"]
    assert seen == []
    assert [problem.type for problem in spec.check({"name": "a"}, HERE)] == ["value"]
    assert seen == [({"name": "a"}, HERE)]


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
