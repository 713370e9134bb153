"""The keeper: periodic duties for all runs, which any keeper process can do."""

from __future__ import annotations

import time

from pyoco_server.errors import PyocoError
from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.runs.port import NO_RUN

__all__ = ["KeeperHeartbeat"]

log = get_logger(__name__)


class KeeperHeartbeat(Loop):
    """Queries the run store, and logs that the keeper is alive and how long the query took.

    Every duty of the keeper is a Loop of its own, created and stopped next to this one in `doors/cli/keeper.py`. A duty
    must be safe to run in several keepers concurrently.

    What it cannot do: report more than "not available" during a NATS outage. The connection reconnects by itself.
    """

    def __init__(self, backend: Backend, *, every_seconds: float = 30.0) -> None:
        super().__init__(every_seconds=every_seconds)
        self._backend = backend
        self.beats = 0
        self.misses = 0

    async def turn(self) -> None:
        began = time.monotonic()
        try:
            await self._backend.runs.find(NO_RUN)
        except PyocoError as error:
            self.misses += 1
            self.outage.failed("keeper heartbeat: the run store does not respond", error, beats=self.beats)
            return
        self.beats += 1
        milliseconds = round((time.monotonic() - began) * 1000, 1)
        log.info("keeper heartbeat", beats=self.beats, misses=self.misses, answer_ms=milliseconds)
