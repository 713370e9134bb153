"""One wait for the end of a run: when to listen, when to look, and when time is up. No socket; the clock is given.

Who listens to the event stream learns of the end at once. Where no stream can be had, for the gateway has no room or a
proxy lets none through, it is looked for again and again, and from time to time a stream is tried once more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pyoco_server.client.run_results import RunSnapshot
from pyoco_server.client.watching import Clocks
from pyoco_server.core.states import TERMINAL

__all__ = ["Waiting"]

#: The server counts whole seconds.
_LISTEN_SECONDS_MIN = 1.0
#: The first look has so much even when the caller gives less: zero seconds mean one look.
_LOOK_SECONDS_MIN = 1.0
#: Kept from every stream for a last look: perhaps it was a proxy that has let nothing through.
_LAST_LOOK_SECONDS = 0.25
#: Between two looks.
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.02, 1.0
#: From a stream in vain to the next one; twice as long each time.
_DEAF_SECONDS, _DEAF_SECONDS_MAX = 30.0, 600.0


@dataclass(kw_only=True)
class Waiting:
    """Where one wait stands."""

    run_id: str
    clocks: Clocks
    seconds: float
    #: Whether a stream was tried before.
    has_listened: bool = field(default=False, init=False)

    _status: str | None = field(default=None, init=False)
    _listen_at: float = field(default=-math.inf, init=False)
    _deaf_seconds: float = field(default=_DEAF_SECONDS, init=False)
    _pause_seconds: float = field(default=_PAUSE_SECONDS, init=False)

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if math.isnan(self.seconds):
            raise ValueError("timeout_sec is not a number")
        began = self.clocks.steady()
        self.ends_at = began + self.seconds
        self.first_look_ends_at = max(self.ends_at, began + _LOOK_SECONDS_MIN)

    def ends_with(self, snapshot: RunSnapshot) -> bool:
        """Takes note of the newest state. Whether it is the last one."""
        self._status = snapshot["status"]
        return self._status in TERMINAL

    def may_listen(self) -> bool:
        return self._left_seconds() >= _LISTEN_SECONDS_MIN and self.clocks.steady() >= self._listen_at

    def listen_seconds(self) -> float:
        """How long a stream may last."""
        return self._left_seconds() - _LAST_LOOK_SECONDS

    def listened(self) -> None:
        """A stream has ended, or there was none. If the run has not ended with it, looks take over for a while."""
        self.has_listened = True
        self._listen_at = self.clocks.steady() + self._deaf_seconds
        self._deaf_seconds = min(self._deaf_seconds * 2, _DEAF_SECONDS_MAX)

    def pause(self) -> float:
        """Seconds until the next look. Raises TimeoutError when there is none."""
        left = self._left_seconds()
        if left <= 0:
            raise TimeoutError
        pause = min(self._pause_seconds, left)
        self._pause_seconds = min(self._pause_seconds * 1.5, _PAUSE_SECONDS_MAX)
        return pause

    def told(self, why: str) -> str:
        """What the caller is told when time is up: what was heard last, and `why` no more, if that is known."""
        why = why and f": {why}"
        if self._status is None:
            return f"nothing was heard of run {self.run_id} within {self.seconds:g} s{why}"
        as_known = why and ", as far as is known"
        return f"run {self.run_id} is still {self._status} after {self.seconds:g} s{as_known}{why}"

    def _left_seconds(self) -> float:
        return self.ends_at - self.clocks.steady()
