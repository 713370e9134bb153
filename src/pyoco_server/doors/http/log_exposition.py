"""The metrics of logs (LOG-28): what a process has stored itself, and at a gateway the size of all that is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pyoco_server.core.run_log.counts import LogTotals
from pyoco_server.doors.http.families import Described, Series

__all__ = ["LOG_METRICS", "LogFigures"]


@dataclass(frozen=True)
class LogFigures:
    totals: LogTotals = field(default_factory=LogTotals)
    stored_bytes: int | None = None


def _by(read: Callable[[LogTotals], Mapping[str, int]]) -> Callable[[LogFigures], Iterable[Series]]:
    return lambda figures: [((name,), count) for name, count in sorted(read(figures.totals).items())]


def _stored(figures: LogFigures) -> Iterable[Series]:
    return [] if figures.stored_bytes is None else [((), figures.stored_bytes)]


LOG_METRICS: tuple[Described[LogFigures], ...] = (
    Described(
        "pyoco_log_lines_total",
        "counter",
        ("stream",),
        "Lines of runs that were captured to be stored. At a gateway: as all workers have reported since it started.",
        _by(lambda totals: totals.lines),
    ),
    Described(
        "pyoco_log_bytes_total",
        "counter",
        (),
        "Bytes of these lines, before they are compressed.",
        lambda figures: [((), figures.totals.bytes)],
    ),
    Described(
        "pyoco_log_dropped_lines_total",
        "counter",
        ("why",),
        "Lines of runs that were not stored: limit (the middle of a long output), buffer (NATS was away). Those of "
        "workers over TCP are counted by their door alone.",
        _by(lambda totals: totals.dropped),
    ),
    Described(
        "pyoco_log_stored_bytes",
        "gauge",
        (),
        "Size of all stored log lines. Gateways only.",
        _stored,
    ),
)
