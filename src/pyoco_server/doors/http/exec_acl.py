"""`/exec/acl/{kind}/{id}`: who may submit which program, and who may run it."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.programs.acl import ITEMS_MAX, KINDS, read_record, read_subject, shown_record
from pyoco_server.actions.programs.admit import admit_operator
from pyoco_server.core.frames.reading import read_object
from pyoco_server.core.programs.admission import CAP_MAX
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.requests import read_body
from pyoco_server.doors.http.state import caller_of, programs_of
from pyoco_server.logs import get_logger
from pyoco_server.ports.acl.port import AclKind

__all__ = ["OPERATIONS", "SCHEMAS"]

log = get_logger(__name__)


async def get_acl(request: Request) -> Response:
    kind, of = _subject(request)
    record = programs_of(request).acl.find(kind, of)
    if record is None:
        raise GridRefused(Code.NOT_FOUND, "there is no such ACL record")
    return json_answer(shown_record(kind, of, record))


async def put_acl(request: Request) -> Response:
    kind, of = _subject(request)
    record = read_record(kind, read_object(await read_body(request)))
    await programs_of(request).acl.put(kind, of, record)
    log.info("ACL record written", kind=kind, of=of, api_key_id=caller_of(request).api_key_id)
    return json_answer(shown_record(kind, of, record))


async def delete_acl(request: Request) -> Response:
    kind, of = _subject(request)
    if not await programs_of(request).acl.delete(kind, of):
        raise GridRefused(Code.NOT_FOUND, "there is no such ACL record")
    log.info("ACL record deleted", kind=kind, of=of, api_key_id=caller_of(request).api_key_id)
    return json_answer({"kind": kind, "id": of, "deleted": True})


def _subject(request: Request) -> tuple[AclKind, str]:
    """Return whose record is meant; for operators only. Raises GridRefused."""
    admit_operator(programs_of(request), caller_of(request))
    found = read_subject(request.path_params["kind"], request.path_params["id"])
    if found is None:
        raise GridRefused(Code.NOT_FOUND, "ACL records are of a client or of a worker")
    return found


def _list(pattern: str, text: str) -> dict[str, Any]:
    items = {"type": "string", "pattern": pattern}
    return {"type": "array", "items": items, "maxItems": ITEMS_MAX, "description": text}


_GLOB = r"^[A-Za-z0-9_*?\[\]!-]{1,64}$"
_MEMBERS: dict[str, Any] = {
    "api_key_ids": _list("^[A-Za-z0-9_-]{1,64}$", "Ids of the API keys that may act as this client or worker."),
    "execs": _list(_GLOB, "Patterns of the programs that it may submit, or run: `calc*`, `*`."),
    "max_cap": schemas.or_null({"type": "integer", "minimum": 1, "maximum": CAP_MAX})
    | {"description": "Clients only: the highest cap it may have; null: no separate limit."},
    "groups": schemas.or_null(_list(_GLOB, "Patterns of groups."))
    | {"description": "Clients only: patterns of the groups it may use; `*` unless given."},
}
_WHOSE: dict[str, Any] = {"kind": {"type": "string", "enum": list(KINDS)}, "id": schemas.TEXT}

SCHEMAS: dict[str, Any] = {
    "ExecAclRequest": schemas.object_of(
        _MEMBERS, ["api_key_ids", "execs"], "An ACL record. Unknown members are refused."
    )
    | {"additionalProperties": False},
    "ExecAcl": schemas.object_of(
        _WHOSE | _MEMBERS,
        ["kind", "id", "api_key_ids", "execs"],
        "Who may act as this client or worker, and what it may do. The last two members are for clients only.",
    ),
    "ExecAclDeleted": schemas.object_of(
        _WHOSE | {"deleted": {"type": "boolean", "enum": [True]}}, ["kind", "id", "deleted"], "The record is deleted."
    ),
}

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
        answer=schemas.json_response(schemas.ref("ExecAcl"), "The record."),
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
        body=schemas.json_body(schemas.ref("ExecAclRequest")),
        answer=schemas.json_response(schemas.ref("ExecAcl"), "The new record."),
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
        answer=schemas.json_response(schemas.ref("ExecAclDeleted"), "Deleted."),
        errors=(404, 422),
        tags=("programs",),
    ),
)
