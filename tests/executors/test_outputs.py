"""What tasks return is kept: in the task record if it is small and plain, otherwise beside it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from pyoco import Flow, task
from pyoco.core.models import Task

from pyoco_server.core.job import Job
from pyoco_server.core.outcome import Completed, Failed, Outcome
from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState
from pyoco_server.core.values.kept import InRecord, InStore, Kept, NotKept, read_entry
from pyoco_server.core.values.shown import output_of, result_of
from pyoco_server.executors.flow import outputs as outputs_module
from pyoco_server.executors.flow.engine import EngineRun
from pyoco_server.executors.flow.limits import OutputLimits
from pyoco_server.executors.flow.spool import PART_BYTES, Spool
from pyoco_server.executors.flow.straight import straight
from pyoco_server.executors.host.wire import pack_outcome, unpack_outcome

SMALL = OutputLimits(inline_bytes_max=100, output_bytes_max=10_000, run_bytes_max=15_000)


def a_flow(*edges: str, **functions: Callable[..., Any]) -> Flow:
    """Tasks by name; `a>b` makes b wait for a."""
    tasks = {name: Task(func=function, name=name) for name, function in functions.items()}
    for edge in edges:
        before, after = edge.split(">")
        tasks[after].dependencies.add(tasks[before])
    return Flow(name="flow", tasks=set(tasks.values()))


def run(flow: Flow, limits: OutputLimits = SMALL, bytes_max: int = 50_000) -> Outcome:
    """As a host runs it and its worker reads the outcome."""
    job = Job(run_id=str(uuid.uuid4()), flow_name="flow", tag="t", submitted_at=1.0, params={})
    engine = EngineRun(job, lambda _: straight(flow), limits=limits)
    outcome = engine.execute()
    result = unpack_outcome(pack_outcome(outcome, bytes_max, engine.outputs))
    engine.outputs.spool.close()
    return result


def record_of(outcome: Outcome) -> Run:
    assert outcome.kept is not None
    return Run(
        run_id="r",
        flow_name="f",
        tag="t",
        submitted_at=1.0,
        updated_at=1.0,
        heartbeat_at=1.0,
        status=RunState.COMPLETED if isinstance(outcome, Completed) else RunState.FAILED,
        tasks=outcome.progress.tasks,
        task_records=outcome.progress.task_records,
        kept_values=outcome.kept.stored(),
    )


def value(where: object) -> Any:
    assert isinstance(where, InRecord)
    return json.loads(where.data)


def kept(outcome: Outcome) -> Kept:
    assert outcome.kept is not None
    return outcome.kept


def fine() -> int:
    return 1


def last() -> str:
    return "done"


def fails() -> None:
    raise ValueError("on purpose")


class TestTheResult:
    def test_of_one_end_is_its_output(self) -> None:
        """RES-1"""
        outcome = run(a_flow("a>b", a=lambda: 1, b=lambda: {"x": 2}))
        assert value(result_of(record_of(outcome))) == {"x": 2}
        assert kept(outcome).stored() == {"result": {"task": "b"}}  # a small run costs nothing

    def test_of_several_ends_is_an_object(self) -> None:
        """RES-1"""
        outcome = run(a_flow("a>b", "a>c", a=lambda: 1, b=lambda: 2, c=lambda: (3,)))
        assert value(result_of(record_of(outcome))) == {"b": 2, "c": {"$pyoco": "tuple", "value": [3]}}

    def test_leaves_out_an_end_that_did_not_succeed(self) -> None:
        """RES-1"""
        flow = a_flow(a=lambda: 1, b=fails)
        next(each for each in flow.tasks if each.name == "b").fail_policy = "isolate"
        outcome = run(flow)
        assert isinstance(outcome, Completed)
        assert value(result_of(record_of(outcome))) == {"a": 1}

    def test_of_no_task_is_null(self) -> None:
        """RES-1"""
        assert value(result_of(record_of(run(Flow(name="none"))))) is None

    def test_with_loops_is_the_output_of_the_task_that_ended_last(self) -> None:
        """RES-1"""

        flow = Flow(name="loop") >> task(fine)[2] >> task(last)
        outcome = run(flow)
        assert isinstance(outcome, Completed), outcome
        assert value(result_of(record_of(outcome))) == "done"

    def test_of_a_failed_flow_is_none_but_its_outputs_stay(self) -> None:
        outcome = run(a_flow("a>b", a=lambda: (1, 2), b=fails))
        assert isinstance(outcome, Failed)
        assert result_of(record_of(outcome)) is None
        assert value(output_of(record_of(outcome), "a")) == {"$pyoco": "tuple", "value": [1, 2]}


class TestAnOutput:
    def test_that_is_not_plain_is_kept_beside_its_record(self) -> None:
        """RES-4, RES-20, RES-21"""
        outcome = run(a_flow(a=lambda: {"day": date(2026, 1, 2)}, b=lambda: b"\x00\xff"))
        assert outcome.progress.task_records["a"]["output_truncated"] is True
        record = record_of(outcome)
        assert value(output_of(record, "a")) == {"day": {"$pyoco": "date", "value": "2026-01-02"}}
        raw = output_of(record, "b")
        assert raw == InRecord("application/octet-stream", b"\x00\xff")

    def test_that_is_large_goes_to_the_spool(self) -> None:
        outcome = run(a_flow("a>b", a=lambda: "x" * 5000, b=lambda: list(range(500))))
        entries = kept(outcome).outputs or {}
        file = kept(outcome).file
        assert file is not None
        assert kept(outcome).parts == (5002 + 1891,)
        data = {name: file.read(entry["offset"], entry["bytes"]) for name, entry in entries.items()}
        file.close()
        assert {name: json.loads(text) for name, text in data.items()} == {"a": "x" * 5000, "b": list(range(500))}
        assert outcome.progress.task_records["a"]["output"] == "x" * 5000  # RES-4: stays what it was

    def test_that_cannot_be_encoded_or_is_too_large_fails_nothing(self) -> None:
        """RES-10, RES-11, RES-14, RES-16, RES-17"""
        flow = a_flow(
            "a>b",
            "b>c",
            "c>d",
            a=lambda: [object()],
            b=lambda: "x" * 10_001,
            c=lambda: "x" * 9000,
            d=lambda: ["y" * 4500, "z" * 4500],
        )
        outcome = run(flow)
        assert isinstance(outcome, Completed)
        entries = {name: read_entry(entry) for name, entry in (kept(outcome).outputs or {}).items()}
        assert entries["a"] == NotKept(54, "object at $[0] cannot be encoded")
        assert entries["b"] == NotKept(55, "it takes more than PYOCO_OUTPUT_MAX_BYTES=10000 bytes: at least 10003")
        assert isinstance(entries["d"], NotKept)
        assert "PYOCO_RUN_OUTPUTS_MAX_BYTES=15000" in entries["d"].detail
        assert kept(outcome).parts == (9002,)
        file = kept(outcome).file
        assert file is not None
        file.close()

    @pytest.mark.parametrize("count", [30, 300])
    def test_is_not_lost_when_the_records_do_not_fit(self, count: int) -> None:
        """RES-4: each is small, all together are more than the record may hold."""
        flow = a_flow(**{f"t{number}": lambda number=number: {"n": [number] * 20} for number in range(count)})
        outcome = run(flow, OutputLimits(), bytes_max=200 * count)
        assert outcome.progress.truncated
        record, file = record_of(outcome), kept(outcome).file
        for number in range(count):
            where = output_of(record, f"t{number}")
            if isinstance(where, InRecord):
                assert value(where) == {"n": [number] * 20}
            else:
                assert isinstance(where, InStore)
                assert file is not None
                assert json.loads(file.read(where.offset, where.size)) == {"n": [number] * 20}
        if file is not None:
            file.close()

    def test_that_the_disk_has_no_room_for_is_marked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(self: Spool) -> tuple[int, int]:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Spool, "begin", full)
        outcome = run(a_flow(a=lambda: "x" * 5000))
        assert isinstance(outcome, Completed)
        where = output_of(record_of(outcome), "a")
        assert isinstance(where, NotKept)
        assert (where.number, "No space left" in where.detail) == (56, True)

    def test_beyond_what_a_record_can_list_is_marked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(outputs_module, "_ENTRIES_BYTES_MAX", 2 * outputs_module._ENTRY_BYTES)
        outcome = run(a_flow(a=lambda: (1,), b=lambda: (2,), c=lambda: (3,)))
        record = record_of(outcome)
        assert [type(output_of(record, name)) for name in "abc"].count(NotKept) == 1


def test_a_spool_is_cut_into_parts_and_forgets_what_was_undone() -> None:
    spool = Spool()
    assert spool.begin() == (0, 0)
    spool.add(bytes(PART_BYTES + 5))
    assert spool.begin() == (1, 0)
    spool.add(b"abc")
    assert spool.begin() == (1, 3)
    spool.add(b"gone")
    spool.undo(1, 3)
    assert spool.begin() == (1, 3)
    spool.add(b"defg")
    assert (spool.parts, spool.size) == ([PART_BYTES + 5, 7], PART_BYTES + 12)
    file = spool.opened()
    assert file is not None
    assert file.read(PART_BYTES + 5, 100) == b"abcdefg"
    file.close()
    spool.undo(1, 0)
    assert spool.parts == [PART_BYTES + 5]
    spool.close()
