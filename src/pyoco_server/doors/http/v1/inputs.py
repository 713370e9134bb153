"""`/v1/inputs`: upload a file for packs to read."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.priced.upload_input import StoredInput, Uploaded, upload_input
from pyoco_server.core.priced.input_key import NAME_LENGTH_MAX
from pyoco_server.core.priced.instants import iso
from pyoco_server.core.priced.strict_text import wrong
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.requests import chunks_of
from pyoco_server.doors.http.shapes import Answer
from pyoco_server.doors.http.shapes import Request as Shape
from pyoco_server.doors.http.state import state_of
from pyoco_server.doors.http.v1.documents import TRACE_PARAMETER
from pyoco_server.doors.http.v1.limits import admit, priced_of
from pyoco_server.errors import Problem, Refused, TooLarge, TooSlow
from pyoco_server.ports.inputs.port import ANY_TYPE
from pyoco_server.ports.spool import Spool

__all__ = ["OPERATIONS"]

_DIGEST = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
_WORD: Final = r"[A-Za-z0-9!#$&^_.+-]{1,127}"
_TYPE = re.compile(rf"{_WORD}/{_WORD}( *; *{_WORD}=({_WORD}|\"[ !#-\[\]-~]{{0,127}}\")){{0,4}}", re.ASCII)
#: Minimum rate, enforced after a grace period: a slower upload would occupy one of few slots for hours.
_PACE_BYTES, _PACE_GRACE_SECONDS = 8 * 1024, 60.0


class UploadQuery(Shape):
    name: Annotated[
        str,
        Meta(
            description="Name of the file. The end of its key is derived from it: at most "
            f"{NAME_LENGTH_MAX} of `a-z 0-9 _ . -`."
        ),
    ] = ""


class PricedImage(Shape):
    """A reference to a file for a pack: one of its `images`."""

    kind: Literal["s3"]
    bucket: str
    key: str


class PricedInput(msgspec.Struct):
    """A file that packs of this tenant may read."""

    kind: Literal["s3"]
    bucket: str
    key: str
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    bytes: int
    content_type: str
    expires_at: Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
    image: PricedImage


async def upload_priced_input(request: Request) -> Response:
    """PRICED-65: check key, rate and validity. The data is written to disk as it arrives; memory use stays constant."""
    visit, priced, state = await admit(request, "post"), priced_of(request), state_of(request)
    assert visit.tenant_id is not None
    announced = _read_headers(request.headers)
    with state.inputs.turn(visit.tenant_id):
        async with Spool(Path(state.backend.config.data_dir) / "tmp") as content:
            sha256 = await _receive(request, content, priced.config.pack_input_max_bytes)
            if announced is not None and announced != sha256:
                raise wrong((), "the bytes are not those of the header X-Content-SHA256; nothing was stored")
            file = StoredInput(
                name=request.query_params.get("name", ""),
                content_type=_content_type(request.headers),
                sha256=sha256,
                size_bytes=content.size_bytes,
                chunks=content.chunks,
            )
            uploaded = await upload_input(priced, visit.tenant_id, file)
    return json_answer(_shown(uploaded, priced.inputs.bucket), 201 if uploaded.is_new else 200, visit.headers())


async def _receive(request: Request, content: Spool, bytes_max: int) -> str:
    """Receive the body and return its sha256.

    Raises TooLarge as soon as the limit is exceeded, TooSlow, Refused, NoRoom.
    """
    began = time.monotonic()
    try:
        async for chunk in chunks_of(request, bytes_max):
            await content.write(chunk)
            if content.size_bytes < (time.monotonic() - began - _PACE_GRACE_SECONDS) * _PACE_BYTES:
                raise TooSlow("the file comes too slowly")
    except TooLarge:
        raise TooLarge(f"a file has at most {bytes_max} bytes (PYOCO_PACK_INPUT_MAX_BYTES)") from None
    if not content.size_bytes:
        raise wrong((), "the body is the file itself, and it is empty")
    return await content.finish()


def _read_headers(headers: Headers) -> str | None:
    """Return the announced digest, or None if there is none. Raises Refused with all problems."""
    problems = []
    if any(each.strip().lower() not in {"", "identity"} for each in headers.getlist("content-encoding")):
        problems.append(Problem((), "the header Content-Encoding is not understood: send the file as it is"))
    digests = headers.getlist("x-content-sha256")
    if len(digests) > 1 or not all(_DIGEST.fullmatch(each) for each in digests):
        problems.append(Problem((), "the header X-Content-SHA256 must be a SHA-256, in 64 hex digits"))
    if problems:
        raise Refused(problems=tuple(problems))
    return digests[0].lower() if digests else None


def _content_type(headers: Headers) -> str:
    """Return the given type, or a default if it is invalid: nothing depends on it, so no upload is refused for it."""
    types = headers.getlist("content-type")
    return types[0] if len(types) == 1 and _TYPE.fullmatch(types[0]) else ANY_TYPE


def _shown(uploaded: Uploaded, bucket: str) -> PricedInput:
    upload = uploaded.upload
    return PricedInput(
        kind="s3",
        bucket=bucket,
        key=upload.key,
        sha256=upload.sha256,
        bytes=upload.size_bytes,
        content_type=upload.content_type,
        expires_at=iso(upload.expires_at),
        image=PricedImage("s3", bucket, upload.key),
    )


_BYTES = {"type": "string", "format": "binary", "minLength": 1}
OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="POST",
        path="/v1/inputs",
        endpoint=upload_priced_input,
        summary="Upload a file that packs read",
        description="The body is the file itself, of any type: its `Content-Type` is stored with it. `image` of the "
        "response goes into a submission unchanged. Files belong to the tenant of the key, and expire. The same bytes "
        "are the same file while more than half of its time is left: the response is then 200.",
        query=UploadQuery,
        parameters=(
            {
                "name": "X-Content-SHA256",
                "in": "header",
                "required": False,
                "schema": {"type": "string", "pattern": "^[0-9a-fA-F]{64}$"},
                "description": "The file's SHA-256. If other bytes arrive, nothing is stored.",
            },
            TRACE_PARAMETER,
        ),
        body={"required": True, "content": {"application/octet-stream": {"schema": _BYTES}}},
        status=201,
        answer=Answer(PricedInput, "Stored."),
        other_answers={200: Answer(PricedInput, "The same bytes were already stored: the earlier file.")},
        errors=(422,),
        problems=True,
        tags=("priced",),
    ),
)
