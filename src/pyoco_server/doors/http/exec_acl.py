"""`/exec/acl/{kind}/{id}`: who may submit which program, and who may run it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.programs.acl import ITEMS_MAX, KINDS, read_record, read_subject, shown_record
from pyoco_server.actions.programs.admit import admit_operator
from pyoco_server.core.frames.reading import read_object
from pyoco_server.core.programs.admission import CAP_MAX
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.unknown import unknown_members
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.reading import members_of
from pyoco_server.doors.http.requests import MalformedProgramRequest, read_body
from pyoco_server.doors.http.shapes import Absent, Answer, Body, one_of
from pyoco_server.doors.http.shapes import Request as Shape
from pyoco_server.doors.http.state import caller_of, programs_of
from pyoco_server.logs import get_logger
from pyoco_server.ports.acl.port import AclKind

__all__ = ["OPERATIONS"]

log = get_logger(__name__)


Globs = Annotated[list[Annotated[str, Meta(pattern=r"^[A-Za-z0-9_*?\[\]!-]{1,64}$")]], Meta(max_length=ITEMS_MAX)]
KeyIds = Annotated[list[Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]], Meta(max_length=ITEMS_MAX)]


class ExecAclRequest(Shape):
    """An ACL record. Unknown members are refused."""

    api_key_ids: Annotated[KeyIds, Meta(description="Ids of the API keys that may act as this client or worker.")]
    execs: Annotated[Globs, Meta(description="Patterns of the programs that it may submit, or run: `calc*`, `*`.")]
    max_cap: Annotated[
        Annotated[int, Meta(ge=1, le=CAP_MAX)] | None,
        Meta(description="Clients only: the highest cap it may have; null: no separate limit."),
    ] = None
    groups: Annotated[
        Globs | None, Meta(description="Clients only: patterns of the groups it may use; `*` unless given.")
    ] = None


class ExecAcl(msgspec.Struct, kw_only=True):
    """Keys that may act as this client or worker, and its permissions. The last two members are for clients only."""

    kind: Annotated[str, one_of(KINDS)]
    id: str
    api_key_ids: KeyIds
    execs: Globs
    max_cap: Annotated[int, Meta(ge=1, le=CAP_MAX)] | Absent | None = msgspec.UNSET
    groups: Globs | Absent | None = msgspec.UNSET


class ExecAclDeleted(msgspec.Struct):
    """The record is deleted."""

    kind: Annotated[str, one_of(KINDS)]
    id: str
    deleted: Literal[True]


async def get_acl(request: Request) -> Response:
    kind, of = _subject(request)
    record = programs_of(request).acl.find(kind, of)
    if record is None:
        raise GridRefused(Code.NOT_FOUND, "there is no such ACL record")
    return json_answer(ExecAcl(**shown_record(kind, of, record)))


async def put_acl(request: Request) -> Response:
    kind, of = _subject(request)
    members = read_object(await read_body(request))
    unknown = unknown_members(("body",), members, members_of(ExecAclRequest))
    if unknown:
        raise MalformedProgramRequest(unknown[0].msg, problems=tuple(unknown))
    record = read_record(kind, members)
    await programs_of(request).acl.put(kind, of, record)
    log.info("ACL record written", kind=kind, of=of, api_key_id=caller_of(request).api_key_id)
    return json_answer(ExecAcl(**shown_record(kind, of, record)))


async def delete_acl(request: Request) -> Response:
    kind, of = _subject(request)
    if not await programs_of(request).acl.delete(kind, of):
        raise GridRefused(Code.NOT_FOUND, "there is no such ACL record")
    log.info("ACL record deleted", kind=kind, of=of, api_key_id=caller_of(request).api_key_id)
    return json_answer(ExecAclDeleted(kind, of, True))


def _subject(request: Request) -> tuple[AclKind, str]:
    """Return the subject of the record; for operators only. Raises GridRefused."""
    admit_operator(programs_of(request), caller_of(request))
    found = read_subject(request.path_params["kind"], request.path_params["id"])
    if found is None:
        raise GridRefused(Code.NOT_FOUND, "ACL records are of a client or of a worker")
    return found


_PATH = (
    {
        "name": "kind",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "enum": list(KINDS)},
        "description": "Whether the record is for a client or a worker.",
    },
    {
        "name": "id",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
        "description": "The ClientId or WorkerId.",
    },
)
_WHO = "With authentication on, for operators only: the keys in `EXEC_OPERATOR_KEYS`."

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/exec/acl/{kind}/{id}",
        endpoint=get_acl,
        summary="Read an ACL record",
        description=_WHO,
        parameters=_PATH,
        answer=Answer(ExecAcl, "The record."),
        errors=(404, 422),
        tags=("programs",),
    ),
    Operation(
        method="PUT",
        path="/exec/acl/{kind}/{id}",
        endpoint=put_acl,
        summary="Write an ACL record",
        description="Replaces the complete record. It takes effect within seconds, also for clients and "
        f"workers that are connected. {_WHO}",
        parameters=_PATH,
        body=Body(ExecAclRequest),
        answer=Answer(ExecAcl, "The new record."),
        errors=(404, 413, 422),
        tags=("programs",),
    ),
    Operation(
        method="DELETE",
        path="/exec/acl/{kind}/{id}",
        endpoint=delete_acl,
        summary="Delete an ACL record",
        description=f"With `EXEC_AUTH=api_key`, no key can act as that client or worker afterwards. {_WHO}",
        parameters=_PATH,
        answer=Answer(ExecAclDeleted, "Deleted."),
        errors=(404, 422),
        tags=("programs",),
    ),
)
