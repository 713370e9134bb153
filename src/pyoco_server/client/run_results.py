"""What the gateway says of runs, and what is said of many at once. Plain dicts, as in `results`."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from pyoco_server.client.job_results import RunProgramFields
from pyoco_server.client.priced_results import RunPackFields
from pyoco_server.client.results import ErrorBody

__all__ = [
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
]

RunStatus = Literal["PENDING", "RUNNING", "CANCELLING", "COMPLETED", "FAILED", "CANCELLED"]
TaskStatus = Literal["PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"]
Kind = Literal["flow", "exec", "pack"]


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

    reason: Literal[
        "no_worker",
        "workers_disconnected",
        "busy",
        "queue",
        "starting",
        "unclear",
        "disputed",
        "at_cap",
        "retry",
    ]
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


class _RunFields(RunPackFields, RunProgramFields, total=False):
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
