"""What a worker reports about itself: values, from which its registry record is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from pyoco_server.core.offered_flow import OfferedFlow
from pyoco_server.core.run import Owner
from pyoco_server.core.run_log.counts import LogTotals
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import FLOWS, PACKS, PROGRAMS, Load, WorkerRecord

__all__ = ["LaneMembers", "LaneReport", "LastEnd", "WorkerDescription"]

_ORDER = (FLOWS, PACKS, PROGRAMS)


class LaneMembers(TypedDict, total=False):
    """The members of the record that only one lane sets. A test compares them with the fields of `WorkerRecord`."""

    last_pull_at: float | None
    wheel_sync: Mapping[str, Any] | None
    packs: tuple[str, ...]
    packs_missing: Mapping[str, str]
    packs_provide: Mapping[str, Sequence[str]]
    patterns: tuple[str, ...]
    credits: int
    max_parallel: int
    group: str
    programs: tuple[str, ...] | None
    lacks: tuple[str, ...] | None
    allow: tuple[str, ...] | None
    flows: tuple[OfferedFlow, ...]
    flows_complete: bool


@dataclass(frozen=True)
class LastEnd:
    """The status of the last run that a lane ended, and when, by the monotonic clock of the process."""

    status: str
    at: float


@dataclass(frozen=True, kw_only=True)
class LaneReport:
    """What one lane reports at one moment."""

    #: FLOWS, PACKS or PROGRAMS.
    lane: str
    slots: int
    running: tuple[str, ...] = ()
    last_end: LastEnd | None = None
    #: Processes that were replaced because they crashed or were killed.
    restarts: int = 0
    members: LaneMembers = field(default_factory=LaneMembers)

    @property
    def load(self) -> Load:
        """A run whose result is being written may have left its slot to the next one."""
        return Load(self.slots, min(len(self.running), self.slots))


@dataclass(frozen=True, kw_only=True)
class WorkerDescription:
    """What stays the same while a worker runs."""

    me: Owner
    tags: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    #: As in the record: None, unless it runs programs alone.
    kind: str | None = None
    #: What it counts of the lines of runs. None: it captures none.
    logs: LogTotals | None = None

    def record(self, reports: Sequence[LaneReport], now: float) -> WorkerRecord:
        """Build the registry record (section 16.2). Members that no lane sets have no value."""
        reports = sorted(reports, key=lambda report: _ORDER.index(report.lane))
        running = tuple(run_id for report in reports for run_id in report.running)
        ends = [report.last_end for report in reports if report.last_end is not None]
        members: LaneMembers = {"packs": ()}
        for report in reports:
            members |= report.members
        return WorkerRecord(
            worker_id=self.me.worker_id,
            instance_id=self.me.instance_id,
            state=WorkerState.RUNNING if running else WorkerState.IDLE,
            tags=self.tags,
            last_seen_at=now,
            last_heartbeat_at=now,
            current_run_id=running[0] if running else None,
            last_run_status=max(ends, key=lambda end: end.at).status if ends else None,
            slots=reports[0].slots if reports else 0,
            running=running,
            lanes={each.lane: {"slots": each.load.slots, "busy": each.load.busy} for each in reports},
            host_restarts=sum(report.restarts for report in reports),
            versions=self.versions,
            kind=self.kind,
            logs=None if self.logs is None else self.logs.document(),
            **members,
        )
