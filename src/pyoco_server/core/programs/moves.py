"""Changes of state of a program run: pure functions, each written by a compare-and-set (section 9.7).

Program runs differ from flows in three ways. A run may go back to PENDING while its last token stays valid: a worker
that was presumed lost may reconnect with its result, or with its program still running (GRID-55, GRID-110). A PENDING
run is cancelled immediately. And a program that ended before a cancel request reached it keeps its own outcome
(GRID-161).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from pyoco_server.core.delays import WaitsFor
from pyoco_server.core.outcome import DeadReason
from pyoco_server.core.programs.budget import LOST_WITH, Why, failure_of, is_lost, spent, spent_tries
from pyoco_server.core.programs.job import InlineInputs, ProgramJob, files_of, to_message, without_delivery_terms
from pyoco_server.core.programs.names import client_key, flow_name_of
from pyoco_server.core.programs.record import CANCEL_GRACE_SECONDS, EXEC, TAG, Artifact, Program, ProgramChanges
from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.programs.tails import cut, tail_of
from pyoco_server.core.retries.course import next_try_at, policy_of, with_failed_try
from pyoco_server.core.retries.matching import LOST, Failure
from pyoco_server.core.retries.reading import policy_of_document
from pyoco_server.core.run import ERROR_LENGTH_MAX, Run, RunChanges, changed, over, with_this_one
from pyoco_server.core.states import PROGRAM_MOVES, IllegalMove, RunState, TaskState

__all__ = [
    "accept",
    "addressed",
    "ask_cancel",
    "beat",
    "budget_spent",
    "cancel",
    "claim",
    "client_of",
    "conclude",
    "exhaust",
    "fail_invalid",
    "fail_too_late",
    "fail_unoffered",
    "is_cancel_asked",
    "is_fresh",
    "is_no_result",
    "note_dead_letter",
    "program_of",
    "put_back",
    "reattach",
    "release",
    "retry",
    "retry_lost",
    "with_short_tails",
]

S = RunState

#: GRID-84: every other failure is an `execution_error`.
_REASONS: dict[str | None, DeadReason] = {
    ErrorCode.MAX_ATTEMPTS: DeadReason.MAX_ATTEMPTS,
    ErrorCode.MAX_LOST: DeadReason.MAX_LOST,
    ErrorCode.EXEC_NOT_FOUND: DeadReason.EXEC_NOT_FOUND,
    ErrorCode.EXEC_NOT_ALLOWED: DeadReason.EXEC_NOT_ALLOWED,
}
_BUDGET_TEXTS = {
    ErrorCode.MAX_ATTEMPTS: "every attempt failed, and no more are allowed",
    ErrorCode.MAX_LOST: "its attempts were lost with their workers, and no more are allowed",
}
_TASKS = {
    S.PENDING: TaskState.PENDING,
    S.RUNNING: TaskState.RUNNING,
    S.CANCELLING: TaskState.RUNNING,
    S.COMPLETED: TaskState.SUCCEEDED,
    S.FAILED: TaskState.FAILED,
    S.CANCELLED: TaskState.CANCELLED,
}


def program_of(run: Run) -> Program:
    if run.program is None:
        raise IllegalMove("be a program", run.status)
    return run.program


def client_of(run: Run) -> str:
    """The client within its tenant (`client_key`)."""
    return client_key(program_of(run).client_id, run.tenant_id)


def _moved(run: Run, move: str, now: float, of_program: ProgramChanges, **changes: Unpack[RunChanges]) -> Run:
    sources, target = PROGRAM_MOVES[move]
    if run.status not in sources:
        raise IllegalMove(move, run.status)
    changes["program"] = _altered(program_of(run), of_program)
    changes["status"], changes["updated_at"], changes["waits_for"] = target, now, None
    changes["tasks"] = {EXEC: str(_TASKS[target])}
    return changed(run, **changes)


def _altered(program: Program, changes: ProgramChanges) -> Program:
    """Copy with changes, without running `__init__`, for the same reason as `changed` does so for runs."""
    copy = object.__new__(Program)
    copy.__dict__.update(program.__dict__)
    copy.__dict__.update(changes)
    return copy


def accept(job: ProgramJob, max_attempts: int) -> Run:
    """Create the first record of a run.

    Deterministic: every process derives the same record from the job (GRID-48, GRID-53 step 2).
    """
    listed = [{"name": each.name, "size": each.size, "sha256": each.sha256} for each in files_of(job)]
    params: dict[str, Any] = {"exec_name": job.exec_name, "args": list(job.args), "files": listed}
    policy = policy_of_document(job.retry)
    if job.timeout_sec is not None:  # stored nowhere else once the run has ended, and a repetition needs it
        params["timeout_sec"] = job.timeout_sec
    return Run(
        run_id=job.run_id,
        kind=EXEC,
        flow_name=flow_name_of(job.exec_name),
        tag=TAG,
        tags=(TAG, job.exec_name, *job.tags),
        params=params,
        tasks={EXEC: str(TaskState.PENDING)},
        submitted_at=job.submitted_at,
        updated_at=job.submitted_at,
        heartbeat_at=job.submitted_at,
        tenant_id=job.tenant_id,
        api_key_id=job.api_key_id,
        rerun_of=job.retry_of,
        waits_for=None if job.not_before is None else WaitsFor.SCHEDULED,
        schedule=job.schedule,
        retry=job.retry,
        program=Program(
            job_id=job.job_id,
            group=job.group,
            exec_name=job.exec_name,
            client_id=job.client_id,
            fingerprint=job.fingerprint,
            max_attempts=max_attempts if policy is None else policy.tries,
            retry_of=job.retry_of,
            not_before=job.not_before,
            job=to_message(without_delivery_terms(job)),
        ),
    )


def is_fresh(run: Run, now: float, fresh_seconds: float) -> bool:
    """Return whether the attempt has an active holder, judged by its lease."""
    return run.status in (S.RUNNING, S.CANCELLING) and now - run.heartbeat_at < fresh_seconds


def addressed(run: Run) -> ProgramJob:
    """Return a job with this run's address and no content, to look up its message or delete it."""
    program = program_of(run)
    return ProgramJob(
        run_id=run.run_id,
        job_id=program.job_id,
        group=program.group,
        exec_name=program.exec_name,
        client_id=program.client_id,
        args=(),
        timeout_sec=None,
        inputs=InlineInputs({}),
        submitted_at=run.submitted_at,
        fingerprint=program.fingerprint,
        tenant_id=run.tenant_id,
    )


def is_cancel_asked(run: Run) -> bool:
    return run.status is S.CANCELLING or run.cancel_requested_at is not None


def claim(run: Run, *, token: str, worker_id: str, holder: str, slot: int, now: float) -> Run:
    """Start a new attempt and fence every older one. An attempt that was running until now counts as lost."""
    was_lost = run.status is S.RUNNING
    earlier = with_this_one(run, Why.HOLDER_LOST, run.heartbeat_at) if was_lost else run.earlier_attempts
    lost = program_of(run).lost + was_lost
    if run.retry is not None:
        began = now if run.try_since is None else run.try_since
        run = changed(run, attempts_lost=run.attempts_lost + was_lost, try_since=began)
    return _moved(
        run,
        "claim",
        now,
        {"holder": holder, "slot": slot, "lost": lost, "not_before": None},
        attempt=run.attempt + 1,
        attempt_id=token,
        worker_id=worker_id,
        earlier_attempts=earlier,
        start_time=now,
        heartbeat_at=now,
        error=None,
    )


def beat(run: Run, slot: int | None, now: float) -> Run:
    """Record a heartbeat, and the slot that the attempt holds now."""
    program = program_of(run)
    if program.slot != slot:
        program = _altered(program, {"slot": slot})
    return changed(run, heartbeat_at=now, updated_at=now, program=program)


def release(run: Run, now: float) -> Run:
    """Undo a claim that was never handed to a worker. The token is removed, because no worker received it."""
    return _moved(
        run,
        "release",
        now,
        {"holder": None, "slot": None, "not_before": None},
        attempt=run.attempt - 1,
        attempt_id=None,
        worker_id=None,
        start_time=None,
    )


def put_back(run: Run, why: Why, not_before: float, now: float, reported_error: str | None = None) -> Run:
    """End the attempt without a result; the next one starts at `not_before` at the earliest. Its token stays valid.

    `reported_error` is shown until the next attempt begins, and in the list of attempts after that.
    """
    lost = program_of(run).lost + is_lost(why)
    if run.retry is not None:
        run = _counted(run, why, reported_error, now)
    return _moved(
        run,
        "put_back",
        now,
        {"holder": None, "slot": None, "lost": lost, "not_before": not_before},
        **over(run, why, now, reported_error),
    )


def _counted(run: Run, why: Why, error: str | None, now: float) -> Run:
    """Count an attempt without a result of a run with a policy: as lost, or as a failed try."""
    if is_lost(why):
        return changed(run, attempts_lost=run.attempts_lost + 1)
    return with_failed_try(run, why, why, error, now)


def retry(run: Run, report: Report, now: float, chance: float) -> Run | None:
    """Return the run waiting for its next try after a failed one (RETRY-18). None: this try was the last.

    Its token is void: the attempt has reported, and a repeated report must not count again.
    """
    policy, failure = policy_of(run), failure_of(report)
    if policy is None or failure is None or report.status is not S.FAILED or is_cancel_asked(run):
        return None
    found = _as_reported(run)
    until = next_try_at(found, policy, failure, now, chance)
    if until is None:
        return None
    tried = with_failed_try(found, failure.kind, DeadReason.EXECUTION_ERROR, report.error, now)
    return _waiting(tried, Why.FAILED_TRY, until, now, report.error)


def retry_lost(run: Run, now: float, chance: float) -> Run | None:
    """Return the run waiting for its next try after too many lost attempts, if its policy retries that (RETRY-15)."""
    policy = policy_of(run)
    until = None if policy is None else next_try_at(run, policy, Failure(LOST), now, chance)
    if until is None:
        return None
    return _waiting(with_failed_try(run, LOST, DeadReason.MAX_LOST, None, now), Why.FAILED_TRY, until, now, None)


def _waiting(run: Run, why: Why, until: float, now: float, error: str | None) -> Run:
    """An alarm queues the job again: it may be due in days, and a message is not kept in flight for so long."""
    facts: ProgramChanges = {"holder": None, "slot": None, "not_before": until}
    if run.status is S.RUNNING:
        waiting = _moved(run, "put_back", now, facts, **over(run, why, now, error))
    else:  # put back already
        waiting = changed(run, program=_altered(program_of(run), facts), **over(run, why, now, error))
    return changed(waiting, attempt_id=None, waits_for=WaitsFor.RETRY, heartbeat_at=max(until, now))


def _as_reported(run: Run) -> Run:
    """Return the run without the entry that counted the attempt, which has now reported, as lost."""
    if run.status is not S.PENDING:
        return run
    lost, earlier = _without_last_put_back(run)
    fewer = max(0, run.attempts_lost - (program_of(run).lost - lost))
    return changed(
        run, earlier_attempts=earlier, attempts_lost=fewer, program=_altered(program_of(run), {"lost": lost})
    )


def reattach(run: Run, *, worker_id: str, holder: str, slot: int | None, now: float) -> Run:
    """Give a program that is still running a new holder, and undo the entry that counted its attempt as over."""
    if run.status is S.CANCELLING:
        return _moved(
            run, "reattach_cancelled", now, {"holder": holder, "slot": slot}, worker_id=worker_id, heartbeat_at=now
        )
    lost, earlier = _without_last_put_back(run)
    return _moved(
        run,
        "reattach",
        now,
        {"holder": holder, "slot": slot, "lost": lost, "not_before": None},
        worker_id=worker_id,
        earlier_attempts=earlier,
        heartbeat_at=now,
    )


def _without_last_put_back(run: Run) -> tuple[int, tuple[Mapping[str, Any], ...]]:
    """Return the lost count and the earlier attempts without the entry of the attempt that has reconnected."""
    lost, earlier = program_of(run).lost, run.earlier_attempts
    if run.status is not S.PENDING:
        return lost, earlier
    last = earlier[-1] if earlier and earlier[-1].get("attempt") == run.attempt else None
    # Its entry is the first thing dropped from a record that is too large. Assume it was lost, the most frequent case.
    if last is None or last.get("why") in LOST_WITH:
        lost = max(0, lost - 1)
    return lost, earlier[:-1] if last is not None else earlier


def ask_cancel(
    run: Run, reason: str | None, by: str | None, now: float, grace_seconds: float = CANCEL_GRACE_SECONDS
) -> Run:
    """Request the cancellation of a running attempt; its holder stops it within the grace period of programs."""
    return _moved(
        run,
        "ask_cancel",
        now,
        {},
        cancel_requested_at=now,
        cancel_reason=reason,
        cancel_requested_by=by,
        cancel_deadline_at=now + min(grace_seconds, CANCEL_GRACE_SECONDS),
    )


def is_no_result(run: Run, report: Report) -> bool:
    """Return whether the job must be retried: a WORKER_ERROR, or stopped without a cancel request (GRID-54)."""
    is_stopped = report.status is S.CANCELLED and not is_cancel_asked(run)
    return report.error_code is ErrorCode.WORKER_ERROR or is_stopped


def conclude(
    run: Run, report: Report, artifacts: Sequence[Artifact], now: float, *, worker_id: str | None, buries_errors: bool
) -> Run:
    """End the run with the reported outcome. `buries_errors`: write a dead letter for an `execution_error`."""
    lost, earlier = _without_last_put_back(run)
    move = {S.COMPLETED: "complete", S.FAILED: "fail", S.CANCELLED: "cancel"}[report.status]
    error_code = report.error_code
    if report.status is S.CANCELLED:
        error_code = ErrorCode.CANCELLED
    facts: ProgramChanges = {
        "exit_code": report.exit_code,
        "error_code": None if report.status is S.COMPLETED else error_code,
        "stdout_tail": tail_of(report.stdout),
        "stderr_tail": tail_of(report.stderr),
        "stdout_truncated": report.stdout_truncated,
        "stderr_truncated": report.stderr_truncated,
        "artifacts": tuple(artifacts),
        "run_seconds": report.run_seconds,
        "lost": lost,
    }
    error = None if report.status is S.COMPLETED else report.error
    if run.retry and move == "fail":
        failure = failure_of(report)
        kind = str(report.error_code or DeadReason.EXECUTION_ERROR).lower() if failure is None else failure.kind
        run = with_failed_try(run, kind, DeadReason.EXECUTION_ERROR, report.error, now)
    found = changed(run, earlier_attempts=earlier, worker_id=worker_id or run.worker_id)
    return _ended(found, move, error, facts, now, buries_errors=buries_errors)


def cancel(run: Run, now: float, reason: str | None = None, by: str | None = None) -> Run:
    """End as cancelled a run whose program has not started, or whose holder was lost (GRID-159, GRID-162)."""
    request: dict[str, Any] = {}
    if run.cancel_requested_at is None:
        request = {"cancel_requested_at": now, "cancel_reason": reason, "cancel_requested_by": by}
    return _ended(changed(run, **request), "cancel", None, {"error_code": ErrorCode.CANCELLED}, now)


def exhaust(run: Run, code: ErrorCode, lost: int, now: float, reported_error: str | None = None) -> Run:
    """Fail a run whose retry budget is spent (GRID-80). The error includes that of the last attempt, if any."""
    last_error = reported_error or run.error
    error = f"{_BUDGET_TEXTS[code]}; the last one: {last_error}" if last_error else _BUDGET_TEXTS[code]
    return _ended(run, "fail", error, {"error_code": code, "lost": lost}, now)


def fail_invalid(run: Run, error: str, now: float) -> Run:
    """Fail a run whose record holds no valid job."""
    ended = _ended(run, "fail", error, {"error_code": None}, now)
    return changed(ended, reason=DeadReason.INVALID_JOB)


def fail_too_late(run: Run, now: float) -> Run:
    """Fail a run with its last failed try, because its deadline is over (RETRY-7)."""
    last = run.tries[-1].get("error")
    return _ended(run, "fail", last if isinstance(last, str) else None, {"error_code": None}, now)


def budget_spent(run: Run, attempt: int, max_lost: int) -> ErrorCode | None:
    """Return why no further attempt is allowed; None: one is. Assumes that all attempts up to `attempt` are over."""
    policy = policy_of(run)
    if policy is None:
        return spent(program_of(run), attempt, max_lost)
    return spent_tries(policy, len(run.tries), run.attempts_lost, max_lost)


_UNOFFERED_TEXTS = {
    ErrorCode.EXEC_NOT_FOUND: "no worker has this program in its EXEC_DIR",
    ErrorCode.EXEC_NOT_ALLOWED: "no worker may run this program",
}


def fail_unoffered(run: Run, code: ErrorCode, now: float) -> Run:
    """Fail a run whose program no worker has (FIND-14), without an attempt. Cancel it if that was requested."""
    if is_cancel_asked(run):
        return cancel(run, now)
    return _ended(run, "fail", _UNOFFERED_TEXTS[code], {"error_code": code}, now)


def _ended(
    run: Run, move: str, error: str | None, facts: ProgramChanges, now: float, *, buries_errors: bool = True
) -> Run:
    """Apply a terminal move.

    The job stays in the record until its dead letter is written, since a repair of the letter needs it (GRID-86).
    """
    reason = _REASONS.get(facts["error_code"], DeadReason.EXECUTION_ERROR) if move == "fail" else None
    is_due = reason is not None and (buries_errors or reason is not DeadReason.EXECUTION_ERROR)
    facts |= {"holder": None, "slot": None, "not_before": None, "dlq_due": is_due}
    if not is_due:
        facts["job"] = None
    if error is None and move == "fail":
        error = "the program failed"
    return _moved(
        run, move, now, facts, error=error and error[:ERROR_LENGTH_MAX], reason=reason, end_time=now, heartbeat_at=now
    )


def note_dead_letter(run: Run, now: float) -> Run:
    """Record that the dead letter is written. Nothing else of an ended run ever changes (GRID-47)."""
    return changed(run, updated_at=now, program=_altered(program_of(run), {"dlq_done": True, "job": None}))


def with_short_tails(run: Run) -> Run:
    """Shorten the output tails of a record that would otherwise be too large (GRID-153)."""
    program = program_of(run)
    tails: ProgramChanges = {"stdout_tail": cut(program.stdout_tail), "stderr_tail": cut(program.stderr_tail)}
    return changed(run, program=_altered(program, tails))
