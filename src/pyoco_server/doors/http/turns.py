"""How many may do something large at once."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

from pyoco_server.errors import TooManyTransfers

__all__ = ["FairTurns", "Turns"]


class Turns:
    """Whoever comes when all turns are taken is sent away: nobody waits, so nothing piles up."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self.taken = 0

    def take(self) -> Callable[[], None]:
        """Returns what gives the turn back, to be called once. Raises TooManyTransfers."""
        if self.taken >= self._count_max:
            raise TooManyTransfers(f"{self._count_max} are under way, and no more are taken at once")
        self.taken += 1
        return self._give_back

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Raises TooManyTransfers."""
        give_back = self.take()
        try:
            yield
        finally:
            give_back()

    def _give_back(self) -> None:
        self.taken -= 1


class FairTurns:
    """The same, and nobody has more than `each_max` of them: whoever is slow on purpose is in nobody else's way."""

    def __init__(self, count_max: int, each_max: int) -> None:
        self._all, self._each_max = Turns(count_max), each_max
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        return self._all.taken

    def take(self, who: str) -> Callable[[], None]:
        """Returns what gives the turn back, to be called once. Raises TooManyTransfers."""
        if self._taken[who] >= self._each_max:
            raise TooManyTransfers(f"{self._each_max} of this tenant are under way, and no more are taken at once")
        give_back = self._all.take()
        self._taken[who] += 1

        def give_both_back() -> None:
            give_back()
            self._taken[who] -= 1
            if not self._taken[who]:
                del self._taken[who]

        return give_both_back

    @contextlib.contextmanager
    def turn(self, who: str) -> Iterator[None]:
        """Raises TooManyTransfers."""
        give_back = self.take(who)
        try:
            yield
        finally:
            give_back()
