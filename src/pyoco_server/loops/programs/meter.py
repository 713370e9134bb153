"""The counters of one door or worker of programs since its start, for its `--metrics-port`."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyoco_server.actions.programs.measure import SAMPLE, ProgramFigures
from pyoco_server.core.programs.percentile import p95
from pyoco_server.ports.index.port import OTHER, RUN_SECONDS_BOUNDS

__all__ = ["NAMES_MAX", "Gauges", "ProgramMeter"]

#: Limit of programs counted separately; the others are counted together.
NAMES_MAX = 1_000


@dataclass(frozen=True, kw_only=True)
class Gauges:
    """The state of a process when its metrics are read, as opposed to what a `ProgramMeter` has counted."""

    #: Open connections by role: `client`, `worker`, `new`.
    connections: Mapping[str, int] = field(default_factory=dict)
    #: By worker.
    credits: Mapping[str, int] = field(default_factory=dict)
    cpu: Mapping[str, float] = field(default_factory=dict)
    #: Attempts in flight by program.
    inflight: Mapping[str, int] = field(default_factory=dict)


class ProgramMeter:
    """Counters of one process. Each call is O(1), never waits and never raises; memory is O(programs)."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._names: set[str] = set()
        self._ended: Counter[tuple[str, str, str]] = Counter()
        self._retries: Counter[tuple[str, str, str]] = Counter()
        self._dead_letters: Counter[tuple[str, str, str]] = Counter()
        self._errors: Counter[str] = Counter()
        self._stale = self._duplicates = 0
        self._buckets: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        self._recent: dict[str, deque[float]] = {}

    def error(self, code: str) -> None:
        """Count an Error frame with this code."""
        self._errors[code] += 1

    def end(self, exec_name: str, status: str, run_seconds: float | None = None) -> None:
        """Count a job that ended in this process as COMPLETED, FAILED or CANCELLED."""
        name = self._name(exec_name)
        self._ended[self._group, name, status] += 1
        if run_seconds is not None and run_seconds >= 0:
            counts = self._buckets.setdefault(name, [0] * (len(RUN_SECONDS_BOUNDS) + 1))
            counts[bisect_left(RUN_SECONDS_BOUNDS, run_seconds)] += 1
            self._sums[name] = self._sums.get(name, 0.0) + run_seconds
            self._recent.setdefault(name, deque(maxlen=SAMPLE)).append(run_seconds)

    def retry(self, exec_name: str, why: str) -> None:
        """Count an attempt that was put back: ack_timeout, worker_error, worker_down or holder_lost."""
        self._retries[self._group, self._name(exec_name), why] += 1

    def dead_letter(self, exec_name: str, reason: str) -> None:
        """Count a dead letter."""
        self._dead_letters[self._group, self._name(exec_name), reason] += 1

    def stale(self) -> None:
        """Count a dropped result."""
        self._stale += 1

    def duplicate(self) -> None:
        """Count a repeated submission of a known job."""
        self._duplicates += 1

    def _name(self, exec_name: str) -> str:
        if exec_name not in self._names:
            if len(self._names) >= NAMES_MAX:
                return OTHER
            self._names.add(exec_name)
        return exec_name

    def figures(self, gauges: Gauges) -> ProgramFigures:
        """Return the counters, with the state of the process. O(programs * 1,000) for the percentiles."""
        recent = {name: p95(seconds) for name, seconds in sorted(self._recent.items()) if name != OTHER}
        return ProgramFigures(
            inflight={(self._group, name): count for name, count in gauges.inflight.items()},
            ended=dict(self._ended),
            retries=dict(self._retries),
            dead_letters_written=dict(self._dead_letters),
            seconds={name: (tuple(counts), self._sums[name]) for name, counts in sorted(self._buckets.items())},
            p95={name: seconds for name, seconds in recent.items() if seconds is not None},
            stale={self._group: self._stale},
            duplicates={self._group: self._duplicates},
            errors=dict(self._errors),
            connections=dict(gauges.connections),
            credits=dict(gauges.credits),
            cpu=dict(gauges.cpu),
        )
