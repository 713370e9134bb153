"""Statistics of the last hour, in memory: in steps of ten seconds, and by flow and tag for a few minutes.

Pure: the clock is an argument. The steps take less than a megabyte. The names of flows and tags take some 6 MB if all
of them have the maximum length, twice that in other alphabets, however many runs, flows and tags there are.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from pyoco_server.core.ring import Ring
from pyoco_server.core.states import RunState

__all__ = [
    "COUNTED",
    "FLOW_MINUTES",
    "MEASURED",
    "NOT_KNOWN",
    "QUEUE_MINUTES",
    "STEPS_MAX",
    "STEP_SECONDS",
    "Drain",
    "FlowEnds",
    "Points",
    "Sketch",
    "Trend",
]

STEP_SECONDS = 10
#: How many finished steps are kept: one hour.
STEPS_MAX = 360
#: Flows are judged over this many minutes: long enough to contain a few ends of a slow flow, short enough to forget a
#: single incident.
FLOW_MINUTES = 15
#: How far back the depth of a queue is compared, and the period over which its drain rate is measured.
QUEUE_MINUTES = 10
#: A queue with this many ends in the last minute is busy: its rate is that of the last minute, since an older one would
#: describe other runs or other workers.
_BUSY_ENDS = 20
#: How many pairs of tenant and flow are distinguished within one minute. Further ones are not counted, unless their
#: tenant has fewer than another one: then that one gives up a slot.
_FLOWS_MAX = 200
#: How many tags are distinguished within one minute: the longest queues, and the first tags with an end.
_TAGS_MAX = 200
#: Names are chosen by users, and a foreign record may contain one of any length.
_NAME_LENGTH_MAX = 512

PERCENTILES = (0.50, 0.95, 0.99)
#: What is counted per step, and what is measured: null if there is no value.
COUNTED = ("submitted", "completed", "failed", "cancelled")
MEASURED = ("in_flight", "waiting", "wait_p50", "wait_p95", "wait_p99", "run_p50", "run_p95", "run_p99")
_COLUMNS = (*COUNTED, *MEASURED)


class Sketch:
    """A histogram of seconds with logarithmic buckets: percentiles are off by 8 % at most. 0.6 KB.

    Values below a millisecond are reported as zero, above a week as a week.
    """

    _LOWEST, _HIGHEST = 0.001, 7 * 86_400.0
    #: Each bucket ends this factor higher than the previous one; its middle is off by the square root of it at most.
    _LOG_RATIO = math.log(1.15)
    BUCKETS = int(math.log(_HIGHEST / _LOWEST) / _LOG_RATIO) + 2

    def __init__(self) -> None:
        self._counts = array("I", [0] * self.BUCKETS)

    def observe(self, seconds: float) -> None:
        bucket = 0
        if seconds > self._LOWEST:  # false for NaN
            bucket = int(math.log(min(seconds, self._HIGHEST) / self._LOWEST) / self._LOG_RATIO) + 1
        self._counts[bucket] += 1

    def percentiles(self) -> tuple[float | None, ...]:
        """Return one value for each of PERCENTILES; None if nothing was observed. O(buckets)."""
        total = sum(self._counts)
        if not total:
            return (None,) * len(PERCENTILES)
        found: list[float | None] = []
        seen, bucket = 0, -1
        for part in PERCENTILES:
            rank = math.ceil(part * total)
            while seen < rank:
                bucket += 1
                seen += self._counts[bucket]
            found.append(_MIDDLES[bucket])
        return tuple(found)

    @classmethod
    def middle(cls, bucket: int) -> float:
        """Return the value reported for a bucket, rounded to three digits: it is not more precise."""
        seconds = min(cls._LOWEST * math.exp((bucket - 0.5) * cls._LOG_RATIO), cls._HIGHEST)
        return float(f"{seconds:.3g}") if bucket else 0.0


_MIDDLES = tuple(map(Sketch.middle, range(Sketch.BUCKETS)))


class _Step:
    """The statistics of ten seconds."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(COUNTED, 0)
        self.in_flight: int | None = None
        self.waiting: int | None = None
        self._wait: Sketch | None = None
        self._run: Sketch | None = None
        #: The last percentiles, until the next observation.
        self._percentiles: tuple[float | None, ...] | None = None

    def observe(self, wait_seconds: float, run_seconds: float) -> None:
        if self._wait is None or self._run is None:
            self._wait, self._run = Sketch(), Sketch()
        self._wait.observe(wait_seconds)
        self._run.observe(run_seconds)
        self._percentiles = None

    def row(self) -> tuple[float | None, ...]:
        """Return the values in the order of _COLUMNS. O(1) if nothing was observed since the last call."""
        if self._percentiles is None:
            nothing: tuple[float | None, ...] = (None,) * len(PERCENTILES)
            wait = nothing if self._wait is None else self._wait.percentiles()
            run = nothing if self._run is None else self._run.percentiles()
            self._percentiles = (*wait, *run)
        return (*self.counts.values(), self.in_flight, self.waiting, *self._percentiles)


_NO_STEP = _Step().row()


@dataclass
class _Minute:
    """The statistics of one minute, by name."""

    #: By tenant and flow: runs that ended COMPLETED or FAILED, and those of them that FAILED.
    flows: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    flows_count: int = 0
    #: By tag: runs that ended, with any status.
    ends: dict[str, int] = field(default_factory=dict)
    #: More tags than these had ended runs.
    ends_cut: bool = False
    #: By tag: how many runs were waiting when the minute began. None: no sample was taken.
    depths: dict[str, int] | None = None
    #: More tags than these had waiting runs.
    depths_cut: bool = False
    #: By tag: the largest number of waiting runs that was sampled.
    peaks: dict[str, int] = field(default_factory=dict)

    def counts_of(self, tenant_id: str, flow: str) -> list[int] | None:
        """Return the counters of a flow. None: there is no slot for it. O(1) while slots are free, then O(tenants +
        flows of one)."""
        own_flows = self.flows.get(tenant_id, {})
        counts = own_flows.get(flow)
        if counts is not None:
            return counts
        if self.flows_count >= _FLOWS_MAX and not self._make_room(len(own_flows)):
            return None
        self.flows_count += 1
        counts = self.flows.setdefault(tenant_id, own_flows)[flow] = [0, 0]
        return counts

    def _make_room(self, own_count: int) -> bool:
        """Remove a flow of the tenant that has the most: the one with the fewest failures. A tenant never loses more
        than what exceeds an equal share, so no tenant can hide another tenant's flows behind many of its own."""
        most = max(self.flows.values(), key=len)
        if own_count + 1 > len(most) - 1:
            return False
        del most[min(most, key=lambda flow: (most[flow][1], most[flow][0]))]
        self.flows_count -= 1
        return True


@dataclass(frozen=True)
class Points:
    """Finished steps, oldest first. All columns have the same length."""

    #: When the first of them began; if there are none, when the next one begins.
    begin: float
    columns: dict[str, list[float | None]]


@dataclass(frozen=True)
class FlowEnds:
    """The runs of one flow that completed or failed. Cancelled runs say nothing about a flow and are not counted."""

    flow: str
    ended: int
    failed: int


@dataclass(frozen=True)
class Drain:
    """The recent development of a queue. None: not known yet."""

    #: How many runs were waiting ten minutes ago, and two minutes ago.
    depth_before: int | None
    depth_lately: int | None
    #: The largest number of waiting runs sampled in this minute and the previous one.
    depth_peak: int | None
    #: Runs of this tag that ended per minute, over the last ten minutes at most.
    per_minute: float | None


NOT_KNOWN = Drain(None, None, None, None)


class Trend:
    """Statistics of ends, submissions and samples of the counts, recorded at the time they are reported.

    Limits: it knows nothing from before it was created, and cannot detect late reports. Runs that ended during an
    outage count at the time their end is received.
    """

    def __init__(self) -> None:
        self._steps = Ring(STEP_SECONDS, STEPS_MAX + 1, _Step)
        self._minutes = Ring(60, FLOW_MINUTES + 1, _Minute)

    def submitted(self, now: float) -> None:
        self._steps.now(now).counts["submitted"] += 1

    def ended(
        self, now: float, status: RunState, wait_seconds: float | None = None, run_seconds: float | None = None
    ) -> None:
        """Count an end. `status` is terminal. Without seconds: the run never started."""
        step = self._steps.now(now)
        step.counts[status.value.lower()] += 1
        if wait_seconds is not None and run_seconds is not None:
            step.observe(wait_seconds, run_seconds)

    def ended_of(self, now: float, status: RunState, tenant_id: str, flow: str, tag: str) -> None:
        """Count the same end by tenant, flow and tag."""
        minute = self._minutes.now(now)
        tag = tag[:_NAME_LENGTH_MAX]
        if tag in minute.ends or len(minute.ends) < _TAGS_MAX:
            minute.ends[tag] = minute.ends.get(tag, 0) + 1
        else:
            minute.ends_cut = True
        if status is RunState.CANCELLED:
            return
        counts = minute.counts_of(tenant_id[:_NAME_LENGTH_MAX], flow[:_NAME_LENGTH_MAX])
        if counts is not None:
            counts[0] += 1
            counts[1] += status is RunState.FAILED

    def sample(self, now: float, in_flight: int, waiting: int, depths: Mapping[str, int]) -> None:
        """Record the current counts. `depths` is by tag, the longest queues first; for each minute, its first sample
        and its peak are kept. O(tags kept)."""
        step = self._steps.now(now)
        step.in_flight, step.waiting = in_flight, waiting
        minute = self._minutes.now(now)
        kept = list(islice(depths.items(), _TAGS_MAX))
        if minute.depths is None:
            minute.depths, minute.depths_cut = dict(kept), len(depths) > len(kept)
        peaks = minute.peaks
        for tag, depth in kept:
            if depth > peaks.get(tag, 0) and (tag in peaks or len(peaks) < _TAGS_MAX):
                peaks[tag] = depth

    def points(self, now: float, after: float | None = None) -> Points:
        """Return the finished steps that began later than `after`. O(steps), plus O(buckets) once for each new step."""
        newest = self._steps.newest(now)
        begin = self._steps.first(now)
        if after is not None:
            begin = max(begin, int(after // STEP_SECONDS) + 1)
        begin = min(begin, newest)
        steps = [self._steps.find(number) for number in range(begin, newest)]
        rows = [_NO_STEP if step is None else step.row() for step in steps]
        columns = zip(*rows, strict=True) if rows else ((),) * len(_COLUMNS)
        return Points(float(begin * STEP_SECONDS), dict(zip(_COLUMNS, map(list, columns), strict=True)))

    def flows(self, now: float, tenant_id: str | None = None) -> list[FlowEnds]:
        """Return the ends by flow over the last FLOW_MINUTES, for this tenant or for all tenants. O(minutes *
        flows)."""
        newest = self._minutes.newest(now)
        sums: dict[str, list[int]] = {}
        for number in range(newest - FLOW_MINUTES + 1, newest + 1):
            minute = self._minutes.find(number)
            for tenant, flows in (minute.flows if minute is not None else {}).items():
                for flow, (ended, failed) in flows.items() if tenant_id is None or tenant == tenant_id else ():
                    counts = sums.setdefault(flow, [0, 0])
                    counts[0] += ended
                    counts[1] += failed
        return [FlowEnds(flow, ended, failed) for flow, (ended, failed) in sums.items()]

    def drain(self, now: float, tag: str) -> Drain:
        """Return the recent development of a tag's queue. O(minutes)."""
        tag = tag[:_NAME_LENGTH_MAX]
        newest = self._minutes.newest(now)
        return Drain(
            depth_before=self._depth(newest - QUEUE_MINUTES, tag),
            depth_lately=self._depth(newest - 2, tag),
            depth_peak=self._peak(newest, tag),
            per_minute=self._per_minute(now, newest, tag),
        )

    def _depth(self, number: int, tag: str) -> int | None:
        minute = self._minutes.find(number)
        if minute is None or minute.depths is None:
            return None
        return minute.depths.get(tag, None if minute.depths_cut else 0)

    def _peak(self, newest: int, tag: str) -> int | None:
        minutes = (self._minutes.find(number) for number in (newest - 1, newest))
        return max(
            (minute.peaks[tag] for minute in minutes if minute is not None and tag in minute.peaks), default=None
        )

    def _last_minute(self, now: float, newest: int, tag: str) -> float | None:
        """Return the ends of the last 60 s: those of this minute, and a share of the previous one's."""
        current, previous = self._minutes.find(newest), self._minutes.find(newest - 1)
        if previous is None or newest - 1 <= self._minutes.first(now):
            return None
        old = previous.ends.get(tag, 0) * (1 - now % 60 / 60)
        return old + (current.ends.get(tag, 0) if current is not None else 0)

    def _per_minute(self, now: float, newest: int, tag: str) -> float | None:
        """Return the rate of the last 60 s if the queue is busy, else of the last QUEUE_MINUTES.

        The latter counts complete minutes only: the first minute ever recorded and the current one would give too low a
        rate.
        """
        recent = self._last_minute(now, newest, tag)
        if recent is not None and recent >= _BUSY_ENDS:
            return recent
        begin = max(self._minutes.first(now) + 1, newest - QUEUE_MINUTES)
        minutes = [minute for number in range(begin, newest) if (minute := self._minutes.find(number)) is not None]
        if not minutes or any(minute.ends_cut and tag not in minute.ends for minute in minutes):
            return None
        return sum(minute.ends.get(tag, 0) for minute in minutes) / len(minutes)
