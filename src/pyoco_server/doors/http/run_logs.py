"""`/runs/{run_id}/logs`: what a run has printed, stored and live."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.follow_logs import Follow, Following, Heartbeat, LogEnd, follow_logs
from pyoco_server.actions.read import read_run
from pyoco_server.actions.read_logs import LogPage, read_logs
from pyoco_server.core.run_log.line import LEVELS, Line, Stream, Why, read_line_id
from pyoco_server.core.run_log.selection import Selection
from pyoco_server.core.run_log.text import line_text
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import encode_json
from pyoco_server.doors.http.event_stream import EventStream
from pyoco_server.doors.http.log_query import LAST, LogQuery, LogsQuery, LogStreamQuery, checked, selection_of
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.reading import read_query
from pyoco_server.doors.http.shapes import Answer, one_of
from pyoco_server.doors.http.state import State, caller_of, state_of

__all__ = ["OPERATIONS", "SCHEMAS"]

_END = "end"
#: More is rendered in a thread, so that other requests are not delayed: ten thousand long lines take seconds.
_LINES_AT_ONCE = 100
_CHARACTERS_AT_ONCE = 262_144
_NDJSON, _TEXT = "application/x-ndjson", "text/plain; charset=utf-8"


async def get_logs(request: Request) -> Response:
    state = state_of(request)
    asked = checked(read_query(LogsQuery, request.query_params))
    selection = await _selection(request, asked)
    run_id = request.path_params["run_id"]
    page = await read_logs(state.backend, caller_of(request), run_id, selection, tail=asked.tail, limit=asked.limit)
    headers = {"Pyoco-Log-More": "true"} if page.has_more else {}
    if state.backend.logs is None:
        headers["Pyoco-Logs"] = "off"
    accepts_text = request.headers.get("accept", "").strip().startswith("text/plain")
    is_text = asked.format == "text" or (asked.format is None and accepts_text)
    body = await _rendered(lambda: _text(page) if is_text else _ndjson(page), page.lines)
    return Response(body, 200, headers, _TEXT if is_text else _NDJSON)


async def _rendered(render: Callable[[], bytes], lines: Sequence[Line]) -> bytes:
    is_large = len(lines) > _LINES_AT_ONCE or sum(len(line.text) for line in lines) > _CHARACTERS_AT_ONCE
    return await asyncio.to_thread(render) if is_large else render()


def _text(page: LogPage) -> bytes:
    return "".join(f"{line_text(line)}\n" for line in page.lines).encode()


def _ndjson(page: LogPage) -> bytes:
    return b"".join(encode_json(line.document(page.tries[line.attempt])) + b"\n" for line in page.lines)


async def _selection(request: Request, asked: LogQuery) -> Selection:
    state = state_of(request)
    selection = selection_of(asked, state.backend.clock())
    if asked.attempt != LAST:
        return selection
    found = await read_run(state.backend, caller_of(request), request.path_params["run_id"])
    return replace(selection, attempt=max(found.run.attempt, 1))


async def stream_logs(request: Request) -> Response:
    state = state_of(request)
    asked = checked(read_query(LogStreamQuery, request.query_params))
    run_id, last_id = request.path_params["run_id"], request.headers.get("last-event-id", "")
    if last_id == _END:
        await read_run(state.backend, caller_of(request), run_id)
        return Response(status_code=204)
    selection, tail = await _selection(request, asked), asked.tail
    resumed = read_line_id(last_id)
    if resumed is not None:  # a browser repeats the first request, with this header
        selection, tail = replace(selection, after=resumed), None
    ask = Follow(run_id=run_id, selection=selection, tail=tail, timeout_seconds=asked.timeout_sec)
    following = await follow_logs(state.backend, caller_of(request), state.hub, ask)
    stream = EventStream(_Frames(following, state))
    following.follower.on_over = stream.hurry
    if following.follower.is_over:
        stream.hurry()
    return stream


class _Frames:
    """The events of one follower in wire format."""

    def __init__(self, following: Following, state: State) -> None:
        self._following, self._state = following, state
        self.ends_at = following.ends_at

    async def next(self) -> bytes | None:
        found = await self._following.next()
        if found is None:
            return None
        if isinstance(found, LogEnd):
            data = encode_json({"status": found.status, "attempt": found.attempt})
            return b"id: end\nevent: end\ndata: %s\n\n" % data
        if isinstance(found, Heartbeat):
            return b"event: heartbeat\ndata: %s\n\n" % encode_json({"ts": self._state.backend.clock()})
        tries = self._following.tries
        return await _rendered(lambda: b"".join(_event(line, tries[line.attempt]) for line in found), found)

    def close(self) -> None:
        self._following.close()


def _event(line: Line, try_number: int) -> bytes:
    # JSON has no line breaks outside strings and escapes those inside: the data stays on one line.
    return b"id: %d.%d\nevent: line\ndata: %s\n\n" % (line.attempt, line.seq, encode_json(line.document(try_number)))


class LogLine(msgspec.Struct, kw_only=True):
    """A line, or with `event: gap` the place where lines are missing."""

    id: str
    attempt: int
    seq: int
    ts: float
    task: str | None
    stream: Annotated[str, one_of(Stream)]
    level: Annotated[str, one_of(LEVELS)] | None
    logger: str | None
    text: str
    #: `try` is a keyword of Python.
    try_: Annotated[int, Meta(description="The try of the run that the attempt belongs to, from 1.")] = msgspec.field(
        name="try"
    )
    cut_bytes: Annotated[int, Meta(description="What is missing at the end of a long line.")]
    trace_id: str | None
    span_id: str | None
    exc: Annotated[str, Meta(description="The exception of a record.")] | None = None
    event: Literal["gap"] | None = None
    missing_lines: int | None = None
    missing_bytes: int | None = None
    why: Annotated[str, one_of(Why)] | None = None


#: Defined here because only the stream uses it.
SCHEMAS: dict[str, Any] = {
    "RunLogEvent": schemas.object_of(
        {"ts": schemas.NUMBER, "status": schemas.STATUS, "attempt": {"type": "integer"}},
        [],
        "The `data` of an event: that of a line is a `LogLine`; that of the end has `status` and `attempt`; that of a "
        "heartbeat has `ts`.",
    ),
}

_READ_DESCRIPTION = """\
One JSON object per line, ordered by attempt and sequence. Where lines are missing, a line with `event: gap` says how \
many and why. With `format=text`, or `Accept: text/plain`, each line is `<time> <task or -> <stream> <text>`, with \
control characters as `\\xNN`. Empty if nothing was printed; the header `Pyoco-Logs: off` says that this server keeps \
no logs."""
_STREAM_DESCRIPTION = """\
Server-sent events. `event: line` has a line as its `data` and the line's id as its `id`; `event: heartbeat` comes \
after 5 seconds without an event; `event: end` comes when the run has ended and no line has come for 2 seconds, and \
closes the stream. Begins with the first stored line. Reconnect with `Last-Event-ID`, as browsers do by themselves."""

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/runs/{run_id}/logs",
        endpoint=get_logs,
        summary="Read what a run has printed",
        description=_READ_DESCRIPTION,
        query=LogsQuery,
        parameters=(schemas.path_run_id,),
        answer=Answer(LogLine, "The lines.", _NDJSON, {"text/plain": {"type": "string"}}),
        errors=(404, 422),
    ),
    Operation(
        method="GET",
        path="/runs/{run_id}/logs/stream",
        endpoint=stream_logs,
        summary="Follow what a run prints",
        description=_STREAM_DESCRIPTION,
        query=LogStreamQuery,
        parameters=(
            schemas.path_run_id,
            schemas.header("Last-Event-ID", "The `id` of the last event received: the stream continues after it."),
        ),
        answer={
            "description": "The lines, as they come.",
            "content": {"text/event-stream": {"schema": schemas.ref("RunLogEvent")}},
        },
        more_answers={204: "`Last-Event-ID` is `end`: no more lines will follow."},
        errors=(404, 422),
    ),
)
