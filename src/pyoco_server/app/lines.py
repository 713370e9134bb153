"""A line of the log of a run."""

from __future__ import annotations

from typing import Any

__all__ = ["LogLine"]


class LogLine(dict[str, Any]):
    """A line that a run has printed: a dict, whose members are attributes as well (LOG-8).

    `try` is a keyword of Python: `line["try"]`. A line with `event: gap` stands where lines are missing.
    """

    id: str
    attempt: int
    seq: int
    ts: float
    task: str | None
    stream: str
    level: str | None
    logger: str | None
    text: str
    cut_bytes: int
    trace_id: str | None
    span_id: str | None

    def __getattr__(self, name: str) -> Any:
        """Return a member. One that only some lines have, such as `exc` or `event`, is None in the others."""
        if name.startswith("_"):
            raise AttributeError(name)
        return self.get(name)
