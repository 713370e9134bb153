"""What the registry knows of a worker."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.offered_flow import OfferedFlow
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import (
    WorkerRecord,
    encode_over,
    encode_worker,
    hide,
    read_worker,
    stopped,
    take_over,
)
from pyoco_server.errors import Corrupt

ANNA = WorkerRecord(
    worker_id="anna",
    instance_id="i-1",
    state=WorkerState.RUNNING,
    tags=("cpu",),
    last_seen_at=100.0,
    last_heartbeat_at=100.0,
    current_run_id="r",
    running=("r",),
)

text = st.text(st.characters(codec="utf-8"), max_size=8)
instants = st.floats(0, 1e11)
records = st.builds(
    WorkerRecord,
    worker_id=text,
    instance_id=text,
    state=st.sampled_from(WorkerState),
    tags=st.lists(text, max_size=3).map(tuple),
    last_seen_at=instants,
    last_heartbeat_at=instants,
    hidden=st.booleans(),
    updated_at=st.none() | instants,
    current_run_id=st.none() | text,
    stopped_at=st.none() | instants,
    stop_reason=st.none() | text,
    wheel_sync=st.none() | st.dictionaries(text, text, max_size=2),
    slots=st.integers(1, 64),
    running=st.lists(text, max_size=3).map(tuple),
    versions=st.dictionaries(text, text, max_size=2),
    flows=st.lists(
        st.builds(OfferedFlow, name=st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), app=st.just("app")),
        max_size=2,
    ).map(tuple),
    flows_complete=st.booleans(),
)


@given(records)
def test_a_record_comes_back_as_it_was_stored(record: WorkerRecord) -> None:
    """FLOW-353"""
    assert read_worker(encode_worker(record)) == record


def test_older_readers_find_the_heartbeat_under_its_old_name() -> None:
    """FLOW-354"""
    assert json.loads(encode_worker(ANNA))["heartbeat_at"] == 100.0


def test_fields_of_a_newer_version_are_passed_over() -> None:
    """FLOW-551"""
    assert read_worker(json.dumps(json.loads(encode_worker(ANNA)) | {"colour": "red"}).encode()) == ANNA


def test_a_record_of_an_older_worker_announces_nothing() -> None:
    """APP-10"""
    document = json.loads(encode_worker(ANNA))
    del document["flows"], document["flows_complete"]
    read = read_worker(json.dumps(document).encode())
    assert (read.flows, read.flows_complete, read.announces, read.offers("x")) == ((), False, False, False)


def test_an_announced_flow_is_stored_with_every_member() -> None:
    """APP-10: readers in other languages, and older ones, which pass over what they do not know, need no defaults."""
    flow = OfferedFlow(name="measure", app="reports", params={"type": "object"}, tool=True)
    record = replace(ANNA, flows=(flow,), flows_complete=True)
    (stored,) = json.loads(encode_worker(record))["flows"]
    assert stored == flow.document()
    read = read_worker(encode_worker(record))
    assert (read.offers("measure"), read.offers("other")) == (True, False)
    newer = json.loads(encode_worker(record))
    newer["flows"][0]["colour"] = "red"
    assert read_worker(json.dumps(newer).encode()) == record


def test_text_that_is_no_unicode_does_not_stop_a_heartbeat() -> None:
    """FLOW-243: a file name from the disk may hold such text."""
    assert read_worker(encode_worker(replace(ANNA, stop_reason="a\udcffb"))).stop_reason == "a?b"


@pytest.mark.parametrize(
    ("state", "silence", "shown"),
    [
        (WorkerState.RUNNING, 20, WorkerState.RUNNING),
        (WorkerState.IDLE, 20, WorkerState.IDLE),
        (WorkerState.RUNNING, 20.1, WorkerState.DISCONNECTED),
        (WorkerState.IDLE, 20.1, WorkerState.DISCONNECTED),
        (WorkerState.STOPPED_GRACEFUL, 1e9, WorkerState.STOPPED_GRACEFUL),
        (WorkerState.RUNNING, -5, WorkerState.RUNNING),  # its clock is ahead of ours
    ],
)
def test_a_silent_worker_is_disconnected_and_a_stopped_one_is_not(
    state: WorkerState, silence: float, shown: WorkerState
) -> None:
    """FLOW-24 to FLOW-27"""
    record = replace(ANNA, state=state)
    assert record.derived_state(100.0 + silence, 20) is shown
    assert record.is_alive(100.0 + silence, 20) == (shown in {WorkerState.RUNNING, WorkerState.IDLE})


def test_a_worker_that_writes_again_is_shown_as_it_says() -> None:
    """FLOW-28"""
    assert ANNA.derived_state(200.0, 20) is WorkerState.DISCONNECTED
    assert replace(ANNA, last_seen_at=199.0).derived_state(200.0, 20) is WorkerState.RUNNING


def test_a_restarted_worker_keeps_what_belongs_to_the_operator() -> None:
    """FLOW-148, FLOW-355"""
    stored = replace(ANNA, hidden=True, updated_at=50.0, instance_id="old", slots=9)
    mine = take_over(ANNA, stored)
    assert (mine.hidden, mine.updated_at) == (True, 50.0)
    assert replace(mine, hidden=False, updated_at=None) == ANNA
    assert take_over(ANNA, None) == ANNA


def test_an_orderly_stop_says_when_and_why_and_runs_nothing() -> None:
    """FLOW-26, FLOW-198"""
    record = stopped(replace(ANNA, hidden=True), "sigterm", 300.0)
    assert (record.state, record.stopped_at, record.stop_reason) == (WorkerState.STOPPED_GRACEFUL, 300.0, "sigterm")
    assert (record.current_run_id, record.running, record.hidden) == (None, (), True)


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"[]", b"{}", b"null", b"[" * 100_000, b'{"worker_id":"a","state":"X","last_seen_at":1}']
)
def test_bytes_that_are_no_worker_are_corrupt(data: bytes) -> None:
    """FLOW-353"""
    with pytest.raises(Corrupt):
        read_worker(data)


#: Values of a wrong kind, by field.
ODD: dict[str, list[object]] = {
    "worker_id": [5, [], True],
    "instance_id": [5],
    "current_run_id": [5, {}],
    "stop_reason": ["\ud800"],
    "last_seen_at": ["1", True, [1], float("nan"), float("inf"), 10**400],
    "updated_at": ["1", True],
    "last_pull_at": [{}],
    "slots": ["1", 1.5, True, {}],
    "host_restarts": [1.5],
    "tags": ["gpu", [1], {"a": 1}, 5, [None]],
    "running": ["r1", [5]],
    "versions": ["1", [], 5],
    "kind": [5, []],
    "door_id": [5],
    "patterns": ["job.assign.*", [1]],
    "credits": ["1", 1.5, True],
    "max_parallel": [{}],
    "wheel_sync": [[], 5, {"failed": ["\udfff"]}],
    "hidden": ["true", 1, []],
    "flows": ["x", {}, [5], [{"name": "x"}], [{"name": "", "app": "a"}], [{"name": "x", "app": "a", "params": []}]],
    "flows_complete": ["true", 1],
    "state": ["running", "", 5, []],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in ODD.items() for value in values])
def test_a_record_that_would_spoil_a_list_is_corrupt(name: str, value: object) -> None:
    """FLOW-140, FLOW-353: one odd record must not cost everybody their list"""
    with pytest.raises(Corrupt):
        read_worker(json.dumps(json.loads(encode_worker(ANNA)) | {name: value}).encode())


def test_an_operator_hides_and_shows_and_says_nothing_twice() -> None:
    """FLOW-144, FLOW-147, FLOW-355"""
    hidden = hide(ANNA, True, 5.0)
    assert hidden == replace(ANNA, hidden=True, updated_at=5.0)
    assert hide(hidden, True, 9.0) is hidden
    assert hide(hidden, False, 9.0) == replace(ANNA, updated_at=9.0)
    assert hide(ANNA, False, 5.0) == replace(ANNA, updated_at=5.0)  # the first word has a time, too


def test_what_a_newer_worker_tells_is_not_dropped() -> None:
    """FLOW-148, FLOW-551"""
    stored = json.dumps(json.loads(encode_worker(ANNA)) | {"colour": "red"}).encode()
    written = encode_over(hide(read_worker(stored), True, 5.0), stored)
    assert json.loads(written) == json.loads(stored) | {"hidden": True, "updated_at": 5.0}


@pytest.mark.parametrize(
    ("state", "silence", "retention", "forgettable"),
    [
        (WorkerState.IDLE, 101, 100, True),
        (WorkerState.RUNNING, 101, 100, True),
        (WorkerState.STOPPED_GRACEFUL, 101, 100, True),
        (WorkerState.IDLE, 100, 100, False),
        (WorkerState.STOPPED_GRACEFUL, 100, 100, False),
        (WorkerState.IDLE, 15, 10, False),  # silent, but not for long enough to be gone
        (WorkerState.STOPPED_GRACEFUL, 15, 10, True),
        (WorkerState.IDLE, 1e9, 0, False),
        (WorkerState.STOPPED_GRACEFUL, 1e9, 0, False),
        (WorkerState.STOPPED_GRACEFUL, -1e9, 100, False),
    ],
)
def test_a_worker_is_forgotten_when_it_has_been_gone_for_long(
    state: WorkerState, silence: float, retention: float, forgettable: bool
) -> None:
    """FLOW-194: 0 keeps it for ever"""
    record = replace(ANNA, state=state)
    assert record.is_forgettable(100.0 + silence, 20, retention) == forgettable
