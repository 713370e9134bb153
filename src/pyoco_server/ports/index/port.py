"""Lists and counts of runs: a cache, which is rebuilt if it is deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyoco_server.core.run import Run
from pyoco_server.ports.runs.port import Removed, Stored

__all__ = [
    "EVERYBODY",
    "OTHER",
    "RUN_SECONDS_BOUNDS",
    "Ahead",
    "Counts",
    "DelayedRun",
    "Index",
    "ListPosition",
    "Mark",
    "Page",
    "ProgramCounts",
    "ProgramTotals",
    "RunFilter",
    "RunInProgress",
    "Summary",
    "Waiting",
]

#: All tenants. Also used while authentication is off, when every run is visible.
EVERYBODY = ""


@dataclass(frozen=True)
class RunFilter:
    """Criteria for runs. All criteria that are set must match."""

    #: Only runs of this tenant; EVERYBODY: of all tenants.
    tenant_id: str = EVERYBODY
    status: str | None = None
    flow: str | None = None
    #: The routing tag or one of the labels (FLOW-99).
    tag: str | None = None
    kind: str | None = None
    workflow_yaml_sha256: str | None = None
    #: Only runs updated strictly after this time (FLOW-102).
    updated_after: float | None = None
    #: Only runs updated strictly before this time.
    updated_before: float | None = None
    #: Prefix of the run id: at least one lower-case character of a UUID.
    run_id_prefix: str | None = None
    #: Programs only: the job id, the client that submitted the job, and the group it was queued in.
    job_id: str | None = None
    client_id: str | None = None
    group: str | None = None
    #: What the run waits for, a `WaitsFor`.
    waits: str | None = None
    #: Words that must all occur in the run: in its names, labels, params or error, or as the prefix of its id. For
    #: EVERYBODY, priced runs are only found by what everybody may see of them (CLI-16, SAFE-5).
    search: str | None = None


@dataclass(frozen=True)
class ListPosition:
    """The position where a walk resumes: below this line, in the order as of `revision`.

    A walk keeps the order of its beginning until its end. A run that changes meanwhile keeps its position in the walk
    and shows its newest state there, so it is neither skipped nor shown twice.
    """

    revision: int
    updated_at: float
    run_id: str


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A line of a list (FLOW-109). None: unknown, or not known yet."""

    run_id: str
    kind: str
    status: str
    flow_name: str
    tag: str
    tags: tuple[str, ...]
    submitted_at: float
    updated_at: float
    heartbeat_at: float
    start_time: float | None = None
    end_time: float | None = None
    worker_id: str | None = None
    error: str | None = None
    #: Packs only: what it does and what it costs (`line_of`).
    pack: Mapping[str, Any] | None = None
    #: Programs only: the job, its client, and how it went (`program_line`).
    program: Mapping[str, Any] | None = None
    #: Delayed runs and runs of schedules only.
    not_before: float | None = None
    schedule: Mapping[str, Any] | None = None
    #: Runs with a retry policy only.
    try_number: int | None = None
    max_tries: int | None = None


@dataclass(frozen=True)
class Page:
    """One page of a list, and the position of the next one. None: this is the last page (FLOW-111)."""

    items: list[Summary]
    next: ListPosition | None


@dataclass(frozen=True)
class Waiting:
    """The PENDING runs of one tag."""

    count: int
    #: Submission time of the oldest one.
    oldest_at: float


@dataclass(frozen=True)
class Counts:
    """Counts of what is stored now, maintained with each change rather than computed by a scan."""

    #: Runs by status. Statuses without runs are omitted.
    by_status: dict[str, int]
    #: By tag, longest queues first; at most 1,000 tags. Excludes packs and programs, which have their own queues.
    waiting: dict[str, Waiting]
    #: Packs by status and money state. The money state is empty if the record does not contain it.
    packs: dict[tuple[str, str], int] = field(default_factory=dict)
    #: PENDING packs. None: there are none.
    packs_waiting: Waiting | None = None


@dataclass(frozen=True)
class ProgramCounts:
    """The unfinished jobs of one program in one group."""

    group: str
    exec_name: str
    #: Number of PENDING jobs.
    queued: int
    #: Submission time of the oldest PENDING job. None: there is none.
    oldest_at: float | None
    #: Number of RUNNING or CANCELLING jobs.
    inflight: int


#: Upper bounds of the histogram buckets for run times of programs, in seconds. The last bucket is unbounded.
RUN_SECONDS_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
#: Collects all groups and programs beyond the first thousand names.
OTHER = "other"


@dataclass(frozen=True)
class ProgramTotals:
    """Counters of job events since the index was created.

    Each event counts once, and stays counted after its run expires.
    """

    #: By group, program and final status.
    ended: dict[tuple[str, str, str], int]
    #: Attempts that were requeued, by group, program and cause.
    retries: dict[tuple[str, str, str], int]
    #: Dead letters written, by group, program and reason.
    dead_letters: dict[tuple[str, str, str], int]
    #: By program: number of run times per bucket of RUN_SECONDS_BOUNDS, and their sum.
    seconds: dict[str, tuple[tuple[int, ...], float]]
    #: Run records of any kind that are stored now and cannot be read.
    corrupt: int


@dataclass(frozen=True)
class Ahead:
    """What is queued ahead of a run under the same tag, estimated from submission times."""

    #: PENDING runs of the tag that were submitted earlier, capped at the requested limit.
    count: int
    #: The oldest of them.
    oldest: Summary | None
    #: The owner of that run. None: no owner. Other tenants' runs must not be shown to the caller.
    oldest_tenant_id: str | None = None


@dataclass(frozen=True)
class RunInProgress:
    """A run in progress, according to its record."""

    run_id: str
    #: The worker that executes it. None: its worker released it, and it waits for another one.
    worker_id: str | None
    #: Its owner. None: no owner.
    tenant_id: str | None
    tag: str
    updated_at: float


@dataclass(frozen=True)
class DelayedRun:
    """A run that waits for its time, of any kind."""

    run_id: str
    kind: str
    due_at: float


@dataclass(frozen=True)
class Mark:
    """How far the index has read: a revision in one particular store."""

    epoch: str = ""
    revision: int = 0


class Index(Protocol):
    """A read model of the runs, one per gateway. It may lag briefly; it never contains invented entries."""

    async def open(self) -> Mark:
        """Open or create the index. Return the mark at which feeding must resume."""

    async def close(self) -> None:
        """Close the index. Idempotent."""

    async def damaged(self) -> None:
        """Return once the index was found damaged: it must be reopened, and fed from the beginning."""

    async def apply(self, items: tuple[Stored | Removed, ...], mark: Mark) -> None:
        """Apply changes and store the mark, in one transaction.

        An older revision of a run never overwrites a newer one.
        """

    async def reset(self, epoch: str) -> None:
        """Delete all entries: the store was replaced."""

    async def mark_complete(self) -> None:
        """Note that the first complete read of the store is done. From now on the index records moves for walks."""

    async def applied(self, revision: int, seconds: float) -> bool:
        """Wait until this revision has been applied: its writer can then read its own write. False: timeout."""

    async def version(self, tenant_id: str = EVERYBODY) -> str:
        """Return the version of all lists of a tenant, or of EVERYBODY.

        While it is unchanged, so is each of these lists, on every gateway of the same store. A tenant's version depends
        only on the runs of this tenant. O(1).
        """

    async def page(self, wanted: RunFilter, limit: int, after: ListPosition | None = None) -> Page:
        """Return one page, newest update first, ties by descending run id (FLOW-110).

        O(limit * log runs) if an index serves the filter. With a run id prefix O(runs with this prefix), or as without
        it if there are thousands. With a search O(limit * log runs + runs in progress), or O(runs that match the rarest
        word or filter) if few of them match the others.
        """

    async def count_by_status(self, wanted: RunFilter, limit: int) -> dict[str, int]:
        """Count matching runs by status, each up to `limit`; all of them without a filter. Statuses without runs are
        omitted. O(limit) for each status, as for a page."""

    async def counts(self) -> Counts:
        """Return the current counts. O(statuses + tags with waiting runs)."""

    async def programs(self) -> list[ProgramCounts]:
        """Return unfinished jobs by group and program, at most 1,000 entries. O(groups * programs)."""

    async def program_totals(self) -> ProgramTotals:
        """Return the counters of program jobs. O(groups * programs)."""

    async def program_seconds(self, exec_name: str, limit: int) -> list[float]:
        """Return run times of the last `limit` jobs of a program to end, without those that have none. O(limit)."""

    async def group_seconds(self, tenant_id: str, group: str, limit: int) -> dict[str, list[float]]:
        """Return run times of the last `limit` jobs of a group that completed or failed, by program, without those that
        have none. O(limit)."""

    async def ahead(self, tag: str, submitted_at: float, run_id: str, limit: int) -> Ahead:
        """Return what is queued ahead of that run under this tag; neither packs nor programs.

        O(limit + log runs).
        """

    async def packs_ahead(self, submitted_at: float, run_id: str, limit: int) -> Ahead:
        """Return which packs were submitted before that one and are still PENDING. O(limit + log runs)."""

    async def programs_ahead(self, run: Run, limit: int) -> Ahead:
        """Return which jobs of the same lane (group, program and client) were submitted before that one and are still
        PENDING.

        O(limit + log runs).
        """

    async def unfinished(self, after: float, before: float, limit: int) -> list[Summary]:
        """Return unfinished runs last updated between these instants, oldest first.

        Excludes packs and programs, which their own keepers handle, and delayed runs. O(limit * log runs + excluded
        runs between the instants).
        """

    async def open_programs(self, after: float, before: float, limit: int) -> list[Summary]:
        """Like `unfinished`, for programs, without delayed ones. O(limit * log runs)."""

    async def delayed(self, after: DelayedRun | None, before: float, limit: int) -> list[DelayedRun]:
        """Return runs of any kind that wait for a time before `before`, by that time. O(limit + log runs).

        `after`: the last run of the previous page.
        """

    async def repeats(self, run_id: str, tenant_id: str, limit: int) -> list[str]:
        """Return the runs of this tenant, or of EVERYBODY, that repeat a run, newest first. O(limit + log runs)."""

    async def quiet(self, tenant_id: str, before: float, limit: int) -> list[RunInProgress]:
        """Return RUNNING runs of this tenant, or of EVERYBODY, last updated before this instant, oldest first.

        Excludes packs, whose heartbeats are in the ledger, and programs. O(limit * log runs + running packs and
        programs).
        """

    async def held(self, run_ids: Sequence[str]) -> list[RunInProgress]:
        """Return which of these runs are RUNNING or CANCELLING now, without packs. O(run_ids * log runs)."""
