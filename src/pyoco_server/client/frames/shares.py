"""Distributes a client's cap and jobs over its groups (GRID-124, GRID-125)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

__all__ = ["Policy", "Spread", "Turn", "shares"]

Policy = Literal["rr", "least"]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Spread:
    """How jobs are assigned to groups."""

    #: `rr`: round robin; `least`: the group with the fewest unfinished jobs, ties by round robin.
    policy: Policy = "rr"
    #: How long a disconnected group keeps its jobs; None: without limit.
    grace_seconds: float | None = 10.0
    #: Whether a group that reconnects is asked to cancel the jobs that were moved (GRID-130).
    cancel_stale: bool = True


def shares(total: int, groups: int) -> list[int]:
    """Divide `total` evenly. The first groups get the remainder; no share is below 1."""
    each, left = divmod(total, groups)
    return [max(1, each + (place < left)) for place in range(groups)]


class Turn(list[_T]):
    """A round-robin list of items."""

    def __init__(self, items: Sequence[_T]) -> None:
        super().__init__(items)
        self._next = 0

    def choose(self, may: Callable[[_T], bool], weight: Callable[[_T], int]) -> _T | None:
        """Choose the allowed item with the lowest weight, ties by round robin. None: no item is allowed. O(n)."""
        best: int | None = None
        for step in range(len(self)):
            place = (self._next + step) % len(self)
            if may(self[place]) and (best is None or weight(self[place]) < weight(self[best])):
                best = place
        if best is None:
            return None
        self._next = (best + 1) % len(self)
        return self[best]
