"""What an executor reports about a run: its progress and its outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pyoco_server.core.retries.matching import LOST, TIMEOUT, UNNAMED, Failure, exited, killed
from pyoco_server.core.values.kept import Kept

__all__ = [
    "GRAPH_BYTES_MAX",
    "GRAPH_TASKS_MAX",
    "NOTHING_YET",
    "NO_TERMS",
    "Cancelled",
    "Completed",
    "DeadReason",
    "Died",
    "Failed",
    "Outcome",
    "Progress",
    "TaskTimedOut",
    "Terms",
    "TimedOut",
]

#: The graph is part of every snapshot of its run, and a larger one is not readable. The bytes are those of its JSON.
GRAPH_BYTES_MAX = 16 * 1024
GRAPH_TASKS_MAX = 500


class DeadReason(StrEnum):
    """Why a job became a dead letter. One list for records, letters, metrics and docs."""

    #: The message or its flow.yaml is invalid, so no worker can run it (FLOW-316, FLOW-325).
    INVALID_JOB = "invalid_job"
    #: The worker has no such flow, or cannot build it (FLOW-317, FLOW-326).
    FLOW_NOT_FOUND = "flow_not_found"
    #: The engine or a task raised (FLOW-318).
    EXECUTION_ERROR = "execution_error"
    #: The job was delivered as often as allowed, and no worker survived to end it.
    MAX_DELIVER = "max_deliver"
    #: The process that ran it was killed or crashed.
    HOST_KILLED = "host_killed"
    #: It, or one of its tasks, ran longer than allowed.
    TIMEOUT = "timeout"
    #: It has a record but no job, so no worker would ever take it: its submission was cut short, or the queue lost the
    #: job.
    ABANDONED = "abandoned"
    #: Programs: the maximum number of attempts failed.
    MAX_ATTEMPTS = "max_attempts"
    #: Programs: the maximum number of attempts were lost with their workers.
    MAX_LOST = "max_lost"
    #: Programs: the worker has no program of that name.
    EXEC_NOT_FOUND = "exec_not_found"
    #: Programs: the worker is not allowed to run it.
    EXEC_NOT_ALLOWED = "exec_not_allowed"


@dataclass(frozen=True)
class Terms:
    """What a flow itself says about its tries. It applies where the submission says nothing."""

    #: As in `core.run.Submission`.
    retry: Mapping[str, Any] | None = None
    timeout: float | None = None


NO_TERMS = Terms()


@dataclass(frozen=True)
class Progress:
    """The progress of a run: the state of each task, and its task record."""

    tasks: Mapping[str, str] = field(default_factory=dict)
    task_records: Mapping[str, Any] = field(default_factory=dict)
    #: The records were too large to be passed on in full (FLOW-359).
    truncated: bool = False
    #: Each task of the flow and its dependencies. Empty: not known yet, or too large to be shown.
    graph: Mapping[str, Sequence[str]] = field(default_factory=dict)
    terms: Terms = NO_TERMS


NOTHING_YET = Progress()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one attempt ended. An executor always returns an outcome; it never raises."""

    progress: Progress = NOTHING_YET
    #: What its tasks have returned. None: it was stopped before it could report that.
    kept: Kept | None = None

    @property
    def error(self) -> str | None:
        return None

    @property
    def reason(self) -> DeadReason | None:
        """Set if this attempt becomes a dead letter."""
        return None

    @property
    def failure(self) -> Failure | None:
        """What a retry policy decides on. None: no policy retries it (RETRY-10)."""
        return None


@dataclass(frozen=True, kw_only=True)
class Completed(Outcome):
    """The work ended normally."""


@dataclass(frozen=True, kw_only=True)
class Cancelled(Outcome):
    """The work stopped on request, or was killed after the grace period (`note` says which)."""

    note: str | None = None

    @property
    def error(self) -> str | None:
        return self.note


@dataclass(frozen=True, kw_only=True)
class Failed(Outcome):
    """The work ended with an error."""

    message: str
    why: DeadReason = DeadReason.EXECUTION_ERROR
    #: What it failed with, if a task or the flow raised.
    cause: Failure = UNNAMED

    @property
    def error(self) -> str:
        return self.message

    @property
    def reason(self) -> DeadReason:
        return self.why

    @property
    def failure(self) -> Failure | None:
        if self.why is DeadReason.MAX_DELIVER:
            return Failure(LOST)
        return self.cause if self.why is DeadReason.EXECUTION_ERROR else None


@dataclass(frozen=True, kw_only=True)
class _OverTime(Outcome):
    """A time limit was exceeded, so the work was stopped."""

    seconds: float

    @property
    def reason(self) -> DeadReason:
        return DeadReason.TIMEOUT

    @property
    def failure(self) -> Failure:
        return Failure(TIMEOUT)


@dataclass(frozen=True, kw_only=True)
class TimedOut(_OverTime):
    """The work exceeded the time limit of its run."""

    @property
    def error(self) -> str:
        return f"the run took longer than {self.seconds:g} s and was stopped"


@dataclass(frozen=True, kw_only=True)
class TaskTimedOut(_OverTime):
    """One of the tasks exceeded its own time limit."""

    task: str
    #: The tries of the tasks so far, this one included, as `core.run.Run.task_tries` has them.
    task_tries: Mapping[str, Any]
    #: The policy of the task allows another try, after this many seconds. None: the try of the run has failed.
    again_after: float | None = None

    @property
    def error(self) -> str:
        return f"task {self.task} took longer than {self.seconds:g} s and was stopped"


@dataclass(frozen=True, kw_only=True)
class Died(Outcome):
    """The process that ran the work has exited: killed by a signal, out of memory, or on its own."""

    how: str
    #: As `asyncio.subprocess.Process.returncode`: of a signal, its negative number. None: it was ended by its worker.
    status: int | None = None

    @property
    def error(self) -> str:
        return f"the process that executed the run ended: {self.how}"

    @property
    def reason(self) -> DeadReason:
        return DeadReason.HOST_KILLED

    @property
    def failure(self) -> Failure:
        if self.status is None:
            return UNNAMED
        return killed(-self.status) if self.status < 0 else exited(self.status)
