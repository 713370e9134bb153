"""The state of the grid as a document, identical in every place that shows it (GRID-172)."""

from __future__ import annotations

from typing import Any

from pyoco_server.actions.programs.show_state import GridState, GroupState
from pyoco_server.core.worker_record import PROGRAMS, WorkerRecord
from pyoco_server.ports.index.port import Summary
from pyoco_server.ports.program_queue.port import Replica

__all__ = ["document_of"]

_WORKER = ("worker_id", "kind", "patterns", "credits", "running", "max_parallel", "door_id", "cpu", "last_seen_at")


def document_of(state: GridState, disconnect_seconds: float) -> dict[str, Any]:
    """Render the state of all groups.

    A worker without heartbeats for `disconnect_seconds` is shown as disconnected. Each worker is listed in its own
    group, or in all groups if it does not report one.
    """
    return {"at": state.at, "groups": {each.group: _group(state, each, disconnect_seconds) for each in state.groups}}


def _group(grid: GridState, group: GroupState, disconnect_seconds: float) -> dict[str, Any]:
    return {
        "queues": {
            each.exec_name: {
                "queued": each.queued,
                "inflight": each.inflight,
                "oldest_age_seconds": None if each.oldest_at is None else max(0.0, grid.at - each.oldest_at),
            }
            for each in group.queues
        },
        "inflight": {job["job_id"]: job for line in group.inflight if "job_id" in (job := _job(line))},
        "dlq": {"count": group.dead_letters, "last_sequence": group.last_dead_letter},
        "client_cap": group.caps,
        "client_inflight": group.held,
        "doors": [vars(each) for each in group.doors],
        "workers": [
            _worker(each, grid.at, disconnect_seconds) for each in grid.workers if each.group in {None, group.group}
        ],
        "replicas": _replicas(grid.replicas),
        "p95": group.p95,
    }


def _job(line: Summary) -> dict[str, Any]:
    program = line.program or {}
    job = {
        "run_id": line.run_id,
        "job_id": program.get("job_id"),
        "exec": program.get("exec_name"),
        "client": program.get("client_id"),
        "worker": line.worker_id,
        "status": line.status,
        "attempt": program.get("attempt"),
        "since": line.start_time,
        "heartbeat_at": line.heartbeat_at,
    }
    return {name: value for name, value in job.items() if value is not None}


def _worker(worker: WorkerRecord, now: float, disconnect_seconds: float) -> dict[str, Any]:
    shown = {name: getattr(worker, name) for name in _WORKER if getattr(worker, name) is not None}
    shown["busy"] = worker.load_of(PROGRAMS).busy
    return shown | {"state": worker.derived_state(now, disconnect_seconds)}


def _replicas(replicas: list[Replica]) -> dict[str, list[dict[str, Any]]]:
    by_stream: dict[str, list[dict[str, Any]]] = {}
    for each in replicas:
        shown = {"name": each.name, "leader": each.is_leader, "current": each.is_current, "lag": each.lag}
        by_stream.setdefault(each.stream, []).append(shown)
    return by_stream
