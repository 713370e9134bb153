"""Errors of a request: it is invalid, not allowed, or conflicts with what is stored."""

from __future__ import annotations

from pyoco_server.errors.base import Problem, PyocoError

__all__ = [
    "Conflict",
    "DashboardReadOnly",
    "DeadLetterNotFound",
    "FlowNotFound",
    "FlowNotOffered",
    "HostRefused",
    "InvalidArchive",
    "InvalidFlow",
    "InvalidListQuery",
    "InvalidSchedule",
    "InvalidWheel",
    "InvalidWorkersRequest",
    "KeyBusy",
    "KeyMissing",
    "KeyRefused",
    "KeyReused",
    "NotDelayed",
    "NotFound",
    "NotOfThisKind",
    "NotRepeatable",
    "ObjectNotFound",
    "RateLimited",
    "Refused",
    "RunNotEnded",
    "RunNotFound",
    "ScheduleNameTaken",
    "ScheduleNotFound",
    "TooLarge",
    "TooManySchedules",
    "TooSlow",
    "TriedOnce",
    "VersionMismatch",
    "VersionRequired",
    "WheelNotFound",
    "WheelNotNewer",
    "WheelTooLarge",
    "WorkerNotFound",
    "WorkflowTooLarge",
]


class Refused(PyocoError):
    """The request is not valid."""

    number = 2
    phrase = "invalid request"


class InvalidFlow(Refused):
    """The flow.yaml breaks the policy."""


class FlowNotOffered(Refused):
    """No worker that would take the run offers its flow."""

    number = 6
    phrase = "flow not found"


class InvalidWheel(Refused):
    """The file is not a valid wheel."""


class InvalidArchive(Refused):
    """The zip archive is damaged, or would unpack outside its directory."""


class InvalidListQuery(Refused):
    """The list query is not valid."""

    number = 17
    phrase = "invalid list query"


class InvalidSchedule(Refused):
    """The schedule is not valid."""

    number = 63
    phrase = "invalid schedule"


class InvalidWorkersRequest(Refused):
    """The workers request is not valid."""

    number = 19
    phrase = "invalid workers request"


class TriedOnce(Refused):
    """A retry policy or a timeout was given for a pack."""

    number = 64
    phrase = "packs are executed once"


class TooLarge(PyocoError):
    """The request body is too large."""

    number = 2
    phrase = "request body too large"


class WorkflowTooLarge(TooLarge):
    """The workflow file is too large."""

    number = 16
    phrase = "workflow file too large"


class WheelTooLarge(TooLarge):
    """The wheel is too large."""

    phrase = "wheel too large"


class TooSlow(PyocoError):
    """The request body did not arrive in time."""

    number = 2
    phrase = "request timeout"


class KeyMissing(PyocoError):
    """An API key is required."""

    number = 14
    phrase = "api key required"


class KeyRefused(PyocoError):
    """The API key is not valid for this server."""

    number = 15
    phrase = "api key invalid"


class RateLimited(PyocoError):
    """Too many bad API keys came from this address."""

    number = 29
    phrase = "too many bad api keys"

    def __init__(
        self, message: str = "", *, problems: tuple[Problem, ...] = (), retry_after_seconds: float = 1.0
    ) -> None:
        super().__init__(message, problems=problems)
        self.retry_after_seconds = retry_after_seconds


class HostRefused(PyocoError):
    """The gateway does not serve the host name in `Host`."""

    number = 2
    phrase = "this name in Host is not answered: PYOCO_HTTP_HOSTS lists those that are"


class DashboardReadOnly(PyocoError):
    """The dashboard is read-only: changes from a browser are refused."""

    number = 35
    phrase = "dashboard is read-only"


class Conflict(PyocoError):
    """The request conflicts with the current state."""

    number = 2
    phrase = "conflict"


class KeyReused(Conflict):
    """The idempotency key was used for another submission."""

    number = 26
    phrase = "idempotency key reused"


class WheelNotNewer(Conflict):
    """A wheel of the same or a newer version is registered."""

    number = 22
    phrase = "same/older version is rejected"


class NotRepeatable(Conflict):
    """The submission of the run is no longer kept, so it cannot be run again."""

    number = 28
    phrase = "run cannot be repeated"


class NotOfThisKind(Conflict):
    """This cannot be done with a run of this kind."""

    number = 42
    phrase = "not for runs of this kind"


class NotDelayed(Conflict):
    """The run does not wait for its time, so it cannot be started before it."""

    number = 58
    phrase = "run does not wait for its time"


class ScheduleNameTaken(Conflict):
    """There is a schedule of this name."""

    number = 60
    phrase = "name is already in use"


class TooManySchedules(Conflict):
    """The tenant has as many schedules as it may."""

    number = 61
    phrase = "too many schedules"


class VersionMismatch(PyocoError):
    """The object is not in the version that the request names."""

    number = 62
    phrase = "not the version that the request names"


class VersionRequired(PyocoError):
    """The request has to name the version that it replaces."""

    number = 62
    phrase = "If-Match or If-None-Match is required"


class RunNotEnded(Conflict):
    """The run has not ended yet."""

    phrase = "run has not ended"


class KeyBusy(Conflict):
    """The same idempotency key is being submitted right now, or its run is about to release it."""

    number = 37
    phrase = "idempotency key is in use right now"


class NotFound(PyocoError):
    """There is no such thing."""

    number = 2
    phrase = "not found"


class RunNotFound(NotFound):
    """There is no such run."""

    number = 5
    phrase = "run not found"


class FlowNotFound(NotFound):
    """No live worker announces this flow."""

    number = 6
    phrase = "flow not found"


class ScheduleNotFound(NotFound):
    """There is no such schedule."""

    number = 59
    phrase = "schedule not found"


class DeadLetterNotFound(NotFound):
    """There is no such dead letter."""

    number = 27
    phrase = "dead letter not found"


class WorkerNotFound(NotFound):
    """There is no such worker."""

    number = 20
    phrase = "worker not found"


class WheelNotFound(NotFound):
    """There is no such wheel."""

    number = 23
    phrase = "wheel not found"


class ObjectNotFound(NotFound):
    """There is no such object."""
