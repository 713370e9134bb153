"""What the gateway answers with, and what some requests are made of. Plain dicts; the types are for the editor.

More fields may come at any time, and pass through (FLOW-43). Instants are unix seconds.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from pyoco_server.client.priced_results import RunPackFields

__all__ = [
    "Attention",
    "AttentionItem",
    "DlqCounts",
    "DlqGroup",
    "DlqMessage",
    "DlqMessageDeleted",
    "DlqMessageDetail",
    "DlqMessageRedriven",
    "DlqMessagesDeleted",
    "DlqMessagesRedriven",
    "DlqPage",
    "DlqProblem",
    "ErrorBody",
    "Health",
    "LettersDeletedBy",
    "LettersRedrivenBy",
    "Problem",
    "Queue",
    "Queues",
    "Ready",
    "RecentMetrics",
    "RunAccepted",
    "RunAttempt",
    "RunBatchAnswer",
    "RunBatchItem",
    "RunBatchLine",
    "RunChange",
    "RunLastChange",
    "RunListResponse",
    "RunRepeated",
    "RunSnapshot",
    "RunStatus",
    "RunSummary",
    "RunTasks",
    "RunWaiting",
    "RunWatchEvent",
    "RunsCancelled",
    "RunsCancelledBy",
    "WaitingPacks",
    "WheelArtifact",
    "WheelDeleted",
    "WheelDownloaded",
    "WheelHistoryEvent",
    "WorkerPatched",
    "WorkerRecord",
]

RunStatus = Literal["PENDING", "RUNNING", "CANCELLING", "COMPLETED", "FAILED", "CANCELLED"]
TaskStatus = Literal["PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"]
Kind = Literal["flow", "exec", "pack"]


class Health(TypedDict):
    """The gateway's own word."""

    status: str


class Ready(TypedDict):
    """Whether the gateway can take work."""

    status: str
    nats: NotRequired[bool]
    index: NotRequired[bool]
    #: Whether what the gateway wrote last was stored.
    store: NotRequired[bool]
    #: Whether only a restart of NATS would help. Told when the gateway is not ready.
    stuck: NotRequired[bool]


class Queue(TypedDict):
    """The runs that wait for one tag, and who serves it."""

    tag: str
    depth: int
    #: When the oldest of them was submitted; None: nothing waits.
    oldest_at: float | None
    oldest_age_seconds: float | None
    workers_alive: int
    slots: int
    slots_busy: int
    #: Ten minutes ago; None: not known, yet.
    depth_before: int | None
    #: Runs of this tag that ended per minute; None: not known, yet.
    drained_per_minute: float | None
    #: Until what waits now is worked off at that pace; None: nothing waits, or nobody works.
    eta_seconds: float | None


class WaitingPacks(TypedDict):
    """The priced runs that wait. Any worker may take them."""

    depth: int
    #: When the oldest of them was submitted; None: nothing waits.
    oldest_at: float | None
    oldest_age_seconds: float | None
    #: Of all tags.
    workers_alive: int


class Queues(TypedDict):
    """The queues as they were at this instant, the longest first."""

    at: float
    items: list[Queue]
    #: An older server does not tell.
    packs: NotRequired[WaitingPacks]


#: A word of Python's own, which cannot be written as a field.
_From = TypedDict("_From", {"from": float})


class RecentMetrics(_From):
    """What happened in steps of ten seconds, oldest first, by column. None: there is nothing to tell of that step.

    `from` is when the first step began. All columns have the same length.
    """

    now: float
    step_seconds: int
    submitted: list[int]
    completed: list[int]
    failed: list[int]
    cancelled: list[int]
    in_flight: list[int | None]
    waiting: list[int | None]
    wait_p50: list[float | None]
    wait_p95: list[float | None]
    wait_p99: list[float | None]
    run_p50: list[float | None]
    run_p95: list[float | None]
    run_p99: list[float | None]


class AttentionItem(TypedDict):
    """One thing to look at. `facts` is what it was concluded from, by kind."""

    kind: str
    level: Literal["danger", "warning"]
    count: int
    message: str
    message_ja: str
    facts: dict[str, Any]


class Attention(TypedDict):
    """What to look at, the most urgent first. Nothing: all is well, as far as the gateway can tell."""

    at: float
    items: list[AttentionItem]


class Problem(TypedDict):
    """One thing that is wrong, and where."""

    loc: list[str | int]
    msg: str
    type: str


class ErrorBody(TypedDict):
    """Every 4xx and 5xx answer of the gateway: `error.response.json()` of an `httpx.HTTPStatusError`."""

    detail: str | list[Problem]
    err_id: str
    msg_id: str
    message: str
    message_ja: str
    errors: NotRequired[list[Problem]]


class RunAccepted(TypedDict):
    """The run is recorded and queued; both are durable."""

    run_id: str
    status: Literal["PENDING"]


class RunRepeated(RunAccepted):
    """As `RunAccepted`; `rerun_of` is the run it repeats."""

    rerun_of: str


class RunAhead(TypedDict):
    """The run that has waited longest before another one. Of another tenant's, only the age is told."""

    run_id: NotRequired[str]
    submitted_at: NotRequired[float]
    age_seconds: float


class RunWaiting(TypedDict):
    """Why a run that no worker has taken is not executed yet, and its place in the queue of its tag, estimated."""

    reason: Literal["no_worker", "workers_disconnected", "busy", "queue", "starting", "unclear", "disputed"]
    message: str
    message_ja: str
    position: int
    position_capped: bool
    workers_alive: int
    slots: int
    slots_busy: int
    oldest_ahead: RunAhead | None


class RunAttempt(TypedDict):
    """An attempt that was not the last one. Of a lost one, `ended_at` is the last sign of life."""

    attempt: int
    worker_id: str | None
    started_at: float | None
    ended_at: float
    why: Literal["handed_back", "lost"]


class RunDoer(TypedDict):
    """Who did something to a run. Without authentication, whoever asked is a `caller` like any other."""

    kind: Literal["caller", "api_key", "worker", "keeper", "gateway", "operator"]
    id: str | None


class RunLastChange(TypedDict):
    """What happened to a run last, when, and who did it."""

    what: Literal["submitted", "started", "handed_back", "cancel_requested", "completed", "failed", "cancelled"]
    at: float
    by: RunDoer


class _RunFields(RunPackFields, total=False):
    kind: str
    tag: str
    tags: list[str]
    params_truncated: bool
    task_records: dict[str, dict[str, Any]]
    task_records_truncated: bool
    attempt: int
    attempt_id: str
    worker_id: str
    instance_id: str
    submitted_at: float
    start_time: float | None
    end_time: float | None
    error: str | None
    reason: str
    workflow_yaml_sha256: str
    workflow_yaml_bytes: int
    tenant_id: str
    api_key_id: str
    cancel_requested_at: float
    cancel_reason: str
    cancel_requested_by: str
    ended_by: Literal["keeper", "gateway", "operator"]
    rerun_of: str
    graph: dict[str, list[str]]
    earlier_attempts: list[RunAttempt]
    last_change: RunLastChange
    worker_alive: bool
    worker_heartbeat_at: float | None
    worker_tags: list[str] | None
    worker_state: str | None
    waiting: RunWaiting


class RunSnapshot(_RunFields):
    """The latest state of a run."""

    run_id: str
    flow_name: str
    status: RunStatus
    params: dict[str, Any]
    tasks: dict[str, TaskStatus]
    heartbeat_at: float
    updated_at: float


class RunSummary(_RunFields):
    """One line of a list. With `include=["full"]` it has all that a `RunSnapshot` has."""

    run_id: str
    status: RunStatus
    updated_at: float
    flow_name: NotRequired[str]
    heartbeat_at: NotRequired[float]
    params: NotRequired[dict[str, Any]]
    tasks: NotRequired[dict[str, TaskStatus]]


class RunListResponse(TypedDict):
    """A page of runs. `next_cursor`, given as `cursor` with the same filters, brings the next one; None: no more."""

    items: list[RunSummary]
    next_cursor: str | None


class RunTasks(TypedDict):
    """The tasks of a run, with what is known of each."""

    run_id: str
    flow_name: str
    status: RunStatus
    tasks: dict[str, TaskStatus]
    task_records: dict[str, dict[str, Any]]
    task_records_truncated: bool


class RunWatchEvent(TypedDict):
    """The run as it was at `ts`. A `heartbeat` says that nothing has changed."""

    event: Literal["snapshot", "heartbeat"]
    run_id: str
    snapshot: RunSnapshot
    ts: float


class RunChange(TypedDict, total=False):
    """What shall be different this time. `params` are laid over the old ones, and are for named flows only."""

    params: dict[str, Any]
    tag: str
    tags: list[str]


class RunBatchItem(TypedDict):
    """One submission of many, and a key of its own under which it is accepted once."""

    flow_name: str
    params: NotRequired[dict[str, Any] | None]
    tag: NotRequired[str | None]
    tags: NotRequired[list[str] | None]
    idempotency_key: NotRequired[str | None]


class RunBatchLine(TypedDict):
    """One item: either `run_id` and `status`, or `error` and the `status_code` it would have had on its own."""

    index: int
    run_id: NotRequired[str]
    status: NotRequired[Literal["PENDING"]]
    replayed: NotRequired[bool]
    error: NotRequired[ErrorBody]
    status_code: NotRequired[int]


class RunBatchAnswer(TypedDict):
    """What became of each item, in their order."""

    accepted: int
    refused: int
    items: list[RunBatchLine]


class RunsCancelledBy(TypedDict, total=False):
    """Which runs to stop: a filter (all that is set must hold), `run_ids`, or `all=True`; and why."""

    status: Literal["PENDING", "RUNNING"]
    flow: str
    tag: str
    kind: Kind
    workflow_yaml_sha256: str
    submitted_before: float
    run_ids: list[str]
    reason: str
    limit: int
    all: bool


class RunsCancelled(TypedDict):
    """What became of the request, in numbers."""

    matched: int
    asked: int
    already_cancelling: int
    already_ended: int
    not_found: int
    failed: int
    more: bool


class WorkerRecord(TypedDict):
    """A worker, by its own word; `state` is DISCONNECTED when it has been silent."""

    worker_id: str
    state: Literal["RUNNING", "IDLE", "STOPPED_GRACEFUL", "DISCONNECTED"]
    hidden: bool
    last_seen_at: float
    tags: list[str]
    instance_id: NotRequired[str]
    updated_at: NotRequired[float | None]
    last_heartbeat_at: NotRequired[float]
    heartbeat_at: NotRequired[float]
    last_pull_at: NotRequired[float | None]
    slots: NotRequired[int]
    running: NotRequired[list[str]]
    current_run_id: NotRequired[str | None]
    last_run_status: NotRequired[str | None]
    stopped_at: NotRequired[float | None]
    stop_reason: NotRequired[str | None]
    host_restarts: NotRequired[int]
    packs: NotRequired[list[str] | None]
    versions: NotRequired[dict[str, str]]
    wheel_sync: NotRequired[dict[str, Any] | None]


class WorkerPatched(TypedDict):
    """The operator's word as it is kept, and when it last changed."""

    worker_id: str
    hidden: bool
    updated_at: float


class DlqMessage(TypedDict):
    """A dead letter: a job set aside, and why."""

    id: str
    timestamp: float
    reason: str
    error: str | None
    tag: str
    run_id: NotRequired[str]
    flow_name: NotRequired[str]
    tags: NotRequired[list[str]]
    worker_id: NotRequired[str]
    num_delivered: NotRequired[int]
    subject: NotRequired[str]
    tenant_id: NotRequired[str]
    api_key_id: NotRequired[str]


class DlqMessageDetail(DlqMessage):
    """A dead letter, and what there is of its run now."""

    run_status: NotRequired[RunStatus]
    redrivable: bool


class DlqPage(TypedDict):
    """Some letters, the newest first. `next_cursor`, given as `cursor`, brings the next ones; None: no more."""

    items: list[DlqMessage]
    next_cursor: str | None


class DlqGroup(TypedDict):
    """Letters of one reason and one flow."""

    reason: str
    flow_name: str | None
    count: int
    newest_at: float


class DlqCounts(TypedDict):
    """How many there are, the largest groups first."""

    total: int
    groups: list[DlqGroup]


class LettersDeletedBy(TypedDict, total=False):
    """Which letters to delete: a filter (all that is set must hold), or `all=True`.

    `up_to`: the id of the newest letter that is meant; those that came in later stay.
    """

    reason: str
    flow: str
    tag: str
    run_id: str
    limit: int
    all: bool
    up_to: str


class LettersRedrivenBy(LettersDeletedBy, total=False):
    """Which letters to redrive; `cursor` goes on where a request before this one has stopped."""

    cursor: str


class DlqMessageRedriven(TypedDict):
    """The new run is recorded and queued, and the letter is gone."""

    id: str
    run_id: str
    rerun_of: str
    status: Literal["PENDING"]


class DlqProblem(TypedDict):
    """Why one letter could not be redriven."""

    id: str
    err_id: str
    detail: str


class DlqMessagesRedriven(TypedDict):
    """What became of the request, in numbers."""

    matched: int
    redriven: int
    failed: int
    more: bool
    next_cursor: str | None
    problems: list[DlqProblem]


class DlqMessageDeleted(TypedDict):
    """The letter is gone."""

    id: str
    deleted: Literal[True]


class DlqMessagesDeleted(TypedDict):
    """What became of the request, in numbers."""

    matched: int
    deleted: int
    more: bool


class WheelArtifact(TypedDict):
    """A registered wheel."""

    name: str
    size_bytes: int
    bucket: str
    nuid: str
    modified: float
    sha256_hex: NotRequired[str | None]
    tags: list[str]


class WheelHistoryEvent(TypedDict):
    """One upload or deletion: when, from where, by whom."""

    event_id: str
    occurred_at: float
    action: Literal["upload", "delete"]
    wheel_name: str
    tags: list[str]
    source: dict[str, str | None]
    actor: dict[str, str | None]
    size_bytes: NotRequired[int | None]
    sha256_hex: NotRequired[str | None]


class WheelDeleted(TypedDict):
    """The wheel is gone."""

    name: str
    deleted: Literal[True]


class WheelDownloaded(TypedDict):
    """Where the wheel lies now. Its bytes are those of the registry: size and sha256 were compared."""

    name: str
    path: str
    size_bytes: int
    sha256_hex: str
