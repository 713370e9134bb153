"""One wait for the end of a run: when to watch, when to poll, and when it times out. No socket; the clock is passed in.

The event stream reports the end immediately. If no stream is available, because the gateway refuses more watchers or a
proxy blocks streams, the run is polled, and a stream is tried again from time to time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from pyoco_server.client.resuming import Clocks
from pyoco_server.client.run_results import RunSnapshot
from pyoco_server.core.states import TERMINAL

__all__ = ["Waiting"]

#: The server counts whole seconds.
_LISTEN_SECONDS_MIN = 1.0
#: The minimum time for the first read: a timeout of zero seconds means one read.
_LOOK_SECONDS_MIN = 1.0
#: Reserved at the end of every stream for a last read, in case a proxy has withheld all events.
_LAST_READ_SECONDS = 0.25
#: Between two reads.
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.02, 1.0
#: From a stream that did not report the end to the next one; doubles each time.
_POLLING_SECONDS, _POLLING_SECONDS_MAX = 30.0, 600.0


@dataclass(kw_only=True)
class Waiting:
    """The state of one wait."""

    run_id: str
    clocks: Clocks
    seconds: float
    #: Called with each state before the end.
    progress: Callable[[RunSnapshot], object] | None = None
    #: Whether a stream has been tried.
    has_listened: bool = field(default=False, init=False)

    _status: str | None = field(default=None, init=False)
    _listen_at: float = field(default=-math.inf, init=False)
    _polling_seconds: float = field(default=_POLLING_SECONDS, init=False)
    _pause_seconds: float = field(default=_PAUSE_SECONDS, init=False)

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if math.isnan(self.seconds):
            raise ValueError("timeout_sec is not a number")
        began = self.clocks.steady()
        self.ends_at = began + self.seconds
        self.first_look_ends_at = max(self.ends_at, began + _LOOK_SECONDS_MIN)

    def ends_with(self, snapshot: RunSnapshot) -> bool:
        """Record the newest state. Return whether it is terminal."""
        self._status = snapshot["status"]
        has_ended = self._status in TERMINAL
        if not has_ended and self.progress is not None:
            self.progress(snapshot)
        return has_ended

    def may_listen(self) -> bool:
        return self._left_seconds() >= _LISTEN_SECONDS_MIN and self.clocks.steady() >= self._listen_at

    def listen_seconds(self) -> float:
        """Return how long a stream may last."""
        return self._left_seconds() - _LAST_READ_SECONDS

    def listened(self) -> None:
        """Record that a stream has ended or could not be opened. Polling replaces it for a while."""
        self.has_listened = True
        self._listen_at = self.clocks.steady() + self._polling_seconds
        self._polling_seconds = min(self._polling_seconds * 2, _POLLING_SECONDS_MAX)

    def pause(self) -> float:
        """Return the seconds until the next read. Raises TimeoutError if the time is up."""
        left = self._left_seconds()
        if left <= 0:
            raise TimeoutError
        pause = min(self._pause_seconds, left)
        self._pause_seconds = min(self._pause_seconds * 1.5, _PAUSE_SECONDS_MAX)
        return pause

    def timeout_message(self, why: str) -> str:
        """Return the text of the TimeoutError: the last known status, and the last error (`why`), if any."""
        why = why and f": {why}"
        if self._status is None:
            return f"the state of run {self.run_id} could not be read within {self.seconds:g} s{why}"
        as_known = why and ", as far as is known"
        return f"run {self.run_id} is still {self._status} after {self.seconds:g} s{as_known}{why}"

    def _left_seconds(self) -> float:
        return self.ends_at - self.clocks.steady()
