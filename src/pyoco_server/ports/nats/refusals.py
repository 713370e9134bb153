"""Which streams took nothing for want of room when they were last asked to."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.ports.store_state import StoreState

__all__ = ["Refusals"]

#: Then it is worth a try again: whoever is sent no requests because of a refusal would never hear of its end.
_REMEMBER_SECONDS = 60.0


@dataclass(frozen=True)
class _Refusal:
    at: float
    is_stuck: bool


class Refusals:
    """By stream: one that was written while the disk was full is stuck, and its neighbour need not be."""

    def __init__(self) -> None:
        self._last: dict[str, _Refusal] = {}

    def __bool__(self) -> bool:
        return bool(self._last)

    def note(self, stream: str, now: float, *, is_stuck: bool) -> None:
        self._last[stream] = _Refusal(now, is_stuck)

    def stored(self, stream: str) -> None:
        """It has stored something, so there is room; what is stuck elsewhere stays so."""
        self._last = {name: each for name, each in self._last.items() if each.is_stuck and name != stream}

    def forget_all(self) -> None:
        """Another server, or the same one started anew."""
        self._last.clear()

    def state(self, now: float, stream: str | None = None) -> StoreState:
        """Of all streams, or of this one alone."""
        noted = [each for name, each in self._last.items() if stream in (None, name)]
        recent = [each for each in noted if now - each.at < _REMEMBER_SECONDS]
        if any(each.is_stuck for each in recent):
            return StoreState.STUCK
        return StoreState.FULL if recent else StoreState.TAKES
