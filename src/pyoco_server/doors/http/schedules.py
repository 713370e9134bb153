"""`/schedules`: create, change and read schedules."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.schedules.reach import find_schedule
from pyoco_server.actions.schedules.read_schedules import ScheduleFilter, last_entry, list_schedules, statuses
from pyoco_server.actions.schedules.write import (
    Condition,
    Written,
    create_schedule,
    delete_schedule,
    pause_schedule,
    put_schedule,
    resume_schedule,
)
from pyoco_server.core.schedules import progress
from pyoco_server.core.schedules.reading import read_schedule
from pyoco_server.core.schedules.record import Definition, Entry, Schedule, etag_of
from pyoco_server.core.schedules.what import Offer
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.reading import read_document, read_query
from pyoco_server.doors.http.requests import decode, has_already, read_body, wrong
from pyoco_server.doors.http.schedule_shapes import (
    AskedSchedule,
    ScheduleDeleted,
    ScheduleList,
    SchedulePauseRequest,
    ScheduleShown,
    SchedulesQuery,
)
from pyoco_server.doors.http.shapes import Answer, Body
from pyoco_server.doors.http.state import caller_of, state_of
from pyoco_server.doors.http.submissions import KEY_PARAMETER, REPLAYED, read_key
from pyoco_server.doors.http.tokens import read_token, write_token
from pyoco_server.doors.http.v1.submissions import here_of
from pyoco_server.ports.backend import GatewayBackend

__all__ = ["NAME", "OPERATIONS", "offer_of", "read_object", "shown_entry", "shown_schedule"]

_NEXT = 5
_PRIVATE = {"Cache-Control": "private, no-cache"}


async def post_schedule(request: Request) -> Response:
    """SCHED-21"""
    backend, caller = state_of(request).backend, caller_of(request)
    key = read_key(request)
    definition = await _read(request, None)
    written = await create_schedule(backend, caller, definition, key)
    return await _written(backend, written)


async def put_schedule_by_name(request: Request) -> Response:
    """SCHED-24"""
    backend, caller = state_of(request).backend, caller_of(request)
    condition = _condition(request)
    definition = await _read(request, request.path_params["name"])
    return await _written(backend, await put_schedule(backend, caller, definition, condition))


async def _written(backend: GatewayBackend, written: Written) -> Response:
    schedule = written.schedule
    headers = {"ETag": etag_of(schedule)}
    if written.is_new or written.replayed:
        headers["Location"] = f"/schedules/{schedule.name}"
    if written.replayed:
        headers |= REPLAYED
    status = 201 if written.is_new or written.replayed else 200
    shown = await shown_schedule(backend, schedule)
    if written.warning is not None:
        shown["warning"] = written.warning
    return json_answer(shown, status, headers)


async def get_schedules(request: Request) -> Response:
    """SCHED-22"""
    backend, caller = state_of(request).backend, caller_of(request)
    asked = read_query(SchedulesQuery, request.query_params).checked()
    wanted = ScheduleFilter(asked.label, asked.paused, asked.kind, asked.flow)
    filters = ["schedules", caller.tenant_id, *vars(wanted).values()]
    after = "" if asked.cursor is None else str(read_token(asked.cursor, filters, str))
    page, has_more = await list_schedules(backend, caller, wanted, asked.limit, after)
    items = [await shown_schedule(backend, each, with_status=False) for each in page]
    token = write_token(page[-1].name, filters) if has_more else None
    return json_answer({"items": items, "next_cursor": token}, headers=_PRIVATE)


async def get_schedule(request: Request) -> Response:
    """SCHED-23"""
    backend = state_of(request).backend
    schedule = (await find_schedule(backend, caller_of(request), request.path_params["name"])).schedule
    headers = {"ETag": etag_of(schedule), **_PRIVATE}
    if has_already(request, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return json_answer(await shown_schedule(backend, schedule), headers=headers)


async def remove_schedule(request: Request) -> Response:
    """SCHED-25"""
    name = request.path_params["name"]
    await delete_schedule(state_of(request).backend, caller_of(request), name, _condition(request))
    return json_answer(ScheduleDeleted(name, True))


async def pause_schedule_by_name(request: Request) -> Response:
    """SCHED-26"""
    backend, body = state_of(request).backend, await read_body(request)
    reason = read_document(SchedulePauseRequest, body).reason if body.strip() else None
    schedule = await pause_schedule(backend, caller_of(request), request.path_params["name"], reason)
    return json_answer(await shown_schedule(backend, schedule), headers={"ETag": etag_of(schedule)})


async def resume_schedule_by_name(request: Request) -> Response:
    """SCHED-26"""
    backend = state_of(request).backend
    schedule = await resume_schedule(backend, caller_of(request), request.path_params["name"])
    return json_answer(await shown_schedule(backend, schedule), headers={"ETag": etag_of(schedule)})


def _condition(request: Request) -> Condition:
    """Raises Malformed for an `If-None-Match` other than `*`."""
    none_match = ",".join(request.headers.getlist("if-none-match")).strip()
    if none_match not in {"", "*"}:
        raise wrong(("header", "If-None-Match"), "must be * here", "value")
    given = request.headers.getlist("if-match")
    tags = frozenset(each.strip() for each in ",".join(given).split(",") if each.strip()) if given else None
    return Condition(is_new=none_match == "*", matches=tags)


async def _read(request: Request, name: str | None) -> Definition:
    document = await read_object(request)
    return read_schedule(document, state_of(request).backend.clock(), offer_of(request), name=name)


async def read_object(request: Request) -> Any:
    """Return the JSON document of the body. Raises Malformed."""
    return decode(msgspec.json.decode, await read_body(request))


def offer_of(request: Request) -> Offer:
    """Return what the caller may schedule: priced runs need a key of an active tenant."""
    backend, caller = state_of(request).backend, caller_of(request)
    programs = backend.programs
    group = "default" if programs is None else programs.config.exec_group
    priced, tenant_id = backend.priced, caller.tenant_id
    if priced is None or tenant_id is None:
        return Offer(group=group)
    return Offer(group=group, packs=priced.packs, here=here_of(priced, tenant_id))


async def shown_schedule(backend: GatewayBackend, schedule: Schedule, *, with_status: bool = True) -> dict[str, Any]:
    definition, now = schedule.definition, backend.clock()
    shown: dict[str, Any] = {
        name: getattr(definition, name)
        for name in (
            "name",
            "what",
            "timezone",
            "start_at",
            "end_at",
            "jitter",
            "overlap",
            "paused",
            "pause_reason",
            "labels",
        )
    }
    last = last_entry(schedule)
    found = await statuses(backend, [last]) if last is not None and with_status else {}
    shown |= {
        "id": schedule.id,
        "when": {name: value for name, value in definition.when.items() if name != "seconds"},
        "catch_up": {"policy": definition.catch_up, "window": definition.window},
        "notify": [],
        "created_at": schedule.created_at,
        "updated_at": schedule.updated_at,
        "updated_by": schedule.api_key_id,
        "next_ticks": progress.next_ticks(schedule, _NEXT, now),
        "waiting_ticks": len(schedule.waiting),
        "overdue": progress.is_overdue(schedule, now),
    }
    if schedule.tenant_id is not None:
        shown["tenant_id"] = schedule.tenant_id
    if last is not None:
        shown["last_tick"] = shown_entry(last, found)
    return shown


def shown_entry(entry: Entry, found: dict[str, str]) -> dict[str, Any]:
    shown = {name: value for name, value in asdict(entry).items() if value is not None}
    status = found.get(entry.run_id or "")
    return shown | ({} if status is None else {"run_status": status})


NAME: dict[str, Any] = {
    "name": "name",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"},
    "description": "The name of a schedule of the caller's tenant.",
}
_IF_MATCH: dict[str, Any] = {
    "name": "If-Match",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "The `ETag` of the version that is meant, or `*`.",
}
_IF_NONE: dict[str, Any] = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "enum": ["*"]},
    "description": "`*`: only if there is none.",
}
_TAGS = ("schedules",)
_SCHEDULE = Answer(ScheduleShown, "The schedule, with its `ETag`.")
_WRITER = "Its runs have the tenant and the rights of the key that wrote it last."

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="POST",
        path="/schedules",
        endpoint=post_schedule,
        summary="Create a schedule",
        description=f"{_WRITER} 409 if its name is taken, or above `PYOCO_SCHEDULES_MAX`.",
        parameters=(KEY_PARAMETER,),
        body=Body(AskedSchedule),
        status=201,
        answer=Answer(ScheduleShown, "Created, with `ETag` and `Location`."),
        errors=(409, 413),
        tags=_TAGS,
    ),
    Operation(
        method="GET",
        path="/schedules",
        endpoint=get_schedules,
        summary="List schedules, by name",
        query=SchedulesQuery,
        answer=Answer(ScheduleList, "The schedules of the caller's tenant."),
        tags=_TAGS,
    ),
    Operation(
        method="GET",
        path="/schedules/{name}",
        endpoint=get_schedule,
        summary="Read a schedule",
        parameters=(NAME, schemas.IF_NONE_MATCH),
        answer=_SCHEDULE,
        more_answers={304: "`If-None-Match` matches: nothing that is stored has changed."},
        errors=(404,),
        tags=_TAGS,
    ),
    Operation(
        method="PUT",
        path="/schedules/{name}",
        endpoint=put_schedule_by_name,
        summary="Create or replace a schedule",
        description="The whole schedule. `If-None-Match: *` only creates, `If-Match` only replaces; without either it "
        f"creates, and is refused with 428 if there is one. Equal content changes nothing. {_WRITER}",
        parameters=(NAME, _IF_MATCH, _IF_NONE),
        body=Body(AskedSchedule),
        answer=_SCHEDULE,
        other_answers={201: Answer(ScheduleShown, "Created.")},
        errors=(409, 412, 413, 428),
        tags=_TAGS,
    ),
    Operation(
        method="DELETE",
        path="/schedules/{name}",
        endpoint=remove_schedule,
        summary="Delete a schedule",
        description="Its waiting ticks are dropped; its runs stay.",
        parameters=(NAME, _IF_MATCH),
        answer=Answer(ScheduleDeleted, "Deleted."),
        errors=(404, 412),
        tags=_TAGS,
    ),
    Operation(
        method="POST",
        path="/schedules/{name}/pause",
        endpoint=pause_schedule_by_name,
        summary="Pause a schedule",
        description="While it is paused no tick happens, and none is made up for later. Ticks that wait still start.",
        parameters=(NAME,),
        body=Body(SchedulePauseRequest, required=False),
        answer=_SCHEDULE,
        errors=(404, 413),
        tags=_TAGS,
    ),
    Operation(
        method="POST",
        path="/schedules/{name}/resume",
        endpoint=resume_schedule_by_name,
        summary="Resume a schedule",
        parameters=(NAME,),
        answer=_SCHEDULE,
        errors=(404,),
        tags=_TAGS,
    ),
)
