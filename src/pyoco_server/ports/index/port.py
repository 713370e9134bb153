"""Lists and counts of runs: a cache. Delete it, and it is rebuilt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyoco_server.ports.runs.port import Removed, Stored

__all__ = ["EVERYBODY", "Ahead", "Counts", "Held", "Index", "Mark", "Page", "Place", "RunFilter", "Summary", "Waiting"]

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
    #: How the run id begins: characters of a UUID in lower case, at least one.
    run_id_prefix: str | None = None


@dataclass(frozen=True)
class Place:
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


@dataclass(frozen=True)
class Page:
    """Some lines of a list, and where the next page begins; None: nothing follows (FLOW-111)."""

    items: list[Summary]
    next: Place | None


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
    #: By tag, the longest queues first; at most 1,000 tags. Without packs: those have a queue of their own.
    waiting: dict[str, Waiting]
    #: Packs by status and money state. The second is empty where a record does not tell.
    packs: dict[tuple[str, str], int] = field(default_factory=dict)
    #: PENDING packs. None: there is none.
    packs_waiting: Waiting | None = None


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
class Held:
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

    def version(self) -> str:
        """Of what it shows now: while it stays the same, so does every list, on every gateway of the same store."""

    async def page(self, wanted: RunFilter, limit: int, after: Place | None = None) -> Page:
        """Newest update first, ties by run id downwards (FLOW-110). O(limit * log runs) where an index serves; with the
        beginning of a run id O(runs that begin so), or as without it when those are thousands."""

    async def counts(self) -> Counts:
        """O(statuses + tags with waiting runs)."""

    async def ahead(self, tag: str, submitted_at: float, run_id: str, limit: int) -> Ahead:
        """What was submitted to this tag before that run and still waits; no packs. O(limit + log runs)."""

    async def packs_ahead(self, submitted_at: float, run_id: str, limit: int) -> Ahead:
        """Which packs were submitted before that one and still wait. O(limit + log runs)."""

    async def unfinished(self, after: float, before: float, limit: int) -> list[Summary]:
        """Runs that have not ended and were last updated between these instants, oldest first; no packs, which their
        own keepers look after. O(limit * log runs + packs between them)."""

    async def quiet(self, tenant_id: str, before: float, limit: int) -> list[Held]:
        """RUNNING runs of this tenant, or of EVERYBODY, that were last updated before this instant, oldest first; no
        packs, whose signs of life are in the ledger. O(limit * log runs + packs that run)."""

    async def held(self, run_ids: Sequence[str]) -> list[Held]:
        """Which of these runs are RUNNING or CANCELLING now; no packs. O(run_ids * log runs)."""
