"""How long an operation is retried while its store does not answer."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import timedelta

__all__ = ["BRIEF", "NO_PATIENCE", "PATIENT", "RetryLimit", "RetryPause"]

_PAUSE_MAX = timedelta(seconds=5)


@dataclass(frozen=True, kw_only=True)
class RetryLimit:
    """Retries within `total`, with pauses that double, up to five seconds each."""

    total: timedelta
    first_pause: timedelta = timedelta(milliseconds=100)

    def begin(self) -> RetryPause:
        return RetryPause(self)


class RetryPause:
    """The retries of one operation; the time runs from construction."""

    def __init__(self, patience: RetryLimit) -> None:
        self._pause = patience.first_pause
        self._until_ns = time.monotonic_ns() + patience.total // timedelta(microseconds=1) * 1000

    async def again(self) -> bool:
        """Pause and return True: try again. Return False immediately if the next try would be too late."""
        pause_ns = self._pause // timedelta(microseconds=1) * 1000
        if time.monotonic_ns() + pause_ns > self._until_ns:
            return False
        await asyncio.sleep(self._pause.total_seconds())
        self._pause = min(self._pause * 2, _PAUSE_MAX)
        return True


#: PRICED-22 and the money table: a process that has executed the run tries for a minute to record its outcome.
PATIENT = RetryLimit(total=timedelta(seconds=60))
#: For callers that wait for the answer, and for keepers, which try again in their next turn.
BRIEF = RetryLimit(total=timedelta(seconds=5))
NO_PATIENCE = RetryLimit(total=timedelta(0))
