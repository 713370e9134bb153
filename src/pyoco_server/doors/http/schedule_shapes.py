"""The shapes of schedules: what authors write, and what is answered (section 7 of the contract).

The core reads the body of a schedule (`core/schedules/reading.py`), because instants in it depend on its time zone, and
its problems are told in both languages. The shapes here describe it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from pyoco_server.core.schedules.ids import NAME_RULE
from pyoco_server.core.schedules.record import CatchUp, Kind, Outcome, Overlap, Source
from pyoco_server.doors.http.retries import RunTimeout
from pyoco_server.doors.http.shapes import (
    FLOW_WARNING,
    Absent,
    Count,
    Duration,
    Instant,
    Request,
    RunId,
    Status,
    one_of,
    pattern,
)

__all__ = [
    "AskedSchedule",
    "PreviewItem",
    "ScheduleBackfillRequest",
    "ScheduleBackfilled",
    "ScheduleDeleted",
    "ScheduleList",
    "SchedulePauseRequest",
    "SchedulePreview",
    "SchedulePreviewQuery",
    "SchedulePreviewRequest",
    "ScheduleShown",
    "ScheduleTick",
    "ScheduleTicks",
    "ScheduleTicksQuery",
    "ScheduleTriggerRequest",
    "ScheduleTriggered",
    "SchedulesQuery",
]

PAGE_MAX = 200
PREVIEW_MAX = 1000

Name = Annotated[
    str, pattern("^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$", NAME_RULE, description="Unique in the tenant; not `preview`.")
]
LocalInstant = Annotated[
    Any,
    Meta(
        extra_json_schema={**Instant.schema},
        description="Text without an offset is read in the time zone of the schedule.",
    ),
]


class ScheduleWhen(Request):
    """When it ticks: exactly one of `cron`, `every` and `at`."""

    cron: (
        Annotated[str, Meta(description="5 fields, or 6 with seconds first; `@daily` and such; `@every 15m`.")] | None
    ) = None
    every: Annotated[Duration, Meta(description="1 second to 366 days, in whole seconds.")] | None = None
    offset: Annotated[Duration, Meta(description="With `every`: ticks are that much later.")] | None = None
    at: Annotated[list[LocalInstant], Meta(min_length=1, max_length=1000)] | None = None


class ScheduleCatchUp(Request):
    """What becomes of ticks that were missed while no keeper was there."""

    policy: Annotated[str, one_of(CatchUp)] = CatchUp.LAST.value
    window: (
        Annotated[Duration, Meta(description="Older ones are not run: a day unless given, at most 30 days.")] | None
    ) = None


_WHAT = (
    "`kind`, and the members of a submission of that kind: of `POST /runs` for `flow`; `exec_name`, `args`, "
    "`client_id`, `group` and `timeout_sec` for `exec`; of `POST /v1/runs` for `pack`. Texts in `params`, `args` and "
    "`inputs` may have templates such as `{{ scheduled_time.date }}`. `flow` and `exec` take `retry` and `timeout`."
)
What = Annotated[
    dict[str, Any],
    Meta(
        description=_WHAT,
        extra_json_schema={
            "type": "object",
            "properties": {
                "kind": {"type": "string", "enum": [str(each) for each in Kind]},
                "retry": {"anyOf": [{"$ref": "#/components/schemas/RetryRequest"}, {"type": "null"}]},
                "timeout": {"anyOf": [RunTimeout.schema, {"type": "null"}]},
            },
            "required": ["kind"],
            "additionalProperties": True,
        },
    ),
]


class AskedSchedule(Request):
    """A schedule as its author writes it."""

    what: What
    when: ScheduleWhen
    name: Name | None = None
    timezone: Annotated[str, Meta(description="IANA name.")] = "UTC"
    start_at: LocalInstant | None = None
    end_at: LocalInstant | None = None
    jitter: Annotated[Duration, Meta(description="Runs begin up to this much later, at most an hour.")] | None = None
    overlap: Annotated[
        str, one_of(Overlap, description="What happens to a tick while a run of the schedule has not ended.")
    ] = Overlap.SKIP.value
    catch_up: ScheduleCatchUp = field(default_factory=ScheduleCatchUp)
    paused: bool = False
    pause_reason: Annotated[str, Meta(max_length=4096)] | None = None
    labels: Annotated[list[Annotated[str, Meta(max_length=128)]], Meta(max_length=50)] = field(default_factory=list)
    notify: Annotated[list[str], Meta(max_length=0, description="Reserved.")] = field(default_factory=list)


class ScheduleTick(msgspec.Struct, omit_defaults=True):
    """What became of a tick."""

    tick: Annotated[int, Meta(description="Unix seconds.")]
    due_at: Annotated[float, Meta(description="With the jitter.")]
    handled_at: float
    source: Annotated[str, one_of(Source)]
    outcome: Annotated[str, one_of(Outcome)]
    run_id: RunId | Absent = msgspec.UNSET
    run_status: Annotated[Status, Meta(description="Absent once the run is no longer stored.")] | Absent = msgspec.UNSET
    reason: Annotated[str, Meta(description="`missed`, `overlap`, `queue_full`, or why it was refused.")] | Absent = (
        msgspec.UNSET
    )
    err_id: str | Absent = msgspec.UNSET
    message: str | Absent = msgspec.UNSET
    message_ja: str | Absent = msgspec.UNSET
    count: Annotated[int, Meta(description="Of a series of missed ticks: how many.")] | Absent = msgspec.UNSET
    last_tick: Annotated[int, Meta(description="Of a series: the last of them.")] | Absent = msgspec.UNSET


class ScheduleShown(msgspec.Struct, kw_only=True):
    """A schedule."""

    id: RunId
    name: str
    what: What
    when: ScheduleWhen
    timezone: str
    start_at: float | None
    end_at: float | None
    jitter: float
    overlap: Annotated[str, one_of(Overlap)]
    catch_up: ScheduleCatchUp
    paused: bool
    pause_reason: str | None
    labels: list[str]
    notify: list[str]
    created_at: float
    updated_at: float
    updated_by: Annotated[str, Meta(description="The key id of the last writer.")] | None
    tenant_id: str | Absent = msgspec.UNSET
    next_ticks: Annotated[list[int], Meta(max_length=5, description="The next five; none while paused.")]
    last_tick: ScheduleTick | Absent = msgspec.UNSET
    waiting_ticks: Count
    overdue: Annotated[bool, Meta(description="A tick is due for more than a minute, and not handled.")]
    warning: Annotated[str, Meta(description=FLOW_WARNING)] | Absent = msgspec.UNSET


class SchedulesQuery(Request):
    label: Annotated[str, Meta(max_length=128, description="Only schedules with this label.")] | None = None
    paused: Annotated[bool, Meta(description="Only schedules that are paused, or that are not.")] | None = None
    kind: Annotated[str, one_of(Kind, description="Only schedules of this kind of run.")] | None = None
    flow: Annotated[str, Meta(max_length=512, description="Only schedules of this flow.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="How many at most.")] = 50
    cursor: Annotated[str, Meta(max_length=4096, description="`next_cursor` of the page before.")] | None = None


class ScheduleList(msgspec.Struct):
    """A page of schedules, by name."""

    items: list[ScheduleShown]
    next_cursor: str | None


class ScheduleTicksQuery(Request):
    outcome: Annotated[str, one_of(Outcome, description="Only ticks with this outcome.")] | None = None
    begin: Annotated[Instant, Meta(description="Only ticks from this instant on.")] | None = field(
        default=None, name="from"
    )
    end: Annotated[Instant, Meta(description="Only ticks before this instant.")] | None = field(default=None, name="to")
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="How many at most.")] = 50
    cursor: Annotated[str, Meta(max_length=4096, description="`next_cursor` of the page before.")] | None = None


class ScheduleTicks(msgspec.Struct):
    """A page of the history, newest first."""

    items: list[ScheduleTick]
    next_cursor: str | None


class ScheduleDeleted(msgspec.Struct):
    """The schedule, its history and its waiting ticks are gone; its runs stay."""

    name: str
    deleted: Literal[True]


class SchedulePauseRequest(Request):
    """An optional reason."""

    reason: Annotated[str, Meta(max_length=4096)] | None = None


class ScheduleTriggerRequest(Request):
    """Params, or inputs of a pack, laid over those of the schedule."""

    params: dict[str, Any] | None = None


class ScheduleTriggered(msgspec.Struct):
    """The run was submitted."""

    run_id: RunId
    status: Status
    schedule: Annotated[dict[str, Any], Meta(description="The member `schedule` of the run.")]


class ScheduleBackfillRequest(Request):
    """A range of past ticks."""

    begin: LocalInstant = field(name="from")
    end: LocalInstant = field(name="to")
    overlap: Annotated[str, one_of(Overlap)] = Overlap.QUEUE_ALL.value


class ScheduleBackfilled(msgspec.Struct):
    """What became of the ticks of the range."""

    matched: Count
    created: Annotated[int, Meta(ge=0, description="Runs that were submitted.")]
    waiting: Annotated[int, Meta(ge=0, description="They start when the runs before them have ended.")]
    existing: Annotated[int, Meta(ge=0, description="They had a run before.")]
    skipped: Count
    refused: Count


_PreviewCount = Annotated[int, Meta(ge=1, le=PREVIEW_MAX, description="How many at most.")]


class SchedulePreviewQuery(Request):
    n: _PreviewCount = 10
    begin: Annotated[Instant, Meta(description="From this instant on; now unless given.")] | None = field(
        default=None, name="from"
    )


class SchedulePreviewRequest(Request):
    """A schedule that need not exist."""

    schedule: AskedSchedule
    n: _PreviewCount = 10
    begin: LocalInstant | None = field(default=None, name="from")


class PreviewItem(msgspec.Struct):
    """A tick that is to come."""

    tick: int
    local: Annotated[str, Meta(description="RFC 3339, in the time zone of the schedule.")]
    dst: Annotated[str, one_of(("gap", "fold"), description="Its wall time does not exist, or occurs twice.")] | None
    latest_at: Annotated[float, Meta(description="With the largest jitter.")]


class SchedulePreview(msgspec.Struct):
    """The next ticks."""

    items: list[PreviewItem]
