"""Lists and counts of runs: a cache. Delete it, and it is rebuilt."""

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

#: Authentication is off: every run is visible.
EVERYBODY = ""


@dataclass(frozen=True)
class RunFilter:
    """Which runs are asked for. All that is set must hold."""

    #: Only runs of this tenant; EVERYBODY: all.
    tenant_id: str = EVERYBODY
    status: str | None = None
    flow: str | None = None
    #: The routing tag or one of the labels (FLOW-99).
    tag: str | None = None
    kind: str | None = None
    workflow_yaml_sha256: str | None = None
    #: Strictly later than this (FLOW-102).
    updated_after: float | None = None
    #: Strictly earlier than this.
    updated_before: float | None = None
    #: How the run id begins: characters of a UUID in lower case, at least one.
    run_id_prefix: str | None = None
    #: Of programs: the job, who asked for it, and where it was queued.
    job_id: str | None = None
    client_id: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class ListPosition:
    """Where a walk through a list goes on: below this line of the order as it was at `revision`.

    A walk sees the order of its beginning to its end. A run that changes meanwhile keeps its place in the walk and
    shows its newest state there, so it is neither passed over nor shown twice.
    """

    revision: int
    updated_at: float
    run_id: str


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A line of a list (FLOW-109). `None`: not known, or not yet."""

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
    #: Of a pack: what it does and what it costs (`line_of`).
    pack: Mapping[str, Any] | None = None
    #: Of a program: whose job it is, and how it went (`program_line`).
    program: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Page:
    """Some lines of a list, and where the next page begins; None: nothing follows (FLOW-111)."""

    items: list[Summary]
    next: ListPosition | None


@dataclass(frozen=True)
class Waiting:
    """The PENDING runs of one tag."""

    count: int
    #: When the oldest of them was submitted.
    oldest_at: float


@dataclass(frozen=True)
class Counts:
    """What is stored now, counted as it changes and never by looking at all of it."""

    #: Runs by status; statuses without a run are missing.
    by_status: dict[str, int]
    #: By tag, the longest queues first; at most 1,000 tags. Without packs and programs: those have queues of their own.
    waiting: dict[str, Waiting]
    #: Packs by status and money state. The second is empty where a record does not tell.
    packs: dict[tuple[str, str], int] = field(default_factory=dict)
    #: PENDING packs. None: there is none.
    packs_waiting: Waiting | None = None


@dataclass(frozen=True)
class ProgramCounts:
    """The jobs of one program in one group that have not ended."""

    group: str
    exec_name: str
    #: PENDING.
    queued: int
    #: When the oldest of those was submitted; None: there is none.
    oldest_at: float | None
    #: RUNNING or CANCELLING.
    inflight: int


#: Upper bounds of the run times of programs that are told apart, in seconds; the last bucket has none.
RUN_SECONDS_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
#: Where the groups and programs are counted, all together, that are beyond the thousand that are told apart.
OTHER = "other"


@dataclass(frozen=True)
class ProgramTotals:
    """What has become of jobs since the index was made; each counted once, and kept when its run expires."""

    #: By group, program and final status.
    ended: dict[tuple[str, str, str], int]
    #: Attempts that were put back, by group, program and why.
    retries: dict[tuple[str, str, str], int]
    #: Dead letters that were written, by group, program and reason.
    letters: dict[tuple[str, str, str], int]
    #: By program: how many run times fell between which RUN_SECONDS_BOUNDS, and their sum.
    seconds: dict[str, tuple[tuple[int, ...], float]]
    #: Records of runs, of whatever kind, that are stored now and cannot be read.
    corrupt: int


@dataclass(frozen=True)
class Ahead:
    """What stands before a run in the queue of its tag, as far as one can tell from submission times."""

    #: PENDING runs of the tag that were submitted earlier. Never more than the limit asked for.
    count: int
    #: The first of them.
    oldest: Summary | None
    #: Whose run the oldest is; None: nobody's. Another tenant's run is not for the caller's eyes.
    oldest_tenant_id: str | None = None


@dataclass(frozen=True)
class RunInProgress:
    """A run that is under way, by its record."""

    run_id: str
    #: Who executes it. None: its worker gave it back, and it waits for another one.
    worker_id: str | None
    #: Whose it is; None: nobody's.
    tenant_id: str | None
    tag: str
    updated_at: float


@dataclass(frozen=True)
class Mark:
    """How far the index has read: a revision of one particular store."""

    epoch: str = ""
    revision: int = 0


class Index(Protocol):
    """A read model of the runs, one per gateway. It may lag by a moment; it never invents."""

    async def open(self) -> Mark:
        """Open or make it. Returns where the feeding has to go on."""

    async def close(self) -> None:
        """May be called twice."""

    async def damaged(self) -> None:
        """Returns once somebody found it damaged: it has to be opened again, and fed from the beginning."""

    async def apply(self, items: tuple[Stored | Removed, ...], mark: Mark) -> None:
        """Take in changes and remember the mark, in one transaction. An older revision of a run never wins."""

    async def reset(self, epoch: str) -> None:
        """Forget everything: the store is another one."""

    async def whole(self) -> None:
        """Everything that was there has been taken in once. From now on the places of a walk are remembered."""

    async def applied(self, revision: int, seconds: float) -> bool:
        """Wait until this revision has been taken in: whoever wrote it can then read it. False: not in time."""

    async def version(self, tenant_id: str = EVERYBODY) -> str:
        """The version of all lists of a tenant, or of everybody. While it stays the same, so does each of these lists,
        on every gateway of the same store. A tenant's version depends on the runs of this tenant only. O(1)."""

    async def page(self, wanted: RunFilter, limit: int, after: ListPosition | None = None) -> Page:
        """Newest update first, ties by run id downwards (FLOW-110). O(limit * log runs) where an index serves; with the
        beginning of a run id O(runs that begin so), or as without it when those are thousands."""

    async def counts(self) -> Counts:
        """O(statuses + tags with waiting runs)."""

    async def programs(self) -> list[ProgramCounts]:
        """By group and program, at most 1,000. O(groups * programs)."""

    async def program_totals(self) -> ProgramTotals:
        """O(groups * programs)."""

    async def program_seconds(self, exec_name: str, limit: int) -> list[float]:
        """The run times of the jobs of a program that ended last, at most so many; those without one are left out.
        O(limit)."""

    async def group_seconds(self, tenant_id: str, group: str, limit: int) -> dict[str, list[float]]:
        """The run times of the jobs of a group that completed or failed last, at most so many, by program; those
        without one are left out. O(limit)."""

    async def ahead(self, tag: str, submitted_at: float, run_id: str, limit: int) -> Ahead:
        """What was submitted to this tag before that run and still waits; neither packs nor programs.
        O(limit + log runs)."""

    async def packs_ahead(self, submitted_at: float, run_id: str, limit: int) -> Ahead:
        """Which packs were submitted before that one and still wait. O(limit + log runs)."""

    async def programs_ahead(self, run: Run, limit: int) -> Ahead:
        """Which jobs of the same lane (group, program and client) were submitted before that one and still wait.
        O(limit + log runs)."""

    async def unfinished(self, after: float, before: float, limit: int) -> list[Summary]:
        """Runs that have not ended and were last updated between these instants, oldest first; no packs and no
        programs, which their own keepers look after. O(limit * log runs + those between them)."""

    async def open_programs(self, after: float, before: float, limit: int) -> list[Summary]:
        """The same of programs. O(limit * log runs)."""

    async def quiet(self, tenant_id: str, before: float, limit: int) -> list[RunInProgress]:
        """RUNNING runs of this tenant, or of EVERYBODY, that were last updated before this instant, oldest first; no
        packs, whose signs of life are in the ledger, and no programs. O(limit * log runs + those that run)."""

    async def held(self, run_ids: Sequence[str]) -> list[RunInProgress]:
        """Which of these runs are RUNNING or CANCELLING now; no packs. O(run_ids * log runs)."""
