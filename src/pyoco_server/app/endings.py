"""Which of many runs have ended: what to ask next, and for how long to pause. No network.

A stream for each run would be too many. Each round reads a few runs one by one, in turn; with many pending ones also
the list of runs, most recently changed first, as long as its pages have news.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from pyoco_server.app.failures import RunTimeout
from pyoco_server.core.states import TERMINAL

__all__ = ["Endings", "Known"]

#: Runs that are read one by one in each round.
_READS_MAX = 20
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.02, 0.5


class Known(Protocol):
    """What is needed of a handle."""

    id: str
    flow_name: str | None


H = TypeVar("H", bound=Known)


class Endings(Generic[H]):
    """The runs that have not ended yet."""

    def __init__(self, handles: Iterable[H], timeout: float | None, now: Callable[[], float]) -> None:
        #: In the order in which they are read.
        self._pending = {handle.id: handle for handle in handles}
        self._now, self._seconds = now, math.inf if timeout is None else timeout
        self._ends_at = now() + self._seconds
        self._pause = _PAUSE_SECONDS
        flows = {handle.flow_name for handle in self._pending.values()}
        self._flow = flows.pop() if len(flows) == 1 else None

    @property
    def is_over(self) -> bool:
        return not self._pending

    @property
    def reader(self) -> H:
        """One of the pending handles, to read lists with."""
        return next(iter(self._pending.values()))

    def to_read(self) -> list[H]:
        """Return the runs to read in this round, and move them to the end."""
        some = list(self._pending.values())[:_READS_MAX]
        for handle in some:
            self._pending[handle.id] = self._pending.pop(handle.id)
        return some

    def to_list(self) -> dict[str, Any] | None:
        """Return the filters of the list to read in this round. None: reading one by one is enough."""
        return None if len(self._pending) <= _READS_MAX else {"flow": self._flow, "limit": 200}

    def ended(self, states: Iterable[Mapping[str, Any]]) -> list[H]:
        """Return the handles whose runs have ended, as these snapshots or summaries show, each once."""
        found = [self._pending.pop(state["run_id"], None) for state in states if state["status"] in TERMINAL]
        news = [handle for handle in found if handle is not None]
        if news:
            self._pause = _PAUSE_SECONDS
        return news

    def pause(self) -> float:
        """Return the seconds until the next round. Raises RunTimeout if the time is up."""
        left = self._ends_at - self._now()
        if left <= 0:
            first = next(iter(self._pending))
            raise RunTimeout(first, f"{len(self._pending)} runs have not ended after {self._seconds:g} s: {first}")
        pause, self._pause = min(self._pause, left), min(self._pause * 1.5, _PAUSE_SECONDS_MAX)
        return pause
