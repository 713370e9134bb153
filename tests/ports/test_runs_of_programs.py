"""Records of programs: the quick way to read them sees what the careful one sees."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyoco_server.core.programs.record import Artifact, Program
from pyoco_server.core.run import Run
from pyoco_server.core.snapshot import read_snapshot
from pyoco_server.core.states import RunState
from pyoco_server.errors import Corrupt
from pyoco_server.ports.runs import jetstream
from pyoco_server.ports.runs.jetstream import JetStreamRuns

RUN = Run(
    run_id="6f1c2a9e-3b7d-4c55-9a10-2f4e8d7b6c01",
    flow_name="exec:calcA",
    tag="exec",
    tags=("exec", "calcA"),
    submitted_at=1.5,
    updated_at=2.5,
    heartbeat_at=3.5,
    kind="exec",
    status=RunState.RUNNING,
    attempt=1,
    attempt_id="a-token",
    params={"exec_name": "calcA", "args": ["ä"], "files": []},
    tasks={"exec": "RUNNING"},
    program=Program(
        job_id="6f1c2a9e-3b7d-4c55-9a10-2f4e8d7b6c01",
        group="default",
        exec_name="calcA",
        client_id="clientA",
        fingerprint="0" * 64,
        max_attempts=5,
        holder="h",
        slot=1,
        not_before=7.5,
        artifacts=(Artifact("output.zip", "r/a1/output.zip", 5, "1" * 64),),
        job={"v": 1, "args": ["ä"], "inputs": {"mode": "inline", "files": {}}},
    ),
)
STORED = json.loads(JetStreamRuns._encode(RUN, 100_000))

ODD: dict[str, dict[str, Any]] = {
    "as it is": {},
    "no token": {"token": None},
    "a token of another form": {"token": 5},
    "a member of a newer version": {"colour": {"red": 1}},
    "a kind of its own": {"kind": "else"},
    "a flow with a program's members": {"kind": "flow"},
    "no kind": {"kind": None},
    "an attempt id beside the token": {"attempt_id": "other"},
    "a negative count": {"lost": -1},
    "a negative slot": {"slot": -1},
    "a count that is none": {"max_attempts": "5"},
    "no count": {"max_attempts": None},
    "a bool for a count": {"lost": True},
    "no job": {"job": None},
    "a job that is none": {"job": []},
    "artifacts that are none": {"artifacts": {}},
    "an artifact without its name": {"artifacts": [{"object": "x", "size": 1, "sha256": "0"}]},
    "an artifact with more": {"artifacts": [{"name": "x", "object": "x", "size": 1, "sha256": "0", "more": 1}]},
    "an end": {"status": "FAILED", "exit_code": -9, "error_code": "SIGNALED", "stdout_tail": "x", "dlq_due": True},
    "an exit code that is text": {"exit_code": "0"},
    "an instant that is text": {"updated_at": "now"},
    "a state that is none": {"status": "LATER"},
    "a program inside": {"program": {"job_id": "x"}},
}


def read_by(reader: Any, data: bytes) -> Run | type[Corrupt]:
    try:
        return reader(data)  # type: ignore[no-any-return]  # a run
    except Corrupt:
        return Corrupt


@pytest.mark.parametrize("changes", ODD.values(), ids=ODD.keys())
def test_the_quick_way_sees_what_the_careful_one_sees(changes: dict[str, Any]) -> None:
    """FLOW-551, GRID-151"""
    data = json.dumps(STORED | changes).encode()
    assert read_by(jetstream._decode, data) == read_by(read_snapshot, data)


def test_what_is_written_is_read_by_the_quick_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def careful(data: bytes) -> Run:
        raise AssertionError("it took the slow way")

    monkeypatch.setattr(jetstream, "read_snapshot", careful)
    assert jetstream._decode(JetStreamRuns._encode(RUN, 100_000)) == RUN
