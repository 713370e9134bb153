"""Every metric in one table: what it is called, what it tells, and how it is written for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, islice
from typing import Literal

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pyoco_server.actions.measure import Figures
from pyoco_server.core.states import RunState
from pyoco_server.doors.http.operations import Meter, Operation
from pyoco_server.loops.tally import Histogram, Tally

__all__ = ["CONTENT_TYPE", "METRICS", "PROCESS_METRICS", "Described", "Moment", "render"]

#: FLOW-129
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: So many lines are written at once, about half a millisecond's work, before others get their turn.
_LINES_AT_ONCE = 100


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Everything the metrics are read from."""

    figures: Figures
    tally: Tally
    operations: tuple[Operation, ...]
    #: Event streams that are open.
    watchers: int
    version: str


@dataclass(frozen=True)
class Buckets:
    """One histogram: counts between bounds, not yet added up."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


#: The values of the labels, and what was measured.
Series = tuple[tuple[str, ...], float | Buckets]


@dataclass(frozen=True)
class Described:
    """One metric. `read` is O(series)."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    labels: tuple[str, ...]
    help: str
    read: Callable[[Moment], Iterable[Series]]


def _one(read: Callable[[Moment], float]) -> Callable[[Moment], Iterable[Series]]:
    return lambda moment: [((), read(moment))]


def _runs(moment: Moment) -> Iterable[Series]:
    return [((status.value,), count) for status, count in moment.figures.runs.items()]


def _packs(moment: Moment) -> Iterable[Series]:
    return list(moment.figures.packs.items())


def _in_flight(moment: Moment) -> float:
    return moment.figures.runs[RunState.RUNNING] + moment.figures.runs[RunState.CANCELLING]


def _depths(moment: Moment) -> Iterable[Series]:
    return [((tag,), waiting.count) for tag, waiting in moment.figures.waiting.items()]


def _ages(moment: Moment) -> Iterable[Series]:
    now = moment.figures.at
    return [((tag,), max(0.0, now - waiting.oldest_at)) for tag, waiting in moment.figures.waiting.items()]


def _ended(which: Callable[[Tally, tuple[str, str]], Histogram]) -> Callable[[Moment], Iterable[Series]]:
    def read(moment: Moment) -> Iterable[Series]:
        for key in list(moment.tally.ends):  # runs go on ending while this is written
            histogram = which(moment.tally, key)
            yield key, Buckets(histogram.BOUNDS, tuple(histogram.counts), histogram.total)

    return read


def _requests(moment: Moment) -> Iterable[Series]:
    for operation in moment.operations:
        for status, (counts, seconds) in list(operation.meter.statuses.items()):
            yield (operation.method, operation.path, str(status)), Buckets(Meter.BOUNDS, tuple(counts), seconds[0])


#: The whole of `/metrics`, in its order, but for what the process tells of itself.
METRICS: tuple[Described, ...] = (
    Described("pyoco_runs_total", "gauge", ("status",), "Runs stored now, by status, of all tenants.", _runs),
    Described(
        "pyoco_workers_alive_total",
        "gauge",
        (),
        "Workers that are RUNNING or IDLE now, hidden ones included.",
        _one(lambda moment: moment.figures.workers.alive),
    ),
    Described(
        "pyoco_dlq_messages_total",
        "gauge",
        (),
        "Messages now in the stream of dead letters.",
        _one(lambda moment: moment.figures.dead_letters),
    ),
    Described(
        "pyoco_runs_in_flight",
        "gauge",
        (),
        "Runs that are RUNNING or CANCELLING now.",
        _one(_in_flight),
    ),
    Described(
        "pyoco_priced_runs",
        "gauge",
        ("status", "money_state"),
        "Priced runs stored now, by status and money state, of all tenants. They count as runs, too.",
        _packs,
    ),
    Described(
        "pyoco_queue_depth",
        "gauge",
        ("tag",),
        "PENDING runs by tag, but for priced ones. Tags without one are left out; the 1,000 longest queues are shown.",
        _depths,
    ),
    Described(
        "pyoco_queue_oldest_age_seconds",
        "gauge",
        ("tag",),
        "How long the oldest PENDING run of a tag has waited.",
        _ages,
    ),
    Described(
        "pyoco_worker_slots",
        "gauge",
        (),
        "Runs that all live workers can execute at once.",
        _one(lambda moment: moment.figures.workers.slots),
    ),
    Described(
        "pyoco_worker_slots_busy",
        "gauge",
        (),
        "Slots of live workers that execute a run, by the workers' last word.",
        _one(lambda moment: moment.figures.workers.slots_busy),
    ),
    Described(
        "pyoco_dead_letters",
        "gauge",
        ("reason",),
        "Dead letters kept now, by reason.",
        lambda moment: [((reason,), count) for reason, count in moment.figures.reasons.items()],
    ),
    Described(
        "pyoco_run_wait_seconds",
        "histogram",
        ("flow", "outcome"),
        "From the submission of a run to the beginning of its last attempt, seen when it ended. A priced run counts "
        "for flow `pack:` and its pack.",
        _ended(lambda tally, key: tally.ends[key].wait),
    ),
    Described(
        "pyoco_run_duration_seconds",
        "histogram",
        ("flow", "outcome"),
        "From the beginning of a run's last attempt to its end.",
        _ended(lambda tally, key: tally.ends[key].duration),
    ),
    Described(
        "pyoco_run_redeliveries_total",
        "counter",
        (),
        "Attempts beyond a run's first that this gateway saw begin.",
        _one(lambda moment: moment.tally.redeliveries),
    ),
    Described(
        "pyoco_http_request_duration_seconds",
        "histogram",
        ("method", "route", "status"),
        "From a request's admission to the first byte of its answer. Requests without a valid key are not in it.",
        _requests,
    ),
    Described(
        "pyoco_watchers",
        "gauge",
        (),
        "Event streams that are open at this gateway now.",
        _one(lambda moment: moment.watchers),
    ),
    Described(
        "pyoco_index_lag_seconds",
        "gauge",
        (),
        "How long lists took, just now, to show everything that was stored; it grows while they do not.",
        _one(lambda moment: moment.figures.index_lag_seconds),
    ),
    Described(
        "pyoco_build_info",
        "gauge",
        ("version",),
        "Always 1; the label tells the version of pyoco-server.",
        lambda moment: [((moment.version,), 1)],
    ),
)


async def render(moment: Moment) -> bytes:
    """The text, written by the client library. O(series), in pieces: others are served between them.

    A line costs some 6 µs; those of a histogram that has not changed since the last time cost next to nothing.
    """
    parts: list[bytes] = []
    for described in METRICS:
        parts.append(_write(_family(described, [])))
        at_once = _LINES_AT_ONCE // 20 if described.kind == "histogram" else _LINES_AT_ONCE
        series = iter(described.read(moment))
        while some := list(islice(series, at_once)):
            parts.extend(_texts(described, some))
            await asyncio.sleep(0)
    parts.extend(map(_write, _PROCESS.collect()))
    return b"".join(parts)


def _texts(described: Described, series: list[Series]) -> Iterator[bytes]:
    if described.kind != "histogram":
        yield _without_head(_write(_family(described, series)))
        return
    for each in series:
        yield _histogram(described, each)


@lru_cache(maxsize=2048)
def _histogram(described: Described, series: Series) -> bytes:
    """Some twenty lines. Between two scrapes few flows have ended a run: 1.5 KiB kept saves 0.1 ms."""
    return _without_head(_write(_family(described, [series])))


def _family(described: Described, series: list[Series]) -> Metric:
    """A family of the client library: a private one, nothing is registered anywhere."""
    if described.kind == "histogram":
        histogram = HistogramMetricFamily(described.name, described.help, labels=described.labels)
        for labels, value in series:
            assert isinstance(value, Buckets)
            histogram.add_metric(labels, _buckets(value), value.total)
        return histogram
    kind = CounterMetricFamily if described.kind == "counter" else GaugeMetricFamily
    family = kind(described.name, described.help, labels=described.labels)
    for labels, value in series:
        assert not isinstance(value, Buckets)
        family.add_metric(labels, value)
    return family


def _buckets(value: Buckets) -> list[tuple[str, float]]:
    """Each with everything below it, as Prometheus wants them."""
    names = [*map(str, value.bounds), "+Inf"]
    return list(zip(names, accumulate(value.counts), strict=True))


class _Alone(Collector):
    """What the library writes: one family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def _write(family: Metric) -> bytes:
    return generate_latest(_Alone(family))


def _without_head(text: bytes) -> bytes:
    """The lines HELP and TYPE stand before the first piece of a family, and nowhere else."""
    return text.split(b"\n", 2)[2]


#: Memory, processor time and open files of this process.
_PROCESS = ProcessCollector(registry=CollectorRegistry())
PROCESS_METRICS = (
    "process_virtual_memory_bytes",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_cpu_seconds_total",
    "process_open_fds",
    "process_max_fds",
)
