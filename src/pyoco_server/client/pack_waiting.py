"""One wait for the end of a priced run: when to look again, and when time is up. No socket; the clock is given.

There is no stream to listen to: who waits looks at the interval that the service recommends. Being told to come later
(429), or that a part of the service is away (503), is no reason to give up before time is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import httpx

from pyoco_server.client.priced_results import PackRun
from pyoco_server.client.retry import Patience, read_retry_after
from pyoco_server.client.watching import Clocks
from pyoco_server.core.priced.constants import POLL_RECOMMENDED_INTERVAL_MS

__all__ = ["INTERVAL_SECONDS", "PackWaiting"]

INTERVAL_SECONDS = POLL_RECOMMENDED_INTERVAL_MS / 1000
#: The first look has so much even when the caller gives less: zero seconds mean one look.
_LOOK_SECONDS_MIN = 1.0
_ENDS = frozenset({"COMPLETED", "FAILED"})
_LATER = frozenset({429, 503})


@dataclass(kw_only=True)
class PackWaiting:
    """Where one wait stands."""

    run_id: str
    clocks: Clocks
    seconds: float
    interval_seconds: float = INTERVAL_SECONDS

    _status: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if math.isnan(self.seconds):
            raise ValueError("timeout_sec is not a number")
        if not self.interval_seconds > 0:
            raise ValueError("interval_sec must be above 0")
        self._began = self.clocks.steady()
        self._ends_at = self._began + self.seconds

    @property
    def look_ends_at(self) -> float:
        return max(self._ends_at, self._began + _LOOK_SECONDS_MIN) if self._status is None else self._ends_at

    def patience(self, usual: Patience) -> Patience:
        """A server that has told of the run comes back; one that never answered is an error soon."""
        return usual if self._status is None else usual.lasting(math.inf)

    def ends_with(self, run: PackRun) -> bool:
        """Takes note of the newest state. Whether it is the last one."""
        self._status = run["status"]
        return self._status in _ENDS

    def pause(self) -> float:
        """Seconds until the next look. Raises TimeoutError when there is none."""
        left = self._ends_at - self.clocks.steady()
        if left <= 0:
            raise TimeoutError
        return min(self.interval_seconds, left)

    def pause_after(self, error: httpx.HTTPStatusError) -> float:
        """As `pause`, and not before the time that the answer asks for. Raises the error itself when waiting is no
        use."""
        if error.response.status_code not in _LATER:
            raise error
        asked = read_retry_after(error.response.headers.get("Retry-After"), self.clocks.wall())
        pause = max(self.interval_seconds, asked or 0.0)
        if self.clocks.steady() + pause >= self._ends_at:
            raise TimeoutError(str(error)) from error
        return pause

    def told(self, why: str) -> str:
        """What the caller is told when time is up: what was heard last, and `why` no more, if that is known."""
        why = why and f": {why}"
        if self._status is None:
            return f"nothing was heard of run {self.run_id} within {self.seconds:g} s{why}"
        return f"run {self.run_id} is still {self._status} after {self.seconds:g} s{why}"
