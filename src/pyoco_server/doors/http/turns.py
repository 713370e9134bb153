"""How many may do something large at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from pyoco_server.errors import TooManyTransfers

__all__ = ["Turns"]


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
