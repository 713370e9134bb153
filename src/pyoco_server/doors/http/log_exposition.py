"""The metrics of logs (LOG-28): what a process has stored itself, and at a gateway the size of all that is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pyoco_server.doors.http.families import Described, Series

__all__ = ["LOG_METRICS", "LogFigures"]


@dataclass(frozen=True, kw_only=True)
class LogFigures:
    #: Lines by stream, and those that were dropped by reason.
    lines: Mapping[str, int] = field(default_factory=dict)
    bytes: int | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)
    stored_bytes: int | None = None


def _by(read: Callable[[LogFigures], Mapping[str, int]]) -> Callable[[LogFigures], Iterable[Series]]:
    return lambda figures: [((name,), count) for name, count in sorted(read(figures).items())]


def _one(read: Callable[[LogFigures], int | None]) -> Callable[[LogFigures], Iterable[Series]]:
    def listed(figures: LogFigures) -> Iterable[Series]:
        value = read(figures)
        return [] if value is None else [((), value)]

    return listed


LOG_METRICS: tuple[Described[LogFigures], ...] = (
    Described(
        "pyoco_log_lines_total",
        "counter",
        ("stream",),
        "Lines of runs that this process has taken to be stored.",
        _by(lambda figures: figures.lines),
    ),
    Described(
        "pyoco_log_bytes_total",
        "counter",
        (),
        "Bytes of these lines, before they are compressed.",
        _one(lambda figures: figures.bytes),
    ),
    Described(
        "pyoco_log_dropped_lines_total",
        "counter",
        ("why",),
        "Lines of runs that this process did not store: limit (the middle of a long output), buffer (NATS was away).",
        _by(lambda figures: figures.dropped),
    ),
    Described(
        "pyoco_log_stored_bytes",
        "gauge",
        (),
        "Size of all stored log lines. Gateways only.",
        _one(lambda figures: figures.stored_bytes),
    ),
)
