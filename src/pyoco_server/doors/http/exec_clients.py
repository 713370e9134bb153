"""`/exec/clients/{client_id}`: the cap on a client's concurrent jobs."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.programs.admit import admit_client, admit_key_of_operator, is_operator
from pyoco_server.actions.programs.set_cap import set_cap
from pyoco_server.actions.programs.show_cap import show_cap
from pyoco_server.core.frames.reading import Fields
from pyoco_server.core.names import TAG_LENGTH_MAX, TAG_PATTERN, is_tag
from pyoco_server.core.programs.admission import CAP_MAX
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.names import check_client_id, check_group, client_key
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.requests import read_body
from pyoco_server.doors.http.state import caller_of, programs_of, state_of

__all__ = ["CLIENT_ID", "GROUP", "OPERATIONS", "SCHEMAS", "group_of"]


async def get_client_cap(request: Request) -> Response:
    return json_answer(vars(show_cap(programs_of(request), *_client(request))))


async def put_client_cap(request: Request) -> Response:
    group, client = _client(request)
    cap = Fields.of(await read_body(request)).whole("cap", 1, CAP_MAX)
    await set_cap(state_of(request).backend, group, client, cap, "http")
    return json_answer(vars(show_cap(programs_of(request), group, client)))


def _client(request: Request) -> tuple[str, str]:
    """Return the group and the client within the caller's own tenant (SAFE-4). Raises GridRefused.

    Readable and writable with a key that may act as this client; operators may name any client and another tenant.
    """
    programs, caller = programs_of(request), caller_of(request)
    client_id = check_client_id(request.path_params["client_id"], "client_id")
    group = group_of(request)
    if not is_operator(programs, caller):
        admit_client(programs, caller, client_id, None, group)
    tenant_id = request.query_params.get("tenant", caller.tenant_id)
    if tenant_id != caller.tenant_id:
        admit_key_of_operator(programs, caller)
        if tenant_id is not None and not is_tag(tenant_id):
            raise GridRefused(Code.BAD_SCHEMA, "tenant must be 1 to 128 letters, digits, '_' or '-'", field="tenant")
    return group, client_key(client_id, tenant_id)


def group_of(request: Request) -> str:
    """Return the group of the query; by default the gateway's own. Raises GridRefused."""
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
        "How many jobs of a client may run at once in a group, who set that cap, and how many are running.",
    ),
    "ExecClientCap": schemas.object_of({"cap": _CAP}, ["cap"], "The new cap."),
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
_TENANT = schemas.query(
    "tenant",
    {"type": "string", "pattern": TAG_PATTERN, "maxLength": TAG_LENGTH_MAX},
    "The client of this tenant, for operators' keys; the caller's own tenant unless given.",
)
_WHO = (
    "A client id is one of the caller's tenant: two tenants may use the same one. With authentication on, for keys "
    "that may submit as this client, and for operators (`EXEC_OPERATOR_KEYS`)."
)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/exec/clients/{client_id}",
        endpoint=get_client_cap,
        summary="Read the cap of a client",
        description=f"The default is `EXEC_DEFAULT_CAP`. {_WHO}",
        parameters=(CLIENT_ID, GROUP, _TENANT),
        answer=schemas.json_response(schemas.ref("ExecClient"), "The cap, and how much of it is used."),
        errors=(422,),
        tags=("programs",),
    ),
    Operation(
        method="PUT",
        path="/exec/clients/{client_id}",
        endpoint=put_client_cap,
        summary="Set the cap of a client",
        description="The latest value wins, whether set over HTTP or over TCP. A value above `max_cap` of the client's "
        f"ACL record is lowered to it. Running jobs continue. {_WHO}",
        parameters=(CLIENT_ID, GROUP, _TENANT),
        body=schemas.json_body(schemas.ref("ExecClientCap")),
        answer=schemas.json_response(schemas.ref("ExecClient"), "The cap that is in force now."),
        errors=(413, 422),
        tags=("programs",),
    ),
)
