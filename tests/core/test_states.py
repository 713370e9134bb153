"""The table of moves, and what follows from it."""

from __future__ import annotations

import pytest

from pyoco_server.core.states import FLOW_MOVES, TERMINAL, IllegalMove, RunState, TaskState, WorkerState

S = RunState

#: FLOW-13 to FLOW-18 and RETRY-14, typed out from the contracts: (from, to).
CONTRACT = {
    (S.PENDING, S.RUNNING),
    (S.RUNNING, S.RUNNING),
    (S.RUNNING, S.PENDING),
    (S.RUNNING, S.COMPLETED),
    (S.PENDING, S.FAILED),
    (S.RUNNING, S.FAILED),
    (S.PENDING, S.CANCELLING),
    (S.RUNNING, S.CANCELLING),
    (S.CANCELLING, S.CANCELLED),
}


def test_the_table_holds_the_transitions_of_the_contract_and_no_other() -> None:
    """FLOW-12 to FLOW-18, RETRY-14"""
    assert {(source, target) for sources, target in FLOW_MOVES.values() for source in sources} == CONTRACT


def test_nothing_leaves_a_terminal_state() -> None:
    """FLOW-8, FLOW-9, FLOW-11, FLOW-19"""
    assert {S.COMPLETED, S.FAILED, S.CANCELLED} == TERMINAL
    assert not any(TERMINAL & sources for sources, _ in FLOW_MOVES.values())


def test_after_a_cancel_request_only_cancelled_can_follow() -> None:
    """FLOW-20"""
    assert {target for sources, target in FLOW_MOVES.values() if S.CANCELLING in sources} == {S.CANCELLED}


def test_every_state_but_the_first_can_be_reached() -> None:
    """FLOW-6 to FLOW-11"""
    assert {target for _, target in FLOW_MOVES.values()} | {S.PENDING} == set(RunState)


@pytest.mark.parametrize("states", [RunState, TaskState, WorkerState])
def test_a_state_is_written_as_its_name(states: type[RunState | TaskState | WorkerState]) -> None:
    """FLOW-6 to FLOW-11, FLOW-21, FLOW-24 to FLOW-27"""
    assert [str(state) for state in states] == [state.name for state in states]


def test_an_illegal_move_says_what_cannot_be_done_to_what() -> None:
    """FLOW-19"""
    error = IllegalMove("ask_cancel", S.COMPLETED)
    assert (str(error), error.move, error.state) == (
        "a COMPLETED run cannot ask cancel",
        "ask_cancel",
        S.COMPLETED,
    )
