"""Rules over a text: what passes, how often and where, and what a submission may ask."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.judging.rules import MAX_LENGTH, MUST_CONTAIN, MUST_NOT_CONTAIN, Rule, RuleFinding, judge
from pyoco_server.core.packs import PACKS
from pyoco_server.core.packs.spec import Here

HERE = Here(tenant_id="acme", input_bucket="dpp-inputs")
MARKER = "marker-7a1f"


def found(text: str, value: str, *, is_case_sensitive: bool = False) -> tuple[int, int | None]:
    rule = Rule(id="r", kind=MUST_CONTAIN, value=value, is_case_sensitive=is_case_sensitive)
    (finding,) = judge(text, [rule])
    assert finding.has_passed == (finding.count > 0)
    return finding.count, finding.first_offset


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("We PROMISE, we promise.", "promise", (2, 3)),
        ("aaaa", "aa", (2, 0)),
        ("aaa", "aa", (1, 0)),
        ("abc", "abcd", (0, None)),
        ("x Straße", "STRASSE", (1, 2)),
        ("x STRASSE", "straße", (1, 2)),
        ("ßßb ß", "B", (1, 2)),
        ("ßßß ß!", "!", (1, 5)),
        ("ß", "s", (2, 0)),
        ("aßb", "sb", (1, 1)),
        ("İstanbul x", "X", (1, 9)),
        ("ΑΣ σς", "ς", (3, 1)),
        ("ﬃx", "X", (1, 1)),
        ("利用規約に同意", "同意", (1, 5)),
        ("😀😀end", "END", (1, 2)),
        ("a.c abc", "a.c", (1, 0)),
        ("(a+)+$", "(A+)+$", (1, 0)),
        ("a\x00b", "\x00", (1, 1)),
        ("cafe\u0301", "café", (0, None)),
    ],
)
def test_a_value_is_found_whatever_its_case_and_its_place_is_that_in_the_text(
    text: str, value: str, expected: tuple[int, int | None]
) -> None:
    """PRICED-150"""
    assert found(text, value) == expected


def test_a_rule_may_mind_the_case() -> None:
    """PRICED-150"""
    assert found("Go go GO", "go", is_case_sensitive=True) == (1, 3)
    assert found("Straße", "strasse", is_case_sensitive=True) == (0, None)


def test_findings_come_in_the_order_of_the_rules() -> None:
    """PRICED-150"""
    rules = [
        Rule(id="z", kind=MUST_NOT_CONTAIN, value="world"),
        Rule(id="a", kind=MUST_NOT_CONTAIN, value="moon"),
        Rule(id="m", kind=MUST_CONTAIN, value="moon"),
        Rule(id="l", kind=MAX_LENGTH, value=5),
        Rule(id="k", kind=MAX_LENGTH, value=11),
    ]
    assert judge("Hello World", rules) == (
        RuleFinding(rule_id="z", has_passed=False, count=1, first_offset=6),
        RuleFinding(rule_id="a", has_passed=True, count=0, first_offset=None),
        RuleFinding(rule_id="m", has_passed=False, count=0, first_offset=None),
        RuleFinding(rule_id="l", has_passed=False, count=11, first_offset=5),
        RuleFinding(rule_id="k", has_passed=True, count=11, first_offset=None),
    )


#: Among them those that grow when they are folded.
LETTERS = st.text(alphabet="aAsSßẞiIİıσςΣﬃ. é", max_size=30)


@given(text=LETTERS, value=LETTERS.filter(bool))
def test_what_is_found_does_not_depend_on_how_the_text_is_cased(text: str, value: str) -> None:
    count, place = found(text, value) if text else (0, None)
    folded = text.casefold()
    assert count == (found(folded, value.casefold(), is_case_sensitive=True)[0] if folded else 0)
    if place is None:
        assert value.casefold() not in folded
        return
    # The first match begins in the character at `place`: not before it, and not after it.
    before, character = text[:place].casefold(), text[place].casefold()
    assert len(before) <= folded.index(value.casefold()) < len(before) + len(character)


@given(text=st.text(min_size=1, max_size=40), value=st.text(min_size=1, max_size=4), is_case_sensitive=st.booleans())
def test_of_two_opposite_rules_exactly_one_passes(text: str, value: str, is_case_sensitive: bool) -> None:
    rules = [
        Rule(id=kind, kind=kind, value=value, is_case_sensitive=is_case_sensitive)
        for kind in (MUST_CONTAIN, MUST_NOT_CONTAIN)
    ]
    one, other = judge(text, rules)
    assert one.has_passed != other.has_passed
    assert (one.count, one.first_offset) == (other.count, other.first_offset)
    assert judge(text, rules) == (one, other)
    if is_case_sensitive:
        assert (one.count, one.first_offset) == (text.count(value), text.index(value) if value in text else None)


HOSTILE = {
    "all but the last": ("a" * 100_000, ["a" * length + "b" for length in range(1, 1_000, 10)]),
    "all but the first": ("a" * 100_000, ["b" + "a" * length for length in range(1, 1_000, 10)]),
    "all but the middle": ("a" * 100_000, ["a" * 50 + "b" + "a" * length for length in range(1, 1_000, 10)]),
    "what grows": ("ß" * 100_000, ["s" * length for length in range(1, 200, 2)]),
    "many": ("ab" * 50_000, ["a", "b", "ab"] * 33),
    "patterns elsewhere": ("a" * 100_000, ["(a+)+$", "^(.*)*$", "[a-z]*b"] * 33),
}


@pytest.mark.parametrize(("text", "values"), HOSTILE.values(), ids=HOSTILE)
def test_no_rules_take_long(text: str, values: list[str]) -> None:
    begin = time.process_time()
    judge(text, [Rule(id=str(at), kind=MUST_NOT_CONTAIN, value=value) for at, value in enumerate(values)])
    assert time.process_time() - begin < 30


# ---- What may be asked ----


def rule(**changes: Any) -> dict[str, Any]:
    return {"id": "r", "kind": MUST_CONTAIN, "value": "x"} | changes


def problems(inputs: object) -> list[tuple[tuple[str | int, ...], str]]:
    return [(problem.loc, problem.type) for problem in PACKS["compliance"].check(inputs, HERE)]


@pytest.mark.parametrize(
    "inputs",
    [
        {"text": "t", "rules": [rule()]},
        {"text": "t" * 100_000, "rules": [rule(id=f"{number:064}") for number in range(100)]},
        {"text": "\x00", "rules": [rule(kind=MAX_LENGTH, value=0), rule(id="R", kind=MAX_LENGTH, value=10.0)]},
        {"text": "t", "rules": [rule(kind=MAX_LENGTH, value=2**53 - 1, case_sensitive=True)]},
        {"text": "t", "rules": [rule(kind=MUST_NOT_CONTAIN, value="x" * 100_000, case_sensitive=False)]},
    ],
    ids=["least", "most", "lengths", "longest length", "longest value"],
)
def test_a_text_may_be_judged(inputs: dict[str, Any]) -> None:
    """PRICED-129"""
    assert problems(inputs) == []


@pytest.mark.parametrize(
    ("inputs", "place", "kind"),
    [
        ({"rules": [rule()]}, ("text",), "missing"),
        ({"text": "", "rules": [rule()]}, ("text",), "length"),
        ({"text": "t" * 100_001, "rules": [rule()]}, ("text",), "length"),
        ({"text": "t"}, ("rules",), "missing"),
        ({"text": "t", "rules": []}, ("rules",), "length"),
        ({"text": "t", "rules": [rule(id=str(number)) for number in range(101)]}, ("rules",), "length"),
        ({"text": "t", "rules": {"0": rule()}}, ("rules",), "type"),
        ({"text": "t", "rules": ["x"]}, ("rules", 0), "type"),
        ({"text": "t", "rules": [rule(), rule()]}, ("rules", 1, "id"), "repeated"),
        ({"text": "t", "rules": [rule(id="")]}, ("rules", 0, "id"), "length"),
        ({"text": "t", "rules": [rule(id="x" * 65)]}, ("rules", 0, "id"), "length"),
        ({"text": "t", "rules": [rule(id=1)]}, ("rules", 0, "id"), "type"),
        ({"text": "t", "rules": [rule(kind="REGEX")]}, ("rules", 0, "kind"), "value"),
        ({"text": "t", "rules": [rule(kind="must_contain")]}, ("rules", 0, "kind"), "value"),
        ({"text": "t", "rules": [rule(kind=[MAX_LENGTH])]}, ("rules", 0, "kind"), "value"),
        ({"text": "t", "rules": [rule(value="")]}, ("rules", 0, "value"), "length"),
        ({"text": "t", "rules": [rule(value=5)]}, ("rules", 0, "value"), "type"),
        ({"text": "t", "rules": [rule(kind=MAX_LENGTH)]}, ("rules", 0, "value"), "type"),
        ({"text": "t", "rules": [rule(kind=MAX_LENGTH, value=True)]}, ("rules", 0, "value"), "type"),
        ({"text": "t", "rules": [rule(kind=MAX_LENGTH, value=1.5)]}, ("rules", 0, "value"), "type"),
        ({"text": "t", "rules": [rule(kind=MAX_LENGTH, value=-1)]}, ("rules", 0, "value"), "range"),
        ({"text": "t", "rules": [rule(kind=MAX_LENGTH, value=1e300)]}, ("rules", 0, "value"), "range"),
        ({"text": "t", "rules": [rule(case_sensitive=0)]}, ("rules", 0, "case_sensitive"), "type"),
        ({"text": "t", "rules": [rule(pattern="x")]}, ("rules", 0), "unknown"),
        ({"text": "t", "rules": [rule()], "mode": "brief"}, (), "unknown"),
        ({"text": "t", "rules": [{"id": "r", "kind": MUST_CONTAIN}]}, ("rules", 0, "value"), "missing"),
        ([], (), "type"),
    ],
)
def test_a_text_may_not_be_judged(inputs: Any, place: tuple[str | int, ...], kind: str) -> None:
    """PRICED-129"""
    assert problems(inputs) == [(place, kind)]


def test_what_is_wrong_with_a_rule_is_told_without_its_values() -> None:
    """PRICED-171"""
    wrong = {"text": 1, "rules": [rule(id=MARKER * 9, kind=MARKER, value=MARKER, more=MARKER), rule(value=[MARKER])]}
    told = PACKS["compliance"].check(wrong, HERE)
    assert len(told) == 5
    assert MARKER not in repr(told)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
ANY_RULE = st.fixed_dictionaries({}, optional=dict.fromkeys(("id", "kind", "value", "case_sensitive", "x"), JSON))


@given(inputs=JSON | st.fixed_dictionaries({}, optional={"text": JSON, "rules": JSON | st.lists(ANY_RULE | JSON)}))
def test_whatever_is_sent_to_be_judged_is_answered_and_never_raises(inputs: Any) -> None:
    assert all(problem.msg for problem in PACKS["compliance"].check(inputs, HERE))
