"""Access to the ports of schedules."""

from __future__ import annotations

from pyoco_server.core.run import Caller
from pyoco_server.core.schedules.ids import is_schedule_name, schedule_key
from pyoco_server.errors import ScheduleNotFound, Unavailable
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.schedules.port import Kept
from pyoco_server.ports.scheduling import Scheduling

__all__ = ["find_schedule", "scheduling_of"]


def scheduling_of(backend: Backend) -> Scheduling:
    """Raises Unavailable in a process that was opened without them."""
    if backend.scheduling is None:
        raise Unavailable("this process does not deal with schedules")
    return backend.scheduling


async def find_schedule(backend: Backend, caller: Caller, name: str) -> Kept:
    """Return a schedule of the caller's tenant. Raises ScheduleNotFound, Unavailable, Corrupt."""
    if is_schedule_name(name):
        kept = await scheduling_of(backend).schedules.find(schedule_key(caller.tenant_id, name))
        if kept is not None:
            return kept
    raise ScheduleNotFound(f"there is no schedule {name[:64]!r}")
