"""`/runs/{run_id}/logs`: what a run has printed, stored and live."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.follow_logs import Follow, Following, Heartbeat, LogEnd, follow_logs
from pyoco_server.actions.read import read_run
from pyoco_server.actions.read_logs import read_logs
from pyoco_server.core.run_log.line import LEVELS, Line, Stream, read_line_id
from pyoco_server.core.run_log.selection import LIMIT_DEFAULT, LIMIT_MAX, SEARCH_CHARACTERS_MAX
from pyoco_server.core.run_log.text import line_text
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import encode_json
from pyoco_server.doors.http.event_stream import EventStream
from pyoco_server.doors.http.log_query import TIMEOUT_SECONDS, TIMEOUT_SECONDS_MAX, LogQuery, read_log_query
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.state import State, caller_of, state_of

__all__ = ["OPERATIONS", "SCHEMAS"]

_END = "end"
_NDJSON, _TEXT = "application/x-ndjson", "text/plain; charset=utf-8"


async def get_logs(request: Request) -> Response:
    state = state_of(request)
    accepts_text = request.headers.get("accept", "").strip().startswith("text/plain")
    query = read_log_query(request.query_params, state.backend.clock(), accepts_text=accepts_text)
    run_id = request.path_params["run_id"]
    selection = query.selection
    if query.is_last_attempt:
        selection = query.of_attempt(await _newest_attempt(state, request))
    page = await read_logs(state.backend, caller_of(request), run_id, selection, tail=query.tail, limit=query.limit)
    headers = {"Pyoco-Log-More": "true"} if page.has_more else None
    if query.is_text:
        body = "".join(f"{line_text(line)}\n" for line in page.lines).encode()
        return Response(body, media_type=_TEXT, headers=headers)
    return Response(b"".join(encode_json(line.document()) + b"\n" for line in page.lines), 200, headers, _NDJSON)


async def _newest_attempt(state: State, request: Request) -> int:
    found = await read_run(state.backend, caller_of(request), request.path_params["run_id"])
    return max(found.run.attempt, 1)


async def stream_logs(request: Request) -> Response:
    state = state_of(request)
    query = read_log_query(request.query_params, state.backend.clock(), is_stream=True)
    last_id = request.headers.get("last-event-id", "")
    ask = await _follow(request, query, last_id)
    if last_id == _END:
        await read_run(state.backend, caller_of(request), ask.run_id)
        return Response(status_code=204)
    following = await follow_logs(state.backend, caller_of(request), state.hub, ask)
    stream = EventStream(_Frames(following, state))
    following.follower.on_over = stream.hurry
    if following.follower.is_over:
        stream.hurry()
    return stream


async def _follow(request: Request, query: LogQuery, last_id: str) -> Follow:
    state = state_of(request)
    selection, tail = query.selection, query.tail
    if query.is_last_attempt:
        selection = query.of_attempt(await _newest_attempt(state, request))
    resumed = read_line_id(last_id)
    if resumed is not None:  # a browser repeats the first request, with this header
        selection, tail = replace(selection, after=resumed), None
    return Follow(
        run_id=request.path_params["run_id"], selection=selection, tail=tail, timeout_seconds=query.timeout_seconds
    )


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
        return b"".join(map(_event, found))

    def close(self) -> None:
        self._following.close()


def _event(line: Line) -> bytes:
    # JSON has no line breaks outside strings and escapes those inside: the data stays on one line.
    return b"id: %d.%d\nevent: line\ndata: %s\n\n" % (line.attempt, line.seq, encode_json(line.document()))


SCHEMAS: dict[str, Any] = {
    "LogLine": schemas.object_of(
        {
            "id": schemas.TEXT,
            "attempt": schemas.COUNT,
            "try": schemas.COUNT,
            "seq": schemas.COUNT,
            "ts": schemas.NUMBER,
            "task": schemas.or_null(schemas.TEXT),
            "stream": {"type": "string", "enum": list(Stream)},
            "level": schemas.or_null({"type": "string", "enum": list(LEVELS)}),
            "logger": schemas.or_null(schemas.TEXT),
            "text": schemas.TEXT,
            "exc": schemas.TEXT,
            "cut_bytes": schemas.COUNT,
            "trace_id": schemas.or_null(schemas.TEXT),
            "span_id": schemas.or_null(schemas.TEXT),
            "event": {"type": "string", "enum": ["gap"]},
            "missing_lines": schemas.or_null(schemas.COUNT),
            "missing_bytes": schemas.or_null(schemas.COUNT),
            "why": {"type": "string", "enum": ["limit", "buffer", "lost", "retention"]},
        },
        ["id", "attempt", "try", "seq", "ts", "task", "stream", "level", "logger", "text", "cut_bytes"],
        "A line, or with `event: gap` the place where lines are missing.",
    ),
}


def _number(most: int, default: int | None = None) -> dict[str, Any]:
    number: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": most}
    return number if default is None else number | {"default": default}


_FILTERS = (
    schemas.path_run_id,
    schemas.query("task", schemas.TEXTS, "Lines of these tasks; `-`: lines of no task."),
    schemas.query("attempt", schemas.TEXT, "The number of an attempt, `last`, or `all` (default)."),
    schemas.query("stream", schemas.array_of({"type": "string", "enum": list(Stream)}), "Lines of these streams."),
    schemas.query(
        "level",
        {"type": "string", "enum": list(LEVELS)},
        "This level and above. Lines without one count as INFO (stdout) and WARNING (stderr).",
    ),
    schemas.query("since", schemas.TEXT, "Lines from this instant on, or from this long ago, such as `5m`."),
    schemas.query(
        "search",
        {"type": "string", "minLength": 1, "maxLength": SEARCH_CHARACTERS_MAX},
        "Lines that contain this text, in upper or lower case.",
    ),
    schemas.query("tail", _number(LIMIT_MAX), "The last lines that match; not together with `after`."),
    schemas.query("after", schemas.TEXT, "Lines after the one with this id."),
)
_READ_DESCRIPTION = """\
One JSON object per line, ordered by attempt and sequence. Where lines are missing, a line with `event: gap` says how \
many and why. With `format=text`, or `Accept: text/plain`, each line is `<time> <task or -> <stream> <text>`, with \
control characters as `\\xNN`. Empty if nothing was printed."""
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
        parameters=(
            *_FILTERS,
            schemas.query("until", schemas.TEXT, "Lines before this instant, or before this long ago."),
            schemas.query(
                "limit",
                _number(LIMIT_MAX, LIMIT_DEFAULT),
                "The header `Pyoco-Log-More: true` says that more lines follow: go on with `after`.",
            ),
            schemas.query("format", {"type": "string", "enum": ["ndjson", "text"]}, "The form of the answer."),
        ),
        answer={
            "description": "The lines.",
            "content": {_NDJSON: {"schema": schemas.ref("LogLine")}, "text/plain": {"schema": schemas.TEXT}},
        },
        errors=(404, 422),
    ),
    Operation(
        method="GET",
        path="/runs/{run_id}/logs/stream",
        endpoint=stream_logs,
        summary="Follow what a run prints",
        description=_STREAM_DESCRIPTION,
        parameters=(
            *_FILTERS,
            schemas.query(
                "timeout_sec", _number(TIMEOUT_SECONDS_MAX, TIMEOUT_SECONDS), "The stream ends after this time."
            ),
            {
                "name": "Last-Event-ID",
                "in": "header",
                "required": False,
                "schema": schemas.TEXT,
                "description": "The `id` of the last event received: the stream continues after it.",
            },
        ),
        answer={
            "description": "The lines, as they come.",
            "content": {"text/event-stream": {"schema": schemas.ref("LogLine")}},
        },
        more_answers={204: "`Last-Event-ID` is `end`: no more lines will follow."},
        errors=(404, 422),
    ),
)
