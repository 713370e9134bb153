"""The bundle of ports an action on programs may reach. `wiring/programs.py` fills it."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from pyoco_server.config.grid import GridConfig
from pyoco_server.ports.acl.port import Acl
from pyoco_server.ports.door_records.port import DoorRecords
from pyoco_server.ports.objects.port import Objects
from pyoco_server.ports.program_events.port import Events
from pyoco_server.ports.program_queue.port import ProgramQueue
from pyoco_server.ports.routes.port import Routes
from pyoco_server.ports.slots.port import Slot, Slots
from pyoco_server.ports.wakeups.port import Wakeups

__all__ = ["Grace", "Looks", "Programs"]


async def _nowhere(_: str) -> None:
    """The points at which a test may pause or kill; there are none in production."""


@dataclass
class Grace:
    """GRID-44: after JetStream was away, nobody's lease counts as old for a while: its holder could not renew it."""

    #: Unix seconds.
    until: float = 0.0

    def covers(self, now: float) -> bool:
        return now < self.until


@dataclass
class Looks:
    """When a held slot was last looked at for being abandoned: a client at its cap is asked about again and again, and
    each look is a read. A cache of at most `count_max` slots: to forget is harmless."""

    count_max: int = 100_000
    _seen: dict[tuple[str, str, int], tuple[int, float]] = field(default_factory=dict)

    def is_due(self, slot: Slot, now: float, every_seconds: float) -> bool:
        """Whether it is time for the next look, which then counts as taken."""
        key = slot.group, slot.client, slot.number
        revision, at = self._seen.get(key, (0, 0.0))
        if revision == slot.revision and 0 <= now - at < every_seconds:
            return False
        if len(self._seen) >= self.count_max:
            self._seen.clear()
        self._seen[key] = slot.revision, now
        return True


@dataclass(frozen=True, kw_only=True)
class Programs:
    """What every process has that deals with programs: gateway, door, native worker, keeper."""

    config: GridConfig
    queue: ProgramQueue
    slots: Slots
    doors: DoorRecords
    acl: Acl
    routes: Routes
    events: Events
    wakeups: Wakeups
    #: Inputs and outputs of jobs, by `<run_id>/…`.
    artifacts: Objects
    #: Set by whoever notices that JetStream is back (`loops/programs/quorum.py`), asked wherever a lease is judged.
    grace: Grace = field(default_factory=Grace)
    looks: Looks = field(default_factory=Looks)
    #: 0.0 to 1.0, for jitter (GRID-194).
    chance: Callable[[], float] = random.random
    #: Called with a name at each step of submit, claim and finish (P30).
    reached: Callable[[str], Awaitable[None]] = _nowhere
