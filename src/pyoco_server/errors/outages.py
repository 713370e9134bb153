"""Errors of a store or a limit of this process: the same request may succeed later."""

from __future__ import annotations

from pyoco_server.errors.base import PyocoError

__all__ = [
    "DependencyUnavailable",
    "JobInDoubt",
    "NoRoom",
    "NotStored",
    "OtherLedger",
    "QueueFull",
    "ResourceMissing",
    "SendFailed",
    "TooManyTransfers",
    "TooManyWatchers",
    "Unavailable",
    "missing_resource",
]


class Unavailable(PyocoError):
    """NATS did not answer in time; what was asked may or may not have happened."""

    number = 3
    phrase = "nats unavailable"


class NotStored(Unavailable):
    """NATS could not be reached; nothing was stored."""


class ResourceMissing(Unavailable):
    """A stream, bucket or object store that should exist in NATS does not."""

    number = 50
    phrase = "resource missing"

    def __init__(self, resource: str, doing: str = "") -> None:
        super().__init__(f"{doing}: {resource} is missing in NATS" if doing else f"{resource} is missing in NATS")
        #: The name of the stream: `PYOCO_WORK`, `KV_pyoco_runs`, `OBJ_pyoco_wheels`.
        self.resource = resource


def missing_resource(error: BaseException) -> ResourceMissing | None:
    """Return the error itself or the first of its causes that is a missing resource, or None."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ResourceMissing):
        cause = cause.__cause__
    return cause


class QueueFull(NotStored):
    """The queue of programs is full; nothing was stored."""


class JobInDoubt(Unavailable):
    """NATS did not answer while a job was stored: submit it again under the same id, or look up its run."""

    def __init__(self, job_id: str, run_id: str, cause: Unavailable) -> None:
        super().__init__(str(cause))
        self.job_id, self.run_id, self.cause = job_id, run_id, cause


class TooManyWatchers(Unavailable):
    """This gateway has reached its limit of event streams."""

    number = 30
    phrase = "too many watchers"


class TooManyTransfers(Unavailable):
    """This gateway has reached its limit of concurrent transfers."""

    number = 34
    phrase = "too many transfers"


class NoRoom(Unavailable):
    """There is no room left on the disk."""

    number = 32
    phrase = "no room on the disk"


class DependencyUnavailable(Unavailable):
    """The ledger, the budget, the queue or the store of results did not answer; what was asked may have happened."""

    number = 36
    phrase = "dependency unavailable"


class OtherLedger(DependencyUnavailable):
    """The ledger is not the one that this deployment uses."""

    number = 49
    phrase = "not the ledger of this deployment"


class SendFailed(Unavailable):
    """The run could not be queued: it has ended, everything was refunded, and its key may be used again."""

    number = 41
    phrase = "run could not be queued"

    def __init__(self, run_id: str) -> None:
        super().__init__("the run could not be queued; it was refunded, and its key may be used again")
        self.run_id = run_id
