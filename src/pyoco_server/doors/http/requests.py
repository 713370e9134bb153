"""What comes in over HTTP, read within bounds and turned into our own values."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request

from pyoco_server.core.names import is_tag
from pyoco_server.core.run import Submission
from pyoco_server.core.states import RunState
from pyoco_server.errors import InvalidListQuery, Problem, Refused, TooLarge
from pyoco_server.ports.index.port import RunFilter

__all__ = ["ListQuery", "Malformed", "MalformedQuery", "read_body", "read_list_query", "read_reason", "read_submission"]

#: A body above this is refused while it is read. Snapshots are capped below (FLOW-71).
JSON_BYTES_MAX = 1024 * 1024
NAME_LENGTH_MAX = 512
TAGS_MAX = 100
DEPTH_MAX = 64
#: Lists and objects in one body. A snapshot at its default cap holds fewer than half as many.
PARTS_MAX = 100_000


class Malformed(Refused):
    """The body does not have the shape it should have: answered with the list of what is wrong where."""


class MalformedQuery(InvalidListQuery):
    """The query does not have the shape it should have."""


async def chunks_of(request: Request, bytes_max: int) -> AsyncIterator[bytes]:
    """The body as it arrives. Raises TooLarge on the header alone, or as soon as too much has come."""
    declared = request.headers.get("content-length", "")
    # By its digits first: a number of thousands of them is no number to compute with.
    if declared.isdecimal() and (len(declared.lstrip("0")) > 18 or int(declared) > bytes_max):
        raise TooLarge
    size = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise Malformed("the connection ended before the body did")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > bytes_max:
            raise TooLarge
        yield chunk
        if not message.get("more_body", False):
            return


async def read_body(request: Request, bytes_max: int = JSON_BYTES_MAX) -> bytes:
    """The whole body. Raises as `chunks_of` does."""
    return b"".join([chunk async for chunk in chunks_of(request, bytes_max)])


class _Submit(msgspec.Struct):
    """FLOW-65 to FLOW-68. Fields it does not know are passed over (FLOW-44)."""

    flow_name: str
    params: dict[str, Any] | None = None
    tag: str | None = None
    tags: list[str] | None = None


class _Cancel(msgspec.Struct):
    reason: str | None = None


_read_submit = msgspec.json.Decoder(_Submit).decode
_read_cancel = msgspec.json.Decoder(_Cancel).decode

_AT = re.compile(r"^(?P<msg>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<name>[^`]+)`")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")


def _decode(decoder: Any, body: bytes) -> Any:
    try:
        return decoder(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _malformed(error) from error


def _malformed(error: Exception) -> Malformed:
    """msgspec's sentence as a place and a message."""
    if isinstance(error, RecursionError):
        return _wrong(("body",), "is nested too deeply", "too_deep")
    match = _AT.match(str(error))
    message, path = (match["msg"], match["path"] or "") if match else (str(error), "")
    steps = [name or int(index) for name, index in _STEP.findall(path) if name or index]  # `[...]`: some key, unnamed
    missing = _MISSING.search(message)
    if missing:
        return _wrong(("body", *steps, missing["name"]), "is required", "missing")
    kind = "type" if isinstance(error, msgspec.ValidationError) else "json"
    return _wrong(("body", *steps), message, kind)


def _wrong(loc: tuple[str | int, ...], message: str, kind: str) -> Malformed:
    return Malformed(message, problems=(Problem(loc, message, kind),))


def read_submission(body: bytes, default_tag: str) -> Submission:
    """Raises Malformed with what is wrong and where (FLOW-70)."""
    wire: _Submit = _decode(_read_submit, body)
    tag = default_tag if wire.tag is None else wire.tag
    tags = (tag,) if wire.tags is None else tuple(wire.tags)
    params = wire.params or {}
    check_flow_name(wire.flow_name)
    check_tag(tag)
    if len(tags) > TAGS_MAX or any(len(label) > NAME_LENGTH_MAX for label in tags):
        raise _wrong(("body", "tags"), f"at most {TAGS_MAX} labels of {NAME_LENGTH_MAX} characters", "too_long")
    # Deep values come only with many brackets: small bodies need no walk.
    if body.count(b"[") + body.count(b"{") > DEPTH_MAX and _is_too_deep(params):
        raise _wrong(("body", "params"), f"is nested more than {DEPTH_MAX} deep, or has too many parts", "too_deep")
    return Submission(flow_name=wire.flow_name, tag=tag, tags=tags, params=params)


def check_flow_name(flow_name: str) -> None:
    if not flow_name:
        raise _wrong(("body", "flow_name"), "must have at least one character", "too_short")
    if len(flow_name) > NAME_LENGTH_MAX:
        raise _wrong(("body", "flow_name"), f"has at most {NAME_LENGTH_MAX} characters", "too_long")


def check_tag(tag: str) -> None:
    if not is_tag(tag):  # FLOW-33
        raise _wrong(("body", "tag"), "must be letters, digits, '_' and '-', for example gpu-large", "pattern")


def _is_too_deep(value: Any) -> bool:
    """Whether lists and objects are nested too deep, or there are more values than a snapshot can hold anyway."""
    level, left = [value], PARTS_MAX
    for _ in range(DEPTH_MAX + 1):
        level = [
            item
            for holder in level
            for item in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(item, dict | list)
        ]
        left -= len(level)
        if not level:
            return False
        if left < 0:
            return True
    return True


def read_reason(body: bytes) -> str | None:
    """FLOW-115: an empty body is fine; a body must be an object, a reason a string."""
    if not body.strip():
        return None
    wire: _Cancel = _decode(_read_cancel, body)
    if wire.reason is not None and len(wire.reason) > 4096:
        raise _wrong(("body", "reason"), "has at most 4096 characters", "too_long")
    return wire.reason


class ListQuery(msgspec.Struct, frozen=True):
    """What `GET /runs` was asked for."""

    wanted: RunFilter
    limit: int
    whole: bool


_SHA256 = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
_KINDS = frozenset({"flow", "exec", "pack"})
#: Asked for, these change the form of the answer; the form they ask for is not served by this version.
_LATER = ("cursor", "updated_after", "envelope")


def read_list_query(query: QueryParams) -> ListQuery:
    """FLOW-97 to FLOW-104. Raises MalformedQuery with every bad value (FLOW-106)."""
    problems: list[Problem] = []

    def wrong(name: str, message: str) -> None:
        problems.append(Problem(("query", name), message, "value"))

    status = query.get("status")
    if status is not None and status not in RunState.__members__:
        wrong("status", f"must be one of {', '.join(RunState)}")
    sha256 = query.get("workflow_yaml_sha256")
    if sha256 is not None and not _SHA256.fullmatch(sha256):
        wrong("workflow_yaml_sha256", "must be 64 hex digits")
    kind = query.get("kind")
    if kind is not None and kind not in _KINDS:
        wrong("kind", f"must be one of {', '.join(sorted(_KINDS))}")
    limit_text = query.get("limit", "50")
    limit = int(limit_text) if limit_text.isascii() and limit_text.isdecimal() and len(limit_text) < 5 else 0
    if not 1 <= limit <= 200:
        wrong("limit", "must be a whole number from 1 to 200")
    for name in _LATER:
        if name in query:
            wrong(name, "is not served by this version: lists come in their array form")
    if problems:
        raise MalformedQuery(problems[0].msg, problems=tuple(problems))
    wanted = RunFilter(
        status=status,
        flow=query.get("flow"),
        tag=query.get("tag"),
        kind=kind,
        workflow_yaml_sha256=sha256.lower() if sha256 is not None else None,
    )
    return ListQuery(wanted, limit, wants_records(query))


def wants_records(query: QueryParams) -> bool:
    """FLOW-90 to FLOW-92, FLOW-101: `records`, `full` and `all` mean the same; anything else is passed over."""
    return bool(query) and not {"records", "full", "all"}.isdisjoint(query.getlist("include"))
