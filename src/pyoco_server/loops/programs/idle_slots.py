"""Slots between two attempts of the same client: kept briefly instead of being released and taken again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from pyoco_server.ports.slots.port import Slot

__all__ = ["KEEP_SECONDS", "USES_MAX", "IdleSlots"]

#: A slot is used so often in a row and then released, so that other processes have a chance to take it.
USES_MAX = 16
#: A worker returns its credit shortly after its result was recorded: a slot is kept that long.
KEEP_SECONDS = 0.05


class IdleSlots:
    """Slots that this process holds and no attempt uses. O(1) each; memory is O(slots held by this process)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: dict[str, deque[tuple[Slot, float]]] = {}
        #: By client and number: attempts in a row.
        self._uses: dict[tuple[str, int], int] = {}

    def __len__(self) -> int:
        return sum(len(kept) for kept in self._kept.values())

    def count(self, client_id: str) -> int:
        kept = self._kept.get(client_id)
        return len(kept) if kept else 0

    def keep(self, slot: Slot) -> bool:
        """Keep a slot. Returns False if it was used often enough and must be released."""
        if self._uses.get((slot.client, slot.number), 0) >= USES_MAX:
            self.forget(slot)
            return False
        self._kept.setdefault(slot.client, deque()).append((slot, self._clock() + KEEP_SECONDS))
        return True

    def take(self, client_id: str) -> Slot | None:
        """Take a kept slot for the next attempt."""
        kept = self._kept.get(client_id)
        if not kept:
            return None
        slot, _ = kept.popleft()
        if not kept:
            del self._kept[client_id]
        return slot

    def used(self, slot: Slot) -> None:
        """Note that an attempt was claimed with this slot."""
        place = slot.client, slot.number
        self._uses[place] = self._uses.get(place, 0) + 1

    def forget(self, slot: Slot) -> None:
        """Note that the slot is released."""
        self._uses.pop((slot.client, slot.number), None)

    def idle(self, has_more: Callable[[str], bool]) -> Iterator[Slot]:
        """Remove and yield the slots whose client has no more jobs, and those that were kept long enough."""
        now = self._clock()
        for client_id in list(self._kept):
            keeps = has_more(client_id)
            while (kept := self._kept.get(client_id)) and not (keeps and kept[0][1] > now):
                slot = self.take(client_id)
                assert slot is not None
                self.forget(slot)
                yield slot

    def next_idle(self) -> float:
        """Return when the next slot has been kept long enough; infinity: none is kept."""
        return min((kept[0][1] for kept in self._kept.values()), default=float("inf"))
