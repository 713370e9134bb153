"""Which workers have a program, according to their announcements (FIND-14). Pure.

A worker announces the programs in its EXEC_DIR that it may run. A worker of an earlier version, or with too many
programs, announces none: it is assumed to have every program that its patterns match, until it reports one as missing.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyoco_server.core.frames.subjects import assign_subject, matches
from pyoco_server.core.programs.admission import matches_any
from pyoco_server.core.programs.names import tenant_token
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.worker_record import WorkerRecord

__all__ = ["has_program", "judge_unoffered", "may_handle", "offers"]


def _takes(worker: WorkerRecord, group: str, exec_name: str) -> bool:
    subject = assign_subject(exec_name)
    return worker.group in (None, group) and any(matches(pattern, subject) for pattern in worker.patterns or ())


def has_program(exec_name: str, programs: Iterable[str] | None, lacks: Iterable[str]) -> bool:
    """Judge by the announced programs (None: none announced) and those since reported as missing."""
    return exec_name not in lacks and (programs is None or exec_name in programs)


def offers(worker: WorkerRecord, group: str, exec_name: str) -> bool:
    """Return whether the worker would run this program of that group, whether or not it is alive.

    O(patterns + programs).
    """
    return _takes(worker, group, exec_name) and has_program(exec_name, worker.programs, worker.lacks or ())


def may_handle(worker: WorkerRecord, tenant_id: str | None) -> bool:
    """Return whether the worker may run jobs of this tenant (SAFE-4)."""
    return tenant_id is None or worker.tenants is None or tenant_token(tenant_id) in worker.tenants


def judge_unoffered(
    workers: Iterable[WorkerRecord], group: str, exec_name: str, now: float, disconnect_seconds: float
) -> ErrorCode | None:
    """Return the error that ends a job of this program when no worker has it.

    EXEC_NOT_ALLOWED: no live worker whose patterns match the program may run it; else EXEC_NOT_FOUND. None: the job
    waits, because a live worker offers the program, or a disconnected one announced it by name and may reconnect.
    O(workers * (patterns + programs)).
    """
    taking = [worker for worker in workers if _takes(worker, group, exec_name)]
    for worker in taking:
        is_alive = worker.is_alive(now, disconnect_seconds)
        if offers(worker, group, exec_name) and (is_alive or worker.programs is not None):
            return None
    alive = [worker for worker in taking if worker.is_alive(now, disconnect_seconds)]
    if alive and all(worker.allow is not None and not matches_any(worker.allow, exec_name) for worker in alive):
        return ErrorCode.EXEC_NOT_ALLOWED
    return ErrorCode.EXEC_NOT_FOUND
