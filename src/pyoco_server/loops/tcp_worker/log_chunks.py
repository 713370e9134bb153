"""Sends the lines of programs to the current door (LOG-30)."""

from __future__ import annotations

from collections.abc import Callable

from pyoco_server.core.frames.codec import Frame, Type
from pyoco_server.core.frames.messages import LogChunk, LogCredit, LogOutcome
from pyoco_server.core.programs.faults import GridRefused
from pyoco_server.core.run_log.shipment import Shipment
from pyoco_server.errors import Unavailable
from pyoco_server.executors.capture.port import Captured
from pyoco_server.frames.wire import WireClosed
from pyoco_server.logs import get_logger
from pyoco_server.loops.tcp_worker.session import DoorRefused, DoorSession, Key

__all__ = ["DoorLines"]

log = get_logger(__name__)


class DoorLines:
    """The store of lines, as a worker over TCP sees it (`LogSink`): the door that it is connected to.

    At most as many chunks as the door allows are under way, and everything else that the worker sends overtakes them.
    Without a door the caller keeps the lines; at a door that does not support logs they are dropped.
    """

    def __init__(self) -> None:
        self._current: Callable[[], DoorSession | None] = lambda: None
        self._key_of: Callable[[Captured], Key | None] = lambda _: None
        self._is_put_off = False

    def bind(self, current: Callable[[], DoorSession | None], key_of: Callable[[Captured], Key | None]) -> None:
        """`current` returns the connection to the door; `key_of` JobId and token of an attempt."""
        self._current, self._key_of = current, key_of

    def is_up(self) -> bool:
        """Whether a door is there and can store lines."""
        return self._current() is not None and not self._is_put_off

    async def append(self, captured: Captured, shipment: Shipment, after: int) -> int:
        """Returns 0: only the door knows numbers. Raises Unavailable."""
        session, key = self._current(), self._key_of(captured)
        if session is None:
            raise Unavailable("no door to send log lines to")
        if key is None or not session.takes_logs:
            return 0
        try:
            async with session.log_credits:
                answer = await self._ask(session, LogChunk(job_id=key[0], token=key[1], shipment=shipment))
        except WireClosed as closed:
            raise Unavailable(f"the door was lost: {closed}") from closed
        except DoorRefused as refused:
            log.error("door refused log lines", code=refused.error.code, reason=refused.error.message)
            return 0
        except GridRefused as error:
            await session.wire.close("bad_frame")
            raise Unavailable(f"invalid frame from a door: {error}") from error
        self._is_put_off = answer is LogOutcome.LATER
        if self._is_put_off:
            raise Unavailable("the door cannot store log lines now")
        return 0

    @staticmethod
    async def _ask(session: DoorSession, chunk: LogChunk) -> LogOutcome:
        with session.answers() as answers:
            answers.ask_in_background(Type.LOG_CHUNK, chunk.to_payload())
            # While the store is unavailable, the door waits, too. The timers of the connection detect a lost door.
            frame: Frame = await answers.next(None)
        return LogCredit.read(frame.payload).outcome

    async def delete(self, number: int) -> None:
        """The door deletes what is above the bound of an attempt."""
