"""Parse the query of the routes of logs (LOG-11 to LOG-19)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from starlette.datastructures import QueryParams

from pyoco_server.core.durations import duration_of_text, instant_of, is_number_text
from pyoco_server.core.run_log.line import LEVELS, LineId, Stream, read_line_id
from pyoco_server.core.run_log.selection import LIMIT_DEFAULT, LIMIT_MAX, SEARCH_CHARACTERS_MAX, Selection
from pyoco_server.doors.http.requests import MalformedQuery
from pyoco_server.errors import Problem

__all__ = ["TIMEOUT_SECONDS", "TIMEOUT_SECONDS_MAX", "LogQuery", "read_log_query"]

_TASKS_MAX = 100
_COUNT = re.compile(r"[0-9]{1,6}", re.ASCII)
_ATTEMPT_MAX = 1_000_000
TIMEOUT_SECONDS, TIMEOUT_SECONDS_MAX = 300, 600


@dataclass(frozen=True, kw_only=True)
class LogQuery:
    selection: Selection
    tail: int | None
    limit: int
    #: Only the newest attempt.
    is_last_attempt: bool
    is_text: bool
    timeout_seconds: int

    def of_attempt(self, attempt: int) -> Selection:
        """Return the selection for a run whose newest attempt is this one."""
        return replace(self.selection, attempt=attempt) if self.is_last_attempt else self.selection


def read_log_query(query: QueryParams, now: float, *, accepts_text: bool = False, is_stream: bool = False) -> LogQuery:
    """Raises MalformedQuery with every bad value (LOG-20)."""
    reader = _Reader(query, now)
    attempt = query.get("attempt", "all")
    tail, after = reader.count("tail", LIMIT_MAX), reader.after()
    if tail is not None and after is not None:
        reader.problem("tail", "cannot be used together with 'after'")
    asked_format = reader.one_of("format", ("ndjson", "text"))
    selection = Selection(
        tasks=reader.tasks(),
        attempt=reader.attempt(attempt),
        streams=reader.streams(),
        level=reader.level(),
        since=reader.instant("since"),
        until=None if is_stream else reader.instant("until"),
        search=reader.search(),
        after=after,
    )
    limit = None if is_stream else reader.count("limit", LIMIT_MAX)
    timeout = reader.count("timeout_sec", TIMEOUT_SECONDS_MAX) if is_stream else None
    reader.check()
    return LogQuery(
        selection=selection,
        tail=tail,
        limit=limit or LIMIT_DEFAULT,
        is_last_attempt=attempt == "last",
        is_text=asked_format == "text" or (asked_format is None and accepts_text),
        timeout_seconds=timeout or TIMEOUT_SECONDS,
    )


class _Reader:
    def __init__(self, query: QueryParams, now: float) -> None:
        self._query, self._now = query, now
        self._problems: list[Problem] = []

    def problem(self, name: str, message: str) -> None:
        self._problems.append(Problem(("query", name), message, "value"))

    def check(self) -> None:
        if self._problems:
            raise MalformedQuery(self._problems[0].msg, problems=tuple(self._problems))

    def one_of(self, name: str, words: tuple[str, ...]) -> str | None:
        text = self._query.get(name)
        if text is not None and text not in words:
            self.problem(name, f"must be one of {', '.join(words)}")
        return text

    def tasks(self) -> frozenset[str]:
        names = self._query.getlist("task")
        if len(names) > _TASKS_MAX:
            self.problem("task", f"may be given {_TASKS_MAX} times at most")
        return frozenset(names)

    def streams(self) -> frozenset[Stream]:
        names = self._query.getlist("stream")
        known = {each.value for each in Stream}
        if not known.issuperset(names):
            self.problem("stream", f"must be one of {', '.join(Stream)}")
            return frozenset()
        return frozenset(map(Stream, names))

    def level(self) -> str | None:
        text = self._query.get("level")
        level = None if text is None else text.upper()
        if level is not None and level not in LEVELS:
            self.problem("level", f"must be one of {', '.join(LEVELS)}")
        return level

    def attempt(self, text: str) -> int | None:
        if text in ("all", "last"):
            return None
        if _COUNT.fullmatch(text) is None or not 1 <= int(text) <= _ATTEMPT_MAX:
            self.problem("attempt", "must be the number of an attempt, 'last' or 'all'")
            return None
        return int(text)

    def search(self) -> str | None:
        text = self._query.get("search")
        if text is not None and not 1 <= len(text) <= SEARCH_CHARACTERS_MAX:
            self.problem("search", f"must have 1 to {SEARCH_CHARACTERS_MAX} characters")
        return text

    def after(self) -> LineId | None:
        text = self._query.get("after")
        line_id = None if text is None else read_line_id(text)
        if text is not None and line_id is None:
            self.problem("after", "must be the id of a line, such as 1.17")
        return line_id

    def count(self, name: str, most: int) -> int | None:
        text = self._query.get(name)
        if text is None:
            return None
        if _COUNT.fullmatch(text) is None or not 1 <= int(text) <= most:
            self.problem(name, f"must be a whole number from 1 to {most}")
            return None
        return int(text)

    def instant(self, name: str) -> float | None:
        """Read an instant, or a duration before now. A bare number is an instant: a duration has units."""
        text = self._query.get(name)
        if text is None:
            return None
        readers: tuple[Callable[[], float], ...] = (
            lambda: instant_of(float(text) if is_number_text(text) else text),
            lambda: self._now - duration_of_text(text),
        )
        for read in readers:
            try:
                return read()
            except ValueError:
                continue
        message = "must be unix seconds, an RFC 3339 text such as 2026-12-01T09:00:00+09:00, or a duration such as 5m"
        self.problem(name, message)
        return None
