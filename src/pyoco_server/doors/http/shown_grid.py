"""The state of the grid as a document, the same wherever it is shown (GRID-172)."""

from __future__ import annotations

from typing import Any

from pyoco_server.actions.programs.show_state import GridState, GroupState
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.ports.index.port import Summary
from pyoco_server.ports.program_queue.port import Replica

__all__ = ["document_of"]

_WORKER = ("worker_id", "kind", "patterns", "credits", "running", "max_parallel", "door_id", "cpu", "last_seen_at")


def document_of(state: GridState, disconnect_seconds: float) -> dict[str, Any]:
    """A worker that has said nothing for `disconnect_seconds` is shown as gone. Each is told of in its own group; one
    that does not say which in all of them."""
    return {"at": state.at, "groups": {each.group: _group(state, each, disconnect_seconds) for each in state.groups}}


def _group(whole: GridState, group: GroupState, disconnect_seconds: float) -> dict[str, Any]:
    return {
        "queues": {
            each.exec_name: {
                "queued": each.queued,
                "inflight": each.inflight,
                "oldest_age_seconds": None if each.oldest_at is None else max(0.0, whole.at - each.oldest_at),
            }
            for each in group.queues
        },
        "inflight": {told["job_id"]: told for line in group.inflight if "job_id" in (told := _job(line))},
        "dlq": {"count": group.letters, "last_sequence": group.last_letter},
        "client_cap": group.caps,
        "client_inflight": group.held,
        "doors": [vars(each) for each in group.doors],
        "workers": [
            _worker(each, whole.at, disconnect_seconds) for each in whole.workers if each.group in {None, group.group}
        ],
        "replicas": _replicas(whole.replicas),
        "p95": group.p95,
    }


def _job(line: Summary) -> dict[str, Any]:
    program = line.program or {}
    told = {
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
    return {name: value for name, value in told.items() if value is not None}


def _worker(worker: WorkerRecord, now: float, disconnect_seconds: float) -> dict[str, Any]:
    told = {name: getattr(worker, name) for name in _WORKER if getattr(worker, name) is not None}
    return told | {"state": worker.derived_state(now, disconnect_seconds)}


def _replicas(replicas: list[Replica]) -> dict[str, list[dict[str, Any]]]:
    by_stream: dict[str, list[dict[str, Any]]] = {}
    for each in replicas:
        told = {"name": each.name, "leader": each.is_leader, "current": each.is_current, "lag": each.lag}
        by_stream.setdefault(each.stream, []).append(told)
    return by_stream
