"""How the record of a program's run may change, and how it may not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyoco_server.core.outcome import DeadReason
from pyoco_server.core.programs import moves
from pyoco_server.core.programs.budget import Why, spent
from pyoco_server.core.programs.job import InlineInputs
from pyoco_server.core.programs.moves import program_of
from pyoco_server.core.programs.record import Artifact
from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.run import Run, changed
from pyoco_server.core.snapshot import encode, from_snapshot, read_snapshot, shown_snapshot, to_snapshot
from pyoco_server.core.states import PROGRAM_MOVES, TERMINAL, IllegalMove, RunState, TaskState
from support.grid.stores import a_job

NOW = 1_000.0
DONE = Report(status=RunState.COMPLETED, exit_code=0, stdout=b"out", stderr=b"err", run_seconds=2.0)
FAILED = Report(status=RunState.FAILED, exit_code=3, error_code=ErrorCode.EXIT_NONZERO, error="exit code 3")
STOPPED = Report(status=RunState.CANCELLED, exit_code=-15, error_code=ErrorCode.CANCELLED)
BROKEN = Report(status=RunState.FAILED, error_code=ErrorCode.WORKER_ERROR)


def pending(**more: Any) -> Run:
    return moves.accept(a_job("g", **more), max_attempts=5)


def claimed(run: Run | None = None, token: str = "t1", now: float = NOW) -> Run:
    return moves.claim(run or pending(), token=token, worker_id="w1", holder="door-1", slot=2, now=now)


def ended(run: Run, report: Report, artifacts: tuple[Artifact, ...] = (), *, buries: bool = True) -> Run:
    return moves.conclude(run, report, artifacts, NOW + 5, worker_id="w1", buries_errors=buries)


def waiting(why: Why = Why.WORKER_DOWN) -> Run:
    return moves.put_back(claimed(), why, NOW + 5, NOW + 1)


class TestTable:
    def test_nothing_leads_out_of_an_end(self) -> None:
        """GRID-47"""
        assert not any(TERMINAL & sources for sources, _ in PROGRAM_MOVES.values())

    @pytest.mark.parametrize("status", list(RunState))
    @pytest.mark.parametrize("move", sorted(PROGRAM_MOVES))
    def test_a_move_from_another_state_is_refused(self, move: str, status: RunState) -> None:
        """GRID-47, GRID-152"""
        run = changed(claimed(), status=status)
        acts: dict[str, Callable[[], Run]] = {
            "claim": lambda: claimed(run),
            "put_back": lambda: moves.put_back(run, Why.ACK_TIMEOUT, NOW, NOW),
            "release": lambda: moves.release(run, NOW),
            "reattach": lambda: moves.reattach(run, worker_id="w", holder="h", slot=1, now=NOW),
            "reattach_cancelled": lambda: moves.reattach(run, worker_id="w", holder="h", slot=1, now=NOW),
            "ask_cancel": lambda: moves.ask_cancel(run, None, None, NOW),
            "complete": lambda: ended(run, DONE),
            "fail": lambda: ended(run, FAILED),
            "cancel": lambda: moves.cancel(run, NOW),
        }
        sources = PROGRAM_MOVES[move][0]
        if move.startswith("reattach"):
            sources = PROGRAM_MOVES["reattach"][0] | PROGRAM_MOVES["reattach_cancelled"][0]
        if status in sources:
            acts[move]()
        else:
            with pytest.raises(IllegalMove):
                acts[move]()


class TestFirstRecord:
    def test_it_is_a_run_of_the_product(self) -> None:
        """GRID-150, GRID-151"""
        run = pending(args=("--n", "3"), inputs=InlineInputs({"in.txt": "aGVsbG8K"}))
        assert (run.kind, run.flow_name, run.tag, run.tags) == ("exec", "exec:calcA", "exec", ("exec", "calcA"))
        digest = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
        assert run.params == {
            "exec_name": "calcA",
            "args": ["--n", "3"],
            "files": [{"name": "in.txt", "size": 6, "sha256": digest}],
        }
        assert run.tasks == {"exec": "PENDING"}
        assert (run.status, run.attempt, run.attempt_id) == (RunState.PENDING, 0, None)
        assert program_of(run).job is not None

    def test_a_timeout_that_was_asked_for_is_in_its_params(self) -> None:
        assert pending(timeout_sec=7.5).params["timeout_sec"] == 7.5

    def test_nobody_is_shown_what_it_keeps_to_itself(self) -> None:
        """GRID-154"""
        shown = shown_snapshot(claimed())
        assert not {"token", "attempt_id", "holder", "slot", "job"} & shown.keys()


class TestAttempts:
    def test_a_claim_counts_and_names_who_answers(self) -> None:
        """GRID-53"""
        run = claimed()
        program = program_of(run)
        assert (run.status, run.attempt, run.attempt_id, run.worker_id) == (RunState.RUNNING, 1, "t1", "w1")
        assert (program.holder, program.slot, program.lost, program.not_before) == ("door-1", 2, 0, None)
        assert (run.start_time, run.heartbeat_at, run.tasks) == (NOW, NOW, {"exec": "RUNNING"})

    def test_a_claim_over_a_running_one_counts_that_one_as_lost(self) -> None:
        """GRID-53"""
        run = claimed(claimed(), "t2", NOW + 30)
        assert (run.attempt, run.attempt_id, program_of(run).lost) == (2, "t2", 1)
        assert {**run.earlier_attempts[-1], "started_at": None} == {
            "attempt": 1,
            "worker_id": "w1",
            "started_at": None,
            "ended_at": NOW,
            "why": "holder_lost",
        }

    @pytest.mark.parametrize(("why", "lost"), [(Why.ACK_TIMEOUT, 0), (Why.WORKER_ERROR, 0), (Why.WORKER_DOWN, 1)])
    def test_what_is_put_back_keeps_its_token_and_says_why(self, why: Why, lost: int) -> None:
        """GRID-79, GRID-80, GRID-81"""
        run = waiting(why)
        program = program_of(run)
        assert (run.status, run.attempt, run.attempt_id, run.worker_id) == (RunState.PENDING, 1, "t1", None)
        assert (program.lost, program.not_before, program.holder, program.slot) == (lost, NOW + 5, None, None)
        assert run.earlier_attempts[-1]["why"] == why
        assert run.tasks == {"exec": "PENDING"}

    def test_what_its_worker_could_not_do_is_told_while_it_waits_and_when_it_is_given_up(self) -> None:
        """GRID-79, GRID-80, GRID-101"""
        back = moves.put_back(claimed(), Why.WORKER_ERROR, NOW + 5, NOW + 1, "no space left for its inputs")
        assert back.error == back.earlier_attempts[-1]["error"] == "no space left for its inputs"
        assert claimed(back, "t2").error is None
        for ended in (
            moves.exhaust(back, ErrorCode.MAX_ATTEMPTS, 0, NOW),
            moves.exhaust(claimed(), ErrorCode.MAX_ATTEMPTS, 0, NOW, "no space left for its inputs"),
        ):
            assert ended.error is not None
            assert ended.error.endswith("the last one: no space left for its inputs")
        assert waiting().error is None

    def test_a_claim_after_that_does_not_count_it_twice(self) -> None:
        run = claimed(waiting(), "t2", NOW + 9)
        assert (run.attempt, program_of(run).lost, program_of(run).not_before) == (2, 1, None)
        assert len(run.earlier_attempts) == 1

    def test_what_was_never_handed_over_was_no_attempt(self) -> None:
        """GRID-41"""
        run = moves.release(claimed(), NOW + 1)
        assert (run.status, run.attempt, run.attempt_id, run.start_time) == (RunState.PENDING, 0, None, None)
        assert (program_of(run).lost, program_of(run).slot, run.earlier_attempts) == (0, None, ())

    def test_a_lost_one_that_turns_up_again_is_not_lost(self) -> None:
        """GRID-110"""
        run = moves.reattach(waiting(), worker_id="w1", holder="door-2", slot=0, now=NOW + 3)
        program = program_of(run)
        assert (run.status, run.attempt, run.attempt_id) == (RunState.RUNNING, 1, "t1")
        assert (program.lost, program.holder, program.slot, program.not_before) == (0, "door-2", 0, None)
        assert run.earlier_attempts == ()

    def test_a_failed_one_that_turns_up_again_was_never_counted_as_lost(self) -> None:
        """GRID-80, GRID-110"""
        run = moves.reattach(waiting(Why.ACK_TIMEOUT), worker_id="w1", holder="d", slot=None, now=NOW + 3)
        assert (program_of(run).lost, run.earlier_attempts) == (0, ())

    def test_without_the_line_of_its_attempt_it_counts_as_having_been_lost(self) -> None:
        run = changed(waiting(), earlier_attempts=())
        assert program_of(moves.reattach(run, worker_id="w", holder="d", slot=None, now=NOW)).lost == 0

    def test_a_running_one_changes_hands_and_nothing_else(self) -> None:
        before = claimed()
        run = moves.reattach(before, worker_id="w1", holder="door-2", slot=2, now=NOW + 3)
        assert (run.attempt, run.attempt_id, program_of(run).lost) == (1, "t1", 0)

    def test_one_that_is_being_cancelled_stays_so(self) -> None:
        """GRID-110, GRID-160"""
        asked = moves.ask_cancel(claimed(), "no more", "key-1", NOW + 1)
        run = moves.reattach(asked, worker_id="w1", holder="door-2", slot=2, now=NOW + 3)
        assert (run.status, program_of(run).holder) == (RunState.CANCELLING, "door-2")

    def test_a_heartbeat_changes_the_lease_and_the_slot(self) -> None:
        run = moves.beat(claimed(), 7, NOW + 5)
        assert (run.heartbeat_at, run.updated_at, program_of(run).slot) == (NOW + 5, NOW + 5, 7)

    @pytest.mark.parametrize(("age", "fresh"), [(0.0, True), (19.9, True), (20.0, False), (-3.0, True)])
    def test_a_lease_is_fresh_for_its_time(self, age: float, fresh: bool) -> None:
        """GRID-53"""
        assert moves.is_fresh(claimed(), NOW + age, 20.0) is fresh

    def test_a_waiting_run_has_no_lease(self) -> None:
        assert not moves.is_fresh(waiting(), NOW + 1, 20.0)


class TestEnds:
    def test_a_result_is_in_the_record_and_the_job_is_not(self) -> None:
        """GRID-54, GRID-151"""
        artifact = Artifact("output.zip", "r/a1/output.zip", 10, "0" * 64)
        run = ended(claimed(), DONE, (artifact,))
        program = program_of(run)
        assert (run.status, run.error, run.reason, run.end_time) == (RunState.COMPLETED, None, None, NOW + 5)
        assert (program.exit_code, program.error_code, program.stdout_tail, program.stderr_tail) == (
            0,
            None,
            "out",
            "err",
        )
        assert (program.artifacts, program.run_seconds, program.job, program.dlq_due) == ((artifact,), 2.0, None, False)
        assert (program.slot, program.holder, run.attempt_id) == (None, None, "t1")
        assert run.tasks == {"exec": TaskState.SUCCEEDED}

    @pytest.mark.parametrize(
        ("code", "reason"),
        [
            (ErrorCode.EXIT_NONZERO, DeadReason.EXECUTION_ERROR),
            (ErrorCode.SIGNALED, DeadReason.EXECUTION_ERROR),
            (ErrorCode.RUN_TIMEOUT, DeadReason.EXECUTION_ERROR),
            (ErrorCode.INPUT_MISSING, DeadReason.EXECUTION_ERROR),
            (ErrorCode.EXEC_NOT_FOUND, DeadReason.EXEC_NOT_FOUND),
            (ErrorCode.EXEC_NOT_ALLOWED, DeadReason.EXEC_NOT_ALLOWED),
        ],
    )
    def test_a_failure_has_a_reason_and_a_letter_is_due(self, code: ErrorCode, reason: DeadReason) -> None:
        """GRID-82, GRID-84: and the job stays until that letter is written (GRID-86)"""
        run = ended(claimed(), Report(status=RunState.FAILED, error_code=code))
        program = program_of(run)
        assert (run.status, run.reason, run.error) == (RunState.FAILED, reason, "the program failed")
        assert (program.dlq_due, program.dlq_done) == (True, False)
        assert program.job is not None
        noted = program_of(moves.note_dead_letter(run, NOW + 6))
        assert (noted.dlq_due, noted.dlq_done, noted.job) == (True, True, None)

    def test_an_execution_error_has_no_letter_where_none_is_wanted(self) -> None:
        """GRID-84"""
        program = program_of(ended(claimed(), FAILED, buries=False))
        assert (program.dlq_due, program.job) == (False, None)

    @pytest.mark.parametrize("code", [ErrorCode.MAX_ATTEMPTS, ErrorCode.MAX_LOST])
    def test_a_spent_budget_is_a_letter_whatever_is_wanted(self, code: ErrorCode) -> None:
        """GRID-80, GRID-84"""
        run = moves.exhaust(claimed(), code, 3, NOW)
        program = program_of(run)
        assert (run.status, run.reason, program.error_code, program.lost) == (RunState.FAILED, code.lower(), code, 3)
        assert program.dlq_due

    def test_a_program_that_ended_before_the_cancel_keeps_its_end(self) -> None:
        """GRID-161"""
        asked = moves.ask_cancel(claimed(), None, None, NOW + 1)
        assert ended(asked, DONE).status is RunState.COMPLETED
        assert ended(asked, FAILED).status is RunState.FAILED
        assert ended(asked, STOPPED).status is RunState.CANCELLED

    def test_a_cancelled_one_never_has_a_letter(self) -> None:
        """GRID-84, GRID-159"""
        run = moves.cancel(pending(), NOW, "no more", "key-1")
        program = program_of(run)
        assert (run.status, program.error_code, program.dlq_due, program.job) == ("CANCELLED", "CANCELLED", False, None)
        assert (run.cancel_requested_at, run.cancel_reason, run.cancel_requested_by) == (NOW, "no more", "key-1")

    def test_who_asked_first_is_remembered(self) -> None:
        asked = moves.ask_cancel(claimed(), "first", "key-1", NOW + 1)
        run = moves.cancel(asked, NOW + 2, "second", "key-2")
        assert (run.cancel_requested_at, run.cancel_reason, run.cancel_requested_by) == (NOW + 1, "first", "key-1")

    def test_a_late_result_of_one_that_was_put_back_is_its_result(self) -> None:
        """GRID-55"""
        run = ended(waiting(), DONE)
        program = program_of(run)
        assert (run.status, run.attempt, run.worker_id, program.lost) == (RunState.COMPLETED, 1, "w1", 0)
        assert (run.earlier_attempts, program.not_before) == ((), None)

    @pytest.mark.parametrize(
        ("report", "is_asked", "expected"),
        [
            (BROKEN, False, True),
            (BROKEN, True, True),
            (STOPPED, False, True),
            (STOPPED, True, False),
            (FAILED, False, False),
            (DONE, False, False),
        ],
    )
    def test_a_fault_of_the_worker_is_no_result(self, report: Report, is_asked: bool, expected: bool) -> None:
        """GRID-54, GRID-79"""
        run = moves.ask_cancel(claimed(), None, None, NOW) if is_asked else claimed()
        assert moves.is_no_result(run, report) is expected

    def test_tails_that_are_too_long_are_cut(self) -> None:
        """GRID-153"""
        run = ended(claimed(), Report(status=RunState.COMPLETED, stdout=b"x" * 5000 + b"end", stderr=b"y" * 10))
        short = program_of(moves.with_short_tails(run))
        assert short.stdout_tail is not None
        assert (len(short.stdout_tail), short.stdout_tail[-4:]) == (1024, "xend")
        assert short.stderr_tail == "y" * 10


STEPS = st.sampled_from(
    ["claim", "beat", "release", "reattach", "ask_cancel", "complete", "fail", "cancel", *[str(why) for why in Why]]
)


@settings(deadline=None)  # a busy machine is no fault
@given(st.lists(STEPS, max_size=40))
def test_whatever_happens_the_counts_add_up_and_the_record_can_be_read_back(steps: list[str]) -> None:
    """GRID-47, GRID-80, GRID-151: at each step `attempt - lost` is what has failed or is under way"""
    run, failed = pending(), 0
    for number, step in enumerate(steps):
        if run.is_terminal:
            break
        run, failed = _step(run, step, NOW + number, failed)
        program = program_of(run)
        under_way = run.status is not RunState.PENDING and not run.is_terminal
        assert 0 <= program.lost <= run.attempt
        if not run.is_terminal:
            assert run.attempt - program.lost == failed + under_way
        assert read_snapshot(encode(to_snapshot(run))) == from_snapshot(to_snapshot(run))
        assert (program.holder is None) == (not under_way)


def _step(run: Run, step: str, now: float, failed: int) -> tuple[Run, int]:
    try:
        if step in tuple(Why):
            failed_now = step in (Why.ACK_TIMEOUT, Why.WORKER_ERROR)
            return moves.put_back(run, Why(step), now + 1, now), failed + failed_now
        if step == "reattach" and run.attempt and run.attempt_id:
            last = run.earlier_attempts[-1] if run.earlier_attempts else {}
            was_failed = run.status is RunState.PENDING and last.get("why") in (Why.ACK_TIMEOUT, Why.WORKER_ERROR)
            return moves.reattach(run, worker_id="w", holder="d", slot=1, now=now), failed - was_failed
        if step == "beat" and run.status is not RunState.PENDING:
            return moves.beat(run, 1, now), failed
        acts: dict[str, Any] = {
            "claim": lambda: claimed(run, f"t{now}", now),
            "release": lambda: moves.release(run, now),
            "ask_cancel": lambda: moves.ask_cancel(run, None, None, now),
            "complete": lambda: ended(run, DONE),
            "fail": lambda: ended(run, FAILED),
            "cancel": lambda: moves.cancel(run, now),
        }
        return acts[step]() if step in acts else run, failed
    except IllegalMove:
        return run, failed


@pytest.mark.parametrize(
    ("attempt", "lost", "code"),
    [
        (4, 0, None),
        (5, 0, ErrorCode.MAX_ATTEMPTS),
        (24, 20, ErrorCode.MAX_LOST),
        (25, 20, ErrorCode.MAX_ATTEMPTS),
        (23, 19, None),
        (20, 20, ErrorCode.MAX_LOST),
    ],
)
def test_a_budget_is_spent_by_failures_or_by_losses(attempt: int, lost: int, code: ErrorCode | None) -> None:
    """GRID-80: separately"""
    assert spent(replace(program_of(pending()), lost=lost), attempt, 20) == code
