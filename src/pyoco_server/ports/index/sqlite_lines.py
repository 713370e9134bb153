"""A run as a row, and a row as a line of a list.

SQLite writes and reads its numbers in JSON with fifteen digits; an instant has up to seventeen. So none of them passes
there as a number with a point: those that are compared are stored as whole numbers, the others as text.
"""

from __future__ import annotations

import functools
import json
import math
import struct
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from pyoco_server.core.priced.projection import line_of
from pyoco_server.core.programs.line import program_line
from pyoco_server.core.programs.record import EXEC
from pyoco_server.core.run import FLOW, PACK, Run
from pyoco_server.core.states import UNKNOWN
from pyoco_server.ports.index import sqlite_programs
from pyoco_server.ports.index.port import Summary
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
    """A whole number that sorts as the instant does and stands for it exactly: the bits of a double from zero on."""
    (bits,) = struct.unpack("<q", struct.pack("<d", max(0.0, instant)))  # in this order: no number, no minus zero
    return int(bits)


def instant_of(number: int) -> float:
    (instant,) = struct.unpack("<d", struct.pack("<q", number))
    return float(instant)


#: The columns of table `runs`, in its order.
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
)

_AT, _SUBMITTED = COLUMNS.index("at"), COLUMNS.index("submitted")

#: The values of one row of table `runs`, in the order of its columns.
Row = list[Any]

#: A row `r` with its place `k.at` in the list, as JSON.
LINE = """'[' || json_array(k.at, r.run_id, r.kind, r.status, r.flow_name, r.tag, r.submitted, r.at)
    || ',' || r.tags || ',' || r.more || ']'"""


def read_lines(text: str | None) -> list[tuple[int, Summary]]:
    """What `group_concat` made of some LINEs: each with its place."""
    if text is None:
        return []
    lines = []
    for (at, run_id, kind, status, flow_name, tag, submitted, updated), tags, more in _decode(f"[{text}]"):
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
        )
        lines.append((at, line))
    return lines


def _of_its_kind(kind: str, more: list[Any]) -> dict[str, Any]:
    """What runs of some kinds have beside what all have."""
    if len(more) <= 5:
        return {}
    return {"program": more[5]} if kind == EXEC else {"pack": more[5]}


def money_of(more: str) -> str:
    """The money state of a pack, by that column of its row. Empty: its record does not tell."""
    return str(_decode(more)[5].get("money_state", ""))


def run_id_of(item: Stored | Removed) -> str:
    run_id = item.run.run_id if isinstance(item, Stored) else item.run_id
    return run_id if type(run_id) is str and run_id.isascii() and "\0" not in run_id else _key(run_id)


@functools.lru_cache(maxsize=1024)
def labels_of(tag: str, tags_text: str) -> tuple[str, ...]:
    """The labels beside the routing tag, which has an index of its own (FLOW-99)."""
    return tuple({_text(label) for label in _decode(tags_text)} - {tag})


#: What a list shows as the error of a run whose record cannot be decoded.
_UNREADABLE = "the stored record of this run cannot be read"


def unknown_row(item: Removed, before: list[Any] | None, now: float) -> Row:
    """SAFE-16: a run whose record cannot be decoded. Tenant, kind and names are those of the last record that could be:
    `before` is its row as `sqlite_feed` reads it."""
    tenant_id, tag, at, tags, kind, group, flow_name = "", "", number_of(item.stored_at or now), "[]", FLOW, None, ""
    if before is not None:
        _, _, tenant_id, _, tag, at, tags, _, kind, group, flow_name = before[:11]
    more: list[Any] = [instant_of(at), None, None, None, _UNREADABLE]
    if kind == PACK:
        more.append({})
    elif kind == EXEC:
        more += [{}, [0, False]]
    row: Row = [run_id_of(item), item.revision, tenant_id, UNKNOWN, kind, flow_name, tag, None, at, at, tags]
    return [*row, _encode(more).decode(), None, None, group]


def rows_of(stored: Sequence[Stored]) -> tuple[list[Row], str | None]:
    """Many rows, and the same as JSON. Done with Python's lock in hand, so it has to be quick.

    Without the JSON: there are odd values that SQLite's JSON cannot hold, and the rows have to go in one by one.
    """
    try:
        rows = [_plain_row(item) for item in stored]
        for column in (_AT, _SUBMITTED):
            numbers = array("q", array("d", [row[column] for row in rows]).tobytes())
            for row, number in zip(rows, numbers, strict=True):
                row[column] = number
        text = _encode(rows).decode()
    except (TypeError, ValueError, OverflowError):
        return [_any_row(item) for item in stored], None
    return (rows, text) if "\\u0000" not in text else ([_any_row(item) for item in stored], None)


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
    ]


def _any_row(item: Stored) -> Row:
    """The same, with every member made into what its column holds."""
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
    ]


def _names_of(run: Run) -> tuple[str | None, str | None, str | None]:
    if run.program is None:
        return None, None, None
    return _text(run.program.job_id), _text(run.program.client_id), _text(run.program.group)


@functools.lru_cache(maxsize=1024)
def _known_tags_text(tags: tuple[str, ...]) -> str:
    return _encode(tags).decode()


def _tags_text(tags: tuple[str, ...]) -> str:
    """Most runs have the labels of many others. A stranger's may be of a type that cannot be looked up."""
    try:
        return _known_tags_text(tags)
    except (TypeError, ValueError):
        return json.dumps([_text(tag) for tag in tags])


# A stranger may have written a snapshot whose members are of other types: one odd run must not stop the feeding.


def _text(value: object) -> str:
    if type(value) is str and value.isascii():  # nearly always
        return value
    return str(value).encode("utf-8", "replace").decode()


def _key(value: object) -> str:
    """What SQLite's JSON can hold: by it a run is found again when it changes."""
    return _text(value).replace("\0", "\ufffd")


def _number(value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]  # that is the question
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return number if math.isfinite(number) else 0.0
