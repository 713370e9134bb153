"""What the gateway answers with about programs and their jobs. Plain dicts; the types are for the editor.

More fields may come at any time, and pass through. Instants are unix seconds.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

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
    """A file that a program has left behind, as its run tells of it."""

    name: str
    object: str
    size: int
    sha256: str


class RunProgramFields(TypedDict, total=False):
    """What runs of programs have beside what every run has."""

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
    not_before: float
    stdout_tail: str
    stderr_tail: str
    stdout_truncated: bool
    stderr_truncated: bool
    artifacts: list[RunArtifact]
    run_seconds: float
    dlq_due: bool
    dlq_done: bool


class RunsOfPrograms(TypedDict, total=False):
    """Which jobs of programs a list of runs shows. All that is given must hold."""

    job_id: str | None
    client_id: str | None
    group: str | None
    exec_name: str | None


class JobAsked(TypedDict, total=False):
    """What a job may have beside its program, arguments and files. What is left out is the server's to choose."""

    #: A UUID of your choice, made up unless given: the same job again under the same id counts once.
    job_id: str
    #: Whose job it is, for its cap and its lane.
    client_id: str
    group: str
    #: Run time.
    timeout_sec: float


class JobAccepted(TypedDict):
    """The job is recorded and queued; both are durable. `duplicate`: an earlier request had done so."""

    run_id: str
    job_id: str
    #: What its run is now.
    status: RunStatus
    duplicate: bool


class Artifact(TypedDict):
    """A file that a program has left behind; its output is one."""

    name: str
    size: int
    sha256: str
    href: str


class ArtifactSaved(TypedDict):
    """A file of a program, now here."""

    name: str
    path: str
    size_bytes: int
    sha256_hex: str


class ExecClient(TypedDict):
    """How many jobs of a client may run at once in a group, who said so, and how many do."""

    client_id: str
    group: str
    cap: int
    source: Literal["default", "hello", "http"]
    updated_at: float | None
    inflight: int


class ExecAclWritten(TypedDict):
    """An ACL record, as it is written. The last two members are of clients alone."""

    api_key_ids: list[str]
    execs: list[str]
    max_cap: NotRequired[int | None]
    groups: NotRequired[list[str] | None]


class ExecAcl(ExecAclWritten):
    """Who may be this client or worker, and what it may do."""

    kind: AclKind
    id: str


class ExecAclDeleted(TypedDict):
    """It is gone."""

    kind: AclKind
    id: str
    deleted: Literal[True]


class ExecEvent(TypedDict):
    """One thing that happened to a job. What is not known is left out."""

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
    """What happened, the newest first."""

    items: list[ExecEvent]


class ExecQueue(TypedDict):
    """The jobs of one program that have not ended."""

    queued: int
    inflight: int
    #: None: nothing waits.
    oldest_age_seconds: float | None


class ExecInflight(TypedDict):
    """A job that runs, and where."""

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
    """A door, by its own word."""

    door_id: str
    addr: str
    group: str
    state: Literal["serving", "draining", "standby", "no_quorum"]
    started_at: float
    connections: int


class ExecWorker(TypedDict):
    """A worker of programs. What is not known is left out."""

    worker_id: str
    running: list[str]
    last_seen_at: float
    state: str
    kind: NotRequired[str]
    patterns: NotRequired[list[str]]
    credits: NotRequired[int]
    max_parallel: NotRequired[int]
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
    """One group. Queues and 95th percentiles by program, what runs by JobId, caps by client, replicas by stream."""

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
    """The groups as they were at this instant, by name."""

    at: float
    groups: dict[str, ExecGroup]


class DlqMessageRequeued(TypedDict):
    """The new run is recorded and queued. The letter of a program stays."""

    run_id: str
    #: Of a program alone.
    job_id: NotRequired[str]
