"""How many lines a process has taken to be stored, and how many it has dropped (LOG-28)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["LogTotals", "Reported", "are_counts"]

#: Of one process: its id and that of its start, and what it reports (`LogTotals.document`).
Reported = tuple[tuple[str, str], Mapping[str, Any]]


@dataclass
class LogTotals:
    #: Lines by stream.
    lines: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    #: Lines by reason.
    dropped: Counter[str] = field(default_factory=Counter)
    #: What was reported last, by process: only for `add`.
    _reported: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict, repr=False)

    def document(self) -> dict[str, Any]:
        """Return the form in which a worker reports them."""
        return {"lines": dict(self.lines), "bytes": self.bytes, "dropped": dict(self.dropped)}

    def add(self, reports: Iterable[Reported]) -> None:
        """Add what processes have counted since their last report; those that are not named any more are forgotten.

        So the sum never falls, even if a process starts again and counts from zero.
        """
        before, self._reported = self._reported, dict(reports)
        for process, report in self._reported.items():
            earlier = before.get(process, {"lines": {}, "bytes": 0, "dropped": {}})
            self.bytes += max(report["bytes"] - earlier["bytes"], 0)
            for name, counts in (("lines", self.lines), ("dropped", self.dropped)):
                for label, count in report[name].items():
                    counts[label] += max(count - earlier[name].get(label, 0), 0)


def are_counts(value: object) -> bool:
    """Return whether this is what a worker reports."""
    if not isinstance(value, dict) or not _is_count(value.get("bytes")):
        return False
    return all(
        isinstance(counts := value.get(name), dict) and len(counts) <= 100 and all(map(_is_count, counts.values()))
        for name in ("lines", "dropped")
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
