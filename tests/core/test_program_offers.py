"""Which workers have a program, and how a job ends that none has (FIND-14)."""

from __future__ import annotations

from typing import Any

import pytest

from pyoco_server.core.frames.messages import Heartbeat, HelloWorker
from pyoco_server.core.programs.faults import GridRefused
from pyoco_server.core.programs.offers import judge_unoffered, may_handle, offers
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import WorkerRecord, encode_worker, read_worker

NOW, SILENCE = 1_000.0, 20.0
EVERYTHING = ("job.assign.*",)


def a_worker(worker_id: str = "w", *, seen: float = NOW, **more: Any) -> WorkerRecord:
    told: dict[str, Any] = {"patterns": EVERYTHING, "group": "g"} | more
    return WorkerRecord(
        worker_id=worker_id,
        instance_id="i",
        state=WorkerState.IDLE,
        tags=(),
        last_seen_at=seen,
        last_heartbeat_at=seen,
        **told,
    )


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"programs": ("calc",)}, True),
        ({"programs": ("render",)}, False),
        ({"programs": ()}, False),
        ({"programs": ("calc",), "patterns": ("job.assign.render",)}, False),
        ({"programs": ("calc",), "group": "other"}, False),
        ({"programs": ("calc",), "lacks": ("calc",)}, False),
        ({}, True),  # of an earlier version: nobody knows
        ({"lacks": ("calc",)}, False),
        ({"patterns": None}, False),
    ],
)
def test_a_worker_offers_what_it_takes_and_has(facts: dict[str, Any], expected: bool) -> None:
    """FIND-14"""
    assert offers(a_worker(**facts), "g", "calc") is expected


@pytest.mark.parametrize(
    ("workers", "verdict"),
    [
        ([a_worker(programs=())], ErrorCode.EXEC_NOT_FOUND),
        ([a_worker(programs=()), a_worker("v", programs=("calc",))], None),
        ([a_worker(programs=()), a_worker("v")], None),
        # It is away, and had it: it may come back.
        ([a_worker(programs=()), a_worker("v", programs=("calc",), seen=0.0)], None),
        # Away, and never said what it had.
        ([a_worker(programs=()), a_worker("v", seen=0.0)], ErrorCode.EXEC_NOT_FOUND),
        ([a_worker(lacks=("calc",)), a_worker("v", lacks=("calc",))], ErrorCode.EXEC_NOT_FOUND),
        ([a_worker(programs=(), allow=("x*",))], ErrorCode.EXEC_NOT_ALLOWED),
        ([a_worker(programs=(), allow=("x*",)), a_worker("v", programs=())], ErrorCode.EXEC_NOT_FOUND),
        ([a_worker(programs=(), allow=("c*",))], ErrorCode.EXEC_NOT_FOUND),
        ([], ErrorCode.EXEC_NOT_FOUND),
    ],
)
def test_a_job_ends_only_when_no_worker_offers_its_program(
    workers: list[WorkerRecord], verdict: ErrorCode | None
) -> None:
    """FIND-14, GRID-89, GRID-90"""
    assert judge_unoffered(workers, "g", "calc", NOW, SILENCE) is verdict


@pytest.mark.parametrize(
    ("tenants", "tenant_id", "expected"),
    [((), None, True), ((), "t", False), (("t",), "t", True), (("t",), "u", False), (None, "u", True)],
)
def test_a_worker_may_have_runs_of_its_tenants_only(
    tenants: tuple[str, ...] | None, tenant_id: str | None, expected: bool
) -> None:
    """SAFE-4"""
    assert may_handle(a_worker(tenants=tenants), tenant_id) is expected


def test_a_record_keeps_what_a_worker_announces() -> None:
    worker = a_worker(programs=("calc",), lacks=("x",), allow=("c*",), tenants=())
    assert read_worker(encode_worker(worker)) == worker


def test_a_hello_and_a_heartbeat_announce_programs() -> None:
    """FIND-14; a worker that announces nothing says what it said before"""
    hello = HelloWorker(worker_id="w", patterns=EVERYTHING, programs=("calc", "render"), allow=("c*",))
    assert HelloWorker.read(hello.to_payload()) == hello
    silent = HelloWorker(worker_id="w1", patterns=EVERYTHING, max_parallel=4)
    assert silent.to_payload() == b'{"WorkerId":"w1","Pattern":"job.assign.*","MaxParallel":4}'
    assert HelloWorker.read(silent.to_payload()).programs is None
    for beat in (Heartbeat(programs=()), Heartbeat(cpu=0.5, programs=("calc",)), Heartbeat()):
        assert Heartbeat.read(beat.to_payload()) == beat
    assert Heartbeat().to_payload() == b""


@pytest.mark.parametrize("programs", [b'["a.b"]', b'[""]', b"[1]", b'"calc"'])
def test_what_is_no_list_of_programs_is_refused(programs: bytes) -> None:
    with pytest.raises(GridRefused, match="BAD_SCHEMA"):
        Heartbeat.read(b'{"Programs":' + programs + b"}")
