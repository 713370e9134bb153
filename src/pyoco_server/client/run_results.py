"""Response types for runs, and the requests that concern many runs. Plain dicts, as in `results`."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from pyoco_server.client.job_results import RunProgramFields
from pyoco_server.client.priced_results import RunPackFields
from pyoco_server.client.results import ErrorBody

__all__ = [
    "OutputSaved",
    "RetryPolicy",
    "RunAccepted",
    "RunAttempt",
    "RunBatchAnswer",
    "RunBatchItem",
    "RunBatchLine",
    "RunChange",
    "RunLastChange",
    "RunListResponse",
    "RunOptions",
    "RunRepeated",
    "RunResult",
    "RunSnapshot",
    "RunStatus",
    "RunSummary",
    "RunTasks",
    "RunTry",
    "RunWaiting",
    "RunWatchEvent",
    "RunsCancelled",
    "RunsCancelledBy",
]

RunStatus = Literal["PENDING", "RUNNING", "CANCELLING", "COMPLETED", "FAILED", "CANCELLED"]
TaskStatus = Literal["PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"]
Kind = Literal["flow", "exec", "pack"]


class RunAccepted(TypedDict):
    """The run is durably recorded and queued."""

    run_id: str
    status: Literal["PENDING"]
    #: No live worker announces the flow, but one that announces no flows, or not all, may know it.
    warning: NotRequired[str]


class RunRepeated(RunAccepted):
    """As `RunAccepted`; `rerun_of` is the run that it repeats."""

    rerun_of: str


class RunAhead(TypedDict):
    """The oldest run ahead of a waiting one. If it belongs to another tenant, only its age is given."""

    run_id: NotRequired[str]
    submitted_at: NotRequired[float]
    age_seconds: float


class RunSchedule(TypedDict):
    """The schedule that submitted a run, and for which tick."""

    id: str
    name: str
    tick: float
    source: Literal["tick", "catch_up", "trigger", "backfill"]


class RunWaiting(TypedDict):
    """Why a run that no worker has taken is still waiting, and its estimated position in the queue of its tag."""

    reason: Literal[
        "no_worker",
        "workers_disconnected",
        "busy",
        "queue",
        "starting",
        "unclear",
        "disputed",
        "at_cap",
        "scheduled",
        "retry",
    ]
    message: str
    message_ja: str
    #: None: the run waits for its time.
    position: int | None
    position_capped: bool
    workers_alive: int
    slots: int
    slots_busy: int
    oldest_ahead: RunAhead | None
    #: With `scheduled` and `retry`: when the run is due.
    until: NotRequired[float]


class RunAttempt(TypedDict):
    """An attempt before the last one. For a lost attempt, `ended_at` is its last heartbeat."""

    attempt: int
    worker_id: str | None
    started_at: float | None
    ended_at: float
    why: Literal["handed_back", "lost", "failed_try", "task_timeout"]


class RunDoer(TypedDict):
    """The actor of a change to a run. Without authentication, every client is the same `caller`."""

    kind: Literal["caller", "api_key", "worker", "keeper", "gateway", "operator"]
    id: str | None


class RunLastChange(TypedDict):
    """The last change of a run, with its time and actor."""

    what: Literal[
        "submitted", "started", "handed_back", "retrying", "cancel_requested", "completed", "failed", "cancelled"
    ]
    at: float
    by: RunDoer


class RetryPolicy(TypedDict):
    """How often work is tried, and on which failures. Durations are seconds, or text such as `30s`."""

    #: In all, the first try included.
    tries: int
    backoff: NotRequired[Literal["fixed", "linear", "exponential"]]
    delay: NotRequired[float | str]
    max_delay: NotRequired[float | str]
    factor: NotRequired[float | None]
    jitter: NotRequired[float]
    retry_on: NotRequired[list[str]]
    never_on: NotRequired[list[str]]
    deadline: NotRequired[float | str | None]


#: A failed try of a run. `kind` is what the policy decided on, such as `exception:ValueError`, `timeout` or `exit:3`.
RunTry = TypedDict(
    "RunTry",
    {
        "try": int,
        "attempts": list[int],
        "worker_id": str | None,
        "started_at": float | None,
        "ended_at": float,
        "reason": str,
        "error": str | None,
        "kind": str,
    },
)
#: The current try of a run with a retry policy, from 1, or its last one.
_RunTryNumber = TypedDict("_RunTryNumber", {"try": int}, total=False)


class _RunFields(RunPackFields, RunProgramFields, _RunTryNumber, total=False):
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
    cancel_deadline_at: float
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
    result: RunResult
    not_run: list[str]
    letter_id: str
    rerun_ids: list[str]
    not_before: float
    schedule: RunSchedule
    retry: RetryPolicy | None
    max_tries: int
    tries: list[RunTry]
    timeout: float


class StartTime(TypedDict, total=False):
    """When a run may start: at once, unless one of these is given."""

    #: Seconds from acceptance, or text such as `10m` or `1h30m`.
    delay: float | str
    #: Unix seconds, or RFC 3339 text with an offset.
    not_before: float | str


class RunResult(TypedDict, total=False):
    """The result of a completed run."""

    href: str
    content_type: str
    bytes: int
    sha256: str
    #: If it is JSON and small; otherwise `preview` is the beginning of its text.
    value: Any
    preview: str
    truncated: bool
    #: Why it could not be kept: `err_id`, `message` and `message_ja`.
    error: dict[str, str]


class OutputSaved(TypedDict):
    """A result in a local file, complete and checked."""

    path: str
    bytes: int
    sha256: str


class RunOptions(StartTime, total=False):
    """When a run may start, how often it is tried, and how long each try may take."""

    #: A policy, or the short text, as in `3 times, exponential, 2s`. None: no retry, whatever the flow says.
    retry: RetryPolicy | str | None
    #: Seconds, or text such as `5m`.
    timeout: float | str


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
    """An entry of a list. With `include=["full"]` it has all fields of a `RunSnapshot`."""

    run_id: str
    status: RunStatus
    updated_at: float
    flow_name: NotRequired[str]
    heartbeat_at: NotRequired[float]
    params: NotRequired[dict[str, Any]]
    params_preview: NotRequired[str]
    tasks: NotRequired[dict[str, TaskStatus]]


class RunCounts(TypedDict):
    """The matching runs of each status. A number as high as `counted_max` means: at least so many; None: exact."""

    by_status: dict[str, int]
    counted_max: int | None


class RunListResponse(TypedDict):
    """One page of runs. For the next page pass `next_cursor` as `cursor`, with the same filters; None: last page."""

    items: list[RunSummary]
    next_cursor: str | None
    counts: NotRequired[RunCounts]


class RunTasks(TypedDict):
    """The tasks of a run and their records."""

    run_id: str
    flow_name: str
    status: RunStatus
    tasks: dict[str, TaskStatus]
    task_records: dict[str, dict[str, Any]]
    task_records_truncated: bool


class RunWatchEvent(TypedDict):
    """The run as it was at `ts`. A `heartbeat` means that nothing has changed."""

    event: Literal["snapshot", "heartbeat"]
    run_id: str
    snapshot: RunSnapshot
    ts: float


class RunChange(TypedDict, total=False):
    """The changes of a repeated submission. `params` are merged over the old ones; only for named flows."""

    params: dict[str, Any]
    tag: str
    tags: list[str]
    #: As of `RunOptions`.
    delay: float | str
    not_before: float | str
    retry: RetryPolicy | str | None
    timeout: float | str


class RunBatchItem(TypedDict):
    """One submission of a batch, with its own idempotency key."""

    flow_name: str
    params: NotRequired[dict[str, Any] | None]
    tag: NotRequired[str | None]
    tags: NotRequired[list[str] | None]
    #: As of `RunOptions`.
    delay: NotRequired[float | str | None]
    not_before: NotRequired[float | str | None]
    retry: NotRequired[RetryPolicy | str | None]
    timeout: NotRequired[float | str | None]
    idempotency_key: NotRequired[str | None]


class RunBatchLine(TypedDict):
    """The outcome of one item: `run_id` and `status`, or `error` and the `status_code` of a single submission."""

    index: int
    run_id: NotRequired[str]
    status: NotRequired[Literal["PENDING"]]
    replayed: NotRequired[bool]
    warning: NotRequired[str]
    error: NotRequired[ErrorBody]
    status_code: NotRequired[int]


class RunBatchAnswer(TypedDict):
    """The outcome of each item, in the order of submission."""

    accepted: int
    refused: int
    items: list[RunBatchLine]


class RunsCancelledBy(TypedDict, total=False):
    """Which runs to cancel: a filter (all conditions must match), `run_ids`, or `all=True`; and the `reason`."""

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
    """The outcome of the request, as counts."""

    matched: int
    asked: int
    already_cancelling: int
    already_ended: int
    not_found: int
    failed: int
    more: bool
