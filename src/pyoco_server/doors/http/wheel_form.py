"""Parse the wheel upload form and the query of the wheel history."""

from __future__ import annotations

import time
from typing import Annotated

from msgspec import Meta
from starlette.datastructures import QueryParams
from starlette.requests import Request

from pyoco_server.actions.list_wheel_history import HistoryFilter
from pyoco_server.actions.register_wheel import WheelUpload
from pyoco_server.core.wheel import TAGS_MAX, WheelName, read_wheel_name, read_wheel_tags
from pyoco_server.core.wheel_event import WheelAction, WheelSource
from pyoco_server.doors.http.forms import Form, FormPart, wrong_part
from pyoco_server.doors.http.reading import read_query
from pyoco_server.doors.http.requests import read_flag
from pyoco_server.doors.http.shapes import Request as Shape
from pyoco_server.doors.http.shapes import one_of, pattern
from pyoco_server.errors import InvalidWheel, Problem, TooSlow, WheelTooLarge
from pyoco_server.ports.spool import Spool

__all__ = ["WheelHistoryQuery", "read_history_query", "read_wheel_form", "source_of"]

LIMIT_MAX, LIMIT_DEFAULT = 500, 100
#: The maximum number of tags at the maximum length, each with a comma and a space.
_FIELD_BYTES_MAX = TAGS_MAX * 130
_USER_AGENT_LENGTH_MAX = 512
#: Minimum rate, enforced after a grace period: a slower upload would occupy one of few slots for hours.
_PACE_BYTES, _PACE_GRACE_SECONDS = 8 * 1024, 60.0


async def read_wheel_form(request: Request, content: Spool, wheel_bytes_max: int) -> WheelUpload:
    """Read the form; the file goes to `content` as it arrives (FLOW-151).

    Raises Malformed (FLOW-156), WheelTooLarge as soon as the file exceeds its cap (FLOW-157), TooSlow, NoRoom.
    """
    message = f"a wheel has at most {wheel_bytes_max} bytes (PYOCO_WHEEL_MAX_BYTES)"
    too_large = WheelTooLarge(message, problems=(Problem(("body", "wheel"), message, "too_large"),))
    form = Form("wheel", wheel_bytes_max, too_large, _FIELD_BYTES_MAX)
    began = time.monotonic()
    name: WheelName | None = None
    async for piece in form.pieces(request):
        if name is None:  # refuse a bad name before reading the file's bytes
            name = _read_name(form.file())
        await content.write(piece)
        if content.size_bytes < (time.monotonic() - began - _PACE_GRACE_SECONDS) * _PACE_BYTES:
            raise TooSlow("the wheel comes too slowly")
    if name is None:
        name = _read_name(form.file())
    tags = _read_tags(form.text("tags") or "")
    if read_flag(form.text("replace") or "true") is None:  # FLOW-216: it has no effect
        raise wrong_part("replace", "must be true or false", "value")
    return WheelUpload(name, tags, content, await content.finish())


def _read_name(file: FormPart) -> WheelName:
    """FLOW-39, FLOW-156."""
    if file.has_backslash:
        raise wrong_part("wheel", "the file name must not hold a path", "value")
    try:
        return read_wheel_name(file.file_name or "")
    except InvalidWheel as error:
        raise wrong_part("wheel", str(error), "value") from error


def _read_tags(text: str) -> tuple[str, ...]:
    try:
        return read_wheel_tags(text)
    except InvalidWheel as error:
        raise wrong_part("tags", str(error), "value") from error


class WheelHistoryQuery(Shape):
    """FLOW-150."""

    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="How many.")] = LIMIT_DEFAULT
    wheel_name: (
        Annotated[str, pattern(r"^.*\.whl$", "must end in .whl", description="Events of this wheel.")] | None
    ) = None
    action: Annotated[str, one_of(WheelAction, description="Events of this kind.")] | None = None


def read_history_query(query: QueryParams) -> HistoryFilter:
    """Raises Malformed with every bad value and unknown name (FLOW-155)."""
    asked = read_query(WheelHistoryQuery, query).checked()
    action = None if asked.action is None else WheelAction(asked.action)
    return HistoryFilter(limit=asked.limit, wheel_name=asked.wheel_name, action=action)


def source_of(request: Request) -> WheelSource:
    """FLOW-224."""
    agent = request.headers.get("user-agent")
    return WheelSource(
        remote_addr=request.client.host if request.client else None,
        user_agent=agent[:_USER_AGENT_LENGTH_MAX] if agent is not None else None,
    )
