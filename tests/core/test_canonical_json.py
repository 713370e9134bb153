"""The canonical form of JSON: the same bytes in every language."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.priced.canonical import DEPTH_MAX, INTEGER_MAX, NotCanonical, canonical_json

#: Written by a JavaScript engine.
NUMBERS: list[tuple[float, str]] = [
    (0, "0"),
    (-0.0, "0"),
    (0.0, "0"),
    (1.0, "1"),
    (-1.5, "-1.5"),
    (100.0, "100"),
    (0.1, "0.1"),
    (4.35, "4.35"),
    (333333333.33333329, "333333333.3333333"),
    (0.00001234, "0.00001234"),
    (0.000001, "0.000001"),
    (9.5e-7, "9.5e-7"),
    (1e-7, "1e-7"),
    (-1.25e-9, "-1.25e-9"),
    (1e16, "10000000000000000"),
    (9007199254740992.0, "9007199254740992"),
    (1e20, "100000000000000000000"),
    (123456789012345680000.0, "123456789012345680000"),
    (295147905179352825856.0, "295147905179352830000"),
    (999999999999999868928.0, "999999999999999900000"),
    (1e21, "1e+21"),
    (2.5e21, "2.5e+21"),
    (1e23, "1e+23"),
    (5e-324, "5e-324"),
    (-5e-324, "-5e-324"),
    (1.7976931348623157e308, "1.7976931348623157e+308"),
    (INTEGER_MAX, "9007199254740991"),
    (-INTEGER_MAX, "-9007199254740991"),
]

texts = st.text(st.characters(codec="utf-8"), max_size=8)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-INTEGER_MAX, INTEGER_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def shuffled(value: Any) -> Any:
    """The same, with the members of every object in another order."""
    if isinstance(value, dict):
        names = list(value)
        random.Random(7).shuffle(names)
        return {name: shuffled(value[name]) for name in reversed(names)}
    return [shuffled(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("value", "text"), NUMBERS, ids=[text for _, text in NUMBERS])
def test_a_number_is_written_as_javascript_writes_it(value: float, text: str) -> None:
    """PRICED-85"""
    assert canonical_json(value) == text.encode()


def test_members_are_sorted_by_utf_16_code_units() -> None:
    """PRICED-85: an emoji is two units from U+D83D on, and so comes before U+FB33."""
    names = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    found = json.loads(canonical_json(dict.fromkeys(names, 0)))
    assert list(found) == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


def test_only_what_must_be_escaped_is() -> None:
    """PRICED-85"""
    text = '\u20ac$\u000f\nA\'B"\\\\"/\x7f\u2028\b\t\f\r\x00\x1f'
    written = '"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/\x7f\u2028\\b\\t\\f\\r\\u0000\\u001f"'
    assert canonical_json(text) == written.encode()


def test_a_document_has_no_white_space_and_sorted_members_at_every_level() -> None:
    """PRICED-85"""
    document = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "literals": [None, True, False],
        "empty": {"list": [], "object": {}},
        "": {"b": {"z": 1, "a": 2}, "a": [{"d": 1, "c": 2}]},
    }
    assert canonical_json(document) == (
        b'{"":{"a":[{"c":2,"d":1}],"b":{"a":2,"z":1}},"empty":{"list":[],"object":{}},'
        b'"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27]}'
    )


@given(values)
def test_what_is_written_is_the_value_and_only_one_text_of_it(value: Any) -> None:
    """PRICED-85, PRICED-87"""
    written = canonical_json(value)
    again = json.loads(written, parse_int=float)  # to whoever reads it every number is a double
    assert again == value
    assert canonical_json(again) == written
    assert canonical_json(json.loads(json.dumps(shuffled(value), indent=3))) == written


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_comes_back_as_the_same_double(value: float) -> None:
    """PRICED-85"""
    written = canonical_json(value)
    assert float(written) == value
    assert b"E" not in written
    assert not written.endswith(b".0")


REFUSED: list[tuple[Any, str, str]] = [
    (math.nan, "", "finite"),
    (math.inf, "", "finite"),
    ({"a": [1, -math.inf]}, "/a/1", "finite"),
    (json.loads("[1e999]"), "/0", "finite"),
    ({"n": INTEGER_MAX + 1}, "/n", "string"),
    ({"n": [-INTEGER_MAX - 1]}, "/n/0", "string"),
    (10**4000, "", "string"),
    ({"s": "\ud800"}, "/s", "surrogate"),
    ({"s": {"x\udfff": 1}}, "/s", "surrogate"),
    ({"a/b": {"m~n": math.nan}}, "/a~1b/m~0n", "finite"),
    ({1: 2}, "", "text"),
    ({"a": {None: 2}}, "/a", "text"),
    ([b"bytes"], "/0", "bytes"),
    ([{1, 2}], "/0", "set"),
    ([0j], "/0", "complex"),
]


@pytest.mark.parametrize(("value", "pointer", "word"), REFUSED, ids=[f"{row[0]!r:.20}" for row in REFUSED])
def test_a_value_without_a_canonical_form_is_refused_with_its_place(value: Any, pointer: str, word: str) -> None:
    """PRICED-85"""
    with pytest.raises(NotCanonical, match=word) as caught:
        canonical_json(value)
    assert caught.value.pointer == pointer
    assert str(caught.value) == caught.value.problem


def test_a_refusal_does_not_repeat_what_was_sent() -> None:
    """PRICED-171"""
    with pytest.raises(NotCanonical) as caught:
        canonical_json({"a": "marker\ud800"})
    assert "marker" not in str(caught.value)


def nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def test_nesting_has_a_bound() -> None:
    """PRICED-85"""
    assert json.loads(canonical_json(nested(DEPTH_MAX))) == nested(DEPTH_MAX)
    itself: list[Any] = []
    itself.append(itself)
    for value in (nested(DEPTH_MAX + 1), nested(20_000), itself):
        with pytest.raises(NotCanonical, match="deep") as caught:
            canonical_json(value)
        assert caught.value.pointer.count("/") == DEPTH_MAX
