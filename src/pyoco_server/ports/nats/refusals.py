"""The streams that refused their last write because the disk was full."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.ports.store_state import StoreState

__all__ = ["Refusals"]

#: After this a refusal is forgotten, so that writes are tried again: without writes its end would not be noticed.
_REMEMBER_SECONDS = 60.0


@dataclass(frozen=True)
class _Refusal:
    at: float
    is_stuck: bool


class Refusals:
    """The refusals by stream: a stream that was written while the disk was full is stuck, others may not be."""

    def __init__(self) -> None:
        self._last: dict[str, _Refusal] = {}

    def __bool__(self) -> bool:
        return bool(self._last)

    def note(self, stream: str, now: float, *, is_stuck: bool) -> None:
        self._last[stream] = _Refusal(now, is_stuck)

    def stored(self, stream: str) -> None:
        """Record a successful write: there is room again. Other streams that are stuck stay so."""
        self._last = {name: each for name, each in self._last.items() if each.is_stuck and name != stream}

    def forget_all(self) -> None:
        """Forget everything: the server was replaced or restarted."""
        self._last.clear()

    def state(self, now: float, stream: str | None = None) -> StoreState:
        """Return the state of all streams, or of one."""
        noted = [each for name, each in self._last.items() if stream in (None, name)]
        recent = [each for each in noted if now - each.at < _REMEMBER_SECONDS]
        if any(each.is_stuck for each in recent):
            return StoreState.STUCK
        return StoreState.FULL if recent else StoreState.TAKES
