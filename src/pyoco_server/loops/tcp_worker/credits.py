"""How much work the worker asks a door for (section 12.1)."""

from __future__ import annotations

from collections.abc import Callable

from pyoco_server.loops.programs.cpu import HeldBack

__all__ = ["CREDIT_MAX", "Credits"]

#: GRID-25: what one frame may say.
CREDIT_MAX = 10_000


class Credits:
    """The account of one connection; a new one begins at zero, as the door's does (GRID-68).

    What is owed follows from four numbers, and is never added up by hand: a job that comes twice, over the limit, or
    that came on the connection before this one cannot make it drift. `held` delays what is owed while the machine is
    busy (GRID-70); while `is_shut` says so, nothing is given (GRID-109, GRID-113).
    """

    def __init__(self, limit: int, unfinished: Callable[[], int], held: HeldBack, is_shut: Callable[[], bool]) -> None:
        self._limit, self._unfinished, self._held, self._is_shut = limit, unfinished, held, is_shut
        self.given = 0
        self.received = 0
        #: Those that have waited long enough and were not given yet.
        self._ready = 0

    @property
    def owed(self) -> int:
        """GRID-65, GRID-69: the places that are free, less the credits that the door still has."""
        return max(0, self._limit - self._unfinished() - (self.given - self.received))

    def first(self) -> int:
        """GRID-65: what to say after HelloAck, however busy the machine is: nothing is given back by it."""
        return 0 if self._is_shut() else min(self.owed, CREDIT_MAX)

    def due(self) -> int:
        """How many may be given back by now. To be asked when a job is over, and every LOOK_SECONDS."""
        owed = self.owed
        while len(self._held) + self._ready < owed:
            self._held.add()
        if self._is_shut():
            return 0
        self._ready = min(owed, self._ready + self._held.due())
        return min(self._ready, CREDIT_MAX)

    def took(self) -> None:
        """An AssignJob came, whatever becomes of it."""
        self.received += 1

    def gave(self, count: int) -> None:
        """So many were sent."""
        self.given += count
        self._ready = max(0, self._ready - count)
