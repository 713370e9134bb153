"""The credits that a worker grants to a door (section 12.1)."""

from __future__ import annotations

from collections.abc import Callable

from pyoco_server.loops.programs.cpu import HeldBack

__all__ = ["CREDIT_MAX", "CreditAccount"]

#: GRID-25: the limit of one frame.
CREDIT_MAX = 10_000


class CreditAccount:
    """The credits of one connection; a new connection starts at zero, as does the door (GRID-68).

    The number owed is derived from four numbers and never accumulated, so it cannot drift: not through a repeated job,
    one above the limit, or one received on an earlier connection. `held` delays owed credits while the CPUs are busy
    (GRID-70); while `is_shut` returns True, none are granted (GRID-109, GRID-113).
    """

    def __init__(self, limit: int, unfinished: Callable[[], int], held: HeldBack, is_shut: Callable[[], bool]) -> None:
        self._limit, self._unfinished, self._held, self._is_shut = limit, unfinished, held, is_shut
        self.given = 0
        self.received = 0
        #: Credits that have waited long enough and were not granted yet.
        self._ready = 0

    @property
    def owed(self) -> int:
        """The free slots, minus the credits that the door still has (GRID-65, GRID-69)."""
        return max(0, self._limit - self._unfinished() - (self.given - self.received))

    def first(self) -> int:
        """Return the credits to grant after HelloAck (GRID-65). Not delayed by busy CPUs: they are new."""
        return 0 if self._is_shut() else min(self.owed, CREDIT_MAX)

    def due(self) -> int:
        """Return the credits to grant now. To be called when a job is done, and every LOOK_SECONDS."""
        owed = self.owed
        while len(self._held) + self._ready < owed:
            self._held.add()
        if self._is_shut():
            return 0
        self._ready = min(owed, self._ready + self._held.due())
        return min(self._ready, CREDIT_MAX)

    def took(self) -> None:
        """Count a received AssignJob, whatever its outcome."""
        self.received += 1

    def gave(self, count: int) -> None:
        """Count granted credits."""
        self.given += count
        self._ready = max(0, self._ready - count)
