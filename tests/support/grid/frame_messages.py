"""One payload of each kind of frame, for tests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyoco_server.core.frames.messages import (
    JobResult,
    OutputRef,
)
from pyoco_server.core.programs.faults import GridRefused
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.states import RunState

__all__ = ["JOB", "REF", "REFUSED", "RESULT", "SHA", "changed", "members_of", "refusal"]

JOB = "6f1c2a9e-3b7d-4c55-9a10-2f4e8d7b6c01"
SHA = "ab" * 32
REF = OutputRef(bucket="pyoco_artifacts", object="r/a1/output.zip", size=9, sha256=SHA, href="/runs/r/artifacts")
RESULT = JobResult(
    job_id=JOB, client_id="clientA", exec_name="calcA", status=RunState.COMPLETED, stdout="ü\n", run_id=JOB, attempt=1
)
REFUSED = JobResult(
    job_id=JOB,
    client_id="clientA",
    exec_name="calcA",
    status=RunState.FAILED,
    stderr="no",
    output_archive=b"zip",
    output_ref=REF,
    exit_code=-9,
    error_code=ErrorCode.SIGNALED,
    error="killed",
    stdout_truncated=True,
    run_id="r",
    attempt=2,
    worker_id="w1",
    started_at=1.5,
    ended_at=3,
    run_seconds=1.5,
    token="t",
)


def members_of(message: Any) -> dict[str, Any]:
    members = json.loads(message.to_payload())
    assert isinstance(members, dict)
    return members


def changed(message: Any, **changes: Any) -> bytes:
    """The message's payload with these members changed; `...` leaves one out."""
    members = members_of(message) | changes
    return json.dumps({name: value for name, value in members.items() if value is not ...}).encode()


def refusal(kind: Any, payload: bytes) -> GridRefused:
    with pytest.raises(GridRefused) as caught:
        kind.read(payload)
    return caught.value
