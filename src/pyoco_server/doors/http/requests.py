"""What comes in over HTTP, read within bounds and turned into our own values."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.types import Message, Receive

from pyoco_server.doors.http.pace import BodyPace
from pyoco_server.errors import InvalidListQuery, Problem, Refused, TooLarge, TooSlow

__all__ = [
    "NOT_AN_INSTANT",
    "Malformed",
    "MalformedQuery",
    "chunks_of",
    "decode",
    "has_already",
    "read_body",
    "read_flag",
    "read_instant",
    "read_reason",
    "wants_records",
    "wrong",
]

#: A body above this is refused while it is read. Snapshots are capped below (FLOW-71).
JSON_BYTES_MAX = 1024 * 1024
#: The same words as in settings (FLOW-517).
_FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


#: A number as JSON has it, of a length that is no work to read.
_NUMBER = re.compile(r"-?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,3})?", re.ASCII)
NOT_AN_INSTANT = "must be a number of seconds since 1970, not negative"


class Malformed(Refused):
    """The body does not have the shape it should have: answered with the list of what is wrong where."""


class MalformedQuery(InvalidListQuery):
    """The query does not have the shape it should have."""


async def chunks_of(request: Request, bytes_max: int) -> AsyncIterator[bytes]:
    """The body as it arrives. Raises TooLarge on the header alone, or as soon as too much has come; TooSlow when it
    arrives too slowly (see `BodyPace`)."""
    declared = request.headers.get("content-length", "")
    # By its digits first: a number of thousands of them is no number to compute with.
    if declared.isdecimal() and (len(declared.lstrip("0")) > 18 or int(declared) > bytes_max):
        raise TooLarge
    size = 0
    pace: BodyPace | None = None
    while True:
        if _has_arrived(request.receive):
            message, seconds = await request.receive(), 0.0
        else:
            if pace is None:
                pace = BodyPace(int(declared) if declared.isdecimal() else 0)
                pace.arrived(size, 0.0)
            message, seconds = await _wait(request.receive, pace.seconds_left)
        if message["type"] == "http.disconnect":
            raise Malformed("the connection ended before the body did")
        chunk = message.get("body", b"")
        size += len(chunk)
        if pace is not None:
            pace.arrived(len(chunk), seconds)
        if size > bytes_max:
            raise TooLarge
        yield chunk
        if not message.get("more_body", False):
            return


def _has_arrived(receive: Receive) -> bool:
    """Whether the next message is there already; False for servers that do not tell.

    A timer costs as much as reading a small body, and most of these arrive with their head: uvicorn's event says so.
    """
    arrived = getattr(getattr(receive, "__self__", None), "message_event", None)
    return isinstance(arrived, asyncio.Event) and arrived.is_set()


async def _wait(receive: Receive, seconds_max: float) -> tuple[Message, float]:
    """The next message, and for how long it was waited for. Raises TooSlow."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with asyncio.timeout(seconds_max):
            message = await receive()
    except TimeoutError:
        raise TooSlow from None
    return message, loop.time() - began


async def read_body(request: Request, bytes_max: int = JSON_BYTES_MAX) -> bytes:
    """The whole body. Raises as `chunks_of` does."""
    return b"".join([chunk async for chunk in chunks_of(request, bytes_max)])


class _Cancel(msgspec.Struct):
    reason: str | None = None


_read_cancel = msgspec.json.Decoder(_Cancel).decode

_AT = re.compile(r"^(?P<msg>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<name>[^`]+)`")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")


def decode(decoder: Any, body: Any) -> Any:
    """What a decoder of msgspec makes of it. Raises Malformed with the place of what is wrong."""
    try:
        return decoder(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        if not bytes(body).strip():  # the library says that it was truncated
            raise wrong(("body",), "a JSON object is needed, and there is no body", "missing") from error
        raise _malformed(error) from error


def _malformed(error: Exception) -> Malformed:
    """msgspec's sentence as a place and a message."""
    if isinstance(error, RecursionError):
        return wrong(("body",), "is nested too deeply", "too_deep")
    match = _AT.match(str(error))
    message, path = (match["msg"], match["path"] or "") if match else (str(error), "")
    steps = [name or int(index) for name, index in _STEP.findall(path) if name or index]  # `[...]`: some key, unnamed
    missing = _MISSING.search(message)
    if missing:
        return wrong(("body", *steps, missing["name"]), "is required", "missing")
    kind = "type" if isinstance(error, msgspec.ValidationError) else "json"
    return wrong(("body", *steps), message, kind)


def wrong(loc: tuple[str | int, ...], message: str, kind: str) -> Malformed:
    """One thing that is wrong, and where."""
    return Malformed(message, problems=(Problem(loc, message, kind),))


def read_reason(body: bytes) -> str | None:
    """FLOW-115: an empty body is fine; a body must be an object, a reason a string."""
    if not body.strip():
        return None
    wire: _Cancel = decode(_read_cancel, body)
    if wire.reason is not None and len(wire.reason) > 4096:
        raise wrong(("body", "reason"), "has at most 4096 characters", "too_long")
    return wire.reason


def read_flag(text: str) -> bool | None:
    """What a word of a query means, in whatever case; None: neither true nor false."""
    return _FLAGS.get(text.lower())


def read_instant(text: str) -> float | None:
    """Unix seconds of a query; None: they are none (see NOT_AN_INSTANT)."""
    number = float(text) if _NUMBER.fullmatch(text) else -1.0
    return number if math.isfinite(number) and number >= 0 else None


def has_already(request: Request, etag: str) -> bool:
    """Whether the caller's copy is this one, by `If-None-Match`: a list, or `*`; weak and strong count alike."""
    given = ",".join(request.headers.getlist("if-none-match"))
    known = {item.strip().removeprefix("W/") for item in given.split(",")}
    return not known.isdisjoint({etag.removeprefix("W/"), "*"})


def wants_records(query: QueryParams) -> bool:
    """FLOW-90 to FLOW-92, FLOW-101: `records`, `full` and `all` mean the same; anything else is passed over."""
    return bool(query) and not {"records", "full", "all"}.isdisjoint(query.getlist("include"))
