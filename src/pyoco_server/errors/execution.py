"""Errors of stored data and of the execution of a run."""

from __future__ import annotations

from pyoco_server.errors.base import Problem, PyocoError

__all__ = [
    "BackupFailed",
    "CallableRefused",
    "Corrupt",
    "FlowNotResolved",
    "InvalidJob",
    "RecordUnreadable",
    "SnapshotTooLargeError",
    "WheelSyncFailed",
]


class Corrupt(PyocoError):
    """Stored data is damaged: the digest differs, or a record cannot be read."""

    phrase = "stored data is damaged"


class RecordUnreadable(Corrupt):
    """The stored record of a run cannot be decoded."""

    number = 75
    phrase = "record unreadable"

    def __init__(self, key: str, reason: str, revision: int = 0) -> None:
        super().__init__(f"the record {key} cannot be decoded: {reason}")
        #: The key of the record: the run id.
        self.key, self.reason = key, reason
        #: The stored revision; 0 if unknown.
        self.revision = revision


class InvalidJob(PyocoError):
    """The queue message is not a valid job."""

    number = 12
    phrase = "invalid job"

    def __init__(self, message: str, *, run_id: str | None = None, problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(message, problems=problems)
        #: Known if the message was invalid but contained its run id (FLOW-316).
        self.run_id = run_id


class ParamsRefused(PyocoError):
    """The params do not fit the signature of the flow."""

    number = 2
    phrase = "invalid params"


class FlowNotResolved(PyocoError):
    """This worker cannot build the flow."""

    number = 6
    phrase = "flow not found"


class CallableRefused(FlowNotResolved):
    """The flow.yaml names code that this worker does not offer."""

    number = 31
    phrase = "callable not offered"


class WheelSyncFailed(PyocoError):
    """A wheel could not be installed."""

    number = 24
    phrase = "wheel sync failed"


class BackupFailed(PyocoError):
    """The backup could not be made or restored."""

    number = 33
    phrase = "backup failed"


class SnapshotTooLargeError(PyocoError, ValueError):
    """The snapshot is above the cap even after compaction."""

    number = 10
    phrase = "snapshot too large"
