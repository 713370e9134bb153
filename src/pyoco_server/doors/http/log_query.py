"""Parse the queries of the routes of logs (LOG-11 to LOG-20)."""

from __future__ import annotations

import re
from typing import Annotated, TypeVar

from msgspec import Meta, field

from pyoco_server.core.durations import duration_of_text, instant_of, is_number_text
from pyoco_server.core.run_log.line import LEVELS, Stream, read_line_id
from pyoco_server.core.run_log.selection import LIMIT_DEFAULT, LIMIT_MAX, SEARCH_CHARACTERS_MAX, Selection
from pyoco_server.doors.http.reading import Reading
from pyoco_server.doors.http.requests import MalformedQuery
from pyoco_server.doors.http.shapes import Request, one_of, pattern

__all__ = ["LAST", "LogQuery", "LogStreamQuery", "LogsQuery", "checked", "selection_of"]

Q = TypeVar("Q", bound="LogQuery")

_TASKS_MAX = 100
TIMEOUT_SECONDS, TIMEOUT_SECONDS_MAX = 300, 600
_ATTEMPT = re.compile(r"[1-9][0-9]{0,6}", re.ASCII)
_ALL = "all"
#: Only the newest attempt.
LAST = "last"

_Attempt = Annotated[
    str,
    pattern("^(all|last|[1-9][0-9]{0,6})$", "must be the number of an attempt, 'last' or 'all'"),
    Meta(description="The number of an attempt, `last`, or `all`."),
]
_LineIdText = Annotated[str, pattern(r"^[0-9]{1,9}\.[0-9]{1,15}$", "must be the id of a line, such as 1.17")]
_RULE = "must be unix seconds, an RFC 3339 text such as 2026-12-01T09:00:00+09:00, or a duration such as 5m"


def _read_when(text: str, _: object) -> str | None:
    return text if _offset(text, 0.0) is not None else None


def _read_level(text: str, _: object) -> str | None:
    return text.upper() if text.upper() in LEVELS else None


#: An instant, or how long ago. It is resolved in `selection_of`, which knows the time.
_When = Annotated[str, Meta(extra={"read": _read_when, "rule": _RULE})]
_Level = Annotated[
    str,
    Meta(
        description="This level and above. Lines without one count as INFO (stdout) and WARNING (stderr).",
        extra={"read": _read_level, "rule": f"must be one of {', '.join(LEVELS)}"},
        extra_json_schema={"enum": list(LEVELS)},
    ),
]


class LogQuery(Request):
    """Which lines of a log are wanted."""

    task: Annotated[
        list[str], Meta(max_length=_TASKS_MAX, description="Lines of these tasks; `-`: lines of no task.")
    ] = field(default_factory=list)
    attempt: _Attempt = _ALL
    stream: Annotated[list[Annotated[str, one_of(Stream)]], Meta(description="Lines of these streams.")] = field(
        default_factory=list
    )
    level: _Level | None = None
    since: Annotated[_When, Meta(description="Lines from this instant on, or from this long ago.")] | None = None
    search: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=SEARCH_CHARACTERS_MAX,
                description="Lines that contain this text, in upper or lower case.",
            ),
        ]
        | None
    ) = None
    tail: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=LIMIT_MAX,
                description="The last lines that match, as many as fit on a page; not together with `after`.",
            ),
        ]
        | None
    ) = None
    after: Annotated[_LineIdText, Meta(description="Lines after the one with this id.")] | None = None


class LogsQuery(LogQuery):
    """LOG-11 to LOG-19."""

    until: Annotated[_When, Meta(description="Lines before this instant, or before this long ago.")] | None = None
    before: (
        Annotated[_LineIdText, Meta(description="Lines before the one with this id; with `tail`, the last of them.")]
        | None
    ) = None
    limit: Annotated[
        int,
        Meta(
            ge=1,
            le=LIMIT_MAX,
            description="A page also ends after about 9 MiB of text. The header `Pyoco-Log-More: true` says that more "
            "lines follow: go on with `after`. With `tail`, that earlier ones did not fit: go on with `before`.",
        ),
    ] = LIMIT_DEFAULT
    format: Annotated[str, one_of(("ndjson", "text"), description="The form of the response.")] | None = None


class LogStreamQuery(LogQuery):
    """LOG-21."""

    timeout_sec: Annotated[int, Meta(ge=1, le=TIMEOUT_SECONDS_MAX, description="The stream ends after this time.")] = (
        TIMEOUT_SECONDS
    )


def checked(reading: Reading[Q]) -> Q:
    """Raises MalformedQuery with every bad value and unknown name (LOG-20)."""
    asked = reading.value
    if asked.tail is not None and asked.after is not None:
        reading.wrong("tail", "cannot be used together with 'after'")
    return reading.checked(MalformedQuery)


def selection_of(asked: LogQuery, now: float) -> Selection:
    return Selection(
        tasks=frozenset(asked.task),
        attempt=int(asked.attempt) if _ATTEMPT.fullmatch(asked.attempt) else None,
        streams=frozenset(map(Stream, asked.stream)),
        level=asked.level,
        since=_offset(asked.since, now),
        until=_offset(asked.until, now) if isinstance(asked, LogsQuery) else None,
        search=asked.search,
        after=None if asked.after is None else read_line_id(asked.after),
        before=read_line_id(asked.before) if isinstance(asked, LogsQuery) and asked.before is not None else None,
    )


def _offset(text: str | None, now: float) -> float | None:
    """Return an instant, or the time so long ago. None: it is neither. A duration has units; a number is an instant."""
    if text is None:
        return None
    try:
        if not is_number_text(text) and text[:1].isdigit() and text[-1:] in "smhdw":
            return now - duration_of_text(text)
        return instant_of(float(text) if is_number_text(text) else text)
    except ValueError:
        return None
