"""For how long something is tried again when its store does not answer."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import timedelta

__all__ = ["BRIEF", "NO_PATIENCE", "PATIENT", "Patience", "Waiting"]

_PAUSE_MAX = timedelta(seconds=5)


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Tries within `total`, with pauses that double, up to five seconds each."""

    total: timedelta
    first_pause: timedelta = timedelta(milliseconds=100)

    def begin(self) -> Waiting:
        return Waiting(self)


class Waiting:
    """One stretch of patience, from its making on."""

    def __init__(self, patience: Patience) -> None:
        self._pause = patience.first_pause
        self._until_ns = time.monotonic_ns() + patience.total // timedelta(microseconds=1) * 1000

    async def again(self) -> bool:
        """Pause, and True: try once more. False, at once: the next try would come too late."""
        pause_ns = self._pause // timedelta(microseconds=1) * 1000
        if time.monotonic_ns() + pause_ns > self._until_ns:
            return False
        await asyncio.sleep(self._pause.total_seconds())
        self._pause = min(self._pause * 2, _PAUSE_MAX)
        return True


#: PRICED-22 and the money table: whoever has worked for an outcome tries for a minute.
PATIENT = Patience(total=timedelta(seconds=60))
#: A caller waits for the answer, or a keeper comes again anyway.
BRIEF = Patience(total=timedelta(seconds=5))
NO_PATIENCE = Patience(total=timedelta(0))
