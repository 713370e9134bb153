"""What a worker's record tells of the lanes beside its flows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pyoco_server.core.run import Owner
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import WorkerRecord, encode_worker, read_worker
from pyoco_server.executors.port import Executor
from pyoco_server.loops.worker import Worker, WorkerDescription
from pyoco_server.ports.backend import Backend

pytestmark = pytest.mark.virtual_time


class Lane:
    """Something that runs, and says so."""

    def __init__(self, running: tuple[str, ...], restarts: int, facts: Mapping[str, Any]) -> None:
        self.when_changed: Callable[[], None] = lambda: None
        self.last_status: str | None = None
        self.running, self.restarts, self.facts = running, restarts, facts


@pytest.fixture
def worker() -> Worker:
    backend = cast("Backend", SimpleNamespace(clock=lambda: 100.0))
    description = WorkerDescription(backend, Owner("w", "i"), ["gpu"], 2, {})
    return Worker(backend, cast("Executor", SimpleNamespace(restarts=1)), description, ["gpu"], 2)


def test_a_worker_without_lanes_takes_neither_packs_nor_programs(worker: Worker) -> None:
    record = worker._describe()
    assert (record.packs, record.patterns, record.kind, record.state) == ((), None, None, WorkerState.IDLE)


def test_each_lane_adds_what_it_runs_and_what_it_knows(worker: Worker) -> None:
    """GRID-117, GRID-119"""
    programs = {"patterns": ("job.assign.*",), "credits": 3, "max_parallel": 4}
    worker.add_lane(Lane(("p1",), 2, {"packs": ("ocr",)}))
    worker.add_lane(Lane(("e1", "e2"), 0, programs))
    record = worker._describe()
    assert (record.running, record.host_restarts, record.state) == (("p1", "e1", "e2"), 3, WorkerState.RUNNING)
    assert (record.packs, record.patterns, record.credits, record.max_parallel) == (("ocr",), ("job.assign.*",), 3, 4)
    assert read_worker(encode_worker(record)) == record


def test_the_last_word_of_any_lane_is_the_workers(worker: Worker) -> None:
    first, second = Lane((), 0, {}), Lane((), 0, {})
    for lane in (first, second):
        worker.add_lane(lane)
    for lane, status in ((first, "COMPLETED"), (second, "FAILED")):
        lane.last_status = status
        lane.when_changed()
        assert worker._describe().last_run_status == status


def test_a_record_of_an_older_worker_says_nothing_of_programs() -> None:
    """GRID-115: members that are not there have no value"""
    old = b'{"worker_id":"w","state":"IDLE","last_seen_at":1.0,"tags":[]}'
    record = read_worker(old)
    assert (record.kind, record.patterns, record.credits, record.max_parallel, record.door_id) == (None,) * 5
    assert isinstance(record, WorkerRecord)
