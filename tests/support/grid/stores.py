"""What tests of the ports of programs share: jobs, and stores over the test process's NATS.

The streams and buckets of programs have fixed names, so tests share them and keep apart by their group.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

from pyoco_server.core.programs.job import InlineInputs, ProgramJob
from pyoco_server.ports.program_queue.port import ClientQueue

__all__ = ["a_job", "client_queue_of"]


def a_job(group: str, exec_name: str = "calcA", client_id: str = "clientA", **more: Any) -> ProgramJob:
    job_id = str(uuid.uuid4())
    values: dict[str, Any] = {
        "run_id": job_id,
        "job_id": job_id,
        "group": group,
        "exec_name": exec_name,
        "client_id": client_id,
        "args": ("-n", "1"),
        "timeout_sec": None,
        "inputs": InlineInputs({}),
        "submitted_at": time.time(),
        "fingerprint": "0" * 64,
    }
    return ProgramJob(**(values | more))


def client_queue_of(job: ProgramJob) -> ClientQueue:
    return ClientQueue(job.group, job.exec_name, job.client_id)
