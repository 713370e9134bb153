"""The states of a run and all transitions between them: the source of docs/STATES.md, of the tests and of the code.

Flows and programs share their states, with one transition table each. Priced runs have states of their own
(`core.states.priced`), because status, money and stage change together.
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
    """The state of a run. Each description names who moves the run on."""

    #: Accepted, and no worker executes it: none has started it, or one has put it back. The next free worker claims it.
    PENDING = "PENDING"
    #: A worker executes it and renews its heartbeat. If the heartbeats stop, the queue redelivers the job.
    RUNNING = "RUNNING"
    #: Cancellation was requested. Its worker stops it; without one, a keeper or the next worker to get the job ends it.
    CANCELLING = "CANCELLING"
    #: Ended normally.
    COMPLETED = "COMPLETED"
    #: Ended with an error.
    FAILED = "FAILED"
    #: Ended on request.
    CANCELLED = "CANCELLED"


#: The status that lists show for a run whose record cannot be decoded (SAFE-16). Never stored.
UNKNOWN = "UNKNOWN"

S = RunState
_LIVE = frozenset({S.PENDING, S.RUNNING, S.CANCELLING})

#: By name: the states from which a transition is allowed, and the state it leads to.
Moves = dict[str, tuple[frozenset[RunState], RunState]]

#: All transitions of a flow run. A transition that is not listed cannot happen.
FLOW_MOVES: Moves = {
    "claim": (frozenset({S.PENDING, S.RUNNING}), S.RUNNING),  # FLOW-13, FLOW-18: a new attempt
    "put_back": (frozenset({S.RUNNING}), S.PENDING),  # RETRY-15; with a cancel request it ends instead
    "retry": (frozenset({S.RUNNING}), S.PENDING),  # RETRY-14; with a cancel request it ends instead
    "complete": (frozenset({S.RUNNING}), S.COMPLETED),  # FLOW-14
    "fail": (frozenset({S.PENDING, S.RUNNING}), S.FAILED),  # FLOW-15
    "ask_cancel": (frozenset({S.PENDING, S.RUNNING}), S.CANCELLING),  # FLOW-16
    "cancel": (frozenset({S.CANCELLING}), S.CANCELLED),  # FLOW-17, FLOW-20
}

#: All transitions of a program run. They differ from flows in three ways: an attempt that was put back may still report
#: its result, a PENDING run is cancelled immediately, and a program that ended before a cancel reached it keeps its own
#: outcome (GRID-161).
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

#: States without outgoing transitions (FLOW-19). Derived, so that the set is defined only once.
TERMINAL: frozenset[RunState] = frozenset(RunState).difference(
    *(sources for moves in (FLOW_MOVES, PROGRAM_MOVES) for sources, _ in moves.values())
)


class TaskState(StrEnum):
    """The state of a task of a flow (FLOW-21)."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class WorkerState(StrEnum):
    """The state that a worker reports. DISCONNECTED is never stored: readers derive it (FLOW-27)."""

    RUNNING = "RUNNING"
    IDLE = "IDLE"
    STOPPED_GRACEFUL = "STOPPED_GRACEFUL"
    DISCONNECTED = "DISCONNECTED"


class IllegalMove(PyocoError):
    """A transition that the state of the run does not allow. A bug of ours, never the user's mistake."""

    def __init__(self, move: str, state: RunState) -> None:
        super().__init__(f"a {state} run cannot {move.replace('_', ' ')}")
        self.move, self.state = move, state
