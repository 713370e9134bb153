"""Limits on concurrent large transfers."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

from pyoco_server.errors import TooManyTransfers

__all__ = ["FairTurns", "Turns"]


class Turns:
    """Limits concurrency. When all turns are taken further callers are refused, not queued, so no backlog builds up."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self.taken = 0

    def take(self) -> Callable[[], None]:
        """Take a turn. Returns the function that releases it, to be called once. Raises TooManyTransfers."""
        if self.taken >= self._count_max:
            raise TooManyTransfers(f"{self._count_max} are under way, and no more are taken at once")
        self.taken += 1
        return self._free

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Take a turn for the duration of the block. Raises TooManyTransfers."""
        free = self.take()
        try:
            yield
        finally:
            free()

    def _free(self) -> None:
        self.taken -= 1


class FairTurns:
    """Like `Turns`, with at most `each_max` turns per tenant, so a slow tenant does not block others."""

    def __init__(self, count_max: int, each_max: int) -> None:
        self._all, self._each_max = Turns(count_max), each_max
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        return self._all.taken

    def take(self, who: str) -> Callable[[], None]:
        """Take a turn. Returns the function that releases it, to be called once. Raises TooManyTransfers."""
        if self._taken[who] >= self._each_max:
            raise TooManyTransfers(f"{self._each_max} of this tenant are under way, and no more are taken at once")
        free = self._all.take()
        self._taken[who] += 1

        def free_both() -> None:
            free()
            self._taken[who] -= 1
            if not self._taken[who]:
                del self._taken[who]

        return free_both

    @contextlib.contextmanager
    def turn(self, who: str) -> Iterator[None]:
        """Take a turn for the duration of the block. Raises TooManyTransfers."""
        free = self.take(who)
        try:
            yield
        finally:
            free()
