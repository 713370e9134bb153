"""Slots between two attempts of the same client: kept for a moment instead of being given back and taken again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from pyoco_server.ports.slots.port import Slot

__all__ = ["KEEP_SECONDS", "USES_MAX", "IdleSlots"]

#: A slot is used so often in a row, and is then given back, so that others have a chance of it.
USES_MAX = 16
#: A worker gives its credit back a moment after its result has been recorded: that long a slot waits for it.
KEEP_SECONDS = 0.05


class IdleSlots:
    """Slots in hand that nobody uses. O(1) each; memory is O(slots held by this process)."""

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
        """False: it was used often enough; give it back."""
        if self._uses.get((slot.client, slot.number), 0) >= USES_MAX:
            self.forget(slot)
            return False
        self._kept.setdefault(slot.client, deque()).append((slot, self._clock() + KEEP_SECONDS))
        return True

    def take(self, client_id: str) -> Slot | None:
        """One for the next attempt."""
        kept = self._kept.get(client_id)
        if not kept:
            return None
        slot, _ = kept.popleft()
        if not kept:
            del self._kept[client_id]
        return slot

    def used(self, slot: Slot) -> None:
        """An attempt was claimed with it."""
        place = slot.client, slot.number
        self._uses[place] = self._uses.get(place, 0) + 1

    def forget(self, slot: Slot) -> None:
        """It is given back."""
        self._uses.pop((slot.client, slot.number), None)

    def idle(self, has_more: Callable[[str], bool]) -> Iterator[Slot]:
        """Takes out those whose client has nothing more, and those that have waited long enough."""
        now = self._clock()
        for client_id in list(self._kept):
            keeps = has_more(client_id)
            while (kept := self._kept.get(client_id)) and not (keeps and kept[0][1] > now):
                slot = self.take(client_id)
                assert slot is not None
                self.forget(slot)
                yield slot

    def next_idle(self) -> float:
        """When the next one has waited long enough; infinity: none waits."""
        return min((kept[0][1] for kept in self._kept.values()), default=float("inf"))
