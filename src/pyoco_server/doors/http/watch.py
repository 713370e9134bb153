"""`/runs/{run_id}/watch`: the changes of a run as server-sent events."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any
from weakref import WeakKeyDictionary

from msgspec import Meta, field
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.watch import RunVersion, Watch, Watching, watch
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import encode_json
from pyoco_server.doors.http.event_stream import EventStream
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.reading import read_query
from pyoco_server.doors.http.requests import wants_records
from pyoco_server.doors.http.shapes import Request as Shape
from pyoco_server.doors.http.shown import shown_run
from pyoco_server.doors.http.state import State, caller_of, state_of
from pyoco_server.errors import Corrupt
from pyoco_server.logs import get_logger

__all__ = ["OPERATIONS", "SCHEMAS"]

log = get_logger(__name__)

TIMEOUT_SECONDS = 300
TIMEOUT_SECONDS_MAX = 600

_NUMBER = re.compile(r"[+-]?[0-9]{1,20}(\.[0-9]{0,20})?([eE][+-]?[0-9]{1,3})?", re.ASCII)
#: An event's id is its revision. Any other value in the header comes from a different server.
_EVENT_ID = re.compile(r"[0-9]{1,19}", re.ASCII)


async def watch_run(request: Request) -> Response:
    state, asked = state_of(request), read_query(WatchQuery, request.query_params).checked()
    watching = await watch(state.backend, caller_of(request), state.hub, _read(request, asked))
    if not isinstance(watching, Watching):
        return Response(status_code=204)
    frames = _Frames(watching, state, records=wants_records(asked.include))
    stream = EventStream(frames)
    watching.follower.on_over = stream.hurry
    if watching.follower.is_over:
        stream.hurry()
    return stream


def _seconds(text: str, _: object) -> float | None:
    number = float(text) if _NUMBER.fullmatch(text) else math.nan
    return number if math.isfinite(number) else None


class WatchQuery(Shape):
    """FLOW-117 to FLOW-119."""

    include: Annotated[list[str], Meta(description="`records`, `full` or `all`: snapshots with task records.")] = field(
        default_factory=list
    )
    since: (
        Annotated[
            float,
            Meta(
                description="Leave out the first snapshot unless its `updated_at` is greater.",
                extra={"read": _seconds, "rule": "must be a finite number"},
            ),
        ]
        | None
    ) = None
    timeout_sec: Annotated[int, Meta(ge=1, le=TIMEOUT_SECONDS_MAX, description="The stream ends after this time.")] = (
        TIMEOUT_SECONDS
    )


def _read(request: Request, asked: WatchQuery) -> Watch:
    last = request.headers.get("last-event-id", "")
    return Watch(
        run_id=request.path_params["run_id"],
        since=asked.since,
        last_revision=int(last) if _EVENT_ID.fullmatch(last) else None,
        timeout_seconds=asked.timeout_sec,
    )


class _Frames:
    """The events of one watcher in wire format."""

    def __init__(self, watching: Watching, state: State, *, records: bool) -> None:
        self._watching, self._state, self._records = watching, state, records
        self.ends_at = watching.ends_at

    async def next(self) -> bytes | None:
        event = await self._watching.next()
        if event is None:
            return None
        try:
            data = _data(event.version, records=self._records)
        except Corrupt as error:
            log.error("stored run is invalid; ending its watch", run_id=_run_id(event.version), error=error)
            return None
        self._state.note_revision(event.version.stored.revision)
        # FLOW-121. JSON has no line breaks outside strings and escapes those inside: the data stays on one line.
        head = f"id: {event.version.stored.revision}\nevent: {event.kind}\n".encode()
        return b"".join((head, data, f"{self._state.backend.clock()!r}}}\n\n".encode()))

    def close(self) -> None:
        self._watching.close()


#: The serialized event except its first lines and its `ts`, cached for all watchers as long as the event is referenced.
#: Without records, and with.
_DATA: tuple[WeakKeyDictionary[RunVersion, bytes], WeakKeyDictionary[RunVersion, bytes]] = (
    WeakKeyDictionary(),
    WeakKeyDictionary(),
)


def _data(version: RunVersion, *, records: bool) -> bytes:
    """O(size of the run) on the first call. Raises Corrupt."""
    made = _DATA[records].get(version)
    if made is None:
        snapshot = shown_run(version.stored.run)
        if not records:
            del snapshot["task_records"]
        made = b'data: {"run_id":%s,"snapshot":%s,"ts":' % (encode_json(_run_id(version)), encode_json(snapshot))
        _DATA[records][version] = made
    return made


def _run_id(version: RunVersion) -> str:
    return version.stored.run.run_id


#: Defined here because only the stream uses it.
SCHEMAS: dict[str, Any] = {
    "RunWatchEvent": schemas.object_of(
        {"run_id": {"type": "string", "format": "uuid"}, "snapshot": schemas.ref("RunSnapshot"), "ts": schemas.NUMBER},
        ["run_id", "snapshot", "ts"],
        "The `data` of an event: the current state of the run, and the time of sending.",
    ),
}

_DESCRIPTION = """\
Server-sent events, each with one JSON object as its `data`. `event: snapshot` comes first, and again whenever more \
than `heartbeat_at` and `updated_at` has changed; quick changes may be merged, the last one is always sent. `event: \
heartbeat` comes after 5 seconds without an event. The `id` is the run's revision. The stream ends after the terminal \
snapshot, after `timeout_sec`, when the run is no longer stored, and when NATS or the gateway stops: reconnect with \
`Last-Event-ID`, as browsers do by themselves, or with `since`."""

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/runs/{run_id}/watch",
        endpoint=watch_run,
        summary="Watch a run",
        description=_DESCRIPTION,
        query=WatchQuery,
        parameters=(
            schemas.path_run_id,
            schemas.header(
                "Last-Event-ID", "The `id` of the last event received: a first snapshot with this id is skipped."
            ),
        ),
        answer={
            "description": "The events, as they happen.",
            "content": {"text/event-stream": {"schema": schemas.ref("RunWatchEvent")}},
        },
        more_answers={204: "`Last-Event-ID` is the terminal snapshot: no more events will follow."},
        errors=(404, 422),
    ),
)
