"""A ring of the newest time slots, all of the same length. Memory is constant: that of its slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Ring"]

T = TypeVar("T")

#: A clock that is set back by at most this much is tolerated: the newest slot lasts that much longer, and no counts are
#: lost. This covers small corrections back and forth across the border of a slot.
_SETBACK_SECONDS_MAX = 60.0


class Ring(Generic[T]):
    """Slots by number: whole `seconds` since 1970. Every operation is O(1), except when the clock is set back.

    When the clock leaps ahead, the skipped slots are missing, as are slots that were never requested. When it is set
    back by more than a minute, slots that now lie in the future are forgotten.
    """

    def __init__(self, seconds: float, slots_max: int, make: Callable[[], T]) -> None:
        self.seconds = seconds
        self._make, self._slots_max = make, slots_max
        self._setback_max = int(_SETBACK_SECONDS_MAX // seconds)
        self._slots: list[tuple[int, T] | None] = [None] * slots_max
        self._first: int | None = None
        self._newest = 0

    def newest(self, now: float) -> int:
        """Return the number of the slot that is being filled."""
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
        """Return the number of the oldest slot that is still stored, or of the first slot ever used."""
        newest = self.newest(now)
        assert self._first is not None
        return max(self._first, newest - self._slots_max + 1)

    def now(self, now: float) -> T:
        """Return the slot that is being filled, creating it if needed."""
        number = self.newest(now)
        place = number % self._slots_max
        slot = self._slots[place]
        if slot is None or slot[0] != number:
            slot = self._slots[place] = (number, self._make())
        return slot[1]

    def find(self, number: int) -> T | None:
        """Return the slot with this number. None: it never existed, or was overwritten."""
        slot = self._slots[number % self._slots_max]
        return slot[1] if slot is not None and slot[0] == number else None
