"""`/exec/clients/{client_id}`: how many jobs of a client may run at once."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.programs.admit import admit_client, is_operator
from pyoco_server.actions.programs.set_cap import set_cap
from pyoco_server.actions.programs.show_cap import show_cap
from pyoco_server.core.frames.reading import Fields
from pyoco_server.core.programs.admission import CAP_MAX
from pyoco_server.core.programs.names import check_client_id, check_group
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.requests import read_body
from pyoco_server.doors.http.state import caller_of, programs_of, state_of

__all__ = ["CLIENT_ID", "GROUP", "OPERATIONS", "SCHEMAS", "group_of"]


async def get_client_cap(request: Request) -> Response:
    return json_answer(vars(show_cap(programs_of(request), *_client(request))))


async def put_client_cap(request: Request) -> Response:
    group, client_id = _client(request)
    cap = Fields.of(await read_body(request)).whole("cap", 1, CAP_MAX)
    await set_cap(state_of(request).backend, group, client_id, cap, "http")
    return json_answer(vars(show_cap(programs_of(request), group, client_id)))


def _client(request: Request) -> tuple[str, str]:
    """Whose cap it is. Who may be that client may read and set it, and an operator any. Raises GridRefused."""
    programs, caller = programs_of(request), caller_of(request)
    client_id = check_client_id(request.path_params["client_id"], "client_id")
    group = group_of(request)
    if not is_operator(programs, caller):
        admit_client(programs, caller, client_id, None, group)
    return group, client_id


def group_of(request: Request) -> str:
    """The group of the query; unless given, the gateway's own. Raises GridRefused."""
    return check_group(request.query_params.get("group", programs_of(request).config.exec_group))


_CAP = {"type": "integer", "minimum": 1, "maximum": CAP_MAX}

SCHEMAS: dict[str, Any] = {
    "ExecClient": schemas.object_of(
        {
            "client_id": schemas.TEXT,
            "group": schemas.TEXT,
            "cap": _CAP,
            "source": {"type": "string", "enum": ["default", "hello", "http"]},
            "updated_at": schemas.or_null(schemas.NUMBER),
            "inflight": schemas.COUNT,
        },
        ["client_id", "group", "cap", "source", "updated_at", "inflight"],
        "How many jobs of a client may run at once in a group, who said so, and how many do.",
    ),
    "ExecClientCap": schemas.object_of({"cap": _CAP}, ["cap"], "How many may."),
}

CLIENT_ID: dict[str, Any] = {
    "name": "client_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
    "description": "The client.",
}
GROUP = schemas.query(
    "group", {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,32}$"}, "The group; the gateway's own unless given."
)
_WHO = "With authentication on, for keys that may submit as this client, and for operators (`EXEC_OPERATOR_KEYS`)."

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/exec/clients/{client_id}",
        endpoint=get_client_cap,
        summary="Read the cap of a client",
        description=f"A client that never said one has `EXEC_DEFAULT_CAP`. {_WHO}",
        parameters=(CLIENT_ID, GROUP),
        answer=schemas.json_response(schemas.ref("ExecClient"), "The cap, and how much of it is used."),
        errors=(422,),
        tags=("programs",),
    ),
    Operation(
        method="PUT",
        path="/exec/clients/{client_id}",
        endpoint=put_client_cap,
        summary="Set the cap of a client",
        description="The last word wins, over HTTP or over TCP. What is above `max_cap` of the client's ACL record is "
        f"lowered to it. What runs goes on. {_WHO}",
        parameters=(CLIENT_ID, GROUP),
        body=schemas.json_body(schemas.ref("ExecClientCap")),
        answer=schemas.json_response(schemas.ref("ExecClient"), "The cap that is in force now."),
        errors=(413, 422),
        tags=("programs",),
    ),
)
