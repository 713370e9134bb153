"""A worker's registry record, built from what its lanes report."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.run import Owner
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_description import LaneMembers, LaneReport, LastEnd, WorkerDescription
from pyoco_server.core.worker_record import (
    EXEC_NATIVE,
    FLOWS,
    PACKS,
    PROGRAMS,
    Load,
    WorkerRecord,
    encode_worker,
    read_worker,
    stopped,
)

ANNA = WorkerDescription(me=Owner("anna", "i"), tags=("gpu",), versions={"pyoco": "1"})
_RUN_IDS = st.lists(st.sampled_from("abcdef"), max_size=6, unique=True).map(tuple)


def test_a_worker_whose_lanes_report_nothing_is_idle_and_takes_no_packs() -> None:
    record = ANNA.record((LaneReport(lane=FLOWS, slots=2),), 7.0)
    assert (record.worker_id, record.tags, record.slots, record.last_seen_at) == ("anna", ("gpu",), 2, 7.0)
    assert (record.packs, record.patterns, record.kind, record.state) == ((), None, None, WorkerState.IDLE)
    assert (record.current_run_id, record.last_run_status) == (None, None)


def test_each_lane_adds_what_it_runs_and_what_only_it_knows() -> None:
    """GRID-117, GRID-119: whatever the order in which the lanes were started."""
    programs: LaneMembers = {"patterns": ("job.assign.*",), "credits": 3, "max_parallel": 4}
    reports = (
        LaneReport(lane=PROGRAMS, slots=4, running=("e1",), members=programs),
        LaneReport(lane=PACKS, slots=2, running=("p1",), restarts=2, members={"packs": ("ocr",)}),
        LaneReport(lane=FLOWS, slots=2, running=("f1",), restarts=1, members={"last_pull_at": 5.0}),
    )
    record = ANNA.record(reports, 7.0)
    assert (record.running, record.current_run_id) == (("f1", "p1", "e1"), "f1")
    assert (record.slots, record.host_restarts, record.state) == (2, 3, WorkerState.RUNNING)
    assert (record.packs, record.patterns, record.credits, record.last_pull_at) == (("ocr",), ("job.assign.*",), 3, 5.0)
    assert read_worker(encode_worker(record)) == record


def test_busy_slots_are_those_of_their_own_lane() -> None:
    """Programs and packs have slots of their own: they never make flows look busy."""
    running = LaneReport(lane=PROGRAMS, slots=8, running=("e1", "e2", "e3"))
    record = ANNA.record((LaneReport(lane=FLOWS, slots=2), running, LaneReport(lane=PACKS, slots=1)), 7.0)
    assert (record.load, record.running) == (Load(2, 0), ("e1", "e2", "e3"))
    loads = {lane: record.load_of(lane) for lane in (FLOWS, PROGRAMS, PACKS)}
    assert loads == {FLOWS: Load(2, 0), PROGRAMS: Load(8, 3), PACKS: Load(1, 0)}


def test_a_worker_of_programs_alone_has_the_slots_of_its_programs() -> None:
    """GRID-119"""
    native = WorkerDescription(me=Owner("anna", "i"), kind=EXEC_NATIVE)
    record = native.record((LaneReport(lane=PROGRAMS, slots=4, running=("e1",)),), 7.0)
    assert (record.slots, record.load, record.load_of(FLOWS)) == (4, Load(4, 1), Load(0, 0))


@given(st.dictionaries(st.sampled_from((FLOWS, PACKS, PROGRAMS)), st.tuples(st.integers(1, 4), _RUN_IDS), min_size=1))
def test_never_more_slots_are_busy_than_there_are(lanes: dict[str, tuple[int, tuple[str, ...]]]) -> None:
    """A run whose result is being written has left its slot to the next one: both are running."""
    record = ANNA.record([LaneReport(lane=lane, slots=n, running=ids) for lane, (n, ids) in lanes.items()], 7.0)
    assert all(record.load_of(lane).busy <= record.load_of(lane).slots for lane in (FLOWS, PACKS, PROGRAMS))
    assert sum(record.load_of(lane).busy for lane in lanes) <= len(record.running)
    assert not any(stopped(record, "sigterm", 8.0).load_of(lane).busy for lane in lanes)


def test_the_last_end_of_any_lane_is_the_last_status_of_the_worker() -> None:
    """FLOW-140"""
    flows = LaneReport(lane=FLOWS, slots=1, last_end=LastEnd("COMPLETED", 5.0))
    packs = LaneReport(lane=PACKS, slots=1, last_end=LastEnd("FAILED", 4.0))
    assert ANNA.record((flows, packs), 7.0).last_run_status == "COMPLETED"


@pytest.mark.parametrize(
    ("more", "lane", "expected"),
    [
        ({"slots": 2, "running": ("a", "b", "c")}, FLOWS, Load(2, 2)),
        ({"slots": 2, "running": ("a",), "max_parallel": 4}, PROGRAMS, Load(4, 1)),
        ({"slots": 2, "running": ("a",)}, PROGRAMS, Load(0, 0)),
        ({"slots": 3, "running": ("a",), "kind": "exec-tcp", "max_parallel": 3}, PROGRAMS, Load(3, 1)),
    ],
)
def test_of_a_worker_that_reports_no_lanes_all_runs_count(more: dict[str, object], lane: str, expected: Load) -> None:
    """FLOW-551, GRID-115: an older worker, or one over TCP"""
    members: dict[str, object] = {"worker_id": "w", "instance_id": "", "state": WorkerState.RUNNING, "tags": ()}
    record = WorkerRecord(**members, **more, last_seen_at=1.0, last_heartbeat_at=1.0)  # type: ignore[arg-type]
    assert record.load_of(lane) == expected


def test_lanes_set_members_that_the_record_has_and_the_worker_does_not_set_itself() -> None:
    own = {
        "worker_id",
        "instance_id",
        "state",
        "tags",
        "last_seen_at",
        "last_heartbeat_at",
        "slots",
        "running",
        "lanes",
    }
    own |= {"current_run_id", "last_run_status", "host_restarts", "versions", "kind", "hidden", "lanes"}
    assert LaneMembers.__annotations__.keys() <= {each.name for each in fields(WorkerRecord)} - own


def test_a_record_of_an_older_worker_says_nothing_of_programs() -> None:
    """GRID-115: members that are not there have no value"""
    record = read_worker(b'{"worker_id":"w","state":"IDLE","last_seen_at":1.0,"tags":[]}')
    assert (record.kind, record.patterns, record.credits, record.max_parallel, record.door_id) == (None,) * 5
    assert record.lanes is None
