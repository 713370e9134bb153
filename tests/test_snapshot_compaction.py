"""A snapshot never takes more than its cap, and says when it had to give something up (FLOW-553)."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.run import Run
from pyoco_server.core.snapshot import (
    compact_run_snapshot,
    encode,
    encode_fitting,
    encode_smallest,
    read_snapshot,
    to_snapshot,
)
from pyoco_server.core.states import RunState
from pyoco_server.errors import SnapshotTooLargeError

BULKY = ("inputs", "output", "artifacts", "traceback")

text = st.text(st.characters(codec="utf-8"), max_size=20)
values = st.none() | text | st.integers(0, 9) | st.lists(text, max_size=3)
records = st.dictionaries(
    text,
    st.none() | st.dictionaries(st.sampled_from([*BULKY, "state", "error", "duration_ms"]), values),
    max_size=4,
)
snapshots = st.fixed_dictionaries(
    {"run_id": text, "status": st.just("RUNNING"), "params": st.dictionaries(text, values, max_size=2)},
    optional={
        "tasks": st.dictionaries(text, text, max_size=3),
        "task_records": records,
        "task_records_truncated": st.booleans(),
        "graph": st.dictionaries(text, st.lists(text, max_size=3), max_size=3),
        "earlier_attempts": st.lists(st.fixed_dictionaries({"worker_id": text}), max_size=3),
    },
)
#: What may go beside the records.
DISPENSABLE = ("graph", "earlier_attempts")


def a_snapshot(record: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"run_id": "r", "status": "RUNNING", "tasks": {"t": "RUNNING"}, "task_records": {"t": record}} | more


@given(snapshots, st.integers(0, 600))
def test_a_compact_snapshot_is_never_above_its_cap(snapshot: dict[str, Any], bytes_max: int) -> None:
    """FLOW-358, FLOW-362"""
    try:
        compact = compact_run_snapshot(snapshot, bytes_max)
    except SnapshotTooLargeError:
        smallest = snapshot | {"task_records": {}, "task_records_truncated": False}
        assert len(encode({name: smallest[name] for name in smallest if name not in DISPENSABLE})) > bytes_max
    else:
        assert len(encode(compact)) <= bytes_max


@given(snapshots, st.integers(0, 600))
def test_compaction_leaves_its_argument_as_it_was(snapshot: dict[str, Any], bytes_max: int) -> None:
    """FLOW-359"""
    before = copy.deepcopy(snapshot)
    with contextlib.suppress(SnapshotTooLargeError):
        compact_run_snapshot(snapshot, bytes_max)
    assert snapshot == before


@given(snapshots, st.integers(0, 600))
def test_the_flag_is_true_exactly_when_something_was_removed(snapshot: dict[str, Any], bytes_max: int) -> None:
    """FLOW-361"""
    try:
        compact = compact_run_snapshot(snapshot, bytes_max)
    except SnapshotTooLargeError:
        return
    removed = compact.get("task_records", {}) != snapshot.get("task_records", {})
    assert compact["task_records_truncated"] == (removed or snapshot.get("task_records_truncated", False))


@given(snapshots, st.integers(0, 600))
def test_only_task_records_are_reduced_and_what_shows_more(snapshot: dict[str, Any], bytes_max: int) -> None:
    """FLOW-359: `tasks` is kept, and so is everything else."""
    try:
        compact = compact_run_snapshot(snapshot, bytes_max)
    except SnapshotTooLargeError:
        return
    reduced = ("task_records", "task_records_truncated", *DISPENSABLE)
    assert {name: value for name, value in compact.items() if name not in reduced} == {
        name: value for name, value in snapshot.items() if name not in reduced
    }


def test_the_bulk_of_every_record_goes_first() -> None:
    """FLOW-360"""
    snapshot = a_snapshot({"state": "RUNNING", "error": None} | dict.fromkeys(BULKY, "x" * 100))
    compact = compact_run_snapshot(snapshot, 200)
    assert compact["task_records"] == {"t": {"state": "RUNNING", "error": None}}
    assert compact["task_records_truncated"] is True


def test_the_records_go_when_their_bulk_was_not_enough() -> None:
    """FLOW-360"""
    compact = compact_run_snapshot(a_snapshot({"state": "FAILED", "error": "x" * 500}), 200)
    assert (compact["task_records"], compact["tasks"]) == ({}, {"t": "RUNNING"})
    assert compact["task_records_truncated"] is True


def what_is_left(snapshot: dict[str, Any]) -> list[list[str]]:
    """As there is less and less room."""
    left: list[list[str]] = []
    for bytes_max in range(len(encode(snapshot)) + 40, 110, -1):
        compact = compact_run_snapshot(snapshot, bytes_max)
        there = [name for name in ("task_records", *DISPENSABLE) if compact.get(name)]
        there += [name for name in BULKY if name in compact["task_records"].get("t", {})]
        if there not in left:
            left.append(there)
        assert compact["tasks"] == snapshot["tasks"]
        assert compact["task_records_truncated"] == (compact["task_records"] != snapshot["task_records"])
    return left


@pytest.mark.parametrize(
    ("bulk", "rest", "graph", "order"),
    [
        # The picture alone is enough for a while.
        (50, 50, 400, ["RGHo", "RHo", "RH", "H", ""]),
        # What is bulky is larger than the picture, which stays where there is room for it.
        (600, 50, 100, ["RGHo", "RHo", "RGH", "RH", "H", ""]),
        (600, 400, 100, ["RGHo", "RHo", "RGH", "RH", "GH", "H", ""]),
    ],
)
def test_a_picture_goes_before_results_and_history_last(bulk: int, rest: int, graph: int, order: list[str]) -> None:
    """FLOW-359, FLOW-360, FLOW-361"""
    snapshot = a_snapshot(
        {"state": "x" * rest, "output": "x" * bulk},
        graph={"a": ["x" * graph]},
        earlier_attempts=[{"worker_id": "x" * 100}],
    )
    words = {"R": "task_records", "G": "graph", "H": "earlier_attempts", "o": "output"}
    assert what_is_left(snapshot) == [[words[letter] for letter in each] for each in order]


def test_a_snapshot_that_fits_is_only_marked_as_whole() -> None:
    """FLOW-361"""
    snapshot = a_snapshot({"state": "RUNNING", "output": "x"})
    assert compact_run_snapshot(snapshot, 1000) == snapshot | {"task_records_truncated": False}


def test_an_earlier_cut_is_not_forgotten() -> None:
    """FLOW-361"""
    snapshot = a_snapshot({"state": "RUNNING"}, task_records_truncated=True)
    assert compact_run_snapshot(snapshot, 1000)["task_records_truncated"] is True


def test_one_byte_over_without_records_is_too_large_not_truncated() -> None:
    """FLOW-361: `true` is a byte shorter than `false`, which is no reason to say it."""
    snapshot = {"run_id": "r", "task_records": {}, "task_records_truncated": False}
    with pytest.raises(SnapshotTooLargeError):
        compact_run_snapshot(snapshot, len(encode(snapshot)) - 1)


def test_the_cap_counts_bytes_not_characters() -> None:
    """FLOW-358"""
    snapshot = a_snapshot({"state": "RUNNING", "output": "あ" * 100})
    assert compact_run_snapshot(snapshot, 300)["task_records_truncated"] is True


def a_run(**more: Any) -> Run:
    fields: dict[str, Any] = {
        "run_id": "0b0e9a52-6b1f-4c3c-9d0a-3c1a7d2f9a11",
        "flow_name": "f",
        "tag": "cpu",
        "submitted_at": 1.0,
        "updated_at": 2.0,
        "heartbeat_at": 2.0,
        "status": RunState.FAILED,
    }
    return Run(**fields | more)


def test_a_run_is_compacted_only_when_it_must_be() -> None:
    """FLOW-358, FLOW-359"""
    run = a_run(task_records={"t": {"state": "FAILED", "output": "x" * 2000}})
    assert read_snapshot(encode_fitting(run, 4000)) == run
    cut = read_snapshot(encode_fitting(run, 1000))
    assert (cut.task_records, cut.task_records_truncated) == ({"t": {"state": "FAILED"}}, True)


def test_a_run_that_cannot_be_made_to_fit_is_refused() -> None:
    """FLOW-362"""
    with pytest.raises(SnapshotTooLargeError, match="are allowed"):
        encode_fitting(a_run(params={"x": "y" * 2000}), 1000)


def test_a_run_is_not_refused_for_its_history_or_its_picture() -> None:
    """FLOW-362: a claim adds to both, and no run may fail because it was handed around."""
    run = a_run(params={"x": "y" * 500})
    room = len(encode(to_snapshot(run)))
    long = replace(run, graph={"a": ("b" * 500,)}, earlier_attempts=({"worker_id": "w" * 500},))
    assert read_snapshot(encode_fitting(long, room)) == run
    assert read_snapshot(encode_smallest(long, 10_000)).graph == {}


def test_the_smallest_snapshot_tells_the_true_status_and_why_it_is_small() -> None:
    """FLOW-363"""
    run = a_run(params={"x": "y" * 9000}, tasks={"t": "FAILED"}, task_records={"t": {}}, error="boom")
    data = encode_smallest(run, 1000)
    small = read_snapshot(data)
    assert len(data) <= 1000
    assert (small.status, small.params, small.params_truncated) == (RunState.FAILED, {}, True)
    assert (small.tasks, small.task_records, small.task_records_truncated) == ({"t": "FAILED"}, {}, True)
    assert small.error is not None
    assert small.error.startswith("ERR-PYOCO-0010")
    assert small.error.endswith("boom")


def test_the_smallest_snapshot_gives_up_tasks_only_when_they_do_not_fit() -> None:
    """FLOW-363"""
    run = a_run(tasks={f"task-{number}": "SUCCEEDED" for number in range(200)})
    assert read_snapshot(encode_smallest(run, 1000)).tasks == {}
    assert read_snapshot(encode_smallest(run, 100_000)).tasks == run.tasks


@given(st.text(max_size=3000), st.lists(st.text(max_size=40), max_size=8), st.dictionaries(text, text, max_size=30))
def test_the_smallest_snapshot_fits_a_small_cap_whatever_the_user_sent(
    error: str, tags: list[str], tasks: dict[str, str]
) -> None:
    """FLOW-363"""
    run = a_run(error=error, tags=tuple(tags), tasks=tasks, task_records={"t": {"output": error}})
    assert len(encode_smallest(run, 1024)) <= 1024
    assert encode(to_snapshot(run))  # and the whole one can still be written where there is room
