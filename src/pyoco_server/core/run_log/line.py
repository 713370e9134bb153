"""One line of a run's log, and the gaps between lines (LOG-8, LOG-9)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["LEVELS", "Gap", "Line", "LineId", "Stream", "Why", "gap_line", "read_line_id"]

#: The levels of records, lowest first.
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_LINE_ID = re.compile(r"([0-9]{1,9})\.([0-9]{1,15})", re.ASCII)


class Stream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"
    LOG = "log"
    SYSTEM = "system"


class Why(StrEnum):
    """Why lines are missing."""

    #: The bound of an attempt: its first and its last lines are kept.
    LIMIT = "limit"
    #: The worker's buffer was full while NATS was away.
    BUFFER = "buffer"
    #: The worker was killed before it sent them.
    LOST = "lost"
    #: They were deleted because of their age, or because the stream was full.
    RETENTION = "retention"


#: Attempt and sequence of a line: the order of lines.
LineId = tuple[int, int]


def read_line_id(text: str) -> LineId | None:
    """Read `attempt.seq`. None: it is not the id of a line."""
    match = _LINE_ID.fullmatch(text)
    return (int(match[1]), int(match[2])) if match is not None else None


@dataclass(frozen=True, slots=True)
class Gap:
    """Lines that are missing."""

    why: Why
    #: None: unknown.
    lines: int | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    attempt: int
    #: From 1 in each attempt.
    seq: int
    ts: float
    text: str
    stream: Stream
    task: str | None = None
    level: str | None = None
    logger: str | None = None
    #: The formatted exception of a record.
    exc: str | None = None
    #: The number of bytes that are missing at the end.
    cut_bytes: int = 0
    gap: Gap | None = None

    @property
    def id(self) -> LineId:
        return self.attempt, self.seq

    @property
    def characters(self) -> int:
        return len(self.text) + len(self.exc or "")

    def document(self, try_number: int) -> dict[str, Any]:
        """Return the public form. `try_number`: the try of the run that the attempt belongs to, which its record tells:
        it is not stored with the line."""
        document: dict[str, Any] = {
            "id": f"{self.attempt}.{self.seq}",
            "attempt": self.attempt,
            "try": try_number,
            "seq": self.seq,
            "ts": self.ts,
            "task": self.task,
            "stream": self.stream.value,
            "level": self.level,
            "logger": self.logger,
            "text": self.text,
            "cut_bytes": self.cut_bytes,
            "trace_id": None,
            "span_id": None,
        }
        if self.exc is not None:
            document["exc"] = self.exc
        if self.gap is not None:
            document |= {"event": "gap", "missing_lines": self.gap.lines, "missing_bytes": self.gap.size}
            document["why"] = self.gap.why.value
        return document


_REASONS = {
    Why.LIMIT: "only the first and the last lines of an attempt are kept",
    Why.BUFFER: "NATS was away and the worker's buffer was full",
    Why.LOST: "the worker was killed before it had sent them",
    Why.RETENTION: "they were older than logs are kept, or the store of logs was full",
}


def gap_line(attempt: int, seq: int, ts: float, gap: Gap) -> Line:
    """Return the line that stands for missing ones. `seq` is that of the last missing line."""
    count = "lines are" if gap.lines is None else f"{gap.lines:,} line{'s are' if gap.lines != 1 else ' is'}"
    text = f"{count} missing: {_REASONS[gap.why]}"
    return Line(attempt=attempt, seq=seq, ts=ts, text=text, stream=Stream.SYSTEM, gap=gap)
