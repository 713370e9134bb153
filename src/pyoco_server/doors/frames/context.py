"""What every connection of a door may reach. Nothing in it has to outlive the door (GRID-40)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyoco_server.doors.frames.budget import ByteBudget
from pyoco_server.doors.frames.credits import WorkerCredits
from pyoco_server.doors.frames.end_waiters import EndWaiters
from pyoco_server.doors.frames.guard import Guard
from pyoco_server.doors.frames.redirects import Redirects
from pyoco_server.frames.tasks import Tasks
from pyoco_server.loops.programs.in_flight import InFlight
from pyoco_server.loops.programs.meter import Meter
from pyoco_server.ports.backend import DoorBackend
from pyoco_server.ports.door_records.port import DoorState
from pyoco_server.ports.programs import Programs

if TYPE_CHECKING:
    from pyoco_server.doors.frames.worker_session import WorkerPeer

__all__ = ["DoorContext"]


#: Payloads that are worked on at once, over all connections. In work they take thrice as much.
_IN_WORK_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class DoorContext:
    backend: DoorBackend
    programs: Programs
    group: str
    door_id: str
    guard: Guard
    redirects: Redirects
    worker_credits: WorkerCredits
    in_flight: InFlight
    end_waiters: EndWaiters
    state: Callable[[], DoorState]
    #: A credit came, or a worker: look for jobs.
    nudge: Callable[[], None]
    #: Write the records of the workers now: what one of them offers has changed.
    announce: Callable[[], None]
    meter: Meter
    #: Work that goes on when its connection has ended.
    tasks: Tasks = field(default_factory=Tasks)
    #: Submissions, and reports: neither has to wait for the other.
    in_work: ByteBudget = field(default_factory=lambda: ByteBudget(_IN_WORK_BYTES_MAX))
    reports_in_work: ByteBudget = field(default_factory=lambda: ByteBudget(_IN_WORK_BYTES_MAX))
    #: Connected workers by id, and who was given an attempt by run id.
    workers: dict[str, WorkerPeer] = field(default_factory=dict)
    assigned: dict[str, WorkerPeer] = field(default_factory=dict)
