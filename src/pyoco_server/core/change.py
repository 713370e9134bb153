"""The last change of a run, its time and its author, derived from the run's record alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pyoco_server.core.delays import WaitsFor
from pyoco_server.core.run import FAILED_TRY, GATEWAY, HANDED_BACK, KEEPER, OPERATOR, TASK_TIMEOUT, Run
from pyoco_server.core.states import RunState

__all__ = ["Doer", "DoerKind", "LastChange", "What", "last_change"]


class What(StrEnum):
    """The changes that are reported. A heartbeat is not one of them."""

    SUBMITTED = "submitted"
    STARTED = "started"
    HANDED_BACK = "handed_back"
    RETRYING = "retrying"
    CANCEL_REQUESTED = "cancel_requested"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class DoerKind(StrEnum):
    #: Authentication is off, so callers cannot be distinguished.
    CALLER = "caller"
    API_KEY = "api_key"
    WORKER = "worker"
    KEEPER = "keeper"
    #: Packs only: a gateway ends a run that it could not queue, and an operator ends a disputed one.
    GATEWAY = "gateway"
    OPERATOR = "operator"


@dataclass(frozen=True)
class Doer:
    kind: DoerKind
    #: The id of the API key or the worker. None: does not apply, or not known.
    id: str | None = None


@dataclass(frozen=True)
class LastChange:
    what: What
    at: float
    by: Doer


def last_change(run: Run) -> LastChange:
    """Return the last change of the run. O(1).

    A cancelled run of a lost worker may be ended by the next worker that receives its job. The record does not say
    which one, so the run's own worker is named.
    """
    if run.is_terminal:
        return LastChange(_ENDS[run.status], _first(run.end_time, run.updated_at), _ender(run))
    if run.status is RunState.CANCELLING:
        at = _first(run.cancel_requested_at, run.updated_at)
        return LastChange(What.CANCEL_REQUESTED, at, _asker(run.cancel_requested_by))
    if run.status is RunState.PENDING and run.is_exec and run.earlier_attempts:
        return _program_put_back(run)
    if run.status is RunState.PENDING and not _is_flow_put_back(run):
        return LastChange(What.SUBMITTED, run.submitted_at, _asker(run.api_key_id))
    if _is_flow_put_back(run):
        return _flow_put_back(run)
    return LastChange(What.STARTED, _first(run.start_time, run.updated_at), Doer(DoerKind.WORKER, run.worker_id))


_ENDS = {
    RunState.COMPLETED: What.COMPLETED,
    RunState.FAILED: What.FAILED,
    RunState.CANCELLED: What.CANCELLED,
}


_ENDERS = {KEEPER: DoerKind.KEEPER, GATEWAY: DoerKind.GATEWAY, OPERATOR: DoerKind.OPERATOR}


def _ender(run: Run) -> Doer:
    """The field may hold any value: foreign clients can write records."""
    kind = _ENDERS.get(run.ended_by) if isinstance(run.ended_by, str) else None
    return Doer(DoerKind.WORKER, run.worker_id) if kind is None else Doer(kind)


def _asker(api_key_id: str | None) -> Doer:
    return Doer(DoerKind.CALLER) if api_key_id is None else Doer(DoerKind.API_KEY, api_key_id)


def _is_flow_put_back(run: Run) -> bool:
    """Whether a worker put the flow back. Its record is PENDING then; workers of earlier versions left it RUNNING."""
    return run.attempt > 0 and run.attempt_id is None and run.is_flow


_WHAT_BY_REASON = {HANDED_BACK: What.HANDED_BACK, FAILED_TRY: What.RETRYING, TASK_TIMEOUT: What.RETRYING}


def _flow_put_back(run: Run) -> LastChange:
    """The last entry of the earlier attempts names the worker. The entry may be missing, because it was dropped for its
    size or an older version wrote the record: then the last one describes another attempt and is ignored."""
    last = run.earlier_attempts[-1] if run.earlier_attempts else {}
    if last.get("attempt") != run.attempt or last.get("why") not in _WHAT_BY_REASON:
        last = {}
    what = (
        What.RETRYING if run.waits_for == WaitsFor.RETRY else _WHAT_BY_REASON.get(last.get("why", ""), What.HANDED_BACK)
    )
    return LastChange(what, _first(_instant(last.get("ended_at")), run.updated_at), _worker_of(last))


def _program_put_back(run: Run) -> LastChange:
    """An attempt of a program that did not end its run: it failed, or was lost with the worker. Only the entry of that
    attempt names the worker."""
    last = run.earlier_attempts[-1]
    what = What.RETRYING if last.get("why") == FAILED_TRY else What.HANDED_BACK
    return LastChange(what, _first(_instant(last.get("ended_at")), run.updated_at), _worker_of(last))


def _worker_of(attempt: Mapping[str, Any]) -> Doer:
    worker_id = attempt.get("worker_id")
    return Doer(DoerKind.WORKER, worker_id if isinstance(worker_id, str) else None)


def _first(at: float | None, otherwise: float) -> float:
    return otherwise if at is None else at


def _instant(value: Any) -> float | None:
    """Return the value if it is a valid instant. Foreign clients may have written it, and JSON has integers that no
    float can hold."""
    return float(value) if type(value) in (int, float) and 0 <= value < 1e12 else None
