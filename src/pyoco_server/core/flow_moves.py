"""The pure functions that move a run of a flow to its terminal state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyoco_server.core.delays import WaitsFor
from pyoco_server.core.outcome import Completed, Outcome, Progress, Terms
from pyoco_server.core.run import (
    ERROR_LENGTH_MAX,
    HANDED_BACK,
    LOST,
    AttemptOver,
    Caller,
    Owner,
    Run,
    Submission,
    changed,
    over,
    with_this_one,
)
from pyoco_server.core.states import FLOW_MOVES, IllegalMove, RunState, TaskState
from pyoco_server.errors import CATALOGUE

__all__ = [
    "accept",
    "adopt",
    "ask_cancel",
    "beat",
    "claim",
    "conclude",
    "mark_cancel_overdue",
    "put_back",
    "release",
    "shorten_cancel",
    "waiting_again",
]


def accept(ask: Submission, caller: Caller, run_id: str, now: float) -> Run:
    """Return the first record of a run (FLOW-12, FLOW-346).

    The heartbeat of a delayed run is expected from its time on: keepers of versions that do not know delays would
    otherwise end it, because it has no job.
    """
    due = ask.delay.due_at(now)
    return Run(
        run_id=run_id,
        flow_name=ask.flow_name,
        tag=ask.tag,
        tags=ask.tags,
        params=ask.params,
        submitted_at=now,
        updated_at=now,
        heartbeat_at=now if due is None else due,
        workflow_yaml_sha256=ask.workflow_yaml_sha256,
        workflow_yaml_bytes=ask.workflow_yaml_bytes,
        tenant_id=caller.tenant_id,
        api_key_id=caller.api_key_id,
        rerun_of=ask.rerun_of,
        not_before=due,
        waits_for=None if due is None else WaitsFor.SCHEDULED,
        schedule=ask.schedule,
        retry=ask.retry,
        timeout=ask.timeout,
    )


def release(run: Run, now: float) -> Run:
    """End the wait of a run: its job may be queued."""
    return changed(run, waits_for=None, heartbeat_at=now, updated_at=now)


def claim(run: Run, owner: Owner, attempt_id: str, now: float) -> Run:
    """Take the run for a new attempt of this worker. All older attempts are fenced from here on (FLOW-347).

    An attempt that was in progress counts as lost, and its last heartbeat as its end.
    """
    return changed(
        run,
        status=_target(run, "claim"),
        attempt=run.attempt + 1,
        attempt_id=attempt_id,
        earlier_attempts=with_this_one(run, LOST, run.heartbeat_at),
        attempts_lost=run.attempts_lost + (run.attempt_id is not None),
        try_since=now if run.try_since is None else run.try_since,
        task_tries=kept_task_tries(run),
        worker_id=owner.worker_id,
        instance_id=owner.instance_id,
        start_time=now,
        heartbeat_at=now,
        updated_at=now,
        tasks={},
        task_records={},
        task_records_truncated=False,
        graph={},
        kept_values={},
        error=None,
        waits_for=None,
    )


def kept_task_tries(run: Run) -> Mapping[str, Any]:
    """Return the failed tries of tasks so far in this try of the run, as last reported: the next attempt continues
    the count."""
    reported = {
        name: {"first_try_at": record.get("first_try_at"), "tries": record["tries"]}
        for name, record in run.task_records.items()
        if isinstance(record, dict) and isinstance(record.get("tries"), list)
    }
    return {**run.task_tries, **reported} if reported else run.task_tries


def put_back(run: Run, now: float, why: str = HANDED_BACK, error: str | None = None) -> Run:
    """End the attempt, and not the run: it has no owner, and its late writes are fenced.

    Nothing that the attempt has done is kept but its entry among the earlier attempts. It uses up no try. `error` is
    shown until the next attempt begins. The next delivery of the present job may claim the run immediately.
    """
    return changed(
        run,
        status=_target(run, "put_back"),
        attempts_lost=run.attempts_lost + 1,
        **_dropped(run, why, now, error),
    )


def waiting_again(run: Run, now: float, until: float, why: str, error: str | None) -> Run:
    """End the attempt, and let the run wait without a job until its next try: an alarm queues the job then.

    A run whose attempt was put back, and whose job the queue has given up since, stays PENDING. Keepers of versions
    that do not know delays would end a run without a job, so its heartbeat is expected from its time on (as in
    `accept`).
    """
    return changed(
        run,
        status=run.status if run.status is RunState.PENDING else _target(run, "retry"),
        not_before=until,
        waits_for=WaitsFor.RETRY,
        heartbeat_at=max(until, now),
        **_dropped(run, why, now, error),
    )


def _dropped(run: Run, why: str, now: float, error: str | None) -> _Dropped:
    """Return what changes when an attempt at a flow ends and the run does not."""
    return {
        "attempt_id": None,
        "instance_id": None,
        "tasks": {},
        "task_records": {},
        "task_records_truncated": False,
        "graph": {},
        "task_tries": kept_task_tries(run),
        **over(run, why, now, error),
    }


class _Dropped(AttemptOver):
    attempt_id: None
    instance_id: None
    tasks: Mapping[str, str]
    task_records: Mapping[str, Any]
    task_records_truncated: bool
    graph: Mapping[str, Sequence[str]]
    task_tries: Mapping[str, Any]


def adopt(run: Run, terms: Terms) -> Run:
    """Take over what the flow says where the submission said nothing (RETRY-12)."""
    retry = terms.retry if run.retry is None else run.retry
    timeout = terms.timeout if run.timeout is None else run.timeout
    return run if (retry, timeout) == (run.retry, run.timeout) else changed(run, retry=retry, timeout=timeout)


def beat(run: Run, progress: Progress, now: float) -> Run:
    """Record a heartbeat with the current progress; the status stays unchanged (FLOW-349)."""
    return changed(
        adopt(run, progress.terms),
        heartbeat_at=now,
        updated_at=now,
        tasks=progress.tasks or run.tasks,
        task_records=progress.task_records or run.task_records,
        task_records_truncated=progress.truncated or (run.task_records_truncated and not progress.task_records),
        graph=progress.graph or run.graph,
    )


def ask_cancel(
    run: Run, reason: str | None, now: float, by: str | None = None, grace_seconds: float | None = None
) -> Run:
    """Record a cancel request, with the API key that made it (FLOW-175). Only the first request counts (FLOW-177).

    `grace_seconds`: how long the work may take to stop.
    """
    status = _target(run, "ask_cancel")
    return changed(
        run,
        waits_for=None,
        status=status,
        cancel_requested_at=now,
        cancel_reason=reason,
        cancel_requested_by=by,
        cancel_deadline_at=None if grace_seconds is None else now + grace_seconds,
        updated_at=now,
    )


def shorten_cancel(run: Run, grace_seconds: float, now: float) -> Run:
    """Move the deadline of a run that is being cancelled forward. A later deadline changes nothing (CLI-10)."""
    deadline = now + grace_seconds
    if run.cancel_deadline_at is not None and run.cancel_deadline_at <= deadline:
        return run
    return changed(run, cancel_deadline_at=deadline, updated_at=now)


def mark_cancel_overdue(run: Run, seconds: float, now: float) -> Run:
    """Note in `error` that the work did not stop within the grace period; change nothing else (FLOW-186)."""
    text = CATALOGUE[21]
    return changed(run, error=f"{text.err_id}: {text.en} ({seconds:g} s)", updated_at=now)


def conclude(run: Run, outcome: Outcome, now: float, ended_by: str | None = None) -> Run:
    """Move the run to its terminal state (FLOW-379 to FLOW-384). A cancel request takes precedence over the outcome
    (FLOW-20).

    `ended_by`: KEEPER, GATEWAY or OPERATOR, unless a worker ends it.
    """
    error, reason = run.error, run.reason
    if run.status is RunState.CANCELLING:
        status, error = _target(run, "cancel"), outcome.error or run.error
    elif isinstance(outcome, Completed):
        status = _target(run, "complete")
    else:
        status, error = _target(run, "fail"), outcome.error or "the engine stopped the run"
        reason = outcome.reason or "execution_error"  # FLOW-384: stopped without a cancel request
    progress = outcome.progress
    return changed(
        adopt(run, progress.terms),
        waits_for=None,
        status=status,
        error=error and error[:ERROR_LENGTH_MAX],
        reason=reason,
        end_time=now,
        heartbeat_at=now,
        updated_at=now,
        tasks=_settle_tasks(progress.tasks or run.tasks, status),
        task_records=_settle_records(progress.task_records or run.task_records, status),
        task_records_truncated=progress.truncated or (run.task_records_truncated and not progress.task_records),
        graph=progress.graph or run.graph,
        kept_values=outcome.kept.stored() if outcome.kept is not None else {},
        task_tries={},
        ended_by=ended_by,
    )


def _target(run: Run, move: str) -> RunState:
    sources, target = FLOW_MOVES[move]
    if run.status not in sources:
        raise IllegalMove(move, run.status)
    return target


#: FLOW-23: the state of an unfinished task after its run has ended. Combinations not listed stay unchanged.
_LEFTOVERS: dict[tuple[RunState, str], str] = {
    (RunState.FAILED, TaskState.RUNNING): TaskState.FAILED,
    (RunState.CANCELLED, TaskState.RUNNING): TaskState.CANCELLED,
    (RunState.CANCELLED, TaskState.PENDING): TaskState.CANCELLED,
    # A completed run has no running task. If a task report was late, the outcome of the run takes precedence.
    (RunState.COMPLETED, TaskState.RUNNING): TaskState.SUCCEEDED,
}


def _settle_tasks(tasks: Mapping[str, str], ended: RunState) -> dict[str, str]:
    return {name: str(_LEFTOVERS.get((ended, state), state)) for name, state in tasks.items()}


def _settle_records(records: Mapping[str, Any], ended: RunState) -> dict[str, Any]:
    return {name: _settle_record(record, ended) for name, record in records.items()}


def _settle_record(record: Any, ended: RunState) -> Any:
    if not isinstance(record, dict):
        return record
    settled = _LEFTOVERS.get((ended, record.get("state", "")))
    return record if settled is None else {**record, "state": str(settled)}
