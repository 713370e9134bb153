"""`/wheels`: the registry of wheels with task code."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.delete_wheel import delete_wheel
from pyoco_server.actions.list_wheel_history import list_wheel_history
from pyoco_server.actions.list_wheels import list_wheels
from pyoco_server.actions.read_wheel import find_wheel, read_wheel
from pyoco_server.actions.register_wheel import register_wheel
from pyoco_server.core.wheel import WHEEL_NAME_LENGTH_MAX, Wheel
from pyoco_server.core.wheel_event import WheelAction
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.byte_stream import ByteStream
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.requests import has_already
from pyoco_server.doors.http.state import caller_of, state_of
from pyoco_server.doors.http.wheel_form import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    read_history_query,
    read_wheel_form,
    source_of,
)
from pyoco_server.ports.spool import Spool

__all__ = ["OPERATIONS", "SCHEMAS"]


async def get_wheels(request: Request) -> Response:
    state = state_of(request)
    bucket = state.backend.config.wheel_object_store_bucket
    return json_answer([_artifact(wheel, bucket) for wheel in await list_wheels(state.backend)])


async def get_wheel_history(request: Request) -> Response:
    events = await list_wheel_history(state_of(request).backend, read_history_query(request.query_params))
    return json_answer([event.document() for event in events])


async def post_wheel(request: Request) -> Response:
    state = state_of(request)
    config = state.backend.config
    with state.uploads.turn():
        async with Spool(Path(config.data_dir) / "tmp") as content:
            upload = await read_wheel_form(request, content, config.wheel_max_bytes)
            wheel = await register_wheel(state.backend, caller_of(request), source_of(request), upload)
    return json_answer(_artifact(wheel, config.wheel_object_store_bucket))


async def get_wheel(request: Request) -> Response:
    state = state_of(request)
    found = await find_wheel(state.backend, request.path_params["wheel_name"])
    headers = _headers(found.wheel)
    if has_already(request, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    headers |= _content_headers(found.wheel)
    if request.method == "HEAD":
        return Response(headers=headers, media_type=ByteStream.media_type)
    done = state.downloads.take(caller_of(request).tenant_id or "")
    chunks = read_wheel(state.backend, found)
    try:
        first = await anext(chunks, b"")  # an error before the first byte still gets an error response
    except BaseException:
        done()
        raise
    return ByteStream(first, chunks, headers, done)


async def delete_one_wheel(request: Request) -> Response:
    wheel_name = request.path_params["wheel_name"]
    await delete_wheel(state_of(request).backend, caller_of(request), source_of(request), wheel_name)
    return json_answer({"name": wheel_name, "deleted": True})


def _artifact(wheel: Wheel, bucket: str) -> dict[str, Any]:
    """FLOW-154."""
    return {
        "name": wheel.name.file_name,
        "size_bytes": wheel.size_bytes,
        "bucket": bucket,
        "nuid": wheel.nuid,
        "modified": wheel.modified,
        "sha256_hex": wheel.sha256_hex or None,
        "tags": wheel.tags,
    }


def _headers(wheel: Wheel) -> dict[str, str]:
    """Headers that a 304 has, too. Caches must revalidate: another wheel may be registered under a deleted name."""
    return {"ETag": f'"{wheel.sha256_hex}"', "Cache-Control": "private, no-cache"}


def _content_headers(wheel: Wheel) -> dict[str, str]:
    digest = base64.b64encode(bytes.fromhex(wheel.sha256_hex)).decode()
    name = wheel.name.file_name
    # RFC 6266: a name with special characters uses the extended form.
    file_name = f'filename="{name}"' if _PLAIN.fullmatch(name) else f"filename*=UTF-8''{quote(name, safe='')}"
    return {
        "Content-Length": str(wheel.size_bytes),
        "Repr-Digest": f"sha-256=:{digest}:",
        "Content-Disposition": f"attachment; {file_name}",
    }


_PLAIN = re.compile(r"[A-Za-z0-9._+!-]+")


_TAGS = schemas.array_of(schemas.TEXT)
_TAGS_PATTERN = "^ *([A-Za-z0-9_-]{1,128})? *(, *([A-Za-z0-9_-]{1,128})? *)*$"
_SHA256 = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_ACTION = {"type": "string", "enum": list(WheelAction)}
_OR_TEXT = schemas.or_null(schemas.TEXT)

SCHEMAS: dict[str, Any] = {
    "WheelArtifact": schemas.object_of(
        {
            "name": schemas.TEXT,
            "size_bytes": schemas.COUNT,
            "bucket": schemas.TEXT,
            "nuid": schemas.TEXT,
            "modified": schemas.NUMBER,
            "sha256_hex": schemas.or_null(_SHA256),
            "tags": _TAGS,
        },
        ["name", "size_bytes", "bucket", "nuid", "modified", "tags"],
        "A registered wheel. `nuid` is unique per upload; a wheel without `tags` is for every worker.",
    ),
    "WheelUploadRequest": schemas.object_of(
        {
            "wheel": {
                "type": "string",
                "format": "binary",
                "minLength": 1,
                "description": "The file, under its own name: `my_tasks-1.0-py3-none-any.whl`.",
            },
            "replace": {**schemas.FLAG, "default": True, "description": "Has no effect; older clients send it."},
            "tags": {
                "type": "string",
                "pattern": _TAGS_PATTERN,
                "description": "Tags of the workers that install it, separated by commas; none: all workers.",
            },
        },
        ["wheel"],
        "A wheel to register.",
    ),
    "WheelDeleted": schemas.object_of(
        {"name": schemas.TEXT, "deleted": {"type": "boolean", "enum": [True]}},
        ["name", "deleted"],
        "The wheel is deleted.",
    ),
    "WheelHistoryEvent": schemas.object_of(
        {
            "event_id": schemas.TEXT,
            "occurred_at": schemas.NUMBER,
            "action": _ACTION,
            "wheel_name": schemas.TEXT,
            "tags": _TAGS,
            "source": schemas.object_of(
                {"via": schemas.TEXT, "remote_addr": _OR_TEXT, "user_agent": _OR_TEXT},
                ["via", "remote_addr", "user_agent"],
                "Where the change came from.",
            ),
            "actor": schemas.object_of(
                {"tenant_id": _OR_TEXT, "api_key_id": _OR_TEXT},
                ["tenant_id", "api_key_id"],
                "Who made the change; null without authentication.",
            ),
            "size_bytes": schemas.or_null(schemas.COUNT),
            "sha256_hex": schemas.or_null(_SHA256),
        },
        ["event_id", "occurred_at", "action", "wheel_name", "tags", "source", "actor"],
        "One change of the registry.",
    ),
}

_PATH_WHEEL_NAME = {
    "name": "wheel_name",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1, "maxLength": WHEEL_NAME_LENGTH_MAX},
    "description": "The wheel's file name.",
}
_UPLOAD = """\
The complete file is checked before it is registered: its content must match its name and its RECORD, and no path may \
leave its directory. Only a version newer than every registered one of the same package is accepted; of concurrent \
uploads, one. Older versions stay registered."""

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/wheels",
        endpoint=get_wheels,
        summary="List registered wheels, by name",
        description="Wheels belong to no tenant: every caller with access sees all of them.",
        answer=schemas.json_response(schemas.array_of(schemas.ref("WheelArtifact")), "The registered wheels."),
        tags=("wheels",),
    ),
    Operation(
        method="GET",
        path="/wheels/history",
        endpoint=get_wheel_history,
        summary="List the changes of the registry, newest first",
        parameters=(
            schemas.query(
                "limit",
                {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT},
                "How many.",
            ),
            schemas.query("wheel_name", {"type": "string", "pattern": r"\.whl$"}, "Events of this wheel."),
            schemas.query("action", _ACTION, "Events of this kind."),
        ),
        answer=schemas.json_response(schemas.array_of(schemas.ref("WheelHistoryEvent")), "The events."),
        errors=(422,),
        tags=("wheels",),
    ),
    Operation(
        method="POST",
        path="/wheels",
        endpoint=post_wheel,
        summary="Register a wheel",
        description=_UPLOAD,
        body={
            "required": True,
            "content": {"multipart/form-data": {"schema": schemas.ref("WheelUploadRequest")}},
        },
        answer=schemas.json_response(schemas.ref("WheelArtifact"), "Registered; `sha256_hex` is always set."),
        errors=(409, 413, 422),
        tags=("wheels",),
    ),
    Operation(
        method="GET",
        path="/wheels/{wheel_name}",
        endpoint=get_wheel,
        summary="Download a wheel",
        description="`ETag` and `Repr-Digest` are its sha256. If the wheel proves damaged or is deleted "
        "meanwhile, the response is cut off.",
        parameters=(
            _PATH_WHEEL_NAME,
            schemas.IF_NONE_MATCH,
        ),
        answer={
            "description": "The file.",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        },
        more_answers={304: "`If-None-Match` matches: the wheel has not changed."},
        errors=(404,),
        tags=("wheels",),
    ),
    Operation(
        method="DELETE",
        path="/wheels/{wheel_name}",
        endpoint=delete_one_wheel,
        summary="Delete a wheel",
        description="Its version is no longer considered. Workers that have it installed remove it.",
        parameters=(_PATH_WHEEL_NAME,),
        answer=schemas.json_response(schemas.ref("WheelDeleted"), "Deleted."),
        errors=(404,),
        tags=("wheels",),
    ),
)
