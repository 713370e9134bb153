"""The ports that an action on programs may use, in one bundle. `wiring/programs.py` fills it."""

from __future__ import annotations

import random
from collections.abc import Callable
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

__all__ = ["Grace", "Programs", "SlotChecks"]


@dataclass
class Grace:
    """A grace period after an outage of JetStream, in which no lease counts as expired (GRID-44): its holder could not
    renew it."""

    #: End of the grace period in unix seconds.
    until: float = 0.0

    def covers(self, now: float) -> bool:
        return now < self.until


@dataclass
class SlotChecks:
    """When each held slot was last checked for being abandoned.

    A client at its cap is rejected repeatedly, and each check costs a read. A cache of at most `count_max` slots:
    forgetting is harmless.
    """

    count_max: int = 100_000
    _seen: dict[tuple[str, str, int], tuple[int, float]] = field(default_factory=dict)

    def is_due(self, slot: Slot, now: float, every_seconds: float) -> bool:
        """Return whether the next check is due, and if so, count it as done."""
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
    """What every process has that handles programs: gateway, door, native worker, keeper."""

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
    #: Set when JetStream is back (`loops/programs/quorum.py`), read wherever the age of a lease is judged.
    grace: Grace = field(default_factory=Grace)
    slot_checks: SlotChecks = field(default_factory=SlotChecks)
    #: Returns 0.0 to 1.0, for jitter (GRID-194).
    chance: Callable[[], float] = random.random
