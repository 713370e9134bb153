"""Every error we raise, with the ids and texts shown to users.

PyocoError
├── Refused               the input is invalid (422)
│   ├── InvalidFlow       a flow.yaml violates the policy
│   ├── FlowNotOffered    no worker that would take the run offers its flow
│   ├── InvalidWheel      a file is not a valid wheel of its name
│   ├── InvalidArchive    a zip archive is damaged or would unpack outside its directory
│   ├── InvalidListQuery
│   ├── InvalidSchedule
│   ├── InvalidWorkersRequest
│   └── TriedOnce         a retry policy or a timeout for a pack
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
│   ├── FlowNotFound      no live worker announces it
│   ├── ScheduleNotFound
│   ├── WorkerNotFound
│   ├── WheelNotFound
│   ├── ResultNotFound    the run has no such task, or is of a kind without such values
│   └── ObjectNotFound
├── Conflict              the request conflicts with the current state (409)
│   ├── KeyReused         an idempotency key was used for another submission
│   ├── WheelNotNewer     a wheel of the same or a newer version is registered
│   ├── NotRepeatable     the submission of a run is no longer kept
│   ├── NotOfThisKind     not possible for this kind of run
│   ├── NotDelayed        the run does not wait for its time
│   ├── ScheduleNameTaken
│   ├── TooManySchedules
│   ├── RunNotEnded       not available before the run has ended
│   ├── ResultNotReady    the run or task has not ended with a value
│   ├── ResultNotEncodable  a value could not be encoded
│   ├── ResultTooLarge    a value exceeded a bound
│   └── KeyBusy           the same idempotency key is being submitted right now
├── VersionMismatch       the object has changed since it was read (412)
├── VersionRequired       a change has to name the version that it replaces (428)
├── BelowPrice            the reservation does not cover the price known from the inputs (422)
├── OverBudget            the tenant's money does not cover the run (402)
├── RunExpired            the run is past its retention (410)
├── ResultGone            a stored value is no longer there (410)
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
├── ParamsRefused         the params of a run do not fit the signature of its flow
├── FlowNotResolved       this worker cannot build the flow
│   └── CallableRefused   a flow.yaml names code that this worker does not offer
├── WheelSyncFailed       a worker could not install a wheel; it will retry
├── BackupFailed          a backup could not be created or restored
├── SnapshotTooLargeError a snapshot is above the cap even after compaction
├── DeploymentRefused     NATS does not meet the requirements of programs (exit code 3)
│   └── ExposureRefused   a port would be open to everybody
├── PepperMismatch        the server would reject keys made with this pepper
├── SeveralServers        several local servers are running, and none was chosen
├── NotOffered            a part of Celery that the shim does not have
├── UsageError            an invalid command line
│   └── AppNotLoaded      the app to be served cannot be imported
└── SettingError          a setting does not parse
"""

from __future__ import annotations

from pyoco_server.errors.base import Problem, PyocoError
from pyoco_server.errors.catalogue import CATALOGUE, Text
from pyoco_server.errors.execution import (
    BackupFailed,
    CallableRefused,
    Corrupt,
    FlowNotResolved,
    InvalidJob,
    ParamsRefused,
    RecordUnreadable,
    SnapshotTooLargeError,
    WheelSyncFailed,
)
from pyoco_server.errors.outages import (
    DependencyUnavailable,
    JobInDoubt,
    NoRoom,
    NotStored,
    OtherLedger,
    QueueFull,
    ResourceMissing,
    SendFailed,
    TooManyTransfers,
    TooManyWatchers,
    Unavailable,
    missing_resource,
)
from pyoco_server.errors.priced import (
    ArtifactExpired,
    BelowPrice,
    LedgerOutdated,
    OverBudget,
    RunExpired,
    TenantRateLimited,
)
from pyoco_server.errors.requests import (
    Conflict,
    DashboardReadOnly,
    DeadLetterNotFound,
    FlowNotFound,
    FlowNotOffered,
    HostRefused,
    InvalidArchive,
    InvalidFlow,
    InvalidListQuery,
    InvalidSchedule,
    InvalidWheel,
    InvalidWorkersRequest,
    KeyBusy,
    KeyMissing,
    KeyRefused,
    KeyReused,
    NotDelayed,
    NotFound,
    NotOfThisKind,
    NotRepeatable,
    ObjectNotFound,
    RateLimited,
    Refused,
    RunNotEnded,
    RunNotFound,
    ScheduleNameTaken,
    ScheduleNotFound,
    TooLarge,
    TooManySchedules,
    TooSlow,
    TriedOnce,
    VersionMismatch,
    VersionRequired,
    WheelNotFound,
    WheelNotNewer,
    WheelTooLarge,
    WorkerNotFound,
    WorkflowTooLarge,
)
from pyoco_server.errors.starting import (
    AppNotLoaded,
    DeploymentRefused,
    ExposureRefused,
    NotOffered,
    PepperMismatch,
    SettingError,
    SeveralServers,
    UsageError,
)
from pyoco_server.errors.values import (
    ResultGone,
    ResultNotEncodable,
    ResultNotFound,
    ResultNotReady,
    ResultTooLarge,
    ValueMissing,
)

__all__ = [
    "CATALOGUE",
    "AppNotLoaded",
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
    "FlowNotFound",
    "FlowNotOffered",
    "FlowNotResolved",
    "HostRefused",
    "InvalidArchive",
    "InvalidFlow",
    "InvalidJob",
    "InvalidListQuery",
    "InvalidSchedule",
    "InvalidWheel",
    "InvalidWorkersRequest",
    "JobInDoubt",
    "KeyBusy",
    "KeyMissing",
    "KeyRefused",
    "KeyReused",
    "LedgerOutdated",
    "NoRoom",
    "NotDelayed",
    "NotFound",
    "NotOfThisKind",
    "NotOffered",
    "NotRepeatable",
    "NotStored",
    "ObjectNotFound",
    "OtherLedger",
    "OverBudget",
    "ParamsRefused",
    "PepperMismatch",
    "Problem",
    "PyocoError",
    "QueueFull",
    "RateLimited",
    "RecordUnreadable",
    "Refused",
    "ResourceMissing",
    "ResultGone",
    "ResultNotEncodable",
    "ResultNotFound",
    "ResultNotReady",
    "ResultTooLarge",
    "RunExpired",
    "RunNotEnded",
    "RunNotFound",
    "ScheduleNameTaken",
    "ScheduleNotFound",
    "SendFailed",
    "SettingError",
    "SeveralServers",
    "SnapshotTooLargeError",
    "TenantRateLimited",
    "Text",
    "TooLarge",
    "TooManySchedules",
    "TooManyTransfers",
    "TooManyWatchers",
    "TooSlow",
    "TriedOnce",
    "Unavailable",
    "UsageError",
    "ValueMissing",
    "VersionMismatch",
    "VersionRequired",
    "WheelNotFound",
    "WheelNotNewer",
    "WheelSyncFailed",
    "WheelTooLarge",
    "WorkerNotFound",
    "WorkflowTooLarge",
    "missing_resource",
]
