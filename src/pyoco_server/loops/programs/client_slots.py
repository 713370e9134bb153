"""The client slots of this process, and which clients may have another attempt (section 12.2).

Whether a slot is free is decided by the write that takes it. What is assumed here may be wrong for a moment: that costs
a try, and never exceeds a cap.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.slots import cap_of, free_slot, take_slot
from pyoco_server.loops.programs.client_queues import ClientQueues
from pyoco_server.loops.programs.idle_slots import IdleSlots
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.slots.port import Slot

__all__ = ["ClientSlots", "Room"]

#: A client at its cap is retried after this time: a process that exited may have left a slot behind (GRID-74).
_FULL_SECONDS = 1.0
#: The interval at which clients at their caps are checked, in memory: a cap may have been raised.
_CHECK_SECONDS = 0.25
#: A client that uses all of its slots here lends one to other processes for this long, at most once per this interval.
_LEND_SECONDS, _LEND_EVERY_SECONDS = 0.03, 1.0


@dataclass
class Room:
    """Room for attempts of one client: slots in hand, and how many must be taken first."""

    client_id: str
    slots: list[Slot] = field(default_factory=list)
    missing: int = 0


class ClientSlots:
    """Owns each slot of this process that no attempt in flight has; all slots are taken and freed through it.

    A slot is here, or in a `Room`, or in an attempt: whoever has it passes it to `used`, `unused` or `free`. Slots
    between two attempts of a client are kept for a moment, from `open` until `close`. Before and after, they are freed.
    """

    def __init__(
        self,
        backend: Backend,
        holder: str,
        queues: ClientQueues | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend, self.holder, self._clock = backend, holder, clock
        self._programs = programs_of(backend)
        self._group = self._programs.config.exec_group
        #: The queues of the clients. Those of a client at its cap are skipped.
        self.queues = queues or ClientQueues(clock)
        self._is_open = self._is_watching = False
        self._idle_slots = IdleSlots(clock)
        #: Slots to be taken, by client; and the numbers that are being tried now.
        self._missing: Counter[str] = Counter()
        self._taking: defaultdict[str, set[int]] = defaultdict(set)
        #: Clients at their caps, and the time at which they are retried regardless.
        self._full: dict[str, float] = {}
        #: Those of them with slots freed since the last check; those to be retried regardless.
        self._freed: set[str] = set()
        self._tried_anyway: set[str] = set()
        #: Until when a client leaves its last slot to others, and when it did so last.
        self._lent_until: dict[str, float] = {}
        self._lent_at: dict[str, float] = {}
        self._checked_at = 0.0
        self._frees: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Follow the slots of all processes, and keep slots between attempts. Idempotent. Raises Unavailable."""
        on_free = None if self._is_watching else self._on_free
        self._is_watching = True
        await self._programs.slots.start(on_free)
        self._is_open = True

    def close(self) -> None:
        """Free idle slots, now and from now on. Idempotent."""
        self._is_open = False
        for slot in list(self._idle_slots.idle(lambda _: False)):
            self.free(slot)

    async def settle(self, seconds: float | None = None) -> None:
        """Wait until the slots being freed are free. Those that are not in time will be freed by their age."""
        try:
            async with asyncio.timeout(seconds):
                while self._frees:
                    await asyncio.wait(set(self._frees))
        except TimeoutError:
            for task in self._frees:
                task.cancel()

    def _on_free(self, group: str, client_id: str) -> None:
        """A slot was freed by any process."""
        if group == self._group and client_id in self._full:
            self._freed.add(client_id)
            self.queues.wake()

    # Before an attempt ----------------------------------------------------------------------------------------------

    def reserve(self, room: Room) -> bool:
        """Add room for one more attempt of its client: an idle slot, or one that `take` must take.

        False: the client is at its cap, and its queues are skipped from now on.
        """
        client_id = room.client_id
        slot = self._take_idle(client_id)
        if slot is not None:
            room.slots.append(slot)
            return True
        if not self._has_room(client_id) and client_id not in self._tried_anyway:
            self._block(client_id)
            return False
        self._tried_anyway.discard(client_id)
        self._missing[client_id] += 1
        room.missing += 1
        return True

    async def take(self, room: Room, count: int) -> None:
        """Take the missing slots. With fewer than `count` slots in the end, the client is at its cap.

        Raises Unavailable if none of the missing slots could be taken.
        """
        try:
            room.slots += await self._take(room.client_id, room.missing)
        finally:
            self.drop_missing(room)
        if len(room.slots) < count:
            self._block(room.client_id)

    def drop_missing(self, room: Room) -> None:
        """Note that the missing slots are taken, or not needed. Idempotent."""
        self._missing[room.client_id] -= room.missing
        if not self._missing[room.client_id]:
            del self._missing[room.client_id]
        room.missing = 0

    async def _take(self, client_id: str, count: int) -> list[Slot]:
        if not count:
            return []
        taking = self._taking[client_id]
        attempts = (take_slot(self._backend, self._group, client_id, self.holder, taking) for _ in range(count))
        taken = await asyncio.gather(*attempts, return_exceptions=True)
        slots = [slot for slot in taken if isinstance(slot, Slot)]
        faults = [fault for fault in taken if isinstance(fault, BaseException)]
        if faults and not slots:
            raise faults[0]
        return slots

    def _take_idle(self, client_id: str) -> Slot | None:
        """Return an idle slot. If the cap was lowered below the slots in use, free it instead (GRID-76)."""
        slot = self._idle_slots.take(client_id)
        if slot is None or self._held(client_id) <= cap_of(self._programs, self._group, client_id):
            return slot
        self.free(slot)
        return None

    # After an attempt -----------------------------------------------------------------------------------------------

    def used(self, slot: Slot) -> None:
        """An attempt with this slot is over. Keep it for the next one, unless it was used often enough in a row."""
        self._idle_slots.used(slot)
        self.unused([slot])

    def unused(self, slots: Iterable[Slot]) -> None:
        """No attempt began with these slots: keep them for the next ones of their client."""
        for slot in slots:
            if not self._is_open:
                self.free(slot)
            elif self._idle_slots.keep(slot):
                self._freed.add(slot.client)
            else:
                self._lend(slot.client)
                self.free(slot)
            self.queues.wake()

    def free(self, slot: Slot) -> None:
        """Free the slot for every process, in the background: nothing is to run here, or another holder may have it."""
        self._idle_slots.forget(slot)
        task = asyncio.get_running_loop().create_task(free_slot(self._backend, slot))
        self._frees.add(task)
        task.add_done_callback(self._frees.discard)

    def free_idle(self) -> None:
        """Free the slots that this process no longer needs."""
        for slot in self._idle_slots.idle(self.queues.has_more):
            self.free(slot)

    # Clients at their caps ------------------------------------------------------------------------------------------

    def _has_room(self, client_id: str) -> bool:
        return self._held(client_id) + self._missing[client_id] < cap_of(self._programs, self._group, client_id)

    def _held(self, client_id: str) -> int:
        return self._programs.slots.count(self._group, client_id)

    def _block(self, client_id: str) -> None:
        """Mark a client as at its cap: its queues are skipped."""
        self.queues.block(client_id)
        self._full[client_id] = self._clock() + _FULL_SECONDS

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
            self.queues.unblock(client_id)
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
        self._block(client_id)
