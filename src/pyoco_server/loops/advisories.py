"""Ends the runs of jobs that reached max deliveries, as soon as the queue reports them."""

from __future__ import annotations

from pyoco_server.actions.give_up import give_up
from pyoco_server.errors import Corrupt, PyocoError
from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.queue.port import Notice, Notices

__all__ = ["Advisories"]

log = get_logger(__name__)

#: How long one read waits for a notice. `stir` is called on the queue between two turns.
_WAIT_SECONDS = 2.0
#: Pause between two turns, so that a persistent failure is not retried twenty times a second.
_PAUSE_SECONDS = 0.5
#: A notice whose handling failed is redelivered after this.
_AGAIN_SECONDS = 5.0
#: The run still has a live worker: check again when its last heartbeat would be stale, or after this at the latest.
_BUSY_SECONDS_MAX = 15.0
#: An operator may repair an unreadable record, so it is retried.
_CORRUPT_SECONDS = 60.0
_TURN_MAX = 500


class Advisories(Loop):
    """Processes the queue's notices one by one and gives up the jobs they report. Any number of keepers share them.

    A run ends within a second after its job's last ack timer expires while a worker serves the tag, and a few seconds
    after that if no worker does.

    What it cannot do: see jobs that were given up before the stream of advisories was created, or advisories that NATS
    lost in a crash. The Rescuer finds those.
    """

    def __init__(self, backend: Backend, *, wait_seconds: float = _WAIT_SECONDS) -> None:
        super().__init__(every_seconds=_PAUSE_SECONDS)
        self._backend, self._wait_seconds = backend, wait_seconds
        self._notices: Notices | None = None

    async def turn(self) -> None:
        if self._notices is None:
            self._notices = await self._backend.queue.open_notices()
        await self._notices.stir()
        for _ in range(_TURN_MAX):
            notice = None if self._stopping.is_set() else await self._notices.take(self._wait_seconds)
            if notice is None:
                return
            await self._deal_with(notice)

    async def _deal_with(self, notice: Notice) -> None:
        try:
            leftover = await notice.leftover()
            busy = None if leftover is None else await give_up(self._backend, leftover, notice.deliveries)
        except PyocoError as error:
            self.outage.failed("could not process a job that reached max deliveries; retrying", error)
            await notice.put_off(_CORRUPT_SECONDS if isinstance(error, Corrupt) else _AGAIN_SECONDS)
            return
        if busy is None:
            await notice.settle()
        else:
            await notice.put_off(min(busy.seconds + 0.5, _BUSY_SECONDS_MAX))

    async def stop(self) -> None:
        await super().stop()
        notices, self._notices = self._notices, None
        if notices is not None:
            await notices.close()
