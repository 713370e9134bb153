"""`/workers`: the registered workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.hide_worker import hide_worker
from pyoco_server.actions.list_workers import SeenWorker, WorkerFilter, list_workers, see_worker
from pyoco_server.core.names import WORKER_ID_LENGTH_MAX
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import ALIVE
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.reading import read_query
from pyoco_server.doors.http.requests import Malformed, read_body
from pyoco_server.doors.http.shapes import Absent, Answer, Body, one_of
from pyoco_server.doors.http.shapes import Request as Shape
from pyoco_server.doors.http.state import state_of
from pyoco_server.errors import InvalidWorkersRequest, Problem

__all__ = ["OPERATIONS"]

LIMIT_MAX = 500
_BODY_BYTES_MAX = 64 * 1024
_SCOPES = {"active": ALIVE, "all": frozenset(WorkerState)}


class MalformedWorkersRequest(InvalidWorkersRequest, Malformed):
    """Invalid request. The response lists every problem with its location."""


class WorkerPatchRequest(msgspec.Struct):
    """Whether lists leave it out. Other members are ignored."""

    hidden: bool


class WorkerPatched(msgspec.Struct):
    """The stored flag, and when it last changed."""

    worker_id: str
    hidden: bool
    updated_at: float


class Worker(msgspec.Struct, kw_only=True):
    """A worker, as it describes itself; `state` is DISCONNECTED without recent heartbeats. Times are unix seconds."""

    worker_id: str
    instance_id: str | Absent = UNSET
    state: Annotated[str, one_of(WorkerState)]
    hidden: bool
    updated_at: float | Absent | None = UNSET
    last_seen_at: float
    last_heartbeat_at: float | Absent = UNSET
    heartbeat_at: float | Absent = UNSET
    last_pull_at: float | Absent | None = UNSET
    tags: Sequence[str]
    slots: int | Absent = UNSET
    busy: int | Absent = UNSET
    lanes: Mapping[str, Any] | Absent | None = UNSET
    running: Sequence[str] | Absent = UNSET
    current_run_id: str | Absent | None = UNSET
    last_run_status: str | Absent | None = UNSET
    stopped_at: float | Absent | None = UNSET
    stop_reason: str | Absent | None = UNSET
    host_restarts: int | Absent = UNSET
    packs: Sequence[str] | Absent | None = UNSET
    packs_missing: Mapping[str, Any] | Absent | None = UNSET
    packs_provide: Mapping[str, Any] | Absent | None = UNSET
    versions: Mapping[str, Any] | Absent = UNSET
    wheel_sync: Mapping[str, Any] | Absent | None = UNSET
    flows: (
        Annotated[Sequence[str], Meta(description="The names of the flows that it announces; not in lists.")] | Absent
    ) = UNSET
    flows_complete: Annotated[bool, Meta(description="It executes no other flows by name.")] | Absent = UNSET


_read_patch = msgspec.json.Decoder(WorkerPatchRequest).decode


async def get_workers(request: Request) -> Response:
    seen = await list_workers(state_of(request).backend, read_workers_query(request.query_params))
    return json_answer([_shown(each) for each in seen])


async def get_worker(request: Request) -> Response:
    seen = await see_worker(state_of(request).backend, request.path_params["worker_id"])
    shown = _shown(seen)
    if seen.record.announces:
        shown.flows = [flow.name for flow in seen.record.flows]  # too many for a list of workers
    return json_answer(shown)


async def patch_worker(request: Request) -> Response:
    hidden = read_hidden(await read_body(request, _BODY_BYTES_MAX))
    record = await hide_worker(state_of(request).backend, request.path_params["worker_id"], hidden)
    assert record.updated_at is not None  # set by the change
    return json_answer(WorkerPatched(record.worker_id, record.hidden, record.updated_at))


class WorkersQuery(Shape):
    """FLOW-136 to FLOW-139."""

    scope: Annotated[
        str,
        one_of(
            _SCOPES,
            description="`active`: workers that are RUNNING or IDLE. `all`: stopped and disconnected ones, too.",
        ),
    ] = "active"
    state: (
        Annotated[str, one_of(WorkerState, description="Exact state, within the scope: use it with `scope=all`.")]
        | None
    ) = None
    include_hidden: Annotated[bool, Meta(description="Hidden workers, too.")] = False
    tag: Annotated[str, Meta(description="Workers that serve this tag.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="How many.")] = LIMIT_MAX


def read_workers_query(query: QueryParams) -> WorkerFilter:
    """Raises MalformedWorkersRequest with every bad value and unknown name (FLOW-142, STRICT-3)."""
    asked = read_query(WorkersQuery, query).checked(MalformedWorkersRequest)
    states = _SCOPES[asked.scope]
    if asked.state is not None:
        states &= {WorkerState(asked.state)}  # FLOW-137: both conditions hold
    return WorkerFilter(states=states, include_hidden=asked.include_hidden, tag=asked.tag, limit=asked.limit)


def read_hidden(body: bytes) -> bool:
    """FLOW-143: only a JSON boolean is valid. Raises MalformedWorkersRequest."""
    try:
        return _read_patch(body).hidden
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        is_field = isinstance(error, msgspec.ValidationError) and "hidden" in str(error)
        message = "must be true or false" if is_field else 'must be an object, for example {"hidden": true}'
        loc = ("body", "hidden") if is_field else ("body",)
        raise MalformedWorkersRequest(message, problems=(Problem(loc, message, "type"),)) from error


def _shown(seen: SeenWorker) -> Worker:
    """FLOW-140. Unknown values are null."""
    record = seen.record
    return Worker(
        worker_id=record.worker_id,
        instance_id=record.instance_id,
        state=seen.state,
        hidden=record.hidden,
        updated_at=record.updated_at,
        last_seen_at=record.last_seen_at,
        last_heartbeat_at=record.last_heartbeat_at,
        heartbeat_at=record.last_heartbeat_at,
        last_pull_at=record.last_pull_at,
        tags=record.tags,
        slots=record.slots,
        busy=record.load.busy,
        running=record.running,
        current_run_id=record.current_run_id,
        last_run_status=record.last_run_status,
        stopped_at=record.stopped_at,
        stop_reason=record.stop_reason,
        host_restarts=record.host_restarts,
        packs=record.packs,
        **{name: value for name in _OPTIONAL if (value := getattr(record, name)) is not None},
        versions=record.versions,
        wheel_sync=record.wheel_sync,
        flows_complete=record.flows_complete if record.announces else UNSET,
    )


#: Not reported by older workers, or only by those that check the requirements of their packs.
_OPTIONAL = ("lanes", "packs_missing", "packs_provide")
_PATH_WORKER_ID = {
    "name": "worker_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1, "maxLength": WORKER_ID_LENGTH_MAX},
    "description": "The name the worker was started with.",
}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/workers",
        endpoint=get_workers,
        summary="List workers, most recently seen first",
        description="Workers belong to no tenant: every caller with access sees all of them.",
        query=WorkersQuery,
        answer=Answer(list[Worker], "The workers."),
        errors=(422,),
        tags=("workers",),
    ),
    Operation(
        method="GET",
        path="/workers/{worker_id}",
        endpoint=get_worker,
        summary="Read a worker, hidden or not",
        parameters=(_PATH_WORKER_ID,),
        unknown_error=MalformedWorkersRequest,
        answer=Answer(Worker, "The worker."),
        errors=(404,),
        tags=("workers",),
    ),
    Operation(
        method="PATCH",
        path="/workers/{worker_id}",
        endpoint=patch_worker,
        summary="Hide a worker from lists, or show it again",
        description="For display only: a hidden worker continues to take jobs. Heartbeats and restarts keep the flag.",
        parameters=(_PATH_WORKER_ID,),
        unknown_error=MalformedWorkersRequest,
        body=Body(WorkerPatchRequest),
        answer=Answer(WorkerPatched, "Stored."),
        errors=(404, 413, 422),
        tags=("workers",),
    ),
)
