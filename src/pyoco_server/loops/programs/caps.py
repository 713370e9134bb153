"""Which clients may have one more attempt, as far as this process knows, and the slots it has in hand. Nothing waits.

What is believed is checked by the write that takes a slot: a wrong belief costs a try, and never a cap.
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

#: A client at its cap is tried all the same after this: a slot may have been left by a process that is gone (GRID-74).
_FULL_SECONDS = 1.0
#: Caps may be raised: clients at theirs are looked at so often, in memory.
_GLANCE_SECONDS = 0.25
#: A client that uses all of its slots here leaves one to other processes for this long, so often at most.
_LEND_SECONDS, _LEND_EVERY_SECONDS = 0.03, 1.0


class Caps:
    """`free` gives a slot back to everybody; it must not block."""

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
        #: Slots that are being taken, by client.
        self._taking: Counter[str] = Counter()
        #: Clients at their caps, and when they are tried all the same.
        self._full: dict[str, float] = {}
        #: Those of them whose slots were freed since the last look; those that are tried all the same.
        self._freed: set[str] = set()
        self._tried_anyway: set[str] = set()
        #: Until when a client leaves its last slot to others, and when it did so last.
        self._lent_until: dict[str, float] = {}
        self._lent_at: dict[str, float] = {}
        self._glanced_at = 0.0

    def reserve(self, client_id: str) -> tuple[Slot | None, bool]:
        """For one attempt: a slot in hand, or whether one may be taken, which then counts as being taken until `took`.
        (None, False): the client is at its cap, and is passed over from now on."""
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
        """So many of those that were being taken are taken, or will not be."""
        self._taking[client_id] -= count
        if not self._taking[client_id]:
            del self._taking[client_id]

    def used(self, slot: Slot) -> None:
        """An attempt was claimed with it."""
        self._idle_slots.used(slot)

    def forget(self, slot: Slot) -> None:
        """It is given back."""
        self._idle_slots.forget(slot)

    def keep(self, slot: Slot) -> None:
        """For the next attempt of its client, unless it was used often enough in a row."""
        if self._idle_slots.keep(slot):
            self._freed.add(slot.client)
        else:
            self._lend(slot.client)
            self._free(slot)

    def free_idle(self) -> None:
        """Give back what nobody here needs any more."""
        for slot in self._idle_slots.idle(self._lanes.has_more):
            self._free(slot)

    def free_all(self) -> None:
        for slot in list(self._idle_slots.idle(lambda _: False)):
            self._free(slot)

    def _spare(self, client_id: str) -> Slot | None:
        """A slot in hand, unless the cap was lowered below what is held: then it is given back (GRID-76)."""
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
        """It is at its cap: its lanes are passed over."""
        self._lanes.block(client_id)
        self._full[client_id] = self._clock() + _FULL_SECONDS

    def hear_freed(self, client_id: str) -> bool:
        """Somebody gave a slot of this client back. Whether anybody here waits for it."""
        if client_id in self._full:
            self._freed.add(client_id)
            return True
        return False

    def unblock(self) -> None:
        """Clients whose slots were freed; now and then, all of them, and each that has waited for long."""
        now = self._clock()
        for client_id in [each for each, until in self._lent_until.items() if until <= now]:
            del self._lent_until[client_id]
            self._freed.add(client_id)
        if now - self._glanced_at >= _GLANCE_SECONDS:
            self._glanced_at = now
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
        """When there is something to do without a word from anybody; infinity: never."""
        due = min(self._idle_slots.next_idle(), *self._lent_until.values(), math.inf)
        return min(due, self._glanced_at + _GLANCE_SECONDS) if self._full else due

    def _lend(self, client_id: str) -> None:
        """Another process may have other programs of this client: without a pause it would never be faster than us."""
        now = self._clock()
        if now - self._lent_at.get(client_id, 0.0) < _LEND_EVERY_SECONDS or self._has_room(client_id):
            return
        self._lent_at[client_id] = now
        self._lent_until[client_id] = now + _LEND_SECONDS
        self.block(client_id)
