"""What worker and host say to each other, and what a task may say instead."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.offered_flow import OfferedFlow
from pyoco_server.core.outcome import Cancelled, Completed, DeadReason, Failed, Outcome, Progress
from pyoco_server.executors.host.wire import (
    pack_outcome,
    pack_progress,
    pack_ready,
    unpack_outcome,
    unpack_progress,
    unpack_ready,
)

GRAPH: dict[str, list[str]] = {"it": [], "und dann": ["it"]}
SOME = Progress({"it": "SUCCEEDED"}, {"it": {"output": [1, None, "ü\ud800", 1.5]}}, False, GRAPH)
ANYTHING = st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda some: st.lists(some, max_size=3))
DOCUMENTS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "end": st.sampled_from(["completed", "cancelled", "failed", "what"]) | ANYTHING,
        "message": ANYTHING,
        "why": st.sampled_from(list(DeadReason)) | ANYTHING,
        "tasks": st.dictionaries(st.text(), st.text() | ANYTHING, max_size=2) | ANYTHING,
        "records": st.dictionaries(st.text(), ANYTHING | st.just({}), max_size=2) | ANYTHING,
        "truncated": ANYTHING,
        "graph": st.dictionaries(st.text(), st.lists(st.text() | ANYTHING, max_size=2) | ANYTHING, max_size=2),
    },
)


@pytest.mark.parametrize(
    "outcome",
    [
        Completed(progress=SOME),
        Cancelled(progress=SOME),
        Failed(message="on purpose", why=DeadReason.FLOW_NOT_FOUND, progress=SOME),
    ],
)
def test_an_outcome_comes_as_it_went(outcome: Outcome) -> None:
    assert unpack_outcome(pack_outcome(outcome, 10_000)) == outcome
    assert unpack_progress(pack_progress(outcome.progress, 10_000)) == outcome.progress


def test_what_does_not_fit_goes_in_order_and_the_states_of_tasks_stay() -> None:
    """FLOW-359, FLOW-360"""
    some = Progress({"a": "FAILED"}, {"a": {"error": "x" * 300, "output": "x" * 400}}, False, {"a": ["b" * 200]})
    shown: list[tuple[list[str], bool]] = []
    for bytes_max in range(1100, 90, -1):
        left = unpack_progress(pack_progress(some, bytes_max))
        assert (left.tasks, left.truncated) == (some.tasks, left.task_records != some.task_records)
        there = (list(left.task_records.get("a", {})), bool(left.graph))
        if there not in shown:
            shown.append(there)
    both, error = ["error", "output"], ["error"]
    assert shown == [(both, True), (both, False), (error, True), (error, False), ([], True), ([], False)]


def test_what_is_wrong_with_wheels_comes_as_it_went() -> None:
    for faults in ({}, {"/wheels/a-1": "Plug-in 'ä' failed", "/wheels/\udc80": "x"}):
        assert unpack_ready(pack_ready(faults)) == (faults, None)
    offered = (OfferedFlow(name="ä", app="reports", tags=("gpu",), params={"type": "object"}, tool=True),)
    assert unpack_ready(pack_ready({}, offered)) == ({}, offered)


def is_plain(progress: Progress) -> bool:
    texts = [*progress.tasks, *progress.tasks.values(), *progress.task_records]
    texts += [text for names in progress.graph.values() for text in (*progress.graph, *names)]
    return all(isinstance(text, str) for text in texts) and type(progress.truncated) is bool


@given(st.binary() | DOCUMENTS.map(lambda document: json.dumps(document).encode()))
def test_whatever_comes_is_read_or_refused(data: bytes) -> None:
    """Never another exception: the worker would take it for a defect of its own."""
    for unpack in (unpack_outcome, unpack_progress, unpack_ready):
        try:
            found: Any = unpack(data)
        except ValueError:
            continue
        assert is_plain(found if isinstance(found, Progress) else getattr(found, "progress", Progress()))


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b"9" * 100_000,
        b'{"tasks":{},"records":{"a":{"b":NaN}}}',
        b"\xff",
    ],
)
def test_what_json_readers_stumble_over_is_refused(data: bytes) -> None:
    for unpack in (unpack_outcome, unpack_progress, unpack_ready):
        with pytest.raises(ValueError):
            unpack(data)


@pytest.mark.parametrize("graph", ["[]", '{"a":"b"}', '{"a":[1]}', '{"a":{"b":1}}', '"a"', "false"])
def test_a_graph_of_another_form_is_refused(graph: str) -> None:
    data = f'{{"end":"completed","tasks":{{}},"records":{{}},"graph":{graph}}}'.encode()
    for unpack in (unpack_outcome, unpack_progress):
        with pytest.raises(ValueError, match="of tasks"):
            unpack(data)


@pytest.mark.parametrize(
    ("graph", "is_kept"),
    [
        ({f"t{number}": [] for number in range(500)}, True),
        ({f"t{number}": [] for number in range(501)}, False),
        ({"a": ["x" * (16 * 1024 - 10)]}, True),
        ({"a": ["x" * (16 * 1024 - 9)]}, False),
        ({"a": ["あ" * 5500]}, False),
    ],
    ids=["tasks", "a task too many", "bytes", "a byte too many", "bytes, not characters"],
)
def test_a_graph_that_is_too_large_is_none_whatever_the_host_says(graph: dict[str, list[str]], is_kept: bool) -> None:
    """A task can send what it likes, and it would stand in every record of the run"""
    document = {"end": "completed", "tasks": {}, "records": {}, "truncated": False, "graph": graph}
    data = json.dumps(document).encode()
    wanted = graph if is_kept else {}
    assert unpack_progress(data).graph == unpack_outcome(data).progress.graph == wanted
