"""The clients that may have another attempt, as far as this process knows, and the slots it holds. Nothing here waits.

The write that takes a slot checks the assumption. A wrong assumption costs a try, and never exceeds a cap.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

from pyoco_server.actions.programs.slots import cap_of
from pyoco_server.loops.programs.client_queues import ClientQueues
from pyoco_server.loops.programs.idle_slots import IdleSlots
from pyoco_server.ports.programs import Programs
from pyoco_server.ports.slots.port import Slot

__all__ = ["Caps"]

#: A client at its cap is retried after this time: a process that exited may have left a slot behind (GRID-74).
_FULL_SECONDS = 1.0
#: The interval at which clients at their caps are checked, in memory: a cap may have been raised.
_CHECK_SECONDS = 0.25
#: A client that uses all of its slots here lends one to other processes for this long, at most once per this interval.
_LEND_SECONDS, _LEND_EVERY_SECONDS = 0.03, 1.0


class Caps:
    """`free` releases a slot for every process; it must not block."""

    def __init__(
        self,
        programs: Programs,
        group: str,
        lanes: ClientQueues,
        free: Callable[[Slot], None],
        clock: Callable[[], float],
    ) -> None:
        self._programs, self._group, self._lanes, self._free, self._clock = programs, group, lanes, free, clock
        self._idle_slots = IdleSlots(clock)
        #: Slots being taken, by client.
        self._taking: Counter[str] = Counter()
        #: Clients at their caps, and the time at which they are retried regardless.
        self._full: dict[str, float] = {}
        #: Those of them with slots freed since the last check; those to be retried regardless.
        self._freed: set[str] = set()
        self._tried_anyway: set[str] = set()
        #: Until when a client leaves its last slot to others, and when it did so last.
        self._lent_until: dict[str, float] = {}
        self._lent_at: dict[str, float] = {}
        self._checked_at = 0.0

    def reserve(self, client_id: str) -> tuple[Slot | None, bool]:
        """Reserve room for one attempt. Returns a held slot, or whether one may be taken.

        A slot that may be taken counts as being taken until `took`. (None, False): the client is at its cap, and its
        lanes are skipped from now on.
        """
        slot = self._spare(client_id)
        if slot is not None:
            return slot, True
        if not self._has_room(client_id) and client_id not in self._tried_anyway:
            self.block(client_id)
            return None, False
        self._tried_anyway.discard(client_id)
        self._taking[client_id] += 1
        return None, True

    def took(self, client_id: str, count: int) -> None:
        """Note that so many of the slots being taken are taken, or will not be."""
        self._taking[client_id] -= count
        if not self._taking[client_id]:
            del self._taking[client_id]

    def used(self, slot: Slot) -> None:
        """Note that an attempt was claimed with this slot."""
        self._idle_slots.used(slot)

    def forget(self, slot: Slot) -> None:
        """Note that the slot is released."""
        self._idle_slots.forget(slot)

    def keep(self, slot: Slot) -> None:
        """Keep a slot for the next attempt of its client. Release it if it was used often enough in a row."""
        if self._idle_slots.keep(slot):
            self._freed.add(slot.client)
        else:
            self._lend(slot.client)
            self._free(slot)

    def free_idle(self) -> None:
        """Release the slots that this process no longer needs."""
        for slot in self._idle_slots.idle(self._lanes.has_more):
            self._free(slot)

    def free_all(self) -> None:
        for slot in list(self._idle_slots.idle(lambda _: False)):
            self._free(slot)

    def _spare(self, client_id: str) -> Slot | None:
        """Return a held slot. If the cap was lowered below the slots in use, release it instead (GRID-76)."""
        slot = self._idle_slots.take(client_id)
        if slot is None or self._held(client_id) <= cap_of(self._programs, self._group, client_id):
            return slot
        self._free(slot)
        return None

    def _has_room(self, client_id: str) -> bool:
        return self._held(client_id) + self._taking[client_id] < cap_of(self._programs, self._group, client_id)

    def _held(self, client_id: str) -> int:
        return self._programs.slots.count(self._group, client_id)

    def block(self, client_id: str) -> None:
        """Mark a client as at its cap: its lanes are skipped."""
        self._lanes.block(client_id)
        self._full[client_id] = self._clock() + _FULL_SECONDS

    def hear_freed(self, client_id: str) -> bool:
        """Note that a slot of this client was freed. Returns whether this process is waiting for one."""
        if client_id in self._full:
            self._freed.add(client_id)
            return True
        return False

    def unblock(self) -> None:
        """Unblock clients whose slots were freed. Now and then check all, and retry each that has waited long."""
        now = self._clock()
        for client_id in [each for each, until in self._lent_until.items() if until <= now]:
            del self._lent_until[client_id]
            self._freed.add(client_id)
        if now - self._checked_at >= _CHECK_SECONDS:
            self._checked_at = now
            self._freed.update(self._full)
        for client_id in sorted(self._freed - self._lent_until.keys()):  # the same order in every process
            retry_at = self._full.get(client_id)
            if retry_at is None:
                continue
            if now >= retry_at:
                self._tried_anyway.add(client_id)
            elif not self._idle_slots.count(client_id) and not self._has_room(client_id):
                continue
            del self._full[client_id]
            self._lanes.unblock(client_id)
        self._freed.clear()

    def next_due(self) -> float:
        """Return when something is due without an event; infinity: never."""
        due = min(self._idle_slots.next_idle(), *self._lent_until.values(), math.inf)
        return min(due, self._checked_at + _CHECK_SECONDS) if self._full else due

    def _lend(self, client_id: str) -> None:
        """Pause taking slots, so that another process with other programs of this client gets a chance to take one."""
        now = self._clock()
        if now - self._lent_at.get(client_id, 0.0) < _LEND_EVERY_SECONDS or self._has_room(client_id):
            return
        self._lent_at[client_id] = now
        self._lent_until[client_id] = now + _LEND_SECONDS
        self.block(client_id)
