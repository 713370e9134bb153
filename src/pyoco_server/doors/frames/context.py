"""The state shared by all connections of a door. None of it has to survive the door (GRID-40)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyoco_server.doors.frames.budget import ByteBudget
from pyoco_server.doors.frames.credits import WorkerCredits
from pyoco_server.doors.frames.end_waiters import EndWaiters
from pyoco_server.doors.frames.guard import Guard
from pyoco_server.doors.frames.redirects import Redirects
from pyoco_server.frames.tasks import TaskSet
from pyoco_server.loops.programs.in_flight import InFlight
from pyoco_server.loops.programs.meter import ProgramMeter
from pyoco_server.ports.backend import DoorBackend
from pyoco_server.ports.door_records.port import DoorState
from pyoco_server.ports.programs import Programs

if TYPE_CHECKING:
    from pyoco_server.doors.frames.worker_session import WorkerPeer
    from pyoco_server.loops.log_sender import LogSender

__all__ = ["DoorContext"]


#: Limit of payload bytes processed at the same time, over all connections. Processing takes about three times as much.
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
    #: Poll for jobs: a credit was released, or a worker joined.
    nudge: Callable[[], None]
    #: Write the worker records now: the programs of one of them have changed.
    announce: Callable[[], None]
    meter: ProgramMeter
    #: Stores the lines that programs print. None: logs are disabled.
    lines: LogSender | None = None
    #: Tasks that continue after their connection has ended.
    tasks: TaskSet = field(default_factory=TaskSet)
    #: Separate budgets for submissions and reports, so that neither waits for the other.
    in_work: ByteBudget = field(default_factory=lambda: ByteBudget(_IN_WORK_BYTES_MAX))
    reports_in_work: ByteBudget = field(default_factory=lambda: ByteBudget(_IN_WORK_BYTES_MAX))
    #: Connected workers by id; and by run id, the worker that was assigned the attempt.
    workers: dict[str, WorkerPeer] = field(default_factory=dict)
    assigned: dict[str, WorkerPeer] = field(default_factory=dict)
