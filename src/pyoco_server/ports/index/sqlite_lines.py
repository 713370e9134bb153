"""Conversion of a run to a row, and of a row to a line of a list.

SQLite's JSON reads and writes floats with fifteen digits; an instant has up to seventeen. So no instant passes through
it as a float: those that are compared are stored as integers, the others as text.
"""

from __future__ import annotations

import functools
import json
import math
import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from pyoco_server.core.priced.projection import line_of
from pyoco_server.core.programs.line import program_line
from pyoco_server.core.programs.record import EXEC
from pyoco_server.core.retries.course import policy_of, try_number
from pyoco_server.core.run import FLOW, PACK, Run
from pyoco_server.core.states import UNKNOWN
from pyoco_server.ports.index import sqlite_programs
from pyoco_server.ports.index.port import Summary
from pyoco_server.ports.index.search_words import id_word, search_words
from pyoco_server.ports.runs.port import Removed, Stored

__all__ = [
    "COLUMNS",
    "LINE",
    "Row",
    "instant_of",
    "labels_of",
    "money_of",
    "number_of",
    "read_lines",
    "rows_of",
    "run_id_of",
    "unknown_row",
]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode

_NEVER = math.inf


def number_of(instant: float) -> int:
    """Return an integer that sorts like the instant and represents it exactly: the bits of a non-negative double."""
    (bits,) = struct.unpack("<q", struct.pack("<d", max(0.0, instant)))  # in this order: NaN and -0.0 become 0.0
    return int(bits)


def instant_of(number: int) -> float:
    (instant,) = struct.unpack("<d", struct.pack("<q", number))
    return float(instant)


#: The columns of table `runs`, in order.
COLUMNS = (
    "run_id",
    "rev",
    "tenant_id",
    "status",
    "kind",
    "flow_name",
    "tag",
    "sha256",
    "at",
    "submitted",
    "tags",
    "more",
    "job_id",
    "client_id",
    "grp",
    "waits",
    "due",
    "clock",
    "rerun_of",
    "words",
    "facets",
    "doc",
)

_AT, _SUBMITTED = COLUMNS.index("at"), COLUMNS.index("submitted")

#: The values of one row of table `runs`, in the order of its columns.
Row = list[Any]

#: A row `r` with its position `k.at` in the list, as JSON.
LINE = """'[' || json_array(k.at, r.run_id, r.kind, r.status, r.flow_name, r.tag, r.submitted, r.at)
    || ',' || r.tags || ',' || r.more || ',' || coalesce(r.clock, 'null') || ']'"""


def read_lines(text: str | None) -> list[tuple[int, Summary]]:
    """Parse the output of `group_concat` over LINEs: each line with its position."""
    if text is None:
        return []
    lines = []
    for (at, run_id, kind, status, flow_name, tag, submitted, updated), tags, more, clock in _decode(f"[{text}]"):
        heartbeat_at, start_time, end_time, worker_id, error = more[:5]
        line = Summary(
            run_id=run_id,
            kind=kind,
            status=status,
            flow_name=flow_name,
            tag=tag,
            tags=tuple(tags),
            submitted_at=instant_of(submitted),
            updated_at=instant_of(updated),
            heartbeat_at=heartbeat_at,
            start_time=start_time,
            end_time=end_time,
            worker_id=worker_id,
            error=error,
            **_of_its_kind(kind, more),
            **(clock or {}),
        )
        lines.append((at, line))
    return lines


def _of_its_kind(kind: str, more: list[Any]) -> dict[str, Any]:
    """Return the members that only packs or programs have."""
    if len(more) <= 5:
        return {}
    return {"program": more[5]} if kind == EXEC else {"pack": more[5]}


def money_of(more: str) -> str:
    """Return the money state of a pack from that column of its row. Empty: its record does not contain one."""
    return str(_decode(more)[5].get("money_state", ""))


def run_id_of(item: Stored | Removed) -> str:
    run_id = item.run.run_id if isinstance(item, Stored) else item.run_id
    return run_id if type(run_id) is str and run_id.isascii() and "\0" not in run_id else _key(run_id)


@functools.lru_cache(maxsize=1024)
def labels_of(tag: str, tags_text: str) -> tuple[str, ...]:
    """Return the labels without the routing tag, which has its own index (FLOW-99)."""
    return tuple({_text(label) for label in _decode(tags_text)} - {tag})


#: What a list shows as the error of a run whose record cannot be decoded.
_UNREADABLE = "the stored record of this run cannot be read"


def unknown_row(item: Removed, before: list[Any] | None, now: float) -> Row:
    """Build the row of a run whose record cannot be decoded (SAFE-16).

    Tenant, kind and names are those of its last readable record: `before` is that row as `sqlite_feed` reads it.
    """
    tenant_id, tag, at, tags, kind, group, flow_name = "", "", number_of(item.stored_at or now), "[]", FLOW, None, ""
    if before is not None:
        _, _, tenant_id, _, tag, at, tags, _, kind, group, flow_name = before[:11]
    more: list[Any] = [instant_of(at), None, None, None, _UNREADABLE]
    if kind == PACK:
        more.append({})
    elif kind == EXEC:
        more += [{}, [0, False]]
    run_id = run_id_of(item)
    words = f" {id_word(run_id)} " if before is None else before[13]
    row: Row = [run_id, item.revision, tenant_id, UNKNOWN, kind, flow_name, tag, None, at, at, tags]
    return [*row, _encode(more).decode(), None, None, group, "", None, None, None, words, "", None]


def rows_of(stored: Sequence[Stored], complete: Callable[[list[Row]], None]) -> tuple[list[Row], str | None]:
    """Return many rows, and the same rows as JSON. Must be fast: it holds the GIL.

    `complete` fills in what depends on what is stored already; it may be called twice. None instead of JSON: some
    values do not fit into SQLite's JSON, and the rows must be inserted one by one.
    """
    try:
        rows = [_plain_row(item) for item in stored]
        for column in (_AT, _SUBMITTED):
            numbers = array("q", array("d", [row[column] for row in rows]).tobytes())
            for row, number in zip(rows, numbers, strict=True):
                row[column] = number
        complete(rows)
        text = _encode(rows).decode()
        if "\\u0000" not in text:
            return rows, text
    except (TypeError, ValueError, OverflowError):
        pass
    rows = [_any_row(item) for item in stored]
    complete(rows)
    return rows, None


def _plain_row(item: Stored) -> Row:
    run = item.run
    updated_at, submitted_at, heartbeat_at = run.updated_at, run.submitted_at, run.heartbeat_at
    if not type(updated_at) is type(submitted_at) is type(heartbeat_at) is float:
        raise TypeError("not instants")
    if not (0.0 < updated_at < _NEVER and 0.0 < submitted_at < _NEVER and 0.0 < heartbeat_at < _NEVER):
        raise ValueError("not instants")
    more: tuple[Any, ...] = (heartbeat_at, run.start_time, run.end_time, run.worker_id, run.error)
    job_id = client_id = group = None
    if run.kind == PACK:
        more = (*more, line_of(run))
    elif run.program is not None:
        more = (*more, program_line(run), sqlite_programs.seen(run))
        job_id, client_id, group = run.program.job_id, run.program.client_id, run.program.group
    return [
        run.run_id,
        item.revision,
        run.tenant_id or "",
        run.status.value,
        run.kind,
        run.flow_name,
        run.tag,
        run.workflow_yaml_sha256,
        updated_at,
        submitted_at,
        _tags_text(run.tags),
        _encode(more).decode(),
        job_id,
        client_id,
        group,
        *clock_of(run),
        run.rerun_of,
        search_words(run),
        "",
        None,
    ]


def _any_row(item: Stored) -> Row:
    """Like `_plain_row`, with every member converted to the type of its column."""
    run = item.run
    times = (run.heartbeat_at, run.start_time, run.end_time)
    texts = (run.worker_id, run.error)
    more: list[Any] = [None if value is None else _number(value) for value in times]
    more += [None if value is None else _text(value) for value in texts]
    if run.kind == PACK:
        more.append(line_of(run))
    elif run.program is not None:
        more += [program_line(run), sqlite_programs.seen(run)]
    return [
        run_id_of(item),
        item.revision,
        _text(run.tenant_id or ""),
        run.status.value,
        _text(run.kind),
        _text(run.flow_name),
        _text(run.tag),
        None if run.workflow_yaml_sha256 is None else _text(run.workflow_yaml_sha256),
        number_of(_number(run.updated_at)),
        number_of(_number(run.submitted_at)),
        _tags_text(run.tags),
        _encode(more).decode(),
        *_names_of(run),
        *clock_of(run),
        None if run.rerun_of is None else _text(run.rerun_of),
        search_words(run),
        "",
        None,
    ]


def clock_of(run: Run) -> tuple[str, int | None, str | None]:
    """Return what a run waits for, its due time as an integer while it does, and what a line shows of both."""
    due, schedule = run.due_at, run.schedule
    if due is None and schedule is None and run.retry is None:
        return "", None, None
    shown: dict[str, Any] = {} if due is None else {"not_before": _number(due)}
    if schedule is not None:
        shown["schedule"] = {
            _text(name): _text(value) if type(value) is str else value for name, value in schedule.items()
        }
    policy = policy_of(run)
    if policy is not None:
        shown |= {"try_number": try_number(run), "max_tries": policy.tries}
    text = json.dumps(shown, allow_nan=False)
    waits = run.waits_for if run.waits_for_time else None
    return ("", None, text) if waits is None else (_text(waits), number_of(_number(due)), text)


def _names_of(run: Run) -> tuple[str | None, str | None, str | None]:
    if run.program is None:
        return None, None, None
    return _text(run.program.job_id), _text(run.program.client_id), _text(run.program.group)


@functools.lru_cache(maxsize=1024)
def _known_tags_text(tags: tuple[str, ...]) -> str:
    return _encode(tags).decode()


def _tags_text(tags: tuple[str, ...]) -> str:
    """Most runs share their labels with many others, hence the cache.

    Labels of a foreign record may not be hashable.
    """
    try:
        return _known_tags_text(tags)
    except (TypeError, ValueError):
        return json.dumps([_text(tag) for tag in tags])


# Another program may have written a snapshot with members of other types: one malformed run must not stop the feed.


def _text(value: object) -> str:
    if type(value) is str and value.isascii():  # nearly always
        return value
    return str(value).encode("utf-8", "replace").decode()


def _key(value: object) -> str:
    """Return the id without characters that SQLite's JSON cannot hold. The run is found by this key when it changes."""
    return _text(value).replace("\0", "\ufffd")


def _number(value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]  # the try decides whether it is a number
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return number if math.isfinite(number) else 0.0
