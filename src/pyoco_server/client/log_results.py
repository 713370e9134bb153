"""Types of the logs of runs. Plain dicts, as in `results`."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

__all__ = ["LogFilters", "LogLine", "LogLines", "LogStream"]

LogStream = Literal["stdout", "stderr", "log", "system"]

#: `try` is a keyword of Python.
_Try = TypedDict("_Try", {"try": int})


class LogLine(_Try):
    """A line, or with `event: gap` the place where lines are missing."""

    #: `attempt.seq`
    id: str
    attempt: int
    #: From 1 in each attempt.
    seq: int
    ts: float
    #: None: no task has printed the line.
    task: str | None
    stream: LogStream
    #: Only of records of `logging`, like `logger`.
    level: str | None
    logger: str | None
    text: str
    #: The number of bytes that are missing at the end of a long line.
    cut_bytes: int
    trace_id: str | None
    span_id: str | None
    #: The exception of a record.
    exc: NotRequired[str]
    event: NotRequired[Literal["gap"]]
    #: None: unknown.
    missing_lines: NotRequired[int | None]
    missing_bytes: NotRequired[int | None]
    why: NotRequired[Literal["limit", "buffer", "lost", "retention"]]


class LogLines(TypedDict):
    """One page of a log."""

    lines: list[LogLine]
    has_more: bool


class LogFilters(TypedDict, total=False):
    """Which lines are wanted. All filters that are given must match."""

    #: Names of tasks; `-`: lines of no task.
    task: str | list[str] | None
    #: The number of an attempt, `last` or `all`.
    attempt: int | str | None
    stream: LogStream | list[LogStream] | None
    #: This level and above. Lines without one count as INFO (stdout) and WARNING (stderr).
    level: str | None
    #: Unix seconds, an RFC 3339 text, or a duration before now such as `5m`.
    since: float | str | None
    #: The same; not with `follow`.
    until: float | str | None
    #: Lines that contain this text, in upper or lower case.
    search: str | None
    #: The last lines that match; not together with `after`.
    tail: int | None
    #: Lines after the one with this id.
    after: str | None
    #: At most this many lines; not with `follow`.
    limit: int | None
