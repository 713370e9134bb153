"""The states of a flow or program run, and the only moves between them."""

from __future__ import annotations

from enum import StrEnum

from pyoco_server.errors import PyocoError

__all__ = ["MOVES", "TERMINAL", "IllegalMove", "RunState", "TaskState", "WorkerState"]


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


S = RunState

#: Flows and programs, whole. A move that is not in this table cannot happen.
MOVES: dict[str, tuple[frozenset[RunState], RunState]] = {
    "claim": (frozenset({S.PENDING, S.RUNNING}), S.RUNNING),  # FLOW-13, FLOW-18: a new attempt
    "complete": (frozenset({S.RUNNING}), S.COMPLETED),  # FLOW-14
    "fail": (frozenset({S.PENDING, S.RUNNING}), S.FAILED),  # FLOW-15
    "ask_cancel": (frozenset({S.PENDING, S.RUNNING}), S.CANCELLING),  # FLOW-16
    "cancel": (frozenset({S.CANCELLING}), S.CANCELLED),  # FLOW-17, FLOW-20
}

#: States nothing leads out of (FLOW-19). Derived, so that nobody writes the set a second time.
TERMINAL: frozenset[RunState] = frozenset(RunState) - frozenset().union(*(sources for sources, _ in MOVES.values()))


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
