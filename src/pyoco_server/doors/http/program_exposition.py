"""The metrics of programs (section 23.1): of all groups at a gateway, of one process at a door or worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from pyoco_server.actions.programs.measure import ProgramFigures
from pyoco_server.core.run_log.counts import LogTotals
from pyoco_server.doors.http.families import Buckets, Described, Series, write_all
from pyoco_server.doors.http.log_exposition import LOG_METRICS, LogFigures
from pyoco_server.ports.index.port import OTHER, RUN_SECONDS_BOUNDS

__all__ = ["LABELS_MAX", "PROGRAM_METRICS", "render_figures"]

#: GRID-171: distinct values of one label; the rest are merged into OTHER.
LABELS_MAX = 1_000

Figures = Callable[[ProgramFigures], Mapping[Any, float] | None]


def _series(read: Figures) -> Callable[[ProgramFigures], Iterable[Series]]:
    def listed(figures: ProgramFigures) -> Iterable[Series]:
        found = read(figures) or {}
        return limited({key if isinstance(key, tuple) else (key,): value for key, value in found.items()})

    return listed


def limited(series: dict[tuple[str, ...], float]) -> list[Series]:
    """Return the series sorted; for each label, values beyond the largest 1,000 are summed under OTHER."""
    for place in range(len(next(iter(series), ()))):
        sizes: Counter[str] = Counter()
        for labels, value in series.items():
            sizes[labels[place]] += value  # type: ignore[assignment]  # a Counter adds any number
        if len(sizes) <= LABELS_MAX:
            continue
        kept = {name for name, _ in sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:LABELS_MAX]}
        merged: dict[tuple[str, ...], float] = {}
        for labels, value in series.items():
            name = labels[place] if labels[place] in kept else OTHER
            key = (*labels[:place], name, *labels[place + 1 :])
            merged[key] = merged.get(key, 0) + value
        series = merged
    return sorted(series.items())


def _single(read: Callable[[ProgramFigures], float | None]) -> Callable[[ProgramFigures], Iterable[Series]]:
    def listed(figures: ProgramFigures) -> Iterable[Series]:
        value = read(figures)
        return [] if value is None else [((), value)]

    return listed


def _run_seconds(figures: ProgramFigures) -> Iterable[Series]:
    for name, (counts, total) in figures.seconds.items():
        yield (name,), Buckets(RUN_SECONDS_BOUNDS, counts, total)


def _described(
    name: str, kind: Literal["gauge", "counter"], labels: tuple[str, ...], text: str, read: Figures
) -> Described[ProgramFigures]:
    return Described(f"pyoco_exec_{name}", kind, labels, text, _series(read))


_OF_PROGRAM = ("group", "exec")
_OF_CLIENT = ("group", "client")

PROGRAM_METRICS: tuple[Described[ProgramFigures], ...] = (
    _described("queued", "gauge", _OF_PROGRAM, "Waiting jobs.", lambda figures: figures.queued),
    _described("inflight", "gauge", _OF_PROGRAM, "Attempts in flight.", lambda figures: figures.inflight),
    _described(
        "client_inflight",
        "gauge",
        _OF_CLIENT,
        "Attempts of a client in flight, by the slots it holds.",
        lambda figures: figures.client_inflight,
    ),
    _described(
        "client_cap",
        "gauge",
        _OF_CLIENT,
        "Concurrent attempts allowed for a client; EXEC_DEFAULT_CAP by default.",
        lambda figures: figures.client_cap,
    ),
    _described(
        "jobs_total",
        "counter",
        (*_OF_PROGRAM, "status"),
        "Jobs that have ended, each counted once.",
        lambda figures: figures.ended,
    ),
    _described(
        "retries_total",
        "counter",
        (*_OF_PROGRAM, "reason"),
        "Attempts that were put back: ack_timeout, worker_error, worker_down, holder_lost.",
        lambda figures: figures.retries,
    ),
    _described(
        "dlq_total",
        "counter",
        (*_OF_PROGRAM, "reason"),
        "Dead letters that were written.",
        lambda figures: figures.dead_letters_written,
    ),
    Described(
        "pyoco_exec_dlq_messages",
        "gauge",
        (),
        "Dead letters of programs that are in their stream now.",
        _single(lambda figures: figures.dead_letters),
    ),
    Described(
        "pyoco_exec_run_seconds",
        "histogram",
        ("exec",),
        "How long programs ran, by the last attempt of each job.",
        _run_seconds,
    ),
    _described(
        "run_seconds_p95",
        "gauge",
        ("exec",),
        "The 95th percentile of the run times of the last 1,000 jobs, by nearest rank.",
        lambda figures: figures.p95,
    ),
    _described(
        "stale_results_total",
        "counter",
        ("group",),
        "Results that arrived after a newer attempt, or after the end of the job. At a gateway: of the last week.",
        lambda figures: figures.stale,
    ),
    _described(
        "duplicate_submits_total",
        "counter",
        ("group",),
        "Submitted jobs that were already known.",
        lambda figures: figures.duplicates,
    ),
    _described(
        "protocol_errors_total", "counter", ("code",), "Error frames that were sent.", lambda figures: figures.errors
    ),
    _described(
        "connections",
        "gauge",
        ("role",),
        "Open connections; at a gateway those of all doors, as `all`.",
        lambda figures: figures.connections,
    ),
    _described(
        "credits",
        "gauge",
        ("worker",),
        "Further jobs that a worker would accept now.",
        lambda figures: figures.credits,
    ),
    _described("worker_cpu", "gauge", ("worker",), "Share of its machine's CPUs in use, from 0 to 1.", lambda f: f.cpu),
    Described(
        "pyoco_exec_corrupt_records",
        "gauge",
        (),
        "Records of runs that are stored and cannot be read.",
        _single(lambda figures: figures.corrupt),
    ),
)


async def render_figures(figures: ProgramFigures, logs: LogTotals | None = None) -> bytes:
    """Render the metrics of a process that only exposes its own. `logs`: what it has stored of what runs print."""
    lines = await write_all(LOG_METRICS, LogFigures(logs or LogTotals()), is_complete=False)
    return lines + await write_all(PROGRAM_METRICS, figures)
