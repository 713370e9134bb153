"""A run from its acceptance to its one end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.delays import WaitsFor
from pyoco_server.core.flow_moves import (
    accept,
    ask_cancel,
    beat,
    claim,
    conclude,
    mark_cancel_overdue,
    put_back,
    release,
    waiting_again,
)
from pyoco_server.core.outcome import (
    Cancelled,
    Completed,
    DeadReason,
    Died,
    Failed,
    Outcome,
    Progress,
    TimedOut,
)
from pyoco_server.core.run import ERROR_LENGTH_MAX, Caller, Owner, Run, Submission
from pyoco_server.core.states import TERMINAL, IllegalMove, RunState, TaskState

ANNA = Owner("anna", "i-1")
BERT = Owner("bert", "i-2")
RUN_ID = "0b0e9a52-6b1f-4c3c-9d0a-3c1a7d2f9a11"


def a_run(status: RunState = RunState.PENDING) -> Run:
    ask = Submission(flow_name="f", tag="cpu", tags=("x",), params={"n": 1}, workflow_yaml="y", workflow_yaml_bytes=1)
    return replace(accept(ask, Caller("acme", "k1"), RUN_ID, 10.0), status=status)


task_states = st.dictionaries(st.text(max_size=5), st.sampled_from([str(state) for state in TaskState]), max_size=5)
records = st.dictionaries(
    st.text(max_size=5),
    st.one_of(
        st.fixed_dictionaries({"state": st.sampled_from([str(state) for state in TaskState]), "output": st.text()}),
        st.fixed_dictionaries({"error": st.none()}),
        st.none(),
    ),
    max_size=5,
)
progresses = st.builds(Progress, task_states, records, st.booleans())
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Completed, progress=progresses),
    st.builds(Cancelled, progress=progresses, note=st.none() | st.text()),
    st.builds(Failed, progress=progresses, message=st.text()),
    st.builds(TimedOut, progress=progresses, seconds=st.floats(0, 1e6)),
    st.builds(Died, progress=progresses, how=st.text()),
)
Step = Callable[[Run], Run]


def steps() -> st.SearchStrategy[Step]:
    """Anything anybody may try to do to a run."""
    return st.one_of(
        st.builds(lambda owner: lambda run: claim(run, owner, "a", 11.0), st.sampled_from([ANNA, BERT])),
        st.builds(lambda progress: lambda run: beat(run, progress, 12.0), progresses),
        st.just(lambda run: ask_cancel(run, "why", 13.0)),
        st.just(lambda run: mark_cancel_overdue(run, 30, 14.0)),
        st.just(lambda run: put_back(run, 14.5)),
        st.builds(lambda outcome: lambda run: conclude(run, outcome, 15.0), outcomes),
    )


def walk(run: Run, moves: list[Step]) -> list[Run]:
    """The runs along the way. A move that is not allowed changes nothing."""
    seen = [run]
    for move in moves:
        try:
            seen.append(move(seen[-1]))
        except IllegalMove:
            seen.append(seen[-1])
    return seen


def test_an_accepted_run_is_pending_and_knows_who_asked() -> None:
    """FLOW-12, FLOW-272, FLOW-346"""
    run = a_run()
    assert (run.status, run.tasks, run.attempt, run.attempt_id) == (RunState.PENDING, {}, 0, None)
    assert run.submitted_at == run.updated_at == run.heartbeat_at == 10.0
    assert (run.tenant_id, run.api_key_id, run.workflow_yaml_bytes) == ("acme", "k1", 1)


def test_a_claim_begins_an_attempt_of_its_own() -> None:
    """FLOW-13, FLOW-311, FLOW-347"""
    run = claim(a_run(), ANNA, "a1", 11.0)
    assert (run.status, run.attempt, run.worker_id, run.instance_id) == (RunState.RUNNING, 1, "anna", "i-1")
    assert (run.start_time, run.heartbeat_at, run.updated_at) == (11.0, 11.0, 11.0)
    assert run.is_owned_by("a1")


def test_a_second_claim_fences_the_first_and_keeps_nothing_of_it() -> None:
    """FLOW-18, FLOW-311, FLOW-361"""
    first = beat(claim(a_run(), ANNA, "a1", 11.0), Progress({"t": "RUNNING"}, {"t": {}}, truncated=True), 12.0)
    second = claim(first, BERT, "a2", 20.0)
    assert (second.status, second.attempt, second.worker_id) == (RunState.RUNNING, 2, "bert")
    assert second.is_owned_by("a2")
    assert not second.is_owned_by("a1")
    assert (second.tasks, second.task_records, second.task_records_truncated) == ({}, {}, False)


def test_a_run_handed_back_is_nobodys_and_can_be_claimed() -> None:
    """FLOW-18, FLOW-311"""
    begun = beat(claim(a_run(), ANNA, "a1", 11.0), Progress({"t": "RUNNING"}, {"t": {}}, graph={"t": []}), 11.5)
    run = put_back(begun, 12.0)
    assert (run.status, run.worker_id, run.instance_id) == (RunState.PENDING, None, None)
    assert (run.is_owned_by("a1"), run.tasks, run.task_records, run.graph, run.error) == (False, {}, {}, {}, None)
    assert (run.attempt, run.updated_at, run.submitted_at, run.start_time) == (1, 12.0, 10.0, 11.0)
    again = claim(run, BERT, "a2", 13.0)
    assert (again.attempt, again.status, len(again.earlier_attempts)) == (2, RunState.RUNNING, 1)


@pytest.mark.parametrize("status", sorted(set(RunState) - {RunState.RUNNING}))
def test_only_a_run_in_progress_can_be_put_back(status: RunState) -> None:
    """FLOW-20: one whose cancel was requested ends instead."""
    with pytest.raises(IllegalMove):
        put_back(a_run(status), 12.0)


def test_a_run_put_back_for_a_later_try_waits_for_its_time() -> None:
    """RETRY-14, DELAY-4: it has no job meanwhile, and keepers that know no delays leave it alone until then."""
    run = waiting_again(claim(a_run(), ANNA, "a1", 11.0), 12.0, 72.0, "failed", "boom")
    assert (run.status, run.waits_for_time, run.due_at, run.heartbeat_at) == (RunState.PENDING, True, 72.0, 72.0)
    assert (run.waits_for, run.attempt, run.error) == (WaitsFor.RETRY, 1, "boom")
    again = claim(release(run, 72.0), BERT, "a2", 73.0)
    assert (again.attempt, again.waits_for_time, again.waits_for) == (2, False, None)
    assert not ask_cancel(run, None, 13.0).waits_for_time


def test_the_error_of_an_attempt_is_shown_until_the_next_and_kept_short() -> None:
    """RETRY-14"""
    run = put_back(claim(a_run(), ANNA, "a1", 11.0), 12.0, "failed", "x" * 1000)
    assert run.error == "x" * 200
    past = run.earlier_attempts[-1]
    assert (past["attempt"], past["why"], past["error"], past["ended_at"]) == (1, "failed", "x" * 200, 12.0)
    assert claim(run, BERT, "a2", 13.0).error is None


@pytest.mark.parametrize("status", list(RunState))
def test_a_heartbeat_never_changes_the_status(status: RunState) -> None:
    """FLOW-349, FLOW-350"""
    run = beat(a_run(status), Progress({"t": "RUNNING"}, {}), 99.0)
    assert (run.status, run.heartbeat_at, run.updated_at, run.tasks) == (status, 99.0, 99.0, {"t": "RUNNING"})


def test_a_heartbeat_without_news_keeps_what_is_known() -> None:
    """FLOW-349"""
    run = beat(a_run(RunState.RUNNING), Progress({"t": "RUNNING"}, {"t": {"x": 1}}), 11.0)
    again = beat(run, Progress(), 12.0)
    assert (again.tasks, again.task_records) == (run.tasks, run.task_records)


def test_whole_records_take_the_place_of_truncated_ones() -> None:
    """FLOW-361: a cut that was undone is not reported any longer."""
    cut = replace(a_run(RunState.RUNNING), task_records_truncated=True)
    assert beat(cut, Progress({}, {}), 11.0).task_records_truncated
    assert not beat(cut, Progress({}, {"t": {"state": "RUNNING"}}), 11.0).task_records_truncated
    assert not conclude(cut, Completed(progress=Progress({}, {"t": {}})), 11.0).task_records_truncated


def test_a_cancel_request_is_recorded_with_its_time_and_reason() -> None:
    """FLOW-16, FLOW-175, FLOW-343"""
    run = ask_cancel(a_run(), "too slow", 12.0)
    assert (run.status, run.cancel_requested_at, run.cancel_reason) == (RunState.CANCELLING, 12.0, "too slow")
    assert run.updated_at == 12.0


def test_a_second_cancel_request_is_no_move() -> None:
    """FLOW-177: the first one counts."""
    with pytest.raises(IllegalMove):
        ask_cancel(ask_cancel(a_run(), None, 12.0), None, 13.0)


def test_an_overdue_cancel_says_so_and_changes_nothing_else() -> None:
    """FLOW-186"""
    run = ask_cancel(a_run(), None, 12.0)
    overdue = mark_cancel_overdue(run, 30, 43.0)
    assert overdue.error is not None
    assert overdue.error.startswith("ERR-PYOCO-0021")
    assert replace(overdue, error=None, updated_at=run.updated_at) == run


ENDS: list[tuple[str, Outcome, RunState, RunState, str | None]] = [
    ("FLOW-379", Completed(), RunState.RUNNING, RunState.COMPLETED, None),
    ("FLOW-380", Cancelled(), RunState.CANCELLING, RunState.CANCELLED, None),
    ("FLOW-381", Completed(), RunState.CANCELLING, RunState.CANCELLED, None),
    ("FLOW-382", Failed(message="boom"), RunState.RUNNING, RunState.FAILED, "boom"),
    ("FLOW-383", Failed(message="boom"), RunState.CANCELLING, RunState.CANCELLED, "boom"),
    ("FLOW-384", Cancelled(), RunState.RUNNING, RunState.FAILED, "the engine stopped the run"),
    ("FLOW-15", Failed(message="no flow", why=DeadReason.FLOW_NOT_FOUND), RunState.PENDING, RunState.FAILED, "no flow"),
]


@pytest.mark.parametrize(("rule", "outcome", "before", "after", "error"), ENDS, ids=[row[0] for row in ENDS])
def test_the_end_follows_from_the_outcome_and_the_request(
    rule: str, outcome: Outcome, before: RunState, after: RunState, error: str | None
) -> None:
    """FLOW-379 to FLOW-384, FLOW-348"""
    ended = conclude(a_run(before), outcome, 50.0)
    assert (ended.status, ended.error) == (after, error), rule
    assert (ended.end_time, ended.heartbeat_at, ended.updated_at) == (50.0, 50.0, 50.0)


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Failed(message="x"), DeadReason.EXECUTION_ERROR),
        (Failed(message="x", why=DeadReason.INVALID_JOB), DeadReason.INVALID_JOB),
        (TimedOut(seconds=5), DeadReason.TIMEOUT),
        (Died(how="signal 9"), DeadReason.HOST_KILLED),
        (Cancelled(), DeadReason.EXECUTION_ERROR),
    ],
)
def test_a_failed_run_says_why_it_is_among_the_dead_letters(outcome: Outcome, reason: DeadReason) -> None:
    """FLOW-316 to FLOW-318, FLOW-384"""
    assert conclude(a_run(RunState.RUNNING), outcome, 50.0).reason == reason


def test_a_run_that_never_started_cannot_complete() -> None:
    """FLOW-14"""
    with pytest.raises(IllegalMove):
        conclude(a_run(), Completed(), 50.0)


@pytest.mark.parametrize(
    ("outcome", "before", "expected"),
    [
        (Completed(), RunState.RUNNING, {"p": "PENDING", "r": "SUCCEEDED", "s": "SUCCEEDED", "f": "FAILED"}),
        (Failed(message="x"), RunState.RUNNING, {"p": "PENDING", "r": "FAILED", "s": "SUCCEEDED", "f": "FAILED"}),
        (Cancelled(), RunState.CANCELLING, {"p": "CANCELLED", "r": "CANCELLED", "s": "SUCCEEDED", "f": "FAILED"}),
    ],
)
def test_leftover_tasks_end_as_their_run_does(outcome: Outcome, before: RunState, expected: dict[str, str]) -> None:
    """FLOW-23, FLOW-385"""
    tasks = {"p": "PENDING", "r": "RUNNING", "s": "SUCCEEDED", "f": "FAILED"}
    known = Progress(tasks, {name: {"state": state, "output": 1} for name, state in tasks.items()})
    ended = conclude(replace(a_run(before), tasks=known.tasks, task_records=known.task_records), outcome, 50.0)
    assert ended.tasks == expected
    assert ended.task_records == {name: {"state": state, "output": 1} for name, state in expected.items()}


def test_a_long_error_is_cut_at_its_end() -> None:
    """FLOW-352"""
    ended = conclude(a_run(RunState.RUNNING), Failed(message="a" * 5000), 50.0)
    assert ended.error == "a" * ERROR_LENGTH_MAX


@given(st.lists(steps(), max_size=12), outcomes)
def test_no_sequence_of_moves_leaves_a_terminal_state(moves: list[Step], outcome: Outcome) -> None:
    """FLOW-19"""
    statuses = [run.status for run in walk(claim(a_run(), ANNA, "a", 1.0), moves)]
    ends = [status for status in statuses if status in TERMINAL]
    assert len(set(ends)) <= 1
    assert not ends or statuses[statuses.index(ends[0]) :] == ends


@given(st.lists(steps(), max_size=8), st.lists(steps(), max_size=8), outcomes)
def test_a_run_asked_to_cancel_always_ends_cancelled(before: list[Step], after: list[Step], last: Outcome) -> None:
    """FLOW-20"""
    run = walk(a_run(), before)[-1]
    if run.is_terminal:
        return
    asked = run if run.status is RunState.CANCELLING else ask_cancel(run, None, 20.0)
    seen = walk(asked, [*after, lambda run: conclude(run, last, 30.0)])
    assert {run.status for run in seen} == {RunState.CANCELLING, RunState.CANCELLED}
    assert seen[-1].status is RunState.CANCELLED
    assert {run.attempt for run in seen} == {asked.attempt}


@given(st.sampled_from([RunState.RUNNING, RunState.CANCELLING]), progresses, outcomes)
def test_no_task_of_an_ended_run_is_running(status: RunState, known: Progress, outcome: Outcome) -> None:
    """FLOW-23"""
    ended = conclude(beat(a_run(status), known, 20.0), outcome, 30.0)
    told: set[str | None] = set(ended.tasks.values())
    told |= {record.get("state") for record in ended.task_records.values() if isinstance(record, dict)}
    assert TaskState.RUNNING not in told
    if ended.status is RunState.CANCELLED:
        assert TaskState.PENDING not in told


@given(st.lists(steps(), max_size=12))
def test_no_error_is_longer_than_allowed(moves: list[Step]) -> None:
    """FLOW-352"""
    assert all(len(run.error or "") <= ERROR_LENGTH_MAX for run in walk(claim(a_run(), ANNA, "a", 1.0), moves))


@given(st.lists(steps(), max_size=12))
def test_what_was_submitted_never_changes(moves: list[Step]) -> None:
    """FLOW-173, FLOW-272, FLOW-351"""
    run = a_run()
    for seen in walk(run, moves):
        assert (seen.run_id, seen.params, seen.tags, seen.submitted_at) == (run.run_id, {"n": 1}, ("x",), 10.0)
        assert (seen.tenant_id, seen.api_key_id, seen.workflow_yaml_bytes) == ("acme", "k1", 1)
