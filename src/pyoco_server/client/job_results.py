"""Response types for programs and their jobs. Plain dicts; the types are for editors and type checkers.

Responses may have further fields, which are passed through. Instants are unix seconds.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

__all__ = [
    "Artifact",
    "ArtifactSaved",
    "DlqMessageRequeued",
    "ExecAcl",
    "ExecAclDeleted",
    "ExecAclWritten",
    "ExecClient",
    "ExecDoor",
    "ExecEvent",
    "ExecEvents",
    "ExecGroup",
    "ExecInflight",
    "ExecLetters",
    "ExecQueue",
    "ExecReplica",
    "ExecState",
    "ExecWorker",
    "JobAccepted",
    "JobAsked",
    "RunArtifact",
    "RunProgramFields",
    "RunsOfPrograms",
]

RunStatus = Literal["PENDING", "RUNNING", "CANCELLING", "COMPLETED", "FAILED", "CANCELLED"]
AclKind = Literal["client", "worker"]
ArtifactName = Literal["output.zip", "stdout.txt", "stderr.txt"]


class RunArtifact(TypedDict):
    """An artifact of a program, as its run describes it."""

    name: str
    object: str
    size: int
    sha256: str


class RunProgramFields(TypedDict, total=False):
    """The additional fields of runs of programs."""

    job_id: str
    client_id: str
    group: str
    exec_name: str
    lost: int
    exit_code: int
    error_code: str
    retry_of: str
    fingerprint: str
    max_attempts: int
    stdout_tail: str
    stderr_tail: str
    stdout_truncated: bool
    stderr_truncated: bool
    artifacts: list[RunArtifact]
    run_seconds: float
    dlq_due: bool
    dlq_done: bool


class RunsOfPrograms(TypedDict, total=False):
    """Filters of run lists for jobs of programs. All conditions must match."""

    job_id: str | None
    client_id: str | None
    group: str | None
    exec_name: str | None


class JobAsked(TypedDict, total=False):
    """The options of a job besides its program, arguments and files. The server sets those that are omitted."""

    #: A UUID of your choice, generated unless given: the same job is accepted only once under one id.
    job_id: str
    #: The client of the job, which determines its cap and its lane.
    client_id: str
    group: str
    #: The limit of its run time.
    timeout_sec: float
    #: When it may start, as of a run: a duration, or an instant.
    delay: float | str
    not_before: float | str
    #: How often it is tried, as of a run.
    retry: dict[str, Any] | str | None


class JobAccepted(TypedDict):
    """The job is durably recorded and queued. `duplicate`: an earlier request has already submitted it."""

    run_id: str
    job_id: str
    #: The current status of its run.
    status: RunStatus
    duplicate: bool


class Artifact(TypedDict):
    """An artifact of a program: its archive or its output."""

    name: str
    size: int
    sha256: str
    href: str


class ArtifactSaved(TypedDict):
    """An artifact that was saved to a local file."""

    name: str
    path: str
    size_bytes: int
    sha256_hex: str


class ExecClient(TypedDict):
    """The cap of a client in a group, where the cap comes from, and how many of its jobs are running."""

    client_id: str
    group: str
    cap: int
    source: Literal["default", "hello", "http"]
    updated_at: float | None
    inflight: int


class ExecAclWritten(TypedDict):
    """An ACL record, as it is written. The last two fields exist only for clients."""

    api_key_ids: list[str]
    execs: list[str]
    max_cap: NotRequired[int | None]
    groups: NotRequired[list[str] | None]


class ExecAcl(ExecAclWritten):
    """The ACL record of a client or worker: which API keys may use its id, and what it may do."""

    kind: AclKind
    id: str


class ExecAclDeleted(TypedDict):
    """The ACL record is deleted."""

    kind: AclKind
    id: str
    deleted: Literal[True]


class ExecEvent(TypedDict):
    """An event of a job. Unknown fields are omitted."""

    ts: float
    event: str
    group: str
    attempt: int
    run_id: NotRequired[str]
    job_id: NotRequired[str]
    exec_name: NotRequired[str]
    client_id: NotRequired[str]
    worker_id: NotRequired[str]
    holder: NotRequired[str]
    detail: NotRequired[str]


class ExecEvents(TypedDict):
    """Events, newest first."""

    items: list[ExecEvent]


class ExecQueue(TypedDict):
    """The jobs of one program that have not ended."""

    queued: int
    inflight: int
    #: None: nothing waits.
    oldest_age_seconds: float | None


class ExecInflight(TypedDict):
    """A running job and its worker."""

    run_id: str
    job_id: str
    status: RunStatus
    heartbeat_at: float
    exec: NotRequired[str]
    client: NotRequired[str]
    worker: NotRequired[str]
    attempt: NotRequired[int]
    since: NotRequired[float]


class ExecDoor(TypedDict):
    """A door, as it reports itself."""

    door_id: str
    addr: str
    group: str
    state: Literal["serving", "draining", "standby", "no_quorum"]
    started_at: float
    connections: int


class ExecWorker(TypedDict):
    """A worker of programs. Unknown fields are omitted."""

    worker_id: str
    running: list[str]
    last_seen_at: float
    state: str
    kind: NotRequired[str]
    patterns: NotRequired[list[str]]
    credits: NotRequired[int]
    max_parallel: NotRequired[int]
    busy: NotRequired[int]
    door_id: NotRequired[str]
    cpu: NotRequired[float]


class ExecReplica(TypedDict):
    """One copy of a stream."""

    name: str
    leader: bool
    current: bool
    lag: int


class ExecLetters(TypedDict):
    """The dead letters of a group."""

    count: int
    last_sequence: int | None


class ExecGroup(TypedDict):
    """One group. Queues and 95th percentiles by program, running jobs by JobId, caps by client, replicas by stream."""

    queues: dict[str, ExecQueue]
    inflight: dict[str, ExecInflight]
    dlq: ExecLetters
    client_cap: dict[str, int]
    client_inflight: dict[str, int]
    doors: list[ExecDoor]
    #: Of all groups.
    workers: list[ExecWorker]
    replicas: dict[str, list[ExecReplica]]
    p95: dict[str, float]


class ExecState(TypedDict):
    """The state of all groups at `at`, by name."""

    at: float
    groups: dict[str, ExecGroup]


class DlqMessageRequeued(TypedDict):
    """The new run is recorded and queued. The dead letter of a program is kept."""

    run_id: str
    #: Only for programs.
    job_id: NotRequired[str]
