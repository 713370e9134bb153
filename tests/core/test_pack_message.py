"""The message of a priced run: five members, and nothing else gets through."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.priced.message import MESSAGE_BYTES_MAX, BadMessage, PackMessage, decode, encode

RUN_ID = "0b0e9a52-6b1f-4c3c-9d0a-3c1a7d2f9a11"
MESSAGE = PackMessage(run_id=RUN_ID, tenant_id="t_acme", pack_type="ocr", enqueued_at="2026-02-13T00:00:00Z")
GOOD: dict[str, Any] = {
    "run_id": RUN_ID,
    "tenant_id": "t_acme",
    "pack_type": "ocr",
    "enqueued_at": "2026-02-13T00:00:00Z",
    "schema_version": "1",
}

messages = st.builds(
    PackMessage,
    run_id=st.uuids(version=4).map(str),
    tenant_id=st.from_regex(r"[A-Za-z0-9_-]{1,128}", fullmatch=True),
    pack_type=st.sampled_from(["ocr", "url", "decision", "compliance", "eval"]),
    enqueued_at=st.just("2026-02-13T00:00:00.000001Z"),
)


def test_exactly_five_members_are_written() -> None:
    """PRICED-105"""
    assert json.loads(encode(MESSAGE)) == GOOD
    assert list(json.loads(encode(MESSAGE))) == list(GOOD)


@given(messages)
def test_a_message_comes_back_as_it_was_sent(message: PackMessage) -> None:
    """PRICED-105"""
    assert decode(encode(message)) == message


def test_members_it_does_not_know_are_passed_over() -> None:
    """PRICED-105"""
    more = GOOD | {"colour": "red", "inputs": {"question": "?"}, "n": 10**40}
    assert decode(json.dumps(more, indent=1).encode()) == MESSAGE


WRONG: list[tuple[str, Any]] = [
    ("schema_version", "2"),
    ("schema_version", 1),
    ("schema_version", None),
    ("schema_version", ["1"]),
    ("run_id", ""),
    ("run_id", 5),
    ("run_id", None),
    ("run_id", "not-a-uuid"),
    ("run_id", RUN_ID.upper()),
    ("run_id", RUN_ID + "\n"),
    ("tenant_id", ""),
    ("tenant_id", {}),
    ("tenant_id", "a/b"),
    ("tenant_id", "x" * 129),
    ("pack_type", 7),
    ("pack_type", True),
    ("pack_type", "a\x00b"),
    ("pack_type", "\ud800"),
    ("pack_type", "x" * 129),
    ("enqueued_at", 1.5),
    ("enqueued_at", []),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=[f"{name}={value!r:.12}" for name, value in WRONG])
def test_a_member_of_the_wrong_kind_makes_it_a_bad_message(name: str, value: Any) -> None:
    """PRICED-106"""
    with pytest.raises(BadMessage, match=name) as caught:
        decode(json.dumps(GOOD | {name: value}).encode())
    assert "x" * 20 not in str(caught.value)


@pytest.mark.parametrize("name", sorted(GOOD))
def test_a_member_that_is_missing_makes_it_a_bad_message(name: str) -> None:
    """PRICED-106"""
    message = {key: value for key, value in GOOD.items() if key != name}
    with pytest.raises(BadMessage, match=name):
        decode(json.dumps(message).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b'"text"',
        encode(MESSAGE)[:-1],
        encode(MESSAGE) + b"x",
        encode(MESSAGE)[:-1] + b',"n":NaN}',
        b"[" * 60_000,
        b'{"a":' * 10_000,
        b"1" * 5000,
    ],
    ids=lambda data: f"{data!r:.12}",
)
def test_bytes_that_are_no_object_are_a_bad_message(data: bytes) -> None:
    """PRICED-106"""
    with pytest.raises(BadMessage, match="not"):
        decode(data)


def test_a_message_has_a_bound() -> None:
    """PRICED-106"""
    data = encode(MESSAGE).ljust(MESSAGE_BYTES_MAX)
    assert decode(data) == MESSAGE
    with pytest.raises(BadMessage, match="bytes"):
        decode(data + b" ")


@given(st.binary(max_size=60) | st.binary(max_size=20).map(lambda tail: encode(MESSAGE)[:-1] + tail))
def test_decoding_arbitrary_bytes_raises_nothing_but_bad_message(data: bytes) -> None:
    """PRICED-106"""
    with contextlib.suppress(BadMessage):
        decode(data)
