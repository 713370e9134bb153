"""`/schedules/{name}/…`: trigger, backfill, preview and history."""

from __future__ import annotations

import asyncio
from datetime import tzinfo
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.schedules.backfill import TICKS_MAX, backfill_schedule
from pyoco_server.actions.schedules.reach import find_schedule
from pyoco_server.actions.schedules.read_schedules import HistoryPosition, TickFilter, read_ticks, statuses
from pyoco_server.actions.schedules.trigger import trigger_schedule
from pyoco_server.core.durations import instant_of
from pyoco_server.core.schedules import progress
from pyoco_server.core.schedules.reading import read_schedule
from pyoco_server.core.schedules.record import Definition, Overlap
from pyoco_server.core.schedules.when import local_text
from pyoco_server.core.schedules.zones import zone_of
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.reading import read_document, read_query
from pyoco_server.doors.http.requests import read_body, wrong
from pyoco_server.doors.http.schedule_shapes import (
    PreviewItem,
    ScheduleBackfilled,
    ScheduleBackfillRequest,
    SchedulePreview,
    SchedulePreviewQuery,
    SchedulePreviewRequest,
    ScheduleTicks,
    ScheduleTicksQuery,
    ScheduleTriggered,
    ScheduleTriggerRequest,
)
from pyoco_server.doors.http.schedules import NAME, offer_of, shown_entry
from pyoco_server.doors.http.shapes import Answer, Body
from pyoco_server.doors.http.state import caller_of, state_of
from pyoco_server.doors.http.submissions import KEY_PARAMETER, read_key
from pyoco_server.doors.http.tokens import read_token, write_token

__all__ = ["OPERATIONS"]


async def trigger_schedule_by_name(request: Request) -> Response:
    """SCHED-27"""
    state, caller = state_of(request), caller_of(request)
    key, body = read_key(request), await read_body(request)
    params = (read_document(ScheduleTriggerRequest, body).params if body.strip() else None) or {}
    triggered = await trigger_schedule(state.backend, caller, request.path_params["name"], params, key)
    state.note_revision(await state.backend.runs.newest())
    return json_answer(ScheduleTriggered(triggered.run_id, triggered.status, dict(triggered.mark)))


async def backfill_schedule_by_name(request: Request) -> Response:
    """SCHED-28"""
    state, caller, name = state_of(request), caller_of(request), request.path_params["name"]
    asked = read_document(ScheduleBackfillRequest, await read_body(request))
    zone = zone_of((await find_schedule(state.backend, caller, name)).schedule.definition.timezone)
    begin, end = (_instant(value, ("body", at), zone) for at, value in (("from", asked.begin), ("to", asked.end)))
    done = await backfill_schedule(state.backend, caller, name, begin, end, Overlap(asked.overlap))
    state.note_revision(await state.backend.runs.newest())
    return json_answer(ScheduleBackfilled(**vars(done)))


def _instant(value: object, loc: tuple[str, ...], zone: tzinfo) -> float:
    try:
        return instant_of(value, zone)
    except ValueError as error:
        raise wrong(loc, str(error), "value") from error


async def preview_schedule_by_name(request: Request) -> Response:
    """SCHED-29"""
    backend = state_of(request).backend
    asked = read_query(SchedulePreviewQuery, request.query_params).checked()
    schedule = (await find_schedule(backend, caller_of(request), request.path_params["name"])).schedule
    begin = backend.clock() if asked.begin is None else float(asked.begin)
    return json_answer(SchedulePreview(await asyncio.to_thread(_preview, schedule.definition, begin, asked.n)))


async def preview_schedule(request: Request) -> Response:
    """SCHED-29: of a schedule that need not exist. Its name may be left out."""
    backend = state_of(request).backend
    body = await read_body(request)
    asked = read_document(_Preview, body)
    definition = read_schedule(
        asked.schedule, backend.clock(), offer_of(request), ("body", "schedule"), name=_name_of(asked.schedule)
    )
    begin = backend.clock()
    if asked.begin is not None:
        begin = _instant(asked.begin, ("body", "from"), zone_of(definition.timezone))
    return json_answer(SchedulePreview(await asyncio.to_thread(_preview, definition, begin, asked.n)))


class _Preview(SchedulePreviewRequest):
    """The request, but for the schedule, which the core reads."""

    schedule: Any


def _name_of(document: object) -> str | None:
    return None if isinstance(document, dict) and document.get("name") is not None else "unnamed"


def _preview(definition: Definition, begin: float, count: int) -> list[PreviewItem]:
    """For a thread: ticks that are years apart take long to find."""
    zone = zone_of(definition.timezone)
    return [
        PreviewItem(tick.at, local_text(tick.at, zone), tick.dst, tick.at + definition.jitter)
        for tick in progress.preview(definition, begin, count)
    ]


async def get_schedule_ticks(request: Request) -> Response:
    """SCHED-30"""
    backend, caller, name = state_of(request).backend, caller_of(request), request.path_params["name"]
    asked = read_query(ScheduleTicksQuery, request.query_params).checked()
    begin, end = (None if each is None else float(each) for each in (asked.begin, asked.end))
    wanted = TickFilter(asked.outcome, begin, end)
    filters = ["ticks", caller.tenant_id, name, *vars(wanted).values()]
    after = None
    if asked.cursor is not None:
        after = HistoryPosition(*read_token(asked.cursor, filters, tuple[float, int]))
    page, following = await read_ticks(backend, caller, name, wanted, asked.limit, after)
    found = await statuses(backend, page)
    token = None if following is None else write_token([following.handled_at, following.tick], filters)
    items = [shown_entry(entry, found) for entry in page]
    return json_answer({"items": items, "next_cursor": token}, headers={"Cache-Control": "private, no-cache"})


_TAGS = ("schedules",)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="POST",
        path="/schedules/preview",
        endpoint=preview_schedule,
        summary="Preview the ticks of a schedule that need not exist",
        description="`from` is included. Clock changes are marked.",
        body=Body(SchedulePreviewRequest),
        answer=Answer(SchedulePreview, "The next ticks."),
        errors=(413,),
        tags=_TAGS,
    ),
    Operation(
        method="GET",
        path="/schedules/{name}/preview",
        endpoint=preview_schedule_by_name,
        summary="Preview the ticks of a schedule",
        parameters=(NAME,),
        query=SchedulePreviewQuery,
        answer=Answer(SchedulePreview, "The next ticks, also of a paused schedule."),
        errors=(404,),
        tags=_TAGS,
    ),
    Operation(
        method="GET",
        path="/schedules/{name}/ticks",
        endpoint=get_schedule_ticks,
        summary="Read what became of the ticks",
        description="Newest first. The newest `PYOCO_SCHEDULE_HISTORY` entries are kept. More than 100 missed ticks in "
        "a row are one entry.",
        parameters=(NAME,),
        query=ScheduleTicksQuery,
        answer=Answer(ScheduleTicks, "The history."),
        errors=(404,),
        tags=_TAGS,
    ),
    Operation(
        method="POST",
        path="/schedules/{name}/trigger",
        endpoint=trigger_schedule_by_name,
        summary="Run a schedule now",
        description="Beside its ticks: also while it is paused, and whatever else runs. `scheduled_time` is now.",
        parameters=(NAME, KEY_PARAMETER),
        body=Body(ScheduleTriggerRequest, required=False),
        answer=Answer(ScheduleTriggered, "The run is recorded and queued."),
        errors=(402, 404, 409, 413),
        tags=_TAGS,
    ),
    Operation(
        method="POST",
        path="/schedules/{name}/backfill",
        endpoint=backfill_schedule_by_name,
        summary="Run past ticks that have no run",
        description=f"Ticks in [`from`, `to`), at most {TICKS_MAX:,}; `to` is not after now. A tick that has a run is "
        "left alone, so it may be repeated.",
        parameters=(NAME,),
        body=Body(ScheduleBackfillRequest),
        answer=Answer(ScheduleBackfilled, "What became of the ticks."),
        errors=(404, 413),
        tags=_TAGS,
    ),
)
