"""Selects lines of a log (LOG-11 to LOG-19). Pure functions of a line."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from pyoco_server.core.run_log.line import LEVELS, Line, LineId, Stream

__all__ = [
    "LIMIT_DEFAULT",
    "LIMIT_MAX",
    "NO_TASK",
    "PAGE_CHARACTERS_MAX",
    "SEARCH_CHARACTERS_MAX",
    "LastLines",
    "Selection",
]

LIMIT_DEFAULT = 1000
LIMIT_MAX = 10_000
SEARCH_CHARACTERS_MAX = 200
#: The text of a page, whatever its number of lines: more than is kept of an attempt by default.
PAGE_CHARACTERS_MAX = 9 * 1024 * 1024
#: In a filter by task: lines of no task.
NO_TASK = "-"
#: LOG-14: the level of a line that has none.
_IMPLIED = {Stream.STDOUT: "INFO", Stream.STDERR: "WARNING", Stream.LOG: "INFO", Stream.SYSTEM: "INFO"}
_RANKS = {level: rank for rank, level in enumerate(LEVELS)}


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Criteria for lines. All that are set must match."""

    #: Exact names; NO_TASK selects lines of no task.
    tasks: frozenset[str] = frozenset()
    #: None: of all attempts.
    attempt: int | None = None
    streams: frozenset[Stream] = frozenset()
    #: The least level.
    level: str | None = None
    since: float | None = None
    until: float | None = None
    #: Case-insensitive.
    search: str | None = None
    #: Lines after this one.
    after: LineId | None = None
    #: Lines before this one.
    before: LineId | None = None

    @property
    def takes_all_lines(self) -> bool:
        """Whether all lines between `after` and `before` are wanted."""
        bounds = (self.since, self.until, self.level, self.search)
        return not (self.tasks or self.streams or any(each is not None for each in bounds))

    def has(self, line: Line) -> bool:
        """Return whether the line is selected. A gap represents unknown lines: only a filter by stream, `attempt`,
        `after` and `before` remove it (LOG-9)."""
        if self.attempt is not None and line.attempt != self.attempt:
            return False
        if self.after is not None and line.id <= self.after:
            return False
        if self.before is not None and line.id >= self.before:
            return False
        if self.streams and line.stream not in self.streams:
            return False
        return line.gap is not None or self._matches(line)

    def _matches(self, line: Line) -> bool:
        if self.tasks and (NO_TASK if line.task is None else line.task) not in self.tasks:
            return False
        if self.level is not None and _RANKS[line.level or _IMPLIED[line.stream]] < _RANKS[self.level]:
            return False
        if self.since is not None and line.ts < self.since:
            return False
        if self.until is not None and line.ts >= self.until:
            return False
        return self.search is None or self._is_found_in(line)

    def _is_found_in(self, line: Line) -> bool:
        assert self.search is not None
        wanted = self.search.casefold()
        return wanted in line.text.casefold() or (line.exc is not None and wanted in line.exc.casefold())


class LastLines:
    """The last lines of those that come, as many as fit on a page, and all gaps between and before them.

    O(1) for each line. Memory is that of a page.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._kept: deque[Line] = deque()
        #: Before those.
        self._gaps: list[Line] = []
        self._plain = self._characters = 0
        self._is_full = False

    def add(self, line: Line) -> None:
        self._kept.append(line)
        self._plain += line.gap is None
        self._characters += line.characters
        while self._plain > self._count or (self._characters > PAGE_CHARACTERS_MAX and len(self._kept) > 1):
            first = self._kept.popleft()
            self._characters -= first.characters
            if first.gap is None:
                self._is_full = self._is_full or self._plain <= self._count
                self._plain -= 1
            else:
                self._gaps.append(first)

    @property
    def is_cut(self) -> bool:
        """Whether there are fewer than wanted because the page is full."""
        return self._is_full and self._plain < self._count

    def lines(self) -> list[Line]:
        """Return them, oldest first."""
        return [*self._gaps, *self._kept]
