"""The registry record of a worker (section 16.2 of the contract)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from pyoco_server.core.offered_flow import OfferedFlow, read_offered_flow
from pyoco_server.core.run_log.counts import are_counts
from pyoco_server.core.states import WorkerState
from pyoco_server.errors import Corrupt

__all__ = [
    "ALIVE",
    "EXEC_NATIVE",
    "FLOWS",
    "PACKS",
    "PROGRAMS",
    "Load",
    "WorkerRecord",
    "encode_over",
    "encode_worker",
    "hide",
    "read_worker",
    "stopped",
    "take_over",
]

#: The states of a live worker, as far as its heartbeats show.
ALIVE = frozenset({WorkerState.RUNNING, WorkerState.IDLE})

#: The lanes of a worker, in the order in which their runs are listed.
FLOWS, PACKS, PROGRAMS = "flows", "packs", "programs"

#: The kind of a worker that takes programs from the queue, and nothing else.
EXEC_NATIVE = "exec-native"


@dataclass(frozen=True)
class Load:
    """The slots of one lane, and how many of them execute a run. Never more than there are."""

    slots: int
    busy: int


@dataclass(frozen=True, kw_only=True)
class WorkerRecord:
    """One worker, as it reports itself. Only `hidden` and `updated_at` are set by the operator."""

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
    #: How many runs that it takes by tag it executes at once; of a worker of programs alone, how many programs.
    slots: int = 1
    #: All runs that it executes, of every lane: there may be more than `slots`.
    running: tuple[str, ...] = ()
    #: By lane: its slots, and how many of them are busy. None: its version does not report them.
    lanes: Mapping[str, Mapping[str, int]] | None = None
    #: Host processes replaced since it started.
    host_restarts: int = 0
    #: When the queue last answered one of its pulls: a worker may be alive without receiving jobs.
    last_pull_at: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    #: The packs it executes; empty while it takes no priced runs. None: its version does not report them.
    packs: tuple[str, ...] | None = None
    #: Why it cannot execute packs that it would otherwise take, by pack, and what it provides for the others, such as
    #: languages. None: nothing to report.
    packs_missing: Mapping[str, str] | None = None
    packs_provide: Mapping[str, Sequence[str]] | None = None
    #: `exec-tcp` or `exec-native`: a worker of programs, connected to a door or to the queue. None: a worker of flows.
    kind: str | None = None
    #: Workers of programs: the programs it takes, how many more jobs it takes now, and its maximum in parallel.
    patterns: tuple[str, ...] | None = None
    credits: int | None = None
    max_parallel: int | None = None
    #: The door it is connected to, and the CPU usage of its machine as a share.
    door_id: str | None = None
    #: Its group of programs.
    group: str | None = None
    cpu: float | None = None
    #: The programs that it has and may run. None: its version does not report them, or there are too many.
    programs: tuple[str, ...] | None = None
    #: Programs that match its patterns but that it reported as missing.
    lacks: tuple[str, ...] | None = None
    #: Patterns of the programs that it may run, WORKER_EXEC_ALLOW. None: all, or its version does not report them.
    allow: tuple[str, ...] | None = None
    #: Tenants whose runs it may receive, as `tenant_token` encodes them, besides runs without one. None: all.
    tenants: tuple[str, ...] | None = None
    #: How many lines of runs it has captured and dropped since it started (`LogTotals`). None: not reported.
    logs: Mapping[str, Any] | None = None
    #: The flows that it announces, bounded as `flow_announcement` says. A worker with a resolver announces none.
    flows: tuple[OfferedFlow, ...] = ()
    #: It executes no other flows by name. False: it has a resolver, or its version announces none.
    flows_complete: bool = False

    @property
    def announces(self) -> bool:
        """Whether it tells which flows it offers."""
        return self.flows_complete or bool(self.flows)

    @property
    def takes_flows(self) -> bool:
        """Whether it takes runs by tag."""
        return self.kind is None and (self.lanes is None or FLOWS in self.lanes)

    def offers(self, flow_name: str) -> bool:
        """Return whether it announces a flow of this name."""
        return flow_name in self._flow_names

    @cached_property
    def _flow_names(self) -> frozenset[str]:
        return frozenset(flow.name for flow in self.flows)

    @property
    def load(self) -> Load:
        """The load of the lane that `slots` is about."""
        return self.load_of(FLOWS if self.kind is None else PROGRAMS)

    def load_of(self, lane: str) -> Load:
        """Return the load of one lane. Workers that report no lanes do not tell whose runs are running: all count."""
        if self.lanes is not None:
            found = self.lanes.get(lane, {})
            return Load(found.get("slots", 0), found.get("busy", 0))
        slots = self.max_parallel or 0 if lane == PROGRAMS and self.kind is None else self.slots
        return Load(slots, min(len(self.running), slots))

    def derived_state(self, now: float, disconnect_seconds: float) -> WorkerState:
        """FLOW-27: a worker that stopped in an orderly way keeps that state; one without heartbeats is disconnected."""
        if self.state is WorkerState.STOPPED_GRACEFUL or now - self.last_seen_at <= disconnect_seconds:
            return self.state
        return WorkerState.DISCONNECTED

    def is_alive(self, now: float, disconnect_seconds: float) -> bool:
        return self.derived_state(now, disconnect_seconds) in ALIVE

    def is_forgettable(self, now: float, disconnect_seconds: float, retention_seconds: float) -> bool:
        """Return whether it is not alive and its last heartbeat is older than the retention period; 0 keeps records for
        ever."""
        is_old = retention_seconds > 0 and now - self.last_seen_at > retention_seconds
        return is_old and not self.is_alive(now, disconnect_seconds)


def take_over(own: WorkerRecord, stored: WorkerRecord | None) -> WorkerRecord:
    """Return the worker's own record, with the operator's members taken from the stored one (FLOW-148)."""
    return own if stored is None else replace(own, hidden=stored.hidden, updated_at=stored.updated_at)


def hide(record: WorkerRecord, hidden: bool, now: float) -> WorkerRecord:
    """Set `hidden` for the operator (FLOW-144). A repeated request changes nothing, not even the time (FLOW-147)."""
    if record.hidden == hidden and record.updated_at is not None:
        return record
    return replace(record, hidden=hidden, updated_at=now)


def stopped(record: WorkerRecord, reason: str, now: float) -> WorkerRecord:
    """Record an orderly stop (FLOW-198)."""
    return replace(
        record,
        state=WorkerState.STOPPED_GRACEFUL,
        stopped_at=now,
        stop_reason=reason,
        last_seen_at=now,
        current_run_id=None,
        running=(),
        flows=(),
        flows_complete=False,
        lanes=None if record.lanes is None else {name: {**lane, "busy": 0} for name, lane in record.lanes.items()},
    )


def encode_worker(record: WorkerRecord) -> bytes:
    return _dump(_document(record))


def encode_over(record: WorkerRecord, stored: bytes) -> bytes:
    """Encode the record, and keep the members of the stored one that only a newer version knows."""
    return _dump(json.loads(stored) | _document(record))


def _document(record: WorkerRecord) -> dict[str, Any]:
    document: dict[str, Any] = {item.name: getattr(record, item.name) for item in fields(record)}
    document["flows"] = [flow.document() for flow in record.flows]
    return {**document, "heartbeat_at": record.last_heartbeat_at}  # FLOW-354: for older readers


def _dump(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_instant(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_mapping(value: object) -> bool:
    return isinstance(value, dict)


def _are_loads(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(lane, dict) and all(_is_count(lane.get(name)) for name in ("slots", "busy"))
        for lane in value.values()
    )


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_mapping_to(is_right: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, dict) and all(map(is_right, value.values()))


#: One record with a member of the wrong type would break every list that contains it.
_FORMS: dict[str, Callable[[object], bool]] = {
    **dict.fromkeys(("worker_id", "instance_id", "current_run_id", "last_run_status", "stop_reason"), _is_text),
    **dict.fromkeys(("kind", "door_id", "group"), _is_text),
    **dict.fromkeys(("last_seen_at", "last_heartbeat_at", "updated_at", "stopped_at", "last_pull_at"), _is_instant),
    **dict.fromkeys(("slots", "host_restarts", "credits", "max_parallel"), _is_count),
    "cpu": _is_instant,
    **dict.fromkeys(("wheel_sync", "versions"), _is_mapping),
    **dict.fromkeys(("tags", "running", "packs", "patterns", "programs", "lacks", "allow", "tenants"), _are_texts),
    "lanes": _are_loads,
    "logs": are_counts,
    "packs_missing": _is_mapping_to(_is_text),
    "packs_provide": _is_mapping_to(_are_texts),
    "state": lambda value: value in WorkerState.__members__,
    "flows": lambda value: isinstance(value, list),
    **dict.fromkeys(("hidden", "flows_complete"), lambda value: isinstance(value, bool)),
}
assert _FORMS.keys() == {item.name for item in fields(WorkerRecord)}


def read_worker(data: bytes) -> WorkerRecord:
    """Decode a worker record. Unknown fields are ignored. Raises Corrupt if the bytes are not a valid record."""
    try:
        document = json.loads(data)
        known = {name: value for name, value in document.items() if name in _FORMS and value is not None}
        wrong = [name for name, value in known.items() if not _FORMS[name](value)]
        if wrong:
            raise ValueError(f"{', '.join(wrong)} cannot be what it is")  # noqa: TRY301  (one way out of here)
        if b"\\u" in data:  # a lone surrogate can be written as an escape, but cannot be encoded again
            json.dumps(document, ensure_ascii=False).encode()
        known["state"] = WorkerState(known["state"])
        known["tags"] = tuple(known.get("tags", ()))
        known["running"] = tuple(known.get("running", ()))
        for name in known.keys() & {"packs", "patterns", "programs", "lacks", "allow", "tenants"}:
            known[name] = tuple(known[name])
        known["flows"] = tuple(read_offered_flow(each) for each in known.get("flows", ()))
        known.setdefault("instance_id", "")
        known.setdefault("last_heartbeat_at", known["last_seen_at"])
        return WorkerRecord(**known)
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise Corrupt(f"not a worker record: {error}") from error
