"""Lists and counts of runs: a cache. Delete it, and it is rebuilt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pyoco_server.ports.runs.port import Removed, Stored

__all__ = ["EVERYBODY", "Index", "Mark", "RunFilter", "Summary"]

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

    async def apply(self, items: tuple[Stored | Removed, ...], mark: Mark) -> None:
        """Take in changes and remember the mark, in one transaction. An older revision of a run never wins."""

    async def reset(self, epoch: str) -> None:
        """Forget everything: the store is another one."""

    async def applied(self, revision: int, seconds: float) -> bool:
        """Wait until this revision has been taken in: whoever wrote it can then read it. False: not in time."""

    async def page(self, wanted: RunFilter, limit: int) -> list[Summary]:
        """Newest update first, ties by run id downwards (FLOW-110). O(limit * log runs) where an index serves."""

    async def unfinished(self, after: float, before: float, limit: int) -> list[Summary]:
        """Runs that have not ended and were last updated between these instants, oldest first. O(limit * log runs)."""
