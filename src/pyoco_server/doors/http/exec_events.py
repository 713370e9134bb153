"""`/exec/events`: the event history of jobs."""

from __future__ import annotations

from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.programs.list_events import EventsWanted, list_events
from pyoco_server.core.programs.faults import GridRefused
from pyoco_server.core.programs.names import is_group, read_job_id
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.requests import MalformedQuery
from pyoco_server.doors.http.state import caller_of, state_of
from pyoco_server.errors import Problem
from pyoco_server.ports.program_events.port import EventName

__all__ = ["OPERATIONS", "SCHEMAS"]

_LIMIT_DEFAULT, _LIMIT_MAX = 100, 1000
_ONCE = ("job_id", "event", "group", "limit")


async def get_events(request: Request) -> Response:
    found = await list_events(state_of(request).backend, caller_of(request), _wanted(request.query_params))
    return json_answer({"items": [_shown(vars(event)) for event in found]})


def _shown(event: dict[str, Any]) -> dict[str, Any]:
    """Leave out unknown values."""
    return {name: value for name, value in event.items() if value is not None}


def _wanted(query: QueryParams) -> EventsWanted:
    """Raises MalformedQuery with every bad value."""
    problems = [_problem(name, "is given more than once") for name in _ONCE if len(query.getlist(name)) > 1]
    job_id = query.get("job_id")
    if job_id is not None:
        try:
            job_id = read_job_id(job_id)
        except GridRefused as error:
            problems.append(_problem("job_id", error.message))
    event, group = query.get("event"), query.get("group")
    if event is not None and event not in set(EventName):
        problems.append(_problem("event", f"must be one of {', '.join(EventName)}"))
    if group is not None and not is_group(group):
        problems.append(_problem("group", "must be 1 to 32 letters, digits, '_' or '-'"))
    text = query.get("limit", str(_LIMIT_DEFAULT))
    limit = int(text) if text.isascii() and text.isdecimal() and len(text) < 5 else 0
    if not 1 <= limit <= _LIMIT_MAX:
        problems.append(_problem("limit", f"must be a whole number from 1 to {_LIMIT_MAX}"))
    if problems:
        raise MalformedQuery(problems[0].msg, problems=tuple(problems))
    return EventsWanted(limit=limit, job_id=job_id, event=event, group=group)


def _problem(name: str, message: str) -> Problem:
    return Problem(("query", name), message, "value")


_EVENT = {"type": "string", "enum": list(EventName)}

SCHEMAS: dict[str, Any] = {
    "ExecEvent": schemas.object_of(
        {
            "ts": schemas.NUMBER,
            "event": _EVENT,
            "group": schemas.TEXT,
            "run_id": schemas.TEXT,
            "job_id": schemas.TEXT,
            "exec_name": schemas.TEXT,
            "client_id": schemas.TEXT,
            "attempt": schemas.COUNT,
            "worker_id": schemas.TEXT,
            "holder": schemas.TEXT,
            "detail": schemas.TEXT,
        },
        ["ts", "event", "group", "attempt"],
        "One event. Unknown fields are left out; `ts` is in unix seconds.",
    ),
    "ExecEvents": schemas.object_of(
        {"items": schemas.array_of(schemas.ref("ExecEvent"))}, ["items"], "Events, the newest first."
    ),
}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/exec/events",
        endpoint=get_events,
        summary="List the events of jobs, newest first",
        description="Searches the newest 10,000 events. For information only: the record of the run is authoritative. "
        "With authentication on, all but operators (`EXEC_OPERATOR_KEYS`) must name one of their jobs. Events are off "
        "with `EXEC_EVENTS=0`.",
        parameters=(
            schemas.query("job_id", {"type": "string", "format": "uuid"}, "Events of this job."),
            schemas.query("event", _EVENT, "Events of this kind."),
            schemas.query("group", {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,32}$"}, "Events of this group."),
            schemas.query(
                "limit",
                {"type": "integer", "minimum": 1, "maximum": _LIMIT_MAX, "default": _LIMIT_DEFAULT},
                "How many at most.",
            ),
        ),
        answer=schemas.json_response(schemas.ref("ExecEvents"), "The events."),
        errors=(422,),
        tags=("programs",),
    ),
)
