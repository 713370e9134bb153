"""`/exec/events`: the event history of jobs."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.programs.list_events import EventsWanted, list_events
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.filters import Group, JobId
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.reading import read_query
from pyoco_server.doors.http.requests import Malformed, MalformedQuery
from pyoco_server.doors.http.shapes import Absent, Answer, one_of
from pyoco_server.doors.http.shapes import Request as Shape
from pyoco_server.doors.http.state import caller_of, state_of
from pyoco_server.ports.program_events.port import EventName

__all__ = ["OPERATIONS"]

_LIMIT_DEFAULT, _LIMIT_MAX = 100, 1000


class EventsQuery(Shape):
    job_id: Annotated[JobId, Meta(description="Events of this job.")] | None = None
    event: Annotated[str, one_of(EventName, description="Events of this kind.")] | None = None
    group: Annotated[Group, Meta(description="Events of this group.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=_LIMIT_MAX, description="How many at most.")] = _LIMIT_DEFAULT


class ExecEvent(msgspec.Struct):
    """One event. Unknown fields are left out; `ts` is in unix seconds."""

    ts: float
    event: Annotated[str, one_of(EventName)]
    group: str
    attempt: int
    run_id: str | Absent = UNSET
    job_id: str | Absent = UNSET
    exec_name: str | Absent = UNSET
    client_id: str | Absent = UNSET
    worker_id: str | Absent = UNSET
    holder: str | Absent = UNSET
    detail: str | Absent = UNSET


class ExecEvents(msgspec.Struct):
    """Events, the newest first."""

    items: list[ExecEvent]


async def get_events(request: Request) -> Response:
    asked = read_query(EventsQuery, request.query_params).checked(MalformedQuery, unknown=Malformed)
    wanted = EventsWanted(limit=asked.limit, job_id=asked.job_id, event=asked.event, group=asked.group)
    found = await list_events(state_of(request).backend, caller_of(request), wanted)
    return json_answer(ExecEvents([_shown(vars(event)) for event in found]))


def _shown(event: dict[str, Any]) -> ExecEvent:
    """Leave out unknown values."""
    return ExecEvent(**{name: value for name, value in event.items() if value is not None})


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/exec/events",
        endpoint=get_events,
        summary="List the events of jobs, newest first",
        description="Searches the newest 10,000 events. For information only: the record of the run is authoritative. "
        "With authentication on, all but operators (`EXEC_OPERATOR_KEYS`) must name one of their jobs. Events are off "
        "with `EXEC_EVENTS=0`.",
        query=EventsQuery,
        answer=Answer(ExecEvents, "The events."),
        tags=("programs",),
    ),
)
