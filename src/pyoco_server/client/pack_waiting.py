"""One wait for the end of a priced run: when to poll again, and when it times out. No socket; the clock is passed in.

Priced runs have no event stream, so the run is polled at the interval that the service recommends. The answers 429 (too
many requests) and 503 (a part of the service is unavailable) do not end the wait before its timeout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import httpx

from pyoco_server.client.priced_results import PackRun
from pyoco_server.client.resuming import Clocks
from pyoco_server.client.retry import Patience, read_retry_after
from pyoco_server.core.priced.constants import POLL_RECOMMENDED_INTERVAL_MS

__all__ = ["INTERVAL_SECONDS", "PackWaiting"]

INTERVAL_SECONDS = POLL_RECOMMENDED_INTERVAL_MS / 1000
#: The minimum time for the first read: a timeout of zero seconds means one read.
_LOOK_SECONDS_MIN = 1.0
_ENDS = frozenset({"COMPLETED", "FAILED"})
_LATER = frozenset({429, 503})


@dataclass(kw_only=True)
class PackWaiting:
    """The state of one wait."""

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
        """Return unlimited patience once the run has been read. A server that never answered gets the usual one."""
        return usual if self._status is None else usual.lasting(math.inf)

    def ends_with(self, run: PackRun) -> bool:
        """Record the newest state. Return whether it is terminal."""
        self._status = run["status"]
        return self._status in _ENDS

    def pause(self) -> float:
        """Return the seconds until the next read. Raises TimeoutError if the time is up."""
        left = self._ends_at - self.clocks.steady()
        if left <= 0:
            raise TimeoutError
        return min(self.interval_seconds, left)

    def pause_after(self, error: httpx.HTTPStatusError) -> float:
        """Return the seconds until the next read, respecting Retry-After. Raises `error` if it is not temporary."""
        if error.response.status_code not in _LATER:
            raise error
        asked = read_retry_after(error.response.headers.get("Retry-After"), self.clocks.wall())
        pause = max(self.interval_seconds, asked or 0.0)
        if self.clocks.steady() + pause >= self._ends_at:
            raise TimeoutError(str(error)) from error
        return pause

    def timeout_message(self, why: str) -> str:
        """Return the text of the TimeoutError: the last known status, and the last error (`why`), if any."""
        why = why and f": {why}"
        if self._status is None:
            return f"the state of run {self.run_id} could not be read within {self.seconds:g} s{why}"
        return f"run {self.run_id} is still {self._status} after {self.seconds:g} s{why}"
