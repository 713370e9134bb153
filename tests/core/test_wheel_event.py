"""Events of the wheel history as bytes: what we write, and whatever a stranger may have written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.run import Caller
from pyoco_server.core.wheel_event import (
    WheelAction,
    WheelEvent,
    WheelSource,
    encode_wheel_event,
    read_wheel_event,
)
from pyoco_server.errors import Corrupt

EVENT = WheelEvent(
    event_id="00000000-0000-4000-8000-000000000001",
    occurred_at=1700000000.5,
    action=WheelAction.UPLOAD,
    wheel_name="my_tasks-1.0-py3-none-any.whl",
    tags=("gpu", "night"),
    source=WheelSource("http", "192.0.2.1", "curl/8"),
    actor=Caller("acme", "0123456789abcdef"),
    size_bytes=12,
    sha256_hex="0" * 64,
)
#: The least that makes an event.
LEAST = {"event_id": "e", "occurred_at": 1, "action": "delete", "wheel_name": "a-1-py3-none-any.whl"}


def read(message: Any) -> WheelEvent:
    return read_wheel_event(json.dumps(message).encode())


def test_an_event_is_stored_as_it_is_shown() -> None:
    """FLOW-223, FLOW-224, FLOW-225"""
    assert json.loads(encode_wheel_event(EVENT)) == {
        "event_id": EVENT.event_id,
        "occurred_at": 1700000000.5,
        "action": "upload",
        "wheel_name": "my_tasks-1.0-py3-none-any.whl",
        "tags": ["gpu", "night"],
        "source": {"via": "http", "remote_addr": "192.0.2.1", "user_agent": "curl/8"},
        "actor": {"tenant_id": "acme", "api_key_id": "0123456789abcdef"},
        "size_bytes": 12,
        "sha256_hex": "0" * 64,
    }


def test_without_authentication_nobody_is_named() -> None:
    """FLOW-225"""
    message = json.loads(encode_wheel_event(read(LEAST)))
    assert message["actor"] == {"tenant_id": None, "api_key_id": None}
    assert (message["source"]["remote_addr"], message["source"]["user_agent"]) == (None, None)


def test_what_was_written_is_read() -> None:
    """FLOW-223"""
    assert read_wheel_event(encode_wheel_event(EVENT)) == EVENT
    least = read(LEAST)
    assert read_wheel_event(encode_wheel_event(least)) == least
    assert (least.action, least.occurred_at, least.tags, least.size_bytes) == (WheelAction.DELETE, 1.0, (), None)


def test_members_that_came_later_are_passed_over() -> None:
    """FLOW-223: more fields may follow."""
    assert read({**LEAST, "colour": "red"}) == read(LEAST)


@pytest.mark.parametrize("data", [b"", b"x", b"[]", b"1", b'"upload"', b"null", b"{}", b"\xff", b"[" * 100_000])
def test_what_is_no_event_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        read_wheel_event(data)


#: By member, what it cannot be.
ODD: dict[str, list[Any]] = {
    **{name: [None, "", [], {}, True, -1] for name in LEAST},
    "occurred_at": [None, "1", [], True, -1, float("nan"), float("inf"), 10**400, 1e12],
    "action": [None, "", "rename", [], {}, 1],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in ODD.items() for value in values])
def test_an_event_that_does_not_tell_what_happened_to_which_wheel_is_corrupt(name: str, value: Any) -> None:
    with pytest.raises(Corrupt):
        read({**LEAST, name: value})


#: The same, of members it can do without.
UNTOLD: dict[str, list[Any]] = {
    "tags": [None, "", True, {}, [1, None, ""]],
    "source": [None, "", True, [], {"remote_addr": 1}],
    "actor": [None, "", True, [], {"tenant_id": []}],
    "size_bytes": [None, "", True, -1, 1.5, 2**63],
    "sha256_hex": [None, "", True, 1],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in UNTOLD.items() for value in values])
def test_any_other_member_that_is_not_what_it_should_be_counts_as_not_told(name: str, value: Any) -> None:
    assert read({**LEAST, name: value}) == read(LEAST)


def test_what_is_too_long_is_cut_and_half_a_character_becomes_a_question_mark() -> None:
    event = read({**LEAST, "source": {"user_agent": "u" * 10_000}, "tags": ["t"] * 1000, "wheel_name": "\ud800.whl"})
    assert (len(event.source.user_agent or ""), len(event.tags), event.wheel_name) == (512, 100, "?.whl")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(list(EVENT.document())), json_values))
def test_whatever_else_it_holds_it_can_be_shown_and_read_again(message: dict[str, Any]) -> None:
    try:
        event = read({**LEAST, **message})
    except Corrupt:
        return
    assert read_wheel_event(encode_wheel_event(event)) == event


@given(st.binary())
def test_whatever_bytes_it_is_it_is_read_or_corrupt(data: bytes) -> None:
    try:
        read_wheel_event(data)
    except Corrupt:
        return
