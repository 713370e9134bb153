"""Ends the runs of jobs that the queue gives up, as soon as it says so."""

from __future__ import annotations

from pyoco_server.actions.give_up import give_up
from pyoco_server.errors import Corrupt, PyocoError
from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.queue.port import Notice, Notices

__all__ = ["Advisories"]

log = get_logger(__name__)

#: How long one look waits for a notice. Between two of them the queue is stirred.
_WAIT_SECONDS = 2.0
#: Between two turns, so that trouble is not met twenty times a second.
_PAUSE_SECONDS = 0.5
#: A notice in trouble comes again after this.
_AGAIN_SECONDS = 5.0
#: Somebody works on the run: look again when its last heartbeat would be too old, or after this.
_BUSY_SECONDS_MAX = 15.0
#: A record that cannot be read may be mended by an operator.
_CORRUPT_SECONDS = 60.0
_TURN_MAX = 500


class Advisories(Loop):
    """Takes the queue's notices one by one and gives up the jobs they tell of. Any number of keepers share them.

    A run ends within a second of its job's last ack timer while a worker serves the tag, and a few seconds after it
    when nobody does.

    What it cannot do: hear of what was given up before the stream of advisories was made, or of what NATS forgot when
    it was killed. The Rescuer looks for those.
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
            self.outage.failed("a job that was given up could not be dealt with; trying again", error)
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
