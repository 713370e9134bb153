"""Dead letters as bytes: what we write, and whatever a stranger may have written."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyoco_server.core.dead_letter import (
    UNKNOWN_REASON,
    DeadLetter,
    dead_letter_of,
    encode_dead_letter,
    read_dead_letter,
    read_letter_id,
)
from pyoco_server.core.outcome import DeadReason
from pyoco_server.core.run import ERROR_LENGTH_MAX, Run
from pyoco_server.errors import Corrupt

RUN = Run(
    run_id="00000000-0000-4000-8000-000000000001",
    flow_name="flow 日本",
    tag="gpu",
    tags=("gpu", "night"),
    params={"secret": "s3cret"},
    submitted_at=1.0,
    updated_at=2.0,
    heartbeat_at=2.0,
    worker_id="w",
    error="it broke",
    tenant_id="acme",
    api_key_id="0123456789abcdef",
)


def read(message: Any) -> DeadLetter:
    return read_dead_letter(json.dumps(message).encode(), "lane", 7.5)


def test_the_letter_of_a_run_tells_whose_it_was_and_nothing_it_was_given() -> None:
    """FLOW-334, FLOW-337, FLOW-272"""
    letter = dead_letter_of(RUN, DeadReason.TIMEOUT, 5.0, num_delivered=2, subject="work.gpu")
    message = json.loads(encode_dead_letter(letter))
    assert message == {
        "timestamp": 5.0,
        "reason": "timeout",
        "error": "it broke",
        "tag": "gpu",
        "run_id": RUN.run_id,
        "flow_name": "flow 日本",
        "tags": ["gpu", "night"],
        "worker_id": "w",
        "num_delivered": 2,
        "subject": "work.gpu",
        "tenant_id": "acme",
        "api_key_id": "0123456789abcdef",
    }


def test_what_is_not_known_is_left_out_but_for_the_error() -> None:
    """FLOW-331 to FLOW-334"""
    letter = DeadLetter(timestamp=1.0, reason=DeadReason.INVALID_JOB, error=None, tag="a")
    assert json.loads(encode_dead_letter(letter)) == {
        "timestamp": 1.0,
        "reason": "invalid_job",
        "error": None,
        "tag": "a",
    }


@pytest.mark.parametrize("reason", DeadReason)
def test_what_was_written_is_read(reason: DeadReason) -> None:
    for letter in (
        dead_letter_of(RUN, reason, 5.0, num_delivered=2, subject="work.gpu"),
        DeadLetter(timestamp=1.0, reason=reason, error=None, tag="a"),
    ):
        assert read_dead_letter(encode_dead_letter(letter), "another", 9.0) == letter


def test_a_strangers_letter_shows_what_it_tells() -> None:
    assert read({}) == DeadLetter(timestamp=7.5, reason=UNKNOWN_REASON, error=None, tag="lane")
    assert read({"reason": "moon_phase", "timestamp": 3, "tag": "x"}) == DeadLetter(
        timestamp=3.0, reason="moon_phase", error=None, tag="x"
    )
    assert "params" not in vars(read({"params": {"a": 1}, "workflow_yaml": "x"}))


@pytest.mark.parametrize("data", [b"", b"x", b"[]", b"1", b'"text"', b"null", b"\xff", b"[" * 100_000, b"1" * 5000])
def test_what_is_no_object_is_no_letter(data: bytes) -> None:
    with pytest.raises(Corrupt):
        read_dead_letter(data, "lane", 7.5)


#: By member, what it cannot be.
ODD: dict[str, list[Any]] = {
    **{
        name: ["", 1, [], {}, None]
        for name in ("reason", "error", "run_id", "flow_name", "tenant_id", "tag", "subject")
    },
    "timestamp": [-1, 1e12, 10**400, float("nan"), float("inf"), "1", True, None],
    "num_delivered": [-1, 2**31, 10**400, 1.5, "1", True, None],
    "tags": ["a", 1, {}, None],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in ODD.items() for value in values])
def test_a_member_that_is_not_what_it_should_be_counts_as_not_told(name: str, value: Any) -> None:
    assert read({name: value}) == read({})


def test_what_is_too_long_is_cut_and_half_a_character_becomes_a_question_mark() -> None:
    letter = read({"error": "e" * 100_000, "flow_name": "f" * 100_000, "tags": ["t" * 1000, 3, ""] + ["x"] * 1000})
    assert (len(letter.error or ""), len(letter.flow_name or "")) == (ERROR_LENGTH_MAX, 512)
    assert letter.tags == ("t" * 512, *["x"] * 97)
    odd = read_dead_letter(b'{"reason": "\\ud800x", "flow_name": "a\\u0000b"}', "lane", 7.5)
    assert (odd.reason, odd.flow_name) == ("?x", "a\0b")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.dictionaries(st.sampled_from([field.name for field in fields(DeadLetter)]), json_values)
    | st.dictionaries(st.text(), json_values, max_size=3)
)
@example({"reason": "half of a pair: \ud800", "tags": ["\udfff"], "run_id": "\ud800"})
@example({"timestamp": float("nan"), "num_delivered": True, "error": "x" * 100_000})
def test_whatever_object_it_is_it_can_be_shown_and_read_again(message: dict[str, Any]) -> None:
    letter = read(message)
    data = encode_dead_letter(letter)
    assert read_dead_letter(data, "another", 9.0) == letter
    assert data.decode()


@given(st.binary())
def test_whatever_bytes_it_is_it_is_read_or_refused(data: bytes) -> None:
    try:
        read_dead_letter(data, "lane", 7.5)
    except Corrupt:
        return


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1), ("9" * 18, int("9" * 18)), ("120", 120)]
    + [(text, None) for text in ("", "0", "01", "+1", "-1", " 1", "1 ", "1.0", "1_0", "x", "٣", "9" * 19, "9" * 9999)],
)
def test_an_id_on_the_wire_is_a_number_in_its_one_form(text: str, number: int | None) -> None:
    assert read_letter_id(text) == number
