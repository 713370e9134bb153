"""The stored and public form of a run: one JSON object, strict, and never larger than its limit."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from pyoco_server.core.programs.record import EXEC, PRIVATE
from pyoco_server.core.programs.stored import MEMBERS, program_members, read_program
from pyoco_server.core.retries.course import policy_of, try_number
from pyoco_server.core.run import ERROR_LENGTH_MAX, Run
from pyoco_server.core.states import RunState
from pyoco_server.core.values.shown import RESULT_BYTES_MAX, not_run, shown_records, shown_result
from pyoco_server.errors import CATALOGUE, Corrupt, SnapshotTooLargeError

__all__ = [
    "compact_run_snapshot",
    "encode",
    "encode_fitting",
    "encode_smallest",
    "from_snapshot",
    "read_snapshot",
    "shown_snapshot",
    "to_snapshot",
]

#: Omitted from the stored form when they have no value.
_OPTIONAL = (
    "attempt_id",
    "worker_id",
    "instance_id",
    "reason",
    "workflow_yaml_sha256",
    "workflow_yaml_bytes",
    "tenant_id",
    "api_key_id",
    "cancel_requested_at",
    "cancel_reason",
    "cancel_requested_by",
    "cancel_deadline_at",
    "ended_by",
    "rerun_of",
    "not_before",
    "waits_for",
    "schedule",
    "retry",
    "timeout",
    "try_since",
)
#: FLOW-360: the members that are dropped first when a snapshot is too large.
_BULKY = ("inputs", "output", "artifacts", "traceback")
#: Members for display only: dropped rather than losing the run.
_DISPENSABLE = ("graph", "earlier_attempts")
#: Stored, and shown in another form: `waiting` says what a run waits for.
_STORED_ONLY = ("kept_values", "waits_for", "try_since", "attempts_lost", "task_tries")


def to_snapshot(run: Run) -> dict[str, Any]:
    """Return the run in the form of section 16.1 of the contract."""
    snapshot: dict[str, Any] = {
        "run_id": run.run_id,
        "kind": run.kind,
        "flow_name": run.flow_name,
        "status": run.status.value,
        "tag": run.tag,
        "tags": list(run.tags),
        "params": run.params,
        "tasks": run.tasks,
        "task_records": run.task_records,
        "task_records_truncated": run.task_records_truncated,
        "attempt": run.attempt,
        "submitted_at": run.submitted_at,
        "start_time": run.start_time,
        "end_time": run.end_time,
        "heartbeat_at": run.heartbeat_at,
        "updated_at": run.updated_at,
        "error": run.error,
    }
    for name in _OPTIONAL:
        value = getattr(run, name)
        if value is not None:
            snapshot[name] = value
    if run.params_truncated:
        snapshot["params_truncated"] = True
    if run.graph:
        snapshot["graph"] = run.graph
    if run.earlier_attempts:
        snapshot["earlier_attempts"] = list(run.earlier_attempts)
    if run.kept_values:
        snapshot["kept_values"] = run.kept_values
    if run.tries:
        snapshot["tries"] = list(run.tries)
    if run.attempts_lost:
        snapshot["attempts_lost"] = run.attempts_lost
    if run.task_tries:
        snapshot["task_tries"] = run.task_tries
    if run.program is not None:
        snapshot.update(program_members(run.program))
        snapshot["token"] = snapshot.pop("attempt_id", None)
    if run.extra:
        snapshot.update(run.extra)
    return snapshot


def shown_snapshot(run: Run, result_bytes_max: int = RESULT_BYTES_MAX) -> dict[str, Any]:
    """Return the public form of the run: without an invalid graph, and without the private members of a program's run
    (GRID-154); with its result, and what became of its outputs (RES-3, RES-4). O(graph + tasks)."""
    snapshot = _without(to_snapshot(run), *_STORED_ONLY)
    if run.is_exec:
        snapshot = _without(snapshot, *PRIVATE)
    if run.graph and not _is_graph(run.graph):
        del snapshot["graph"]
    if run.is_flow:
        snapshot["task_records"] = shown_records(run)
    if run.status is RunState.FAILED:
        snapshot["not_run"] = not_run(run)
    snapshot |= _shown_tries(run)
    if (result := shown_result(run, result_bytes_max)) is not None:
        snapshot["result"] = result
    return snapshot


def _shown_tries(run: Run) -> dict[str, Any]:
    """RETRY-14: of a run with a policy."""
    if run.retry is None:
        return {}
    policy = policy_of(run)
    if policy is None:
        return {"retry": None}
    return {"try": try_number(run), "max_tries": policy.tries, "tries": list(run.tries)}


def _is_graph(value: Mapping[Any, Any]) -> bool:
    """Return whether the graph has our format. Foreign clients may have written anything."""
    return all(isinstance(names, list | tuple) and all(type(name) is str for name in names) for names in value.values())


_INSTANTS = frozenset(
    {
        "submitted_at",
        "updated_at",
        "heartbeat_at",
        "start_time",
        "end_time",
        "cancel_requested_at",
        "cancel_deadline_at",
        "not_before",
        "timeout",
        "try_since",
    }
)
#: The members by which runs are counted, looked up and queued.
_TEXTS = frozenset({"run_id", "kind", "tag", "worker_id", "tenant_id", "waits_for"})
_FIELDS = frozenset(item.name for item in fields(Run)) - {"extra", "program"}
_OF_PROGRAMS = MEMBERS | {"token"}


def from_snapshot(snapshot: Mapping[str, Any]) -> Run:
    """Return the run described by a snapshot. Raises Corrupt if the snapshot is invalid."""
    known = {name: value for name, value in snapshot.items() if name in _FIELDS and value is not None}
    is_exec = snapshot.get("kind") == EXEC
    own_members = _FIELDS | _OF_PROGRAMS if is_exec else _FIELDS
    extra = {name: value for name, value in snapshot.items() if name not in own_members}
    _check_types(known)
    try:
        known["status"] = RunState(known["status"])
        _check_instants(known)
        known["tags"] = tuple(known.get("tags", ()))
        # Shown only, or checked where they are used: an invalid graph must not prevent the run from executing.
        for name in ("graph", "schedule", "retry", "task_tries", "kept_values"):
            if not isinstance(known.get(name, {}), dict):
                del known[name]
        for name in ("attempt", "attempts_lost"):
            if type(known.get(name, 0)) is not int:
                del known[name]
        known["tries"] = _attempts_of(known.get("tries"))
        known["earlier_attempts"] = _attempts_of(known.get("earlier_attempts"))
        known.setdefault("tag", "")
        known.setdefault("submitted_at", known["updated_at"])
        known.setdefault("heartbeat_at", known["updated_at"])
        if is_exec:
            known["program"] = read_program(snapshot)
            known.pop("not_before", None)  # programs have their own, which their retries use, too
            known["attempt_id"] = snapshot.get("token")
        return Run(**known, extra=extra)
    except (KeyError, OverflowError, TypeError, ValueError) as error:  # JSON has integers that no float can hold
        raise Corrupt(f"not a run snapshot: {error}") from error


def _check_types(known: Mapping[str, Any]) -> None:
    """Raise Corrupt for members of another type, without which the run cannot be executed or listed."""
    for name in ("params", "tasks", "task_records"):
        if not isinstance(known.get(name, {}), dict):
            raise Corrupt(f"not a run snapshot: {name} is not an object")
    for name in _TEXTS & known.keys():
        if not isinstance(known[name], str):
            raise Corrupt(f"not a run snapshot: {name} is not a text")


def _attempts_of(value: Any) -> tuple[Mapping[str, Any], ...]:
    """Return the earlier attempts, or none if they have another format: that must not prevent the run from
    executing."""
    if not isinstance(value, list | tuple) or not all(isinstance(attempt, dict) for attempt in value):
        return ()
    return tuple(value)


def _check_instants(known: Mapping[str, Any]) -> None:
    """Raise ValueError for text, NaN or infinities: lists are sorted by these times, and leases are computed from
    them."""
    for name in _INSTANTS & known.keys():
        if type(known[name]) not in (int, float) or not math.isfinite(known[name]):
            raise ValueError(f"{name} is not an instant")


def read_snapshot(data: bytes) -> Run:
    """Decode a stored run. Raises Corrupt."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"not a run snapshot: {error}") from error
    if not isinstance(document, dict):
        raise Corrupt("not a run snapshot: not a JSON object")
    return from_snapshot(document)


_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encode(snapshot: Mapping[str, Any]) -> bytes:
    """Encode as strict JSON in UTF-8. A lone surrogate, which UTF-8 cannot hold, becomes a question mark."""
    return _encoder.encode(snapshot).encode("utf-8", "replace")


def encode_fitting(run: Run, bytes_max: int) -> bytes:
    """Return the stored form of a run, compacted if necessary. O(size); a single pass if it fits.

    Raises SnapshotTooLargeError.
    """
    snapshot = to_snapshot(run)
    data = encode(snapshot)
    if len(data) <= bytes_max:
        return data
    if not (run.task_records or run.graph or run.earlier_attempts):
        raise SnapshotTooLargeError(f"the snapshot takes {len(data)} bytes; {bytes_max} are allowed")
    return encode(compact_run_snapshot(snapshot, bytes_max))


def compact_run_snapshot(snapshot: dict[str, Any], max_bytes: int) -> dict[str, Any]:
    """Return a snapshot of at most `max_bytes` when encoded; the argument is not modified (FLOW-359 to FLOW-361).

    The results of tasks are worth more than the graph, so the graph alone is dropped first if that is enough. Otherwise
    the bulky members of all task records are dropped, then the records, each time keeping the graph if possible; last
    the earlier attempts. Raises SnapshotTooLargeError if even that is not enough.
    """
    size = 0
    for compact in _reductions(snapshot):
        size = len(encode(compact))
        if size <= max_bytes:
            return compact
    raise SnapshotTooLargeError(f"the snapshot takes {size} bytes without any task record; {max_bytes} are allowed")


def _reductions(snapshot: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the possible reductions, the least lossy first, without duplicates for members that do not exist."""
    was_cut = bool(snapshot.get("task_records_truncated", False))
    complete = {**snapshot, "task_records_truncated": was_cut}
    records = complete.get("task_records") or {}
    yield complete
    if "graph" in complete:
        yield _without(complete, "graph")
    compact = complete
    for fewer in ({name: _without_bulk(record) for name, record in records.items()}, {}):
        # FLOW-361: set only if something was dropped
        compact = {**complete, "task_records": fewer, "task_records_truncated": was_cut or fewer != records}
        yield compact
        if "graph" in compact:
            yield _without(compact, "graph")
    if "earlier_attempts" in compact:
        yield _without(compact, *_DISPENSABLE)


def _without(snapshot: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in snapshot.items() if name not in names}


def encode_smallest(run: Run, bytes_max: int) -> bytes:
    """Encode a terminal run that does not fit in any other way (FLOW-363): its true status, and why so little is
    left."""
    text = CATALOGUE[10]
    error = f"{text.err_id}: {text.en}"
    snapshot = _without(to_snapshot(run), "task_tries") | {
        "params": {},
        "params_truncated": True,
        "task_records": {},
        "task_records_truncated": run.task_records_truncated or bool(run.task_records),
        "error": f"{error} {run.error}"[:ERROR_LENGTH_MAX] if run.error else error,
    }
    snapshot = _without(snapshot, *_DISPENSABLE)
    reductions: tuple[dict[str, Any], ...] = (
        {},
        {"tasks": {}},
        {"tries": list(run.tries[-1:])},
        {"error": error, "tags": snapshot["tags"][:1]},
    )
    for reduction in reductions:
        snapshot |= reduction
        data = encode(snapshot)
        if len(data) <= bytes_max:
            break
    return data


def _without_bulk(record: Any) -> Any:
    if not isinstance(record, dict):
        return record
    return {name: value for name, value in record.items() if name not in _BULKY}
