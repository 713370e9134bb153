"""All requests about schedules, as values; the counterpart of `calls.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyoco_server.client.calls import Call, json_call, key_header, only_given, path_to, policy_of_text
from pyoco_server.client.schedule_results import (
    ScheduleBackfilled,
    ScheduleDeleted,
    ScheduleList,
    SchedulePreview,
    ScheduleShown,
    ScheduleTicks,
    ScheduleTriggered,
)

__all__ = [
    "backfill_schedule",
    "create_schedule",
    "delete_schedule",
    "get_schedule",
    "list_schedule_ticks",
    "list_schedules",
    "pause_schedule",
    "preview_new_schedule",
    "preview_schedule",
    "put_schedule",
    "resume_schedule",
    "trigger_schedule",
    "with_policy",
]


def with_policy(schedule: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schedule with the policy that a short text stands for. Raises ValueError."""
    what = schedule.get("what")
    if not isinstance(what, Mapping) or not isinstance(what.get("retry"), str):
        return schedule
    return {**schedule, "what": {**what, "retry": policy_of_text(what["retry"])}}


def create_schedule(schedule: Mapping[str, Any], key: str | None) -> Call[ScheduleShown]:
    return json_call("POST", "/schedules", with_policy(schedule), key_header(key))


def list_schedules(filters: Mapping[str, Any]) -> Call[ScheduleList]:
    return Call(method="GET", path="/schedules", query=only_given(filters))


def get_schedule(name: str) -> Call[ScheduleShown]:
    return Call(method="GET", path=path_to("schedules", name))


def put_schedule(name: str, schedule: Mapping[str, Any], match: str | None, *, new: bool) -> Call[ScheduleShown]:
    headers = ({} if match is None else {"If-Match": match}) | ({"If-None-Match": "*"} if new else {})
    return json_call("PUT", path_to("schedules", name), with_policy(schedule), headers)


def delete_schedule(name: str, match: str | None) -> Call[ScheduleDeleted]:
    headers = {} if match is None else {"If-Match": match}
    gone: ScheduleDeleted = {"name": name, "deleted": True}
    return Call(method="DELETE", path=path_to("schedules", name), headers=headers, if_gone=gone)


def pause_schedule(name: str, reason: str | None) -> Call[ScheduleShown]:
    return json_call("POST", path_to("schedules", name, "pause"), only_given({"reason": reason}))


def resume_schedule(name: str) -> Call[ScheduleShown]:
    return Call(method="POST", path=path_to("schedules", name, "resume"))


def trigger_schedule(name: str, params: Mapping[str, Any] | None, key: str | None) -> Call[ScheduleTriggered]:
    return json_call("POST", path_to("schedules", name, "trigger"), only_given({"params": params}), key_header(key))


def backfill_schedule(name: str, asked: Mapping[str, Any]) -> Call[ScheduleBackfilled]:
    """Safe to repeat: a tick that has a run is left alone."""
    return json_call("POST", path_to("schedules", name, "backfill"), only_given(asked))


def preview_schedule(name: str, query: Mapping[str, Any]) -> Call[SchedulePreview]:
    return Call(method="GET", path=path_to("schedules", name, "preview"), query=only_given(query))


def preview_new_schedule(schedule: Mapping[str, Any], asked: Mapping[str, Any]) -> Call[SchedulePreview]:
    return json_call("POST", "/schedules/preview", only_given(asked) | {"schedule": with_policy(schedule)})


def list_schedule_ticks(name: str, query: Mapping[str, Any]) -> Call[ScheduleTicks]:
    return Call(method="GET", path=path_to("schedules", name, "ticks"), query=only_given(query))
