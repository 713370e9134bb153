"""Response and request types of the gateway. Plain dicts; the types are for editors and type checkers.

Responses may have further fields, which are passed through (FLOW-43). Instants are unix seconds.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

__all__ = [
    "Attention",
    "AttentionItem",
    "ErrorBody",
    "Health",
    "Problem",
    "Queue",
    "Queues",
    "Ready",
    "RecentMetrics",
    "WaitingPacks",
    "WorkerPatched",
    "WorkerRecord",
]


class Health(TypedDict):
    """The status that the gateway reports."""

    status: str


class Ready(TypedDict):
    """Whether the gateway accepts work."""

    status: str
    nats: NotRequired[bool]
    index: NotRequired[bool]
    #: Whether the gateway's last write was stored.
    store: NotRequired[bool]
    #: Whether only a restart of NATS would help. Present if the gateway is not ready.
    stuck: NotRequired[bool]
    #: Streams, buckets and object stores that do not exist.
    missing: NotRequired[list[str]]


class Queue(TypedDict):
    """The waiting runs of one tag and the workers that serve it."""

    tag: str
    depth: int
    #: When the oldest waiting run was submitted; None: no run is waiting.
    oldest_at: float | None
    oldest_age_seconds: float | None
    workers_alive: int
    slots: int
    slots_busy: int
    #: The depth ten minutes ago; None: not known yet.
    depth_before: int | None
    #: Runs of this tag that ended per minute; None: not known yet.
    drained_per_minute: float | None
    #: The time until the waiting runs are done at that rate; None: nothing waits, no live worker, or no rate.
    eta_seconds: float | None


class WaitingPacks(TypedDict):
    """The waiting priced runs. Any worker may take them."""

    depth: int
    #: When the oldest waiting run was submitted; None: no run is waiting.
    oldest_at: float | None
    oldest_age_seconds: float | None
    #: Of all tags.
    workers_alive: int


class Queues(TypedDict):
    """The state of all queues at `at`, longest first."""

    at: float
    items: list[Queue]
    #: Missing from older servers.
    packs: NotRequired[WaitingPacks]


#: `from` is a Python keyword and cannot be a class field.
_From = TypedDict("_From", {"from": float})


class RecentMetrics(_From):
    """Metrics in steps of ten seconds, oldest first, by column. None: no value for that step.

    `from` is the start of the first step. All columns have the same length.
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
    """A problem that needs attention. `facts` holds its evidence, which depends on `kind`."""

    kind: str
    level: Literal["danger", "warning"]
    count: int
    message: str
    message_ja: str
    facts: dict[str, Any]


class Attention(TypedDict):
    """The problems that need attention, most urgent first. Empty: the gateway has found none."""

    at: float
    items: list[AttentionItem]


class Problem(TypedDict):
    """One error of a request and its location."""

    loc: list[str | int]
    msg: str
    type: str
    #: Of type `unknown_member`: the known name that is most similar.
    nearest: NotRequired[str | None]


class ErrorBody(TypedDict):
    """The body of every 4xx and 5xx response: `error.response.json()` of an `httpx.HTTPStatusError`."""

    detail: str | list[Problem]
    err_id: str
    msg_id: str
    message: str
    message_ja: str
    errors: NotRequired[list[Problem]]
    #: Of a job that was refused, or whose outcome is unknown.
    code: NotRequired[str]
    job_id: NotRequired[str]
    run_id: NotRequired[str]
    #: The stream, bucket or object store that does not exist.
    resource: NotRequired[str]
    #: The key of a run record that cannot be read.
    key: NotRequired[str]


class WorkerRecord(TypedDict):
    """A worker, as it reports itself; `state` is DISCONNECTED if its heartbeats have stopped."""

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
    busy: NotRequired[int]
    lanes: NotRequired[dict[str, Any] | None]
    running: NotRequired[list[str]]
    current_run_id: NotRequired[str | None]
    last_run_status: NotRequired[str | None]
    stopped_at: NotRequired[float | None]
    stop_reason: NotRequired[str | None]
    host_restarts: NotRequired[int]
    packs: NotRequired[list[str] | None]
    packs_missing: NotRequired[dict[str, str] | None]
    packs_provide: NotRequired[dict[str, list[str]] | None]
    versions: NotRequired[dict[str, str]]
    wheel_sync: NotRequired[dict[str, Any] | None]
    #: The names of the flows that it announces; not in lists.
    flows: NotRequired[list[str]]
    #: It executes no other flows by name.
    flows_complete: NotRequired[bool]


class WorkerPatched(TypedDict):
    """The operator's setting as stored, and when it last changed."""

    worker_id: str
    hidden: bool
    updated_at: float
