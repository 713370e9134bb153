"""The course of a run through its tries: what becomes of it when an attempt has ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyoco_server.core.flow_moves import adopt, conclude, waiting_again
from pyoco_server.core.outcome import Failed, Outcome, TaskTimedOut
from pyoco_server.core.retries.matching import LOST, Failure, retries
from pyoco_server.core.retries.policy import RetryPolicy
from pyoco_server.core.retries.reading import policy_of_document
from pyoco_server.core.run import ERROR_LENGTH_MAX, FAILED_TRY, TASK_TIMEOUT, Run, changed
from pyoco_server.core.states import RunState, TaskState

__all__ = [
    "TRY_MEMBERS",
    "after",
    "end_too_late",
    "has_failed_a_try",
    "is_too_late",
    "next_try_at",
    "policy_of",
    "try_number",
    "try_of",
    "with_failed_try",
]

#: The errors of a hundred tries are part of the record.
_TRY_ERROR_MAX = 200
#: Attempts listed of one try: the newest.
_ATTEMPTS_MAX = 20


TRY_MEMBERS = ("try", "attempts", "worker_id", "started_at", "ended_at", "reason", "error", "kind")


def policy_of(run: Run) -> RetryPolicy | None:
    return policy_of_document(run.retry)


def try_number(run: Run) -> int:
    """Return the number of the current try, from 1; of an ended run, that of its last one."""
    is_over = run.is_terminal and run.try_since is None
    return max(1, len(run.tries) + (not is_over))


def try_of(run: Run, attempt: int) -> int:
    """Return the number of the try that an attempt of this run belongs to, from 1.

    If the record has lost its first tries, that is the first one it still has, for all attempts before.
    """
    number = 0
    for entry in run.tries:
        found = entry.get("try")
        number = found if type(found) is int else number + 1
        if attempt <= _last_attempt(entry):
            return number
    return number + 1


def after(run: Run, outcome: Outcome, now: float, chance: float, ended_by: str | None = None) -> Run:
    """Return the run after its attempt has ended: terminal, or PENDING until its next try (RETRY-14 to RETRY-17).

    A run whose cancellation was requested is always ended. Every failed try is appended to `tries` by the one write
    that ends its attempt, so there are never more than the policy allows. `chance` is random, from 0 to 1.
    """
    run = adopt(run, outcome.progress.terms)
    if run.status is RunState.CANCELLING:
        return conclude(run, outcome, now, ended_by)
    if isinstance(outcome, TaskTimedOut):
        if outcome.again_after is not None:
            again = changed(run, task_records={}, task_tries=outcome.task_tries)
            return waiting_again(again, now, now + outcome.again_after, TASK_TIMEOUT, outcome.error)
        run = _with_task_tries(run, outcome, now)
    policy = policy_of(run)
    if policy is None or outcome.reason is None or _is_only_lost(policy, outcome.failure):
        return conclude(run, outcome, now, ended_by)
    until = next_try_at(run, policy, outcome.failure, now, chance)
    kind = outcome.reason.value if outcome.failure is None else outcome.failure.kind
    tried = with_failed_try(run, kind, outcome.reason, outcome.error, now)
    if until is None:
        return conclude(tried, outcome, now, ended_by)
    return changed(waiting_again(tried, now, until, FAILED_TRY, outcome.error), task_tries={})


def _is_only_lost(policy: RetryPolicy, failure: Failure | None) -> bool:
    """RETRY-15: lost attempts are a failed try only where the policy names them."""
    return failure is not None and failure.kind == LOST and not retries(policy, failure)


def next_try_at(run: Run, policy: RetryPolicy, failure: Failure | None, now: float, chance: float) -> float | None:
    """Return when the next try may begin, if the current one fails now. None: there is no other."""
    failed = len(run.tries) + 1
    if failure is None or failed >= policy.tries or not retries(policy, failure):
        return None
    until = now + policy.wait_seconds(failed, chance)
    return None if _is_after_deadline(run, policy, until) else until


def _is_after_deadline(run: Run, policy: RetryPolicy, instant: float) -> bool:
    """RETRY-7"""
    began = run.tries[0].get("started_at") if run.tries else run.try_since
    if policy.deadline is None or not isinstance(began, int | float):
        return False
    return instant > began + policy.deadline


def with_failed_try(run: Run, kind: str, reason: str, error: str | None, now: float) -> Run:
    """Append the current try to the failed ones. After one of kind `lost`, as many attempts may be lost again."""
    entry: dict[str, Any] = {
        "try": len(run.tries) + 1,
        "attempts": list(range(_first_attempt(run), run.attempt + 1))[-_ATTEMPTS_MAX:],
        "worker_id": run.worker_id,
        "started_at": run.try_since,
        "ended_at": now,
        "reason": str(reason),
        "error": error and error[:_TRY_ERROR_MAX],
        "kind": kind,
    }
    lost = 0 if kind == LOST else run.attempts_lost
    return changed(run, tries=(*run.tries, entry), try_since=None, attempts_lost=lost)


def _first_attempt(run: Run) -> int:
    """Return the first attempt of the current try."""
    return _last_attempt(run.tries[-1]) + 1 if run.tries else 1


def _last_attempt(entry: Mapping[str, Any]) -> int:
    attempts = entry.get("attempts")
    return attempts[-1] if isinstance(attempts, list) and attempts and type(attempts[-1]) is int else 0


def has_failed_a_try(run: Run, attempt: int) -> bool:
    """Return whether this attempt ended a failed try of the run, or one of a task by its timeout."""
    if any(_last_attempt(entry) == attempt for entry in run.tries):
        return True
    return any((past.get("attempt"), past.get("why")) == (attempt, TASK_TIMEOUT) for past in run.earlier_attempts)


def is_too_late(run: Run, now: float) -> bool:
    """Return whether the next try of the run may not begin any more: its deadline is over (RETRY-7)."""
    policy = policy_of(run)
    return policy is not None and bool(run.tries) and run.try_since is None and _is_after_deadline(run, policy, now)


def end_too_late(run: Run, now: float, ended_by: str | None = None) -> Run:
    """Fail a run with its last failed try, because no other may begin."""
    error, reason = run.tries[-1].get("error"), run.tries[-1].get("reason")
    message = error if isinstance(error, str) else "the last try failed"
    ended = conclude(run, Failed(message=message), now, ended_by)
    return changed(ended, reason=reason) if isinstance(reason, str) else ended


def _with_task_tries(run: Run, outcome: TaskTimedOut, now: float) -> Run:
    """Show the failed tries of tasks in their records, which the killed process cannot report any more."""
    records = dict(run.task_records)
    for name, course in outcome.task_tries.items():
        record = records.get(name)
        known = record if isinstance(record, dict) else {"state": TaskState.PENDING.value}
        records[name] = {**known, **course, "next_try_at": None}
    stopped = {"state": TaskState.FAILED.value, "ended_at": now, "error": outcome.error[:ERROR_LENGTH_MAX]}
    records[outcome.task] = {**records.get(outcome.task, {}), **stopped}
    return changed(run, tasks={**run.tasks, outcome.task: TaskState.FAILED.value}, task_records=records)
