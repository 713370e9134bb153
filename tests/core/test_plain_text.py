"""Texts from somebody else's code, before they are stored."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.priced.plain_text import is_plain, plain
from pyoco_server.core.priced.run import Intent, MoneyOp, ResultPointer
from pyoco_server.core.states.priced import Status

#: Also halves of surrogate pairs, which `text()` leaves out.
ANYTHING = st.text(st.characters(codec=None, exclude_categories=()))

POINTER = ResultPointer(bucket="dpp-results", key="dpp/anna/envelope.json", sha256="ab" * 32, size_bytes=812)
FAILED = Intent(status=Status.FAILED, money_op=MoneyOp.SETTLE, charge_usd_micros=5_000, reason_code="PACK_FAILED")


@given(ANYTHING, st.integers(0, 40))
def test_whatever_it_was_it_can_be_stored_and_shown(text: str, length_max: int) -> None:
    made = plain(text, length_max)
    assert len(made) <= length_max
    assert made.encode().decode() == made
    assert not any(unicodedata.category(each) in {"Cc", "Cs"} for each in made)
    assert is_plain(made)
    assert plain(made, length_max) == made
    if is_plain(text) and not {"\u2028", "\u2029"} & set(text):
        assert made == text[:length_max]


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("page 3 cannot be read", "page 3 cannot be read"),
        ("a\x00b\x1b[31mc\x7fd\x9b", "ab[31mcd"),
        ("one\r\ntwo\tthree\u2028four", "one two three four"),
        ("half \ud800 and \udc00", "half \ufffd and \ufffd"),
        ("both halves \ud83d\ude00", "both halves \U0001f600"),
        ("日本語 \U0001f600", "日本語 \U0001f600"),
    ],
)
def test_what_cannot_be_stored_goes_and_the_rest_stays(text: str, made: str) -> None:
    assert plain(text, 100) == made


@given(ANYTHING)
def test_an_intent_holds_no_text_that_could_not_be_committed(text: str) -> None:
    """PRICED-18: what was claimed can be ended."""
    intent = Intent(
        status=Status.FAILED, money_op=MoneyOp.SETTLE, charge_usd_micros=1, reason_code=text, error_detail=text * 10
    )
    assert is_plain(intent.reason_code or "")
    assert is_plain(intent.error_detail or "")
    assert len(intent.reason_code or "") <= 64
    assert len(intent.error_detail or "") <= 500
    assert Intent.of(intent.document()) == intent


def test_an_intent_that_was_written_without_that_care_is_read_as_one_that_was() -> None:
    found = Intent.of(FAILED.document() | {"error_detail": "X: a\x00b \ud800"})
    assert found.error_detail == "X: ab \ufffd"


@pytest.mark.parametrize(
    "other",
    [
        {"status": "DONE"},
        {"status": "COMPLETED"},
        {"status": []},
        {"money_op": None},
        {"money_op": "REFUND"},
        {"charge_usd_micros": "5000"},
        {"charge_usd_micros": 5000.0},
        {"charge_usd_micros": True},
        {"charge_usd_micros": None},
        {"charge_usd_micros": -1},
        {"tokens_consumed": None},
        {"error_detail": 7},
        {"reason_code": {}},
        {"result": []},
        {"result": {}},
        {"result": POINTER.document()},
        {"result": POINTER.document() | {"key": None}},
    ],
)
def test_what_is_no_intent_is_a_value_error(other: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no intent"):
        Intent.of(FAILED.document() | other)


@pytest.mark.parametrize("document", [[], {}, "text", 7])
def test_what_is_not_even_an_object_with_its_members_is_one_too(document: Any) -> None:
    with pytest.raises(ValueError, match="no intent"):
        Intent.of(document)


@pytest.mark.parametrize(
    "other",
    [{"key": "a\x00b"}, {"bucket": "\ud800"}, {"artifacts": ({"name": "a\nb", "bytes": 1},)}],
    ids=["key", "bucket", "artifact"],
)
def test_a_pointer_cannot_carry_what_cannot_be_stored(other: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        ResultPointer(**{"bucket": "b", "key": "k", "sha256": "ab", "size_bytes": 1, **other})
