"""The stored form of a run: what goes in comes out, and foreign bytes are named as such."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.run import Run
from pyoco_server.core.snapshot import (
    encode,
    encode_fitting,
    from_snapshot,
    read_snapshot,
    shown_snapshot,
    to_snapshot,
)
from pyoco_server.core.states import RunState
from pyoco_server.errors import Corrupt

RUN = Run(
    run_id="0b0e9a52-6b1f-4c3c-9d0a-3c1a7d2f9a11",
    flow_name="f",
    tag="cpu",
    submitted_at=1.0,
    updated_at=2.0,
    heartbeat_at=3.0,
)

text = st.text(st.characters(codec="utf-8"), max_size=8)
numbers = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | numbers | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
json_objects = st.dictionaries(text, json_values, max_size=3)
FIELDS = frozenset(Run.__dataclass_fields__)
runs = st.builds(
    Run,
    run_id=st.uuids(version=4).map(str),
    flow_name=text,
    tag=text,
    tags=st.lists(text, max_size=3).map(tuple),
    status=st.sampled_from(RunState),
    submitted_at=numbers,
    updated_at=numbers,
    heartbeat_at=numbers,
    params=json_objects,
    params_truncated=st.booleans(),
    tasks=st.dictionaries(text, text, max_size=3),
    task_records=json_objects,
    task_records_truncated=st.booleans(),
    attempt=st.integers(0, 99),
    attempt_id=st.none() | text,
    worker_id=st.none() | text,
    start_time=st.none() | numbers,
    end_time=st.none() | numbers,
    error=st.none() | text,
    reason=st.none() | text,
    workflow_yaml_sha256=st.none() | text,
    workflow_yaml_bytes=st.none() | st.integers(0, 99),
    tenant_id=st.none() | text,
    cancel_requested_at=st.none() | numbers,
    cancel_reason=st.none() | text,
    cancel_requested_by=st.none() | text,
    ended_by=st.none() | st.just("keeper"),
    graph=st.dictionaries(text, st.lists(text, max_size=3), max_size=3),
    earlier_attempts=st.lists(json_objects, max_size=3).map(tuple),
    extra=st.dictionaries(text.filter(lambda name: name not in FIELDS), json_values, max_size=2),
)


@given(runs)
def test_a_run_comes_back_as_it_was_stored(run: Run) -> None:
    """FLOW-339 to FLOW-344, FLOW-551: fields of a newer version included."""
    assert read_snapshot(encode(to_snapshot(run))) == run


@given(runs)
def test_a_run_that_fits_is_stored_whole(run: Run) -> None:
    """FLOW-358"""
    whole = encode(to_snapshot(run))
    assert encode_fitting(run, len(whole)) == whole


@given(runs)
def test_a_stored_run_is_strict_json(run: Run) -> None:
    """FLOW-345"""

    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    json.loads(encode(to_snapshot(run)), parse_constant=refuse)


def test_the_required_fields_are_always_there() -> None:
    """FLOW-339, FLOW-340"""
    required = {"run_id", "flow_name", "status", "params", "tasks", "heartbeat_at", "updated_at"}
    recommended = {"tag", "tags", "task_records", "task_records_truncated", "start_time", "end_time", "error"}
    assert required | recommended <= to_snapshot(RUN).keys()


@pytest.mark.parametrize("name", ["tenant_id", "api_key_id", "workflow_yaml_sha256", "cancel_requested_at"])
def test_what_does_not_apply_is_left_out(name: str) -> None:
    """FLOW-341 to FLOW-343"""
    assert name not in to_snapshot(RUN)


def test_the_yaml_text_has_no_place_in_a_snapshot() -> None:
    """FLOW-174"""
    assert "workflow_yaml" not in to_snapshot(RUN)


def test_text_that_is_no_unicode_is_stored_with_question_marks() -> None:
    """FLOW-345"""
    assert read_snapshot(encode(to_snapshot(replace(RUN, error="a\ud800b")))).error == "a?b"


def test_a_number_json_does_not_have_is_never_written() -> None:
    """FLOW-345"""
    with pytest.raises(ValueError, match="JSON"):
        encode({"x": float("nan")})


@pytest.mark.parametrize(
    "member",
    [
        {"graph": []},
        {"graph": "a"},
        {"graph": 5},
        {"earlier_attempts": {}},
        {"earlier_attempts": ["a"]},
        {"earlier_attempts": 5},
    ],
    ids=str,
)
def test_a_picture_or_a_history_of_another_form_is_no_reason_to_give_up_the_run(member: dict[str, Any]) -> None:
    assert from_snapshot(to_snapshot(RUN) | member) == RUN


@pytest.mark.parametrize("graph", [{"a": "b"}, {"a": [1]}, {"a": None}, {"a": [], "b": {"a": 1}}], ids=str)
def test_a_graph_of_another_form_is_carried_along_and_not_shown(graph: dict[str, Any]) -> None:
    """FLOW-551"""
    run = from_snapshot(to_snapshot(RUN) | {"graph": graph})
    assert to_snapshot(run)["graph"] == graph
    assert shown_snapshot(run) == to_snapshot(RUN)


def test_a_graph_is_neither_walked_nor_copied_by_reading_and_writing() -> None:
    """Each heartbeat reads and writes it, and nothing is decided by it"""
    graph = {"a": [], "b": ["a"]}
    run = from_snapshot(to_snapshot(RUN) | {"graph": graph})
    assert run.graph is graph
    assert to_snapshot(run)["graph"] is graph
    assert shown_snapshot(run)["graph"] is graph


def test_null_counts_as_absent() -> None:
    """FLOW-341: `null or absent`"""
    assert from_snapshot(to_snapshot(RUN) | {"workflow_yaml_sha256": None, "params": None}) == RUN


def test_a_snapshot_with_the_required_fields_alone_is_a_run() -> None:
    """FLOW-339"""
    snapshot = {name: to_snapshot(RUN)[name] for name in ("run_id", "flow_name", "status", "params", "updated_at")}
    assert from_snapshot(snapshot).submitted_at == RUN.updated_at


BROKEN: list[bytes] = [
    b"",
    b"\xff",
    b"[]",
    b"{}",
    b"null",
    b"[" * 100_000,
    encode(to_snapshot(RUN) | {"status": "DANCING"}),
    encode(to_snapshot(RUN) | {"status": ["RUNNING"]}),
    encode(to_snapshot(RUN) | {"tags": 5}),
    encode(to_snapshot(RUN) | {"tasks": []}),
    encode(to_snapshot(RUN) | {"task_records": "x"}),
    encode(to_snapshot(RUN) | {"updated_at": None}),
    encode(to_snapshot(RUN) | {"updated_at": 10**400}),
    encode(to_snapshot(RUN) | {"run_id": None}),
]


@pytest.mark.parametrize("data", BROKEN, ids=[repr(data[:12]) for data in BROKEN])
def test_bytes_that_tell_of_no_run_are_corrupt(data: bytes) -> None:
    """FLOW-339"""
    with pytest.raises(Corrupt):
        read_snapshot(data)


@given(st.binary(max_size=60) | st.dictionaries(st.sampled_from(sorted(FIELDS)), json_values).map(encode))
def test_reading_raises_nothing_but_corrupt(data: bytes) -> None:
    """FLOW-339"""
    with contextlib.suppress(Corrupt):
        read_snapshot(data)
