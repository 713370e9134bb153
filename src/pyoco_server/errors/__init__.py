"""Every error we raise, with the ids and texts shown to users.

PyocoError
├── Refused               the input is invalid (422)
│   ├── InvalidFlow       a flow.yaml violates the policy
│   ├── InvalidWheel      a file is not a valid wheel of its name
│   ├── InvalidArchive    a zip archive is damaged or would unpack outside its directory
│   ├── InvalidListQuery
│   └── InvalidWorkersRequest
├── TooLarge              the input is too large (413)
│   ├── WorkflowTooLarge
│   └── WheelTooLarge
├── TooSlow               the input did not arrive in time (408)
├── KeyMissing            no API key (401)
├── KeyRefused            an invalid API key (403)
├── RateLimited           too many bad API keys from one address (429)
├── HostRefused           the Host header names another server (421)
├── DashboardReadOnly     a browser requested a change on a read-only dashboard (403)
├── NotFound              (404)
│   ├── RunNotFound
│   ├── DeadLetterNotFound
│   ├── WorkerNotFound
│   ├── WheelNotFound
│   └── ObjectNotFound
├── Conflict              the request conflicts with the current state (409)
│   ├── KeyReused         an idempotency key was used for another submission
│   ├── WheelNotNewer     a wheel of the same or a newer version is registered
│   ├── NotRepeatable     the submission of a run is no longer kept
│   ├── NotOfThisKind     not possible for this kind of run
│   ├── RunNotEnded       not available before the run has ended
│   └── KeyBusy           the same idempotency key is being submitted right now
├── BelowPrice            the reservation does not cover the price known from the inputs (422)
├── OverBudget            the tenant's money does not cover the run (402)
├── RunExpired            the run is past its retention (410)
├── ArtifactExpired       the files of a program are no longer kept (410)
├── TenantRateLimited     the tenant sends too many requests (429)
├── Unavailable           NATS did not answer: the write may have happened (503)
│   ├── NotStored         NATS did not answer, and nothing was stored
│   ├── ResourceMissing   NATS answered: the stream, bucket or object store does not exist
│   ├── TooManyWatchers   this gateway is at its limit of event streams
│   ├── TooManyTransfers  this gateway is at its limit of concurrent transfers
│   ├── QueueFull         the queue of programs is at its limit; nothing was stored
│   ├── JobInDoubt        it is unknown whether a job was stored; submitting it again under its id is safe
│   ├── NoRoom            the disk is full: of this process, or of NATS
│   ├── DependencyUnavailable  a store of priced runs did not answer: the operation may have happened
│   │   └── OtherLedger   the ledger is not the one that this deployment uses (exit code 3 at start)
│   └── SendFailed        a priced run could not be queued; it was refunded
├── LedgerOutdated        the ledger's tables have another version
├── Corrupt               stored data is damaged
│   └── RecordUnreadable  the record of a run cannot be decoded (503)
├── InvalidJob            an invalid queue message
├── FlowNotResolved       this worker cannot build the flow
│   └── CallableRefused   a flow.yaml names code that this worker does not offer
├── WheelSyncFailed       a worker could not install a wheel; it will retry
├── BackupFailed          a backup could not be created or restored
├── SnapshotTooLargeError a snapshot is above the cap even after compaction
├── DeploymentRefused     NATS does not meet the requirements of programs (exit code 3)
│   └── ExposureRefused   a port would be open to everybody
├── PepperMismatch        the server would reject keys made with this pepper
├── SeveralServers        several local servers are running, and none was chosen
├── UsageError            an invalid command line
└── SettingError          a setting does not parse
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyoco_server.errors.catalogue import CATALOGUE, Text

__all__ = [
    "CATALOGUE",
    "ArtifactExpired",
    "BackupFailed",
    "BelowPrice",
    "CallableRefused",
    "Conflict",
    "Corrupt",
    "DashboardReadOnly",
    "DeadLetterNotFound",
    "DependencyUnavailable",
    "DeploymentRefused",
    "ExposureRefused",
    "FlowNotResolved",
    "HostRefused",
    "InvalidArchive",
    "InvalidFlow",
    "InvalidJob",
    "InvalidListQuery",
    "InvalidWheel",
    "InvalidWorkersRequest",
    "JobInDoubt",
    "KeyBusy",
    "KeyMissing",
    "KeyRefused",
    "KeyReused",
    "LedgerOutdated",
    "NoRoom",
    "NotFound",
    "NotOfThisKind",
    "NotRepeatable",
    "NotStored",
    "ObjectNotFound",
    "OtherLedger",
    "OverBudget",
    "PepperMismatch",
    "Problem",
    "PyocoError",
    "QueueFull",
    "RateLimited",
    "RecordUnreadable",
    "Refused",
    "ResourceMissing",
    "RunExpired",
    "RunNotEnded",
    "RunNotFound",
    "SendFailed",
    "SettingError",
    "SeveralServers",
    "SnapshotTooLargeError",
    "TenantRateLimited",
    "Text",
    "TooLarge",
    "TooManyTransfers",
    "TooManyWatchers",
    "TooSlow",
    "Unavailable",
    "UsageError",
    "WheelNotFound",
    "WheelNotNewer",
    "WheelSyncFailed",
    "WheelTooLarge",
    "WorkerNotFound",
    "WorkflowTooLarge",
    "missing_resource",
]


@dataclass(frozen=True)
class Problem:
    """One problem of an input: its location, a message, and a type for programs."""

    loc: tuple[str | int, ...]
    msg: str
    type: str = "invalid"
    #: For an unknown member: the known name that was probably meant (STRICT-4).
    nearest: str | None = None


class PyocoError(Exception):
    """Something went wrong."""

    #: The number of this error's line in the catalogue.
    number: ClassVar[int] = 25
    #: The short English phrase of an HTTP error body (section 5 of the contract).
    phrase: ClassVar[str] = "internal error"

    def __init__(self, message: str = "", *, problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(message or (self.__doc__ or "").split("\n", 1)[0])
        self.problems = problems

    @property
    def text(self) -> Text:
        return CATALOGUE[self.number]


class Refused(PyocoError):
    """The request is not valid."""

    number = 2
    phrase = "invalid request"


class InvalidFlow(Refused):
    """The flow.yaml breaks the policy."""


class InvalidWheel(Refused):
    """The file is not a valid wheel."""


class InvalidArchive(Refused):
    """The zip archive is damaged, or would unpack outside its directory."""


class InvalidListQuery(Refused):
    """The list query is not valid."""

    number = 17
    phrase = "invalid list query"


class InvalidWorkersRequest(Refused):
    """The workers request is not valid."""

    number = 19
    phrase = "invalid workers request"


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


class LedgerOutdated(PyocoError):
    """The ledger's tables are not those of this version."""

    number = 43
    phrase = "ledger has to be migrated"


class BelowPrice(PyocoError):
    """The reservation is below the price that is known from the inputs. Nothing changed; the key is free."""

    number = 48
    phrase = "reservation below the price"

    def __init__(self, price_usd: str) -> None:
        problem = Problem(("reservation", "max_cost_usd"), f"must be at least {price_usd}, the price of these inputs")
        super().__init__(f"max_cost_usd is below {price_usd}, the price of these inputs", problems=(problem,))
        #: The least reservation that is accepted, with four decimals.
        self.price_usd = price_usd


class OverBudget(PyocoError):
    """The tenant's available money does not cover the reservation. Nothing changed; the key is free."""

    number = 38
    phrase = "budget does not cover the run"

    def __init__(self, balance_usd_micros: int) -> None:
        super().__init__("the available budget is smaller than max_cost_usd")
        self.balance_usd_micros = balance_usd_micros


class RunExpired(PyocoError):
    """The run is past its retention."""

    number = 39
    phrase = "run is past its retention"

    def __init__(
        self,
        run_id: str | None = None,
        *,
        reserved_usd_micros: int = 0,
        used_usd_micros: int = 0,
        tokens_consumed: int = 0,
    ) -> None:
        super().__init__()
        #: The amounts are kept longer than the content (PRICED-83).
        self.run_id = run_id
        self.reserved_usd_micros = reserved_usd_micros
        self.used_usd_micros = used_usd_micros
        self.tokens_consumed = tokens_consumed


class ArtifactExpired(PyocoError):
    """The files of the program are no longer kept."""

    number = 46
    phrase = "artifact expired"


class TenantRateLimited(PyocoError):
    """The tenant sends too many requests."""

    number = 40
    phrase = "too many requests"


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


class DeploymentRefused(PyocoError):
    """NATS, its resources or its number of nodes do not meet the guarantees of programs."""

    number = 45
    phrase = "deployment refused"


class ExposureRefused(DeploymentRefused):
    """A port without authentication may only be opened on this machine."""

    number = 47
    phrase = "exposure refused"


class SeveralServers(PyocoError):
    """Several local servers are running, and none was chosen."""

    number = 51
    phrase = "several local servers"


class PepperMismatch(PyocoError):
    """The pepper is not the one that the server checks API keys with."""

    number = 52
    phrase = "wrong pepper"


class UsageError(PyocoError):
    """The command line is invalid."""

    number = 18
    phrase = "invalid arguments"


class SettingError(PyocoError, ValueError):
    """A setting does not parse."""

    number = 18
    phrase = "invalid setting"
