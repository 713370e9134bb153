"""`/runs/{run_id}/result` and `/runs/{run_id}/outputs/{task}`: what a run and its tasks have returned."""

from __future__ import annotations

import base64
import re
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.read_output import FoundOutput, find_output, find_result, open_value
from pyoco_server.core.values.encode import JSON_TYPE
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.byte_stream import ByteStream
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.requests import has_already
from pyoco_server.doors.http.state import caller_of, state_of

__all__ = ["OPERATIONS", "SCHEMAS"]

_RANGE = re.compile(r"bytes=([0-9]{0,1000})-([0-9]{0,1000})", re.ASCII)


async def get_run_result(request: Request) -> Response:
    state = state_of(request)
    return await _send(request, await find_result(state.backend, caller_of(request), request.path_params["run_id"]))


async def get_task_output(request: Request) -> Response:
    state, path = state_of(request), request.path_params
    return await _send(request, await find_output(state.backend, caller_of(request), path["run_id"], path["task"]))


async def _send(request: Request, found: FoundOutput) -> Response:
    """RES-5"""
    state, size = state_of(request), found.value.size
    headers = _headers(found)
    if has_already(request, headers["ETag"]):
        return Response(status_code=304, headers={name: headers[name] for name in ("ETag", "Cache-Control")})
    status, start, end = 200, 0, size
    wanted = _range_of(request, headers["ETag"], size)
    if wanted is not None:
        start, end = wanted
        if start >= end:
            return Response(status_code=416, headers={"Content-Range": f"bytes */{size}", "Accept-Ranges": "bytes"})
        status, headers = 206, headers | {"Content-Range": f"bytes {start}-{end - 1}/{size}"}
    headers["Content-Length"] = str(end - start)
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    done = state.downloads.take(caller_of(request).tenant_id or "")
    try:
        chunks = open_value(state.backend, found, start, end - start)
        first = await anext(chunks, b"")  # an error before the first byte still gets an error response
    except BaseException:
        done()
        raise
    return ByteStream(first, chunks, headers, done, status)


def _range_of(request: Request, etag: str, size: int) -> tuple[int, int] | None:
    """Return start and end of the requested range; start >= end: it is not satisfiable. None: all bytes, also for
    several ranges and for units that we do not know, as HTTP allows."""
    match = _RANGE.fullmatch(request.headers.get("range", "").strip())
    condition = request.headers.get("if-range")
    if match is None or match[0] == "bytes=-" or (condition is not None and condition.strip() != etag):
        return None
    first, last = match[1], match[2]
    if not first:
        return max(0, size - int(last)), size if int(last) else 0
    if last and int(last) < int(first):
        return None
    return int(first), min(size, int(last) + 1) if last else size


def _headers(found: FoundOutput) -> dict[str, str]:
    """Tasks may return anything: the headers keep browsers from rendering it as one of our pages."""
    value = found.value
    digest = base64.b64encode(bytes.fromhex(value.sha256)).decode()
    headers = {
        "Content-Type": value.content_type,
        "ETag": f'"{value.sha256}"',
        "Repr-Digest": f"sha-256=:{digest}:",
        "Cache-Control": "private, no-store",
        "Accept-Ranges": "bytes",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox",
    }
    if value.content_type != JSON_TYPE:
        headers["Content-Disposition"] = f'attachment; filename="{found.run.run_id}.bin"'
    return headers


_ERROR = schemas.object_of(
    {"err_id": schemas.TEXT, "message": schemas.TEXT, "message_ja": schemas.TEXT},
    ["err_id", "message", "message_ja"],
    "Why a value could not be kept.",
)
_ANY = {"anyOf": [schemas.OBJECT, schemas.array_of(schemas.OBJECT), schemas.TEXT, schemas.NUMBER, schemas.FLAG]}
_REFERENCE: dict[str, Any] = {
    "href": schemas.TEXT,
    "content_type": schemas.TEXT,
    "bytes": schemas.COUNT,
    "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
}

SCHEMAS: dict[str, Any] = {
    "ValueError": _ERROR,
    "RunResult": schemas.object_of(
        _REFERENCE
        | {
            "value": schemas.or_null(_ANY),
            "preview": schemas.TEXT,
            "truncated": schemas.FLAG,
            "error": schemas.ref("ValueError"),
        },
        ["href", "truncated"],
        "The result of a completed run. `value` is present if it is JSON and small; otherwise `preview` is the "
        "beginning of its text.",
    ),
}

_BYTES = {"type": "string", "format": "binary"}
_ANSWER = {
    "description": "The value.",
    "content": {
        JSON_TYPE: {"schema": _ANY},
        "application/octet-stream": {"schema": _BYTES},
    },
}
_RANGE_ANSWER = _ANSWER | {"description": "The requested range."}
_MORE = {
    304: "`If-None-Match` matches.",
    416: "The requested range is outside of the value.",
}
_DESCRIPTION = """\
`ETag` and `Repr-Digest` are its sha256; `Range: bytes=` is honoured for one range. JSON in the encoding of the guide \
on results; a value that is itself bytes is sent as it is. 404: no such run or task; 409: not ended yet, ended without \
a value, or the value was too large or not encodable (`err_id` says which); 410: it was stored and is no longer there. \
If stored data proves damaged, the response is cut off before its announced length."""
_RANGE_PARAMETER = schemas.header("Range", "One range of bytes, such as `bytes=0-999`.")

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/runs/{run_id}/result",
        endpoint=get_run_result,
        summary="Read the result of a run",
        description=_DESCRIPTION,
        parameters=(schemas.path_run_id, schemas.IF_NONE_MATCH, _RANGE_PARAMETER),
        answer=_ANSWER,
        more_answers=_MORE,
        other_answers={206: _RANGE_ANSWER},
        errors=(404, 409, 410),
    ),
    Operation(
        method="GET",
        path="/runs/{run_id}/outputs/{task}",
        endpoint=get_task_output,
        summary="Read the output of a task",
        description=_DESCRIPTION,
        parameters=(
            schemas.path_run_id,
            {
                "name": "task",
                "in": "path",
                "required": True,
                "schema": schemas.TEXT,
                "description": "Name of the task, percent-encoded.",
            },
            schemas.IF_NONE_MATCH,
            _RANGE_PARAMETER,
        ),
        answer=_ANSWER,
        more_answers=_MORE,
        other_answers={206: _RANGE_ANSWER},
        errors=(404, 409, 410),
        tail=True,
    ),
)
