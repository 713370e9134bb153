"""`/wheels`: the registry of wheels with task code."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

import msgspec
from msgspec import Meta
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
from pyoco_server.doors.http.shapes import Absent, Answer, Body, File, one_of
from pyoco_server.doors.http.state import caller_of, state_of
from pyoco_server.doors.http.wheel_form import (
    WheelHistoryQuery,
    read_history_query,
    read_wheel_form,
    source_of,
)
from pyoco_server.ports.spool import Spool

__all__ = ["OPERATIONS"]


Sha256Hex = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class WheelArtifact(msgspec.Struct, kw_only=True):
    """A registered wheel. `nuid` is unique per upload; a wheel without `tags` is for every worker."""

    name: str
    size_bytes: int
    bucket: str
    nuid: str
    modified: float
    sha256_hex: Sha256Hex | Absent | None = msgspec.UNSET
    tags: Sequence[str]


class WheelUploadRequest(msgspec.Struct):
    """A wheel to register. Unknown fields are ignored, which older clients rely on."""

    wheel: Annotated[File, Meta(description="The file, under its own name: `my_tasks-1.0-py3-none-any.whl`.")]
    replace: Annotated[bool, Meta(description="Has no effect; older clients send it.")] = True
    tags: (
        Annotated[
            str,
            Meta(
                pattern="^ *([A-Za-z0-9_-]{1,128})? *(, *([A-Za-z0-9_-]{1,128})? *)*$",
                description="Tags of the workers that install it, separated by commas; none: all workers.",
            ),
        ]
        | Absent
    ) = msgspec.UNSET


class WheelDeleted(msgspec.Struct):
    """The wheel is deleted."""

    name: str
    deleted: Literal[True]


class WheelChangeSource(msgspec.Struct):
    """Where the change came from."""

    via: str
    remote_addr: str | None
    user_agent: str | None


class WheelChangeActor(msgspec.Struct):
    """Who made the change; null without authentication."""

    tenant_id: str | None
    api_key_id: str | None


class WheelHistoryEvent(msgspec.Struct):
    """One change of the registry."""

    event_id: str
    occurred_at: float
    action: Annotated[str, one_of(WheelAction)]
    wheel_name: str
    tags: list[str]
    source: WheelChangeSource
    actor: WheelChangeActor
    size_bytes: int | Absent | None = msgspec.UNSET
    sha256_hex: Sha256Hex | Absent | None = msgspec.UNSET


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
    return json_answer(WheelDeleted(wheel_name, True))


def _artifact(wheel: Wheel, bucket: str) -> WheelArtifact:
    """FLOW-154."""
    return WheelArtifact(
        name=wheel.name.file_name,
        size_bytes=wheel.size_bytes,
        bucket=bucket,
        nuid=wheel.nuid,
        modified=wheel.modified,
        sha256_hex=wheel.sha256_hex or None,
        tags=wheel.tags,
    )


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
        answer=Answer(list[WheelArtifact], "The registered wheels."),
        tags=("wheels",),
    ),
    Operation(
        method="GET",
        path="/wheels/history",
        endpoint=get_wheel_history,
        summary="List the changes of the registry, newest first",
        query=WheelHistoryQuery,
        answer=Answer(list[WheelHistoryEvent], "The events."),
        errors=(422,),
        tags=("wheels",),
    ),
    Operation(
        method="POST",
        path="/wheels",
        endpoint=post_wheel,
        summary="Register a wheel",
        description=_UPLOAD,
        body=Body(WheelUploadRequest, media="multipart/form-data"),
        answer=Answer(WheelArtifact, "Registered; `sha256_hex` is always set."),
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
        answer=Answer(WheelDeleted, "Deleted."),
        errors=(404,),
        tags=("wheels",),
    ),
)
