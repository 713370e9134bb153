"""Read request bodies and queries within limits, and parse them into our own types."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Collection
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.types import Message, Receive

from pyoco_server.doors.http.pace import BodyPace
from pyoco_server.errors import InvalidListQuery, Problem, Refused, TooLarge, TooSlow

__all__ = [
    "NOT_AN_INSTANT",
    "Malformed",
    "MalformedProgramRequest",
    "MalformedQuery",
    "chunks_of",
    "decode",
    "has_already",
    "malformed",
    "read_body",
    "read_flag",
    "read_instant",
    "read_number",
    "wants_records",
    "wrong",
]

#: Larger bodies are refused while they are read. Snapshots have lower caps (FLOW-71).
JSON_BYTES_MAX = 1024 * 1024
#: The same values as in settings (FLOW-517).
_FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


#: A JSON number of bounded length, so that parsing is cheap.
_NUMBER = re.compile(r"-?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,3})?", re.ASCII)
NOT_AN_INSTANT = "must be a number of seconds since 1970, not negative"


class Malformed(Refused):
    """Invalid body. The response lists every problem with its location."""


class MalformedProgramRequest(Malformed):
    """Unknown members of a request about programs. The response also has the code of a bad schema (GRID-156)."""


class MalformedQuery(InvalidListQuery):
    """Invalid query."""


async def chunks_of(request: Request, bytes_max: int) -> AsyncIterator[bytes]:
    """Yield the body as it arrives.

    Raises TooLarge based on the header alone, or as soon as too much has arrived; TooSlow if it arrives too slowly (see
    `BodyPace`).
    """
    declared = request.headers.get("content-length", "")
    # Check the number of digits first: parsing thousands of them is expensive.
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
    """Return whether the next message has already arrived; False for servers that do not expose this.

    A timer costs as much as reading a small body, and most small bodies arrive with their headers. uvicorn's event
    shows it.
    """
    arrived = getattr(getattr(receive, "__self__", None), "message_event", None)
    return isinstance(arrived, asyncio.Event) and arrived.is_set()


async def _wait(receive: Receive, seconds_max: float) -> tuple[Message, float]:
    """Return the next message and the time waited for it. Raises TooSlow."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with asyncio.timeout(seconds_max):
            message = await receive()
    except TimeoutError:
        raise TooSlow from None
    return message, loop.time() - began


async def read_body(request: Request, bytes_max: int = JSON_BYTES_MAX) -> bytes:
    """Return the complete body. Raises as `chunks_of` does."""
    return b"".join([chunk async for chunk in chunks_of(request, bytes_max)])


_AT = re.compile(r"^(?P<msg>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<name>[^`]+)`")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")


def decode(decoder: Any, body: Any) -> Any:
    """Decode with msgspec. Raises Malformed with the location of the problem."""
    try:
        return decoder(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise malformed(error, body) from error


def malformed(error: Exception, body: Any) -> Malformed:
    """Split msgspec's message into a location and a text."""
    if not bytes(body).strip():  # msgspec would report truncated input
        return wrong(("body",), "a JSON object is needed, and there is no body", "missing")
    if isinstance(error, RecursionError):
        return wrong(("body",), "is nested too deeply", "too_deep")
    match = _AT.match(str(error))
    message, path = (match["msg"], match["path"] or "") if match else (str(error), "")
    steps = [name or int(index) for name, index in _STEP.findall(path) if name or index]  # `[...]` is an unnamed key
    missing = _MISSING.search(message)
    if missing:
        return wrong(("body", *steps, missing["name"]), "is required", "missing")
    kind = "type" if isinstance(error, msgspec.ValidationError) else "json"
    return wrong(("body", *steps), message, kind)


def wrong(loc: tuple[str | int, ...], message: str, kind: str) -> Malformed:
    """Build the error for one problem and its location."""
    return Malformed(message, problems=(Problem(loc, message, kind),))


def read_flag(text: str) -> bool | None:
    """Parse a boolean of a query, case-insensitively. Returns None if it is invalid."""
    return _FLAGS.get(text.lower())


def read_number(text: str) -> float | None:
    """Parse a number of a query. Returns None if it is invalid."""
    number = float(text) if _NUMBER.fullmatch(text) else math.nan
    return number if math.isfinite(number) else None


def read_instant(text: str) -> float | None:
    """Parse Unix seconds of a query. Returns None if they are invalid (see NOT_AN_INSTANT)."""
    number = read_number(text)
    return number if number is not None and number >= 0 else None


def has_already(request: Request, etag: str) -> bool:
    """Return whether the caller's copy is current, by `If-None-Match`: a list or `*`; weak tags count as strong."""
    given = ",".join(request.headers.getlist("if-none-match"))
    known = {item.strip().removeprefix("W/") for item in given.split(",")}
    return not known.isdisjoint({etag.removeprefix("W/"), "*"})


def wants_records(include: Collection[str]) -> bool:
    """FLOW-90 to FLOW-92, FLOW-101: `records`, `full` and `all` mean the same; other values are ignored."""
    return not {"records", "full", "all"}.isdisjoint(include)
