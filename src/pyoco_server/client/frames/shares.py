"""How a client divides itself over groups (GRID-124, GRID-125)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

__all__ = ["Policy", "Spread", "Turn", "shares"]

Policy = Literal["rr", "least"]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Spread:
    """How jobs find their group."""

    #: `rr`: the next one in turn; `least`: the one with the fewest unfinished jobs, ties in turn.
    policy: Policy = "rr"
    #: A group that is gone keeps its jobs for this time; None: for ever.
    grace_seconds: float | None = 10.0
    #: Whether a group that comes back is told to cancel the jobs that were moved (GRID-130).
    cancel_stale: bool = True


def shares(total: int, groups: int) -> list[int]:
    """Evenly; the first ones get the remainder; none is below 1."""
    each, left = divmod(total, groups)
    return [max(1, each + (place < left)) for place in range(groups)]


class Turn(list[_T]):
    """Items that are chosen in turn."""

    def __init__(self, items: Sequence[_T]) -> None:
        super().__init__(items)
        self._next = 0

    def choose(self, may: Callable[[_T], bool], weight: Callable[[_T], int]) -> _T | None:
        """Of those that may be chosen, the lightest; among equals, the next in turn. None: there is none. O(n)."""
        best: int | None = None
        for step in range(len(self)):
            place = (self._next + step) % len(self)
            if may(self[place]) and (best is None or weight(self[place]) < weight(self[best])):
                best = place
        if best is None:
            return None
        self._next = (best + 1) % len(self)
        return self[best]
