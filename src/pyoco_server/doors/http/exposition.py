"""All metrics of a gateway in one table: names, types, help texts and sources."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pyoco_server.actions.measure import Figures
from pyoco_server.actions.programs.measure import ProgramFigures
from pyoco_server.core.states import RunState
from pyoco_server.doors.http.families import CONTENT_TYPE, PROCESS_METRICS, Buckets, Described, Series, write_all
from pyoco_server.doors.http.log_exposition import LOG_METRICS, LogFigures
from pyoco_server.doors.http.operations import Meter, Operation
from pyoco_server.doors.http.program_exposition import PROGRAM_METRICS
from pyoco_server.loops.schedule_tally import ScheduleFigures
from pyoco_server.loops.tally import Histogram, Tally

__all__ = ["CONTENT_TYPE", "METRICS", "PROCESS_METRICS", "Described", "Moment", "render"]


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The data from which all metrics are read."""

    figures: Figures
    tally: Tally
    operations: tuple[Operation, ...]
    #: Open event streams.
    watchers: int
    version: str
    programs: ProgramFigures = field(default_factory=ProgramFigures)
    logs: LogFigures = field(default_factory=LogFigures)
    schedules: ScheduleFigures = field(default_factory=ScheduleFigures)


def _of_programs(described: Described[ProgramFigures]) -> Described[Moment]:
    return Described(
        described.name,
        described.kind,
        described.labels,
        described.help,
        lambda moment: described.read(moment.programs),
    )


def _of_logs(described: Described[LogFigures]) -> Described[Moment]:
    return Described(
        described.name, described.kind, described.labels, described.help, lambda moment: described.read(moment.logs)
    )


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
        for key in list(moment.tally.ends):  # a copy, because runs keep ending while this is written
            histogram = which(moment.tally, key)
            yield key, Buckets(histogram.BOUNDS, tuple(histogram.counts), histogram.total)

    return read


def _requests(moment: Moment) -> Iterable[Series]:
    for operation in moment.operations:
        for status, (counts, seconds) in list(operation.meter.statuses.items()):
            yield (operation.method, operation.path, str(status)), Buckets(Meter.BOUNDS, tuple(counts), seconds[0])


#: All of `/metrics`, in order, except the metrics of the process itself.
METRICS: tuple[Described[Moment], ...] = (
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
        "PENDING runs by tag, except priced ones. Empty tags are left out; the 1,000 longest queues are shown.",
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
        "Slots of all live workers: for flows, or for programs if a worker runs these alone.",
        _one(lambda moment: moment.figures.workers.slots),
    ),
    Described(
        "pyoco_worker_slots_busy",
        "gauge",
        (),
        "Those of these slots that execute a run, as last reported by the workers.",
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
        "From the submission of a run to the start of its last attempt, observed when it ended. A priced run counts "
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
        "pyoco_run_retries_total",
        "counter",
        ("flow", "kind"),
        "Failed tries after which another one was allowed, by what failed, that this gateway saw end.",
        lambda moment: [(key, count) for key, count in list(moment.tally.retries.items())],
    ),
    *map(_of_programs, PROGRAM_METRICS),
    *map(_of_logs, LOG_METRICS),
    Described(
        "pyoco_schedules",
        "gauge",
        ("paused",),
        "Schedules stored now, by whether they are paused, of all tenants.",
        lambda moment: [((paused,), count) for paused, count in moment.schedules.paused.items()],
    ),
    Described(
        "pyoco_schedules_overdue",
        "gauge",
        (),
        "Schedules with a tick that is due for more than a minute and not handled.",
        _one(lambda moment: moment.schedules.overdue),
    ),
    Described(
        "pyoco_schedule_ticks_total",
        "counter",
        ("outcome",),
        "Ticks of schedules that this gateway saw handled, by outcome. A tick that waits and runs later counts twice.",
        lambda moment: [((outcome,), count) for outcome, count in moment.schedules.outcomes.items()],
    ),
    Described(
        "pyoco_http_request_duration_seconds",
        "histogram",
        ("method", "route", "status"),
        "From a request's admission to the first byte of its answer. Requests without a valid key are not included.",
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
        "Delay until lists currently show everything that is stored; grows while they do not.",
        _one(lambda moment: moment.figures.index_lag_seconds),
    ),
    Described(
        "pyoco_build_info",
        "gauge",
        ("version",),
        "Always 1; the label is the version of pyoco-server.",
        lambda moment: [((moment.version,), 1)],
    ),
)


async def render(moment: Moment) -> bytes:
    return await write_all(METRICS, moment)
