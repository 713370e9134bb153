"""`/exec/state`: the state of every group in one response."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.programs.show_state import INFLIGHT_MAX, show_state
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.exec_clients import group_of
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.shown_grid import document_of
from pyoco_server.doors.http.state import caller_of, state_of
from pyoco_server.ports.door_records.port import DoorState

__all__ = ["OPERATIONS", "SCHEMAS"]


async def get_exec_state(request: Request) -> Response:
    state = state_of(request)
    group = group_of(request) if "group" in request.query_params else None
    await state.settled()
    await state.letters_settled()
    found = await show_state(state.backend, caller_of(request), group)
    return json_answer(document_of(found, state.backend.config.worker_disconnect_timeout_sec))


_NUMBERS = {"type": "object", "additionalProperties": schemas.COUNT}
_OR_NUMBER = schemas.or_null(schemas.NUMBER)


def _by_name(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": schema}


SCHEMAS: dict[str, Any] = {
    "ExecQueue": schemas.object_of(
        {"queued": schemas.COUNT, "inflight": schemas.COUNT, "oldest_age_seconds": _OR_NUMBER},
        ["queued", "inflight", "oldest_age_seconds"],
        "The jobs of one program that have not ended.",
    ),
    "ExecInflight": schemas.object_of(
        {
            "run_id": schemas.TEXT,
            "job_id": schemas.TEXT,
            "exec": schemas.TEXT,
            "client": schemas.TEXT,
            "worker": schemas.TEXT,
            "status": schemas.STATUS,
            "attempt": schemas.COUNT,
            "since": schemas.NUMBER,
            "heartbeat_at": schemas.NUMBER,
        },
        ["run_id", "job_id", "status", "heartbeat_at"],
        "A running job and its worker.",
    ),
    "ExecDoor": schemas.object_of(
        {
            "door_id": schemas.TEXT,
            "addr": schemas.TEXT,
            "group": schemas.TEXT,
            "state": {"type": "string", "enum": list(DoorState)},
            "started_at": schemas.NUMBER,
            "connections": schemas.COUNT,
        },
        ["door_id", "addr", "group", "state", "started_at", "connections"],
        "A door, as it describes itself.",
    ),
    "ExecWorker": schemas.object_of(
        {
            "worker_id": schemas.TEXT,
            "kind": schemas.TEXT,
            "patterns": schemas.TEXTS,
            "credits": schemas.COUNT,
            "running": schemas.TEXTS,
            "max_parallel": schemas.COUNT,
            "busy": schemas.COUNT,
            "door_id": schemas.TEXT,
            "cpu": schemas.NUMBER,
            "last_seen_at": schemas.NUMBER,
            "state": schemas.TEXT,
        },
        ["worker_id", "running", "last_seen_at", "state"],
        "A worker of programs. Unknown fields are left out.",
    ),
    "ExecReplica": schemas.object_of(
        {"name": schemas.TEXT, "leader": schemas.FLAG, "current": schemas.FLAG, "lag": schemas.COUNT},
        ["name", "leader", "current", "lag"],
        "One copy of a stream.",
    ),
    "ExecLetters": schemas.object_of(
        {"count": schemas.COUNT, "last_sequence": schemas.or_null(schemas.COUNT)},
        ["count", "last_sequence"],
        "The dead letters of a group.",
    ),
    "ExecGroup": schemas.object_of(
        {
            "queues": _by_name(schemas.ref("ExecQueue")),
            "inflight": _by_name(schemas.ref("ExecInflight")),
            "dlq": schemas.ref("ExecLetters"),
            "client_cap": _NUMBERS,
            "client_inflight": _NUMBERS,
            "doors": schemas.array_of(schemas.ref("ExecDoor")),
            "workers": schemas.array_of(schemas.ref("ExecWorker")),
            "replicas": _by_name(schemas.array_of(schemas.ref("ExecReplica"))),
            "p95": _by_name(schemas.NUMBER),
        },
        ["queues", "inflight", "dlq", "client_cap", "client_inflight", "doors", "workers", "replicas", "p95"],
        "One group: `queues` and `p95` by program, `inflight` by JobId, caps by client, `replicas` by stream.",
    ),
    "ExecState": schemas.object_of(
        {"at": schemas.NUMBER, "groups": _by_name(schemas.ref("ExecGroup"))},
        ["at", "groups"],
        "The groups as they were at this instant, by name.",
    ),
}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/exec/state",
        endpoint=get_exec_state,
        summary="Show waiting and running jobs, caps, doors, workers and replicas",
        description="For every known group. Queues, caps, dead letters and running jobs come from durable "
        f"storage: a restart changes none of it. At most {INFLIGHT_MAX} running jobs are listed individually. With "
        "authentication on, all but operators (`EXEC_OPERATOR_KEYS`) see only their own jobs and clients.",
        parameters=(
            schemas.query(
                "group",
                {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,32}$"},
                "Only this group; all groups unless given.",
            ),
        ),
        answer=schemas.json_response(schemas.ref("ExecState"), "The state."),
        errors=(422,),
        tags=("programs",),
    ),
)
