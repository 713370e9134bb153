"""`/exec/state`: the state of every group in one response."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.programs.show_state import INFLIGHT_MAX, show_state
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.exec_clients import read_program_query
from pyoco_server.doors.http.filters import Group
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.shapes import Absent, Answer, Status, one_of
from pyoco_server.doors.http.shapes import Request as Shape
from pyoco_server.doors.http.shown_grid import document_of
from pyoco_server.doors.http.state import caller_of, state_of
from pyoco_server.ports.door_records.port import DoorState

__all__ = ["OPERATIONS"]


class StateQuery(Shape):
    group: Annotated[Group, Meta(description="Only this group; all groups unless given.")] | None = None


class ExecQueue(msgspec.Struct):
    """The jobs of one program that have not ended."""

    queued: int
    inflight: int
    oldest_age_seconds: float | None


class ExecInflight(msgspec.Struct, kw_only=True):
    """A running job and its worker."""

    run_id: str
    job_id: str
    exec: str | Absent = UNSET
    client: str | Absent = UNSET
    worker: str | Absent = UNSET
    status: Status
    attempt: int | Absent = UNSET
    since: float | Absent = UNSET
    heartbeat_at: float


class ExecDoor(msgspec.Struct):
    """A door, as it describes itself."""

    door_id: str
    addr: str
    group: str
    state: Annotated[str, one_of(DoorState)]
    started_at: float
    connections: int


class ExecWorker(msgspec.Struct, kw_only=True):
    """A worker of programs. Unknown fields are left out."""

    worker_id: str
    kind: str | Absent = UNSET
    patterns: list[str] | Absent = UNSET
    credits: int | Absent = UNSET
    running: list[str]
    max_parallel: int | Absent = UNSET
    busy: int | Absent = UNSET
    door_id: str | Absent = UNSET
    cpu: float | Absent = UNSET
    last_seen_at: float
    state: str


class ExecReplica(msgspec.Struct):
    """One copy of a stream."""

    name: str
    leader: bool
    current: bool
    lag: int


class ExecLetters(msgspec.Struct):
    """The dead letters of a group."""

    count: int
    last_sequence: int | None


class ExecGroup(msgspec.Struct):
    """One group: `queues` and `p95` by program, `inflight` by JobId, caps by client, `replicas` by stream."""

    queues: dict[str, ExecQueue]
    inflight: dict[str, ExecInflight]
    dlq: ExecLetters
    client_cap: dict[str, int]
    client_inflight: dict[str, int]
    doors: list[ExecDoor]
    workers: list[ExecWorker]
    replicas: dict[str, list[ExecReplica]]
    p95: dict[str, float]


class ExecState(msgspec.Struct):
    """The groups as they were at this instant, by name. Commands show the same document, so it is made elsewhere."""

    at: float
    groups: dict[str, ExecGroup]


async def get_exec_state(request: Request) -> Response:
    state = state_of(request)
    group = read_program_query(StateQuery, request).group
    await state.settled()
    await state.dead_letters_settled()
    found = await show_state(state.backend, caller_of(request), group)
    return json_answer(document_of(found, state.backend.config.worker_disconnect_timeout_sec))


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/exec/state",
        endpoint=get_exec_state,
        summary="Show waiting and running jobs, caps, doors, workers and replicas",
        description="For every known group. Queues, caps, dead letters and running jobs come from durable "
        f"storage: a restart changes none of it. At most {INFLIGHT_MAX} running jobs are listed individually. With "
        "authentication on, all but operators (`EXEC_OPERATOR_KEYS`) see only their own jobs and clients.",
        query=StateQuery,
        answer=Answer(ExecState, "The state."),
        errors=(422,),
        tags=("programs",),
    ),
)
