"""Reading the log of a run: page by page, or as its lines come. No socket; the clock is passed in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from pyoco_server.client import calls
from pyoco_server.client.calls import Call
from pyoco_server.client.events import ServerEvent
from pyoco_server.client.faults import AnswerDamaged
from pyoco_server.client.log_results import LogLine, LogLines
from pyoco_server.client.resuming import Resuming
from pyoco_server.core.durations import duration_of_text, is_number_text
from pyoco_server.core.run_log.line import LineId, read_line_id

__all__ = ["LogFollowing", "LogPages", "fixed_filters"]

_EVENTS = frozenset({"line", "heartbeat", "end"})
#: Lines of one request. The server reads the complete log for each.
_PAGE_LINES = 10_000
_LAST = "last"


def fixed_filters(filters: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Replace durations by instants: `5m` means the same in all requests of one read. Raises ValueError.

    `now` is unix seconds.
    """
    fixed = calls.only_given(filters)
    for name in ("since", "until"):
        text = fixed.get(name)
        if isinstance(text, str) and text[-1:] in "smhdw" and not is_number_text(text):
            fixed[name] = max(now - duration_of_text(text), 0.0)
    return fixed


@dataclass(kw_only=True)
class LogPages:
    """The state of one read of a log in pages."""

    run_id: str
    filters: dict[str, Any]
    is_over: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        #: How many lines are wanted. None: without limit.
        self._left: int | None = self.filters.get("limit")
        #: With `tail`: what was read so far, since pages come from the last one to the first.
        self._later: list[LogLine] = []

    def request(self) -> Call[LogLines]:
        """Return the request for the next page."""
        if self.filters.get("tail") is not None:
            return calls.get_run_logs(self.run_id, self.filters)
        limit = _PAGE_LINES if self._left is None else min(self._left, _PAGE_LINES)
        return calls.get_run_logs(self.run_id, {**self.filters, "limit": limit})

    def take(self, page: LogLines) -> Iterator[LogLine]:
        """Yield the lines of a page, and note where the next one begins."""
        if self.filters.get("tail") is not None:
            yield from self._take_back(page)
            return
        lines = page["lines"]
        if self._left is not None:
            self._left -= len(lines)
        self.is_over = not page["has_more"] or not lines or self._left == 0
        if not self.is_over:
            self.filters["after"] = lines[-1]["id"]
            _pin_attempt(self.filters, lines[-1]["id"])
        yield from lines

    def _take_back(self, page: LogLines) -> Iterator[LogLine]:
        """A page of the last lines. If they were too large for one, those before its first line are still to be read.

        Earlier gaps stand before that line: they come again with the next page.
        """
        lines = page["lines"]
        plain = [number for number, line in enumerate(lines) if "event" not in line]
        left = self.filters["tail"] - len(plain)
        self.is_over = not page["has_more"] or not plain or left <= 0
        self._later = [*(lines if self.is_over else lines[plain[0] :]), *self._later]
        if self.is_over:
            yield from self._later
        else:
            before = lines[plain[0]]["id"]
            self.filters |= {"before": before, "tail": left}
            _pin_attempt(self.filters, before)


@dataclass(kw_only=True)
class LogFollowing(Resuming[LogLine]):
    """The state of one stream of lines."""

    filters: dict[str, Any] = field(default_factory=dict)

    _last: LineId = field(default=(0, -1), init=False)
    _last_id: str | None = field(default=None, init=False)

    def _request(self, timeout_sec: float | None) -> Call[None]:
        return calls.follow_run_logs(self.run_id, {**self.filters, "timeout_sec": timeout_sec}, self._last_id)

    def _known_events(self) -> frozenset[str]:
        return _EVENTS

    def _is_news(self, event: ServerEvent) -> bool:
        return event.name == "line"

    def _read(self, event: ServerEvent) -> LogLine | None:
        if event.name == "end":
            self._is_over = True
        if event.name != "line":
            return None
        line, line_id = _line_of(event.data)
        if line_id <= self._last:
            return None  # from a server that has ignored where to begin
        self._last, self._last_id = line_id, line["id"]
        self._resume_from(line["id"])
        return line

    def _resume_from(self, line_id: str) -> None:
        """The next request begins after this line, even if a proxy removes Last-Event-ID."""
        self.filters.pop("tail", None)
        self.filters["after"] = line_id
        _pin_attempt(self.filters, line_id)


def _pin_attempt(filters: dict[str, Any], line_id: str) -> None:
    """`last` means the attempt that was the last one at the beginning, in all requests."""
    if filters.get("attempt") == _LAST:
        filters["attempt"] = int(line_id.partition(".")[0])


def _line_of(data: str) -> tuple[LogLine, LineId]:
    """Raises AnswerDamaged."""
    try:
        document = json.loads(data)
        line_id = read_line_id(document["id"])
    except (ValueError, TypeError, KeyError) as error:
        raise AnswerDamaged("an event contains no line of a log") from error
    if line_id is None:
        raise AnswerDamaged("an event contains a line without a valid id")
    return cast(LogLine, document), line_id
