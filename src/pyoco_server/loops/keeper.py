"""The keeper: what has to be done now and then, by anybody, for all runs."""

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
    """Asks the store of runs a question, and logs that the keeper lives and how long the answer took.

    Every duty of the keeper is a Loop of its own, made and stopped beside this one in `doors/cli/keeper.py`; a duty
    must bear that several keepers do it at once.

    What it cannot do: tell more than "not available" while NATS is away. The link reconnects by itself.
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
            self.outage.failed("keeper heartbeat: the store of runs does not answer", error, beats=self.beats)
            return
        self.beats += 1
        milliseconds = round((time.monotonic() - began) * 1000, 1)
        log.info("keeper heartbeat", beats=self.beats, misses=self.misses, answer_ms=milliseconds)
