"""What an executor can tell of a run: how far it is, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = [
    "GRAPH_BYTES_MAX",
    "GRAPH_TASKS_MAX",
    "NOTHING_YET",
    "Cancelled",
    "Completed",
    "DeadReason",
    "Died",
    "Failed",
    "Outcome",
    "Progress",
    "TimedOut",
]

#: A graph stands in every snapshot of its run, and nobody looks at a larger picture. The bytes are those of its JSON.
GRAPH_BYTES_MAX = 16 * 1024
GRAPH_TASKS_MAX = 500


class DeadReason(StrEnum):
    """Why a job ended among the dead letters. One list for records, letters, metrics and docs."""

    #: The message or its flow.yaml is not one anybody can run (FLOW-316, FLOW-325).
    INVALID_JOB = "invalid_job"
    #: The worker has no such flow, or cannot build it (FLOW-317, FLOW-326).
    FLOW_NOT_FOUND = "flow_not_found"
    #: The engine or a task raised (FLOW-318).
    EXECUTION_ERROR = "execution_error"
    #: The job was delivered as often as it may be, and no worker lived to end it.
    MAX_DELIVER = "max_deliver"
    #: The process that ran it was killed or fell over.
    HOST_KILLED = "host_killed"
    #: It ran longer than PYOCO_RUN_TIMEOUT_SEC.
    TIMEOUT = "timeout"
    #: It has a record but no job, so nobody would ever take it: its submission was cut short, or the queue lost it.
    ABANDONED = "abandoned"
    #: Of a program: as many attempts failed as may.
    MAX_ATTEMPTS = "max_attempts"
    #: Of a program: as many attempts were lost with their workers as may.
    MAX_LOST = "max_lost"
    #: Of a program: the worker has none of that name.
    EXEC_NOT_FOUND = "exec_not_found"
    #: Of a program: the worker may not run it.
    EXEC_NOT_ALLOWED = "exec_not_allowed"


@dataclass(frozen=True)
class Progress:
    """How far a run is: the state of each task, and what is known of it."""

    tasks: Mapping[str, str] = field(default_factory=dict)
    task_records: Mapping[str, Any] = field(default_factory=dict)
    #: The records were too large to hand over whole (FLOW-359).
    truncated: bool = False
    #: Each task of the flow, and those it waits for. Empty: not known yet, or too large to be shown.
    graph: Mapping[str, Sequence[str]] = field(default_factory=dict)


NOTHING_YET = Progress()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one attempt ended. An executor always returns one; it never raises."""

    progress: Progress = NOTHING_YET

    @property
    def error(self) -> str | None:
        return None

    @property
    def reason(self) -> DeadReason | None:
        """Set when this attempt belongs among the dead letters."""
        return None


@dataclass(frozen=True, kw_only=True)
class Completed(Outcome):
    """The work ended normally."""


@dataclass(frozen=True, kw_only=True)
class Cancelled(Outcome):
    """The work stopped because it was asked to, or was killed after the grace period (`note` says which)."""

    note: str | None = None

    @property
    def error(self) -> str | None:
        return self.note


@dataclass(frozen=True, kw_only=True)
class Failed(Outcome):
    """The work ended with an error."""

    message: str
    why: DeadReason = DeadReason.EXECUTION_ERROR

    @property
    def error(self) -> str:
        return self.message

    @property
    def reason(self) -> DeadReason:
        return self.why


@dataclass(frozen=True, kw_only=True)
class TimedOut(Outcome):
    """The work was stopped because it took longer than it may."""

    seconds: float

    @property
    def error(self) -> str:
        return f"the run took longer than {self.seconds:g} s and was stopped"

    @property
    def reason(self) -> DeadReason:
        return DeadReason.TIMEOUT


@dataclass(frozen=True, kw_only=True)
class Died(Outcome):
    """The process that ran the work is gone: killed by a signal, out of memory, or it left by itself."""

    how: str

    @property
    def error(self) -> str:
        return f"the process that executed the run ended: {self.how}"

    @property
    def reason(self) -> DeadReason:
        return DeadReason.HOST_KILLED
