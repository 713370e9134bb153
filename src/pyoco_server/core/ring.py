"""The newest slots of time, each as long as the others. Memory is that of its slots, however long it goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Ring"]

T = TypeVar("T")

#: A clock that is set back by no more than this is waited for: the newest slot lasts that much longer, and nothing that
#: was counted is lost. Differences of a moment, to and fro over the border of a slot, are of this kind.
_SETBACK_SECONDS_MAX = 60.0


class Ring(Generic[T]):
    """Slots by their number: whole `seconds` since 1970. Every operation but a setback is O(1).

    A clock that leaps ahead leaves slots out: they are missing, as are those in which nobody asked for one. A clock
    that is set back by more than a minute takes the ring with it: slots that lie ahead of it now are forgotten.
    """

    def __init__(self, seconds: float, slots_max: int, make: Callable[[], T]) -> None:
        self.seconds = seconds
        self._make, self._slots_max = make, slots_max
        self._setback_max = int(_SETBACK_SECONDS_MAX // seconds)
        self._slots: list[tuple[int, T] | None] = [None] * slots_max
        self._first: int | None = None
        self._newest = 0

    def newest(self, now: float) -> int:
        """The number of the slot that is being filled."""
        number = int(now // self.seconds)
        if self._first is None:
            self._first = self._newest = number
        elif number > self._newest:
            self._newest = number
        elif number < self._newest - self._setback_max:
            self._newest, self._first = number, min(self._first, number)
            self._slots = [None if slot is not None and slot[0] > number else slot for slot in self._slots]
        return self._newest

    def first(self, now: float) -> int:
        """The number of the oldest slot that is still remembered, or of the first there was."""
        newest = self.newest(now)
        assert self._first is not None
        return max(self._first, newest - self._slots_max + 1)

    def now(self, now: float) -> T:
        """The slot that is being filled; made when it is asked for."""
        number = self.newest(now)
        place = number % self._slots_max
        slot = self._slots[place]
        if slot is None or slot[0] != number:
            slot = self._slots[place] = (number, self._make())
        return slot[1]

    def find(self, number: int) -> T | None:
        """The slot with this number; None: there is none, or no longer."""
        slot = self._slots[number % self._slots_max]
        return slot[1] if slot is not None and slot[0] == number else None
