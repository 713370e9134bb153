"""What the registry knows of a worker (section 16.2 of the contract)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from pyoco_server.core.states import WorkerState
from pyoco_server.errors import Corrupt

__all__ = ["WorkerRecord", "encode_worker", "read_worker", "stopped", "take_over"]


@dataclass(frozen=True, kw_only=True)
class WorkerRecord:
    """One worker, by its own word. Only `hidden` and `updated_at` belong to the operator."""

    worker_id: str
    #: Random per process start.
    instance_id: str
    state: WorkerState
    tags: tuple[str, ...]
    last_seen_at: float
    last_heartbeat_at: float
    #: Display only; survives restarts of the worker (FLOW-148).
    hidden: bool = False
    #: When `hidden` last changed (FLOW-355).
    updated_at: float | None = None
    current_run_id: str | None = None
    last_run_status: str | None = None
    stopped_at: float | None = None
    stop_reason: str | None = None
    wheel_sync: Mapping[str, Any] | None = None
    #: How many runs it executes at once, and which.
    slots: int = 1
    running: tuple[str, ...] = ()
    #: Host processes it had to replace since it started.
    host_restarts: int = 0
    #: When the queue last answered one of its pulls: a worker may be alive and deaf.
    last_pull_at: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    def derived_state(self, now: float, disconnect_seconds: float) -> WorkerState:
        """FLOW-27: an orderly stop is kept; a silent worker is disconnected."""
        if self.state is WorkerState.STOPPED_GRACEFUL or now - self.last_seen_at <= disconnect_seconds:
            return self.state
        return WorkerState.DISCONNECTED

    def is_alive(self, now: float, disconnect_seconds: float) -> bool:
        return self.derived_state(now, disconnect_seconds) in (WorkerState.RUNNING, WorkerState.IDLE)


def take_over(mine: WorkerRecord, stored: WorkerRecord | None) -> WorkerRecord:
    """My record, with what belongs to the operator kept from the stored one (FLOW-148)."""
    return mine if stored is None else replace(mine, hidden=stored.hidden, updated_at=stored.updated_at)


def stopped(record: WorkerRecord, reason: str, now: float) -> WorkerRecord:
    """FLOW-198"""
    return replace(
        record,
        state=WorkerState.STOPPED_GRACEFUL,
        stopped_at=now,
        stop_reason=reason,
        last_seen_at=now,
        current_run_id=None,
        running=(),
    )


def encode_worker(record: WorkerRecord) -> bytes:
    document = asdict(record)
    document["heartbeat_at"] = record.last_heartbeat_at  # FLOW-354: for older readers
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


_FIELDS = frozenset(item.name for item in fields(WorkerRecord))


def read_worker(data: bytes) -> WorkerRecord:
    """Raises Corrupt when the bytes are no worker record. Fields it does not know are passed over."""
    try:
        document = json.loads(data)
        known = {name: value for name, value in document.items() if name in _FIELDS and value is not None}
        known["state"] = WorkerState(known["state"])
        known["tags"] = tuple(known.get("tags", ()))
        known["running"] = tuple(known.get("running", ()))
        known.setdefault("instance_id", "")
        known.setdefault("last_heartbeat_at", known["last_seen_at"])
        return WorkerRecord(**known)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise Corrupt(f"not a worker record: {error}") from error
