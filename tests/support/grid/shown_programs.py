"""Runs of programs as they lie in the store, for tests that need no queue."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from contracts.runs import NOW, a_run
from pyoco_server.core.programs.names import flow_name_of, run_id_of
from pyoco_server.core.programs.record import EXEC, TAG, Program
from pyoco_server.core.run import Run

__all__ = ["a_program"]


def a_program(**more: Any) -> Run:
    """One that was just accepted. Members of a program and members of every run are given alike."""
    own = {name: more.pop(name) for name in list(more) if name in Program.__dataclass_fields__}
    job_id = own.pop("job_id", None) or str(uuid.uuid4())
    values: dict[str, Any] = {
        "job_id": job_id,
        "group": "default",
        "exec_name": "calcA",
        "client_id": "anna",
        "fingerprint": "0" * 64,
        "max_attempts": 5,
    }
    program = Program(**(values | own))
    run = a_run(
        run_id=run_id_of(program.job_id, program.group),
        kind=EXEC,
        flow_name=flow_name_of(program.exec_name),
        tag=TAG,
        tags=(TAG, program.exec_name),
        params={"exec_name": program.exec_name, "args": [], "files": []},
        tasks={"exec": "PENDING"},
        submitted_at=NOW,
        program=program,
    )
    return replace(run, **more)
