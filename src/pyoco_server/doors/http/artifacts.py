"""`/runs/{run_id}/artifacts`: the files that a program left behind."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.programs.read_artifact import ARCHIVE, NAMES, Left, find_left, list_left, open_left
from pyoco_server.core.run import Run
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.byte_stream import ByteStream
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.reading import read_query
from pyoco_server.doors.http.requests import Malformed, MalformedQuery, has_already, read_flag
from pyoco_server.doors.http.shapes import Answer, one_of
from pyoco_server.doors.http.shapes import Request as Shape
from pyoco_server.doors.http.state import caller_of, state_of

__all__ = ["OPERATIONS"]

_TYPES = {ARCHIVE: "application/zip"}
_TEXT = "text/plain; charset=utf-8"


def _flag(text: str, _: object) -> bool:
    flag = read_flag(text)
    if flag is None:
        raise ValueError("must be 1 or 0")
    return flag


class ArtifactsQuery(Shape):
    list: Annotated[
        bool,
        Meta(description="`1`: list the artifacts as JSON, whether or not the run has ended.", extra={"read": _flag}),
    ] = False


class Artifact(msgspec.Struct):
    """A file that a program left behind, or its output."""

    name: Annotated[str, one_of(NAMES)]
    size: int
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    href: str


async def get_artifacts(request: Request) -> Response:
    """Return the archive, or with `list=1` the list of artifacts."""
    asked = read_query(ArtifactsQuery, request.query_params).checked(MalformedQuery, unknown=Malformed)
    if not asked.list:
        return await _download(request, ARCHIVE)
    run, found = await list_left(state_of(request).backend, caller_of(request), request.path_params["run_id"])
    return json_answer([_shown(run, each) for each in found])


async def get_artifact(request: Request) -> Response:
    return await _download(request, request.path_params["name"])


async def _download(request: Request, name: str) -> Response:
    state = state_of(request)
    run, left = await find_left(state.backend, caller_of(request), request.path_params["run_id"], name)
    headers = {"ETag": f'"{left.sha256}"', "Cache-Control": "private, no-cache"}
    if has_already(request, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    headers |= _content_headers(run, left)
    if request.method == "HEAD":
        return Response(headers=headers)
    done = state.downloads.take(caller_of(request).tenant_id or "")
    try:
        chunks = await open_left(state.backend, run, left)
        first = await anext(chunks, b"")  # an error before the first byte still gets an error response
    except BaseException:
        done()
        raise
    return ByteStream(first, _closable(chunks), headers, done)


async def _closable(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    try:
        async for chunk in chunks:
            yield chunk
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()


def _content_headers(run: Run, left: Left) -> dict[str, str]:
    """A program may write anything: the headers keep browsers from rendering it as one of our pages."""
    digest = base64.b64encode(bytes.fromhex(left.sha256)).decode()
    return {
        "Content-Type": _TYPES.get(left.name, _TEXT),
        "Content-Length": str(left.size),
        "Content-Disposition": f'attachment; filename="{run.run_id}-{left.name}"',
        "Repr-Digest": f"sha-256=:{digest}:",
        "X-Content-Type-Options": "nosniff",
    }


def _shown(run: Run, left: Left) -> Artifact:
    return Artifact(left.name, left.size, left.sha256, f"/runs/{run.run_id}/artifacts/{left.name}")


_BYTES = {"type": "string", "format": "binary"}
_ARCHIVE_OR_LIST = Answer(
    list[Artifact], "The archive, or with `list=1` the list of artifacts.", more={"application/zip": _BYTES}
)
_ONE = {
    "description": "The file.",
    "content": {"application/zip": {"schema": _BYTES}, "text/plain": {"schema": schemas.TEXT}},
}
_HAVE = {304: "`If-None-Match` matches: the file has not changed."}
_DESCRIPTION = """\
`ETag` and `Repr-Digest` are its sha256. 404: the run does not exist or has no artifacts; 409: it has not ended; \
410: its artifacts have expired (`EXEC_ARTIFACT_TTL_SEC`). If stored data proves damaged, the response is cut off \
before its announced length."""

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/runs/{run_id}/artifacts",
        endpoint=get_artifacts,
        summary="Download the files of a program, as a zip archive",
        description=_DESCRIPTION,
        query=ArtifactsQuery,
        parameters=(schemas.path_run_id, schemas.IF_NONE_MATCH),
        answer=_ARCHIVE_OR_LIST,
        more_answers=_HAVE,
        errors=(404, 409, 410, 422),
        tags=("programs",),
    ),
    Operation(
        method="GET",
        path="/runs/{run_id}/artifacts/{name}",
        endpoint=get_artifact,
        summary="Download one file of a program: its archive or its output",
        description=_DESCRIPTION,
        parameters=(
            schemas.path_run_id,
            {
                "name": "name",
                "in": "path",
                "required": True,
                "schema": {"type": "string", "enum": list(NAMES)},
                "description": "Name of the file.",
            },
            schemas.IF_NONE_MATCH,
        ),
        answer=_ONE,
        more_answers=_HAVE,
        errors=(404, 409, 410),
        tags=("programs",),
    ),
)
