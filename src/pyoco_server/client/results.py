"""What the gateway answers with, and what some requests are made of. Plain dicts; the types are for the editor.

More fields may come at any time, and pass through (FLOW-43). Instants are unix seconds.
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
    #: Streams, buckets and object stores that do not exist.
    missing: NotRequired[list[str]]


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
    #: Of a job that was refused, or of which nobody knows what became.
    code: NotRequired[str]
    job_id: NotRequired[str]
    run_id: NotRequired[str]
    #: The stream, bucket or object store that does not exist.
    resource: NotRequired[str]
    #: The key of a run record that cannot be read.
    key: NotRequired[str]


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
    packs_missing: NotRequired[dict[str, str] | None]
    packs_provide: NotRequired[dict[str, list[str]] | None]
    versions: NotRequired[dict[str, str]]
    wheel_sync: NotRequired[dict[str, Any] | None]


class WorkerPatched(TypedDict):
    """The operator's word as it is kept, and when it last changed."""

    worker_id: str
    hidden: bool
    updated_at: float
