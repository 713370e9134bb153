"""The members of program runs besides those of every run (sections 9.7, 10 and 20.1).

The token of an attempt is the run's `attempt_id`; it is stored as `token`. Moves are pure, and each is written by a
compare-and-set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

__all__ = ["CANCEL_GRACE_SECONDS", "EXEC", "PRIVATE", "TAG", "Artifact", "Program", "ProgramChanges", "artifact_object"]

#: The kind of a program run, and its routing tag.
EXEC = "exec"
TAG = "exec"

#: GRID-99: between SIGTERM and SIGKILL, at most.
CANCEL_GRACE_SECONDS = 5.0

#: GRID-154: members that no door ever exposes.
PRIVATE = frozenset({"token", "attempt_id", "holder", "slot", "job"})


@dataclass(frozen=True)
class Artifact:
    """A file produced by an attempt (GRID-145)."""

    #: `output.zip`, `stdout.txt` or `stderr.txt`.
    name: str
    #: Its name in the object store.
    object: str
    size: int
    sha256: str


def artifact_object(run_id: str, attempt: int, name: str) -> str:
    """Return the object name of an artifact (GRID-145).

    It contains the attempt, so a late attempt cannot overwrite the artifact of the one that counts.
    """
    return f"{run_id}/a{attempt}/{name}"


@dataclass(frozen=True, kw_only=True)
class Program:
    """Members stored flat beside those of every run (GRID-151)."""

    job_id: str
    group: str
    exec_name: str
    client_id: str
    fingerprint: str
    max_attempts: int
    #: Attempts lost with their worker or door. The number of failed ones is `attempt - lost`.
    lost: int = 0
    #: No attempt starts before this instant.
    not_before: float | None = None
    #: The process responsible for the attempt: a door, or a native worker.
    holder: str | None = None
    #: The number of the client's slot that the attempt holds.
    slot: int | None = None
    exit_code: int | None = None
    error_code: str | None = None
    stdout_tail: str | None = None
    stderr_tail: str | None = None
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    artifacts: tuple[Artifact, ...] = ()
    run_seconds: float | None = None
    #: GRID-86: a dead letter must be written; it has been written.
    dlq_due: bool = False
    dlq_done: bool = False
    retry_of: str | None = None
    #: The queue message, kept until the run has ended.
    job: Mapping[str, Any] | None = None


class ProgramChanges(TypedDict, total=False):
    """The members of a program that a move may change. A test compares them with the fields of `Program`."""

    lost: int
    not_before: float | None
    holder: str | None
    slot: int | None
    exit_code: int | None
    error_code: str | None
    stdout_tail: str | None
    stderr_tail: str | None
    stdout_truncated: bool
    stderr_truncated: bool
    artifacts: tuple[Artifact, ...]
    run_seconds: float | None
    dlq_due: bool
    dlq_done: bool
    job: Mapping[str, Any] | None
