"""Response types for schedules. Plain dicts; the types are for editors and type checkers.

Responses may have further fields, which are passed through. Instants and durations are seconds.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

__all__ = [
    "AskedSchedule",
    "PreviewItem",
    "ScheduleBackfilled",
    "ScheduleCatchUp",
    "ScheduleDeleted",
    "ScheduleList",
    "SchedulePreview",
    "ScheduleShown",
    "ScheduleTick",
    "ScheduleTicks",
    "ScheduleTriggered",
    "ScheduleWhen",
]

Overlap = Literal["skip", "queue_one", "queue_all", "cancel_old", "allow"]


class ScheduleWhen(TypedDict):
    """When it ticks: exactly one of `cron`, `every` and `at`."""

    cron: NotRequired[str]
    every: NotRequired[float | str]
    offset: NotRequired[float | str]
    at: NotRequired[list[float | str]]


class ScheduleCatchUp(TypedDict):
    """What becomes of missed ticks."""

    policy: NotRequired[str]
    window: NotRequired[float | str]


class AskedSchedule(TypedDict):
    """A schedule as its author writes it."""

    what: dict[str, Any]
    when: ScheduleWhen
    name: NotRequired[str]
    timezone: NotRequired[str]
    start_at: NotRequired[float | str | None]
    end_at: NotRequired[float | str | None]
    jitter: NotRequired[float | str]
    overlap: NotRequired[Overlap]
    catch_up: NotRequired[ScheduleCatchUp]
    paused: NotRequired[bool]
    pause_reason: NotRequired[str | None]
    labels: NotRequired[list[str]]
    notify: NotRequired[list[str]]


class ScheduleTick(TypedDict):
    """What became of a tick."""

    tick: int
    due_at: float
    handled_at: float
    source: str
    outcome: str
    run_id: NotRequired[str]
    run_status: NotRequired[str]
    reason: NotRequired[str]
    err_id: NotRequired[str]
    message: NotRequired[str]
    message_ja: NotRequired[str]
    count: NotRequired[int]
    last_tick: NotRequired[int]


class ScheduleShown(TypedDict):
    """A schedule."""

    id: str
    name: str
    what: dict[str, Any]
    when: ScheduleWhen
    timezone: str
    start_at: float | None
    end_at: float | None
    jitter: float
    overlap: str
    catch_up: ScheduleCatchUp
    paused: bool
    pause_reason: str | None
    labels: list[str]
    notify: list[str]
    created_at: float
    updated_at: float
    updated_by: str | None
    tenant_id: NotRequired[str]
    next_ticks: list[int]
    last_tick: NotRequired[ScheduleTick]
    waiting_ticks: int
    overdue: bool
    #: As that of a submission; only in the response to a change.
    warning: NotRequired[str]


class ScheduleList(TypedDict):
    """A page of schedules, by name."""

    items: list[ScheduleShown]
    next_cursor: str | None


class ScheduleTicks(TypedDict):
    """A page of the history, newest first."""

    items: list[ScheduleTick]
    next_cursor: str | None


class ScheduleDeleted(TypedDict):
    """The schedule is gone; its runs stay."""

    name: str
    deleted: Literal[True]


class ScheduleTriggered(TypedDict):
    """The run was submitted."""

    run_id: str
    status: str
    schedule: dict[str, Any]


class ScheduleBackfilled(TypedDict):
    """What became of the ticks of a range."""

    matched: int
    created: int
    waiting: int
    existing: int
    skipped: int
    refused: int


class PreviewItem(TypedDict):
    """A tick that is to come."""

    tick: int
    local: str
    dst: str | None
    latest_at: float


class SchedulePreview(TypedDict):
    """The next ticks."""

    items: list[PreviewItem]
