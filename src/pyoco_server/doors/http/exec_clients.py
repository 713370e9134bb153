"""`/exec/clients/{client_id}`: the cap on a client's concurrent jobs."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.programs.admit import admit_client, admit_key_of_operator, is_operator
from pyoco_server.actions.programs.set_cap import set_cap
from pyoco_server.actions.programs.show_cap import show_cap
from pyoco_server.core.frames.reading import Fields
from pyoco_server.core.programs.admission import CAP_MAX
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.names import check_client_id, client_key
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.filters import Group
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.reading import read_query
from pyoco_server.doors.http.requests import read_body
from pyoco_server.doors.http.shapes import Answer, Body, Tag, one_of
from pyoco_server.doors.http.shapes import Request as Shape
from pyoco_server.doors.http.state import caller_of, programs_of, state_of

__all__ = ["CLIENT_ID", "OPERATIONS", "read_program_query"]


S = TypeVar("S", bound=Shape)


class ClientQuery(Shape):
    group: Annotated[Group, Meta(description="The group; the gateway's own unless given.")] | None = None
    tenant: (
        Annotated[
            Tag,
            Meta(description="The client of this tenant, for operators' keys; the caller's own tenant unless given."),
        ]
        | None
    ) = None


Cap = Annotated[int, Meta(ge=1, le=CAP_MAX)]


class ExecClientCap(msgspec.Struct):
    """The new cap."""

    cap: Cap


class ExecClient(msgspec.Struct):
    """How many jobs of a client may run at once in a group, who set that cap, and how many are running."""

    client_id: str
    group: str
    cap: Cap
    source: Annotated[str, one_of(("default", "hello", "http"))]
    updated_at: float | None
    inflight: int


async def get_client_cap(request: Request) -> Response:
    return json_answer(ExecClient(**vars(show_cap(programs_of(request), *_client(request)))))


async def put_client_cap(request: Request) -> Response:
    group, client = _client(request)
    cap = Fields.of(await read_body(request)).integer("cap", 1, CAP_MAX)
    await set_cap(state_of(request).backend, group, client, cap, "http")
    return json_answer(ExecClient(**vars(show_cap(programs_of(request), group, client))))


def _client(request: Request) -> tuple[str, str]:
    """Return the group and the client within the caller's own tenant (SAFE-4). Raises GridRefused.

    Readable and writable with a key that may act as this client; operators may name any client and another tenant.
    """
    asked = read_program_query(ClientQuery, request)
    programs, caller = programs_of(request), caller_of(request)
    client_id = check_client_id(request.path_params["client_id"], "client_id")
    group = asked.group or programs.config.exec_group
    if not is_operator(programs, caller):
        admit_client(programs, caller, client_id, None, group)
    tenant_id = asked.tenant or caller.tenant_id
    if tenant_id != caller.tenant_id:
        admit_key_of_operator(programs, caller)
    return group, client_key(client_id, tenant_id)


def read_program_query(shape: type[S], request: Request) -> S:
    """Read a query about programs: a bad value has the code of a bad schema. Raises GridRefused, and
    Malformed if a name is unknown."""
    reading = read_query(shape, request.query_params)
    if any(each.type != "unknown_member" for each in reading.problems):
        bad = next(each for each in reading.problems if each.type != "unknown_member")
        raise GridRefused(Code.BAD_SCHEMA, f"{bad.loc[-1]} {bad.msg}", field=str(bad.loc[-1]))
    return reading.checked()


CLIENT_ID: dict[str, Any] = {
    "name": "client_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
    "description": "The client.",
}
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
        parameters=(CLIENT_ID,),
        query=ClientQuery,
        answer=Answer(ExecClient, "The cap, and how much of it is used."),
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
        parameters=(CLIENT_ID,),
        query=ClientQuery,
        body=Body(ExecClientCap),
        answer=Answer(ExecClient, "The cap that is in force now."),
        errors=(413, 422),
        tags=("programs",),
    ),
)
