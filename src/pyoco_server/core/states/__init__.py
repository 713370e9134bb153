"""The states of every run and the only moves between them: the source of docs/STATES.md, the tests and the code.

Flows and programs share their states and have a table of moves each; priced runs have states of their own
(`core.states.priced`), since status, money and stage change together.
"""

from __future__ import annotations

from enum import StrEnum

from pyoco_server.errors import PyocoError

__all__ = [
    "FLOW_MOVES",
    "PROGRAM_MOVES",
    "TERMINAL",
    "UNKNOWN",
    "IllegalMove",
    "Moves",
    "RunState",
    "TaskState",
    "WorkerState",
]


class RunState(StrEnum):
    """Where a run is. Each says who moves it on."""

    #: Accepted; no worker has started it. The queue holds its job; the next free worker claims it.
    PENDING = "PENDING"
    #: A worker executes it and renews its heartbeat. If that stops, the queue delivers the job again.
    RUNNING = "RUNNING"
    #: Somebody asked to cancel it. Its worker stops it; without one, whoever takes the job ends it.
    CANCELLING = "CANCELLING"
    #: Ended normally.
    COMPLETED = "COMPLETED"
    #: Ended with an error.
    FAILED = "FAILED"
    #: Ended because somebody asked.
    CANCELLED = "CANCELLED"


#: What lists show for a run whose record cannot be decoded (SAFE-16). No record ever has it.
UNKNOWN = "UNKNOWN"

S = RunState
_LIVE = frozenset({S.PENDING, S.RUNNING, S.CANCELLING})

#: By name: the states a run may be in, and the state it is in afterwards.
Moves = dict[str, tuple[frozenset[RunState], RunState]]

#: Every move of a flow run. A move that is not in this table cannot happen.
FLOW_MOVES: Moves = {
    "claim": (frozenset({S.PENDING, S.RUNNING}), S.RUNNING),  # FLOW-13, FLOW-18: a new attempt
    "complete": (frozenset({S.RUNNING}), S.COMPLETED),  # FLOW-14
    "fail": (frozenset({S.PENDING, S.RUNNING}), S.FAILED),  # FLOW-15
    "ask_cancel": (frozenset({S.PENDING, S.RUNNING}), S.CANCELLING),  # FLOW-16
    "cancel": (frozenset({S.CANCELLING}), S.CANCELLED),  # FLOW-17, FLOW-20
}

#: Every move of a program run. Three things differ from flows: a run may go back to PENDING, a PENDING run is cancelled
#: at once, and a program that ended before a cancel reached it keeps its own end (GRID-161).
PROGRAM_MOVES: Moves = {
    "claim": (frozenset({S.PENDING, S.RUNNING}), S.RUNNING),  # GRID-53: RUNNING when its lease is stale
    "put_back": (frozenset({S.RUNNING}), S.PENDING),  # GRID-79, GRID-81; with a cancel request it ends instead
    "release": (frozenset({S.RUNNING}), S.PENDING),  # GRID-41
    "reattach": (frozenset({S.PENDING, S.RUNNING}), S.RUNNING),  # GRID-110
    "reattach_cancelled": (frozenset({S.CANCELLING}), S.CANCELLING),
    "ask_cancel": (frozenset({S.RUNNING}), S.CANCELLING),  # GRID-160
    "complete": (_LIVE, S.COMPLETED),  # GRID-54, GRID-55, GRID-161
    "fail": (_LIVE, S.FAILED),  # GRID-54, GRID-80
    "cancel": (_LIVE, S.CANCELLED),  # GRID-159, GRID-162
}

#: States nothing leads out of (FLOW-19). Derived, so the set is written once.
TERMINAL: frozenset[RunState] = frozenset(RunState).difference(
    *(sources for moves in (FLOW_MOVES, PROGRAM_MOVES) for sources, _ in moves.values())
)


class TaskState(StrEnum):
    """Where a step of a flow is (FLOW-21)."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class WorkerState(StrEnum):
    """What a worker says of itself. DISCONNECTED is never stored: a reader derives it (FLOW-27)."""

    RUNNING = "RUNNING"
    IDLE = "IDLE"
    STOPPED_GRACEFUL = "STOPPED_GRACEFUL"
    DISCONNECTED = "DISCONNECTED"


class IllegalMove(PyocoError):
    """A run was asked to make a move its state does not allow. A defect of ours, never of the user."""

    def __init__(self, move: str, state: RunState) -> None:
        super().__init__(f"a {state} run cannot {move.replace('_', ' ')}")
        self.move, self.state = move, state
