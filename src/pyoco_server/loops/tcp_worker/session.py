"""One connection accepted by a door: the results sent on it, and the requests that wait for an answer."""

from __future__ import annotations

import asyncio
from collections import deque
from uuid import UUID

from pyoco_server.core.frames.codec import NIL, Frame, Type
from pyoco_server.core.frames.messages import LOGS, CreditGrant, ErrorMessage, HelloAck
from pyoco_server.frames.addresses import Address
from pyoco_server.frames.wire import Wire, WireClosed, fresh
from pyoco_server.loops.tcp_worker.credits import CreditAccount
from pyoco_server.loops.tcp_worker.spool import SpooledResult

__all__ = ["Answers", "DoorRefused", "DoorSession", "Key"]

#: Of a result: JobId and token.
Key = tuple[str, str]
#: Limit of input chunks not consumed yet. At the limit the connection is not read, and TCP slows the door down.
_ANSWERS_MAX = 8


class DoorRefused(Exception):
    """A door answered with an Error."""

    def __init__(self, error: ErrorMessage) -> None:
        super().__init__(error.code)
        self.error = error


class Answers:
    """The answers to one request, or to several related ones, accepted within the context."""

    def __init__(self, session: DoorSession) -> None:
        self._session = session
        self._queue: asyncio.Queue[Frame | None] = asyncio.Queue(_ANSWERS_MAX)
        self._asked: set[UUID] = set()

    async def ask(self, kind: Type, payload: bytes, *, corr_id: UUID = NIL) -> None:
        """Raises WireClosed."""
        frame = fresh(kind, payload, corr_id=corr_id)
        self._asked.add(frame.msg_id)
        self._session.expect(frame.msg_id, self)
        await self._session.wire.send(frame)

    def ask_in_background(self, kind: Type, payload: bytes) -> None:
        """Raises WireClosed."""
        frame = fresh(kind, payload)
        self._asked.add(frame.msg_id)
        self._session.expect(frame.msg_id, self)
        self._session.wire.send_in_background(frame)

    async def next(self, seconds: float | None) -> Frame:
        """Return the next answer. Raises Refused for an Error, TimeoutError after that time, WireClosed."""
        async with asyncio.timeout(seconds):
            frame = await self._queue.get()
        if frame is None:
            raise WireClosed(self._session.wire.reason or "peer_closed")
        if frame.type == Type.ERROR:
            raise DoorRefused(ErrorMessage.read(frame.payload))
        return frame

    async def put(self, frame: Frame) -> None:
        """Add an answer; called by the reader of the connection. Waits while too many are not consumed."""
        await self._queue.put(frame)

    def end(self) -> None:
        """Note that the connection has ended."""
        while self._queue.full():
            self._queue.get_nowait()
        self._queue.put_nowait(None)

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        for msg_id in self._asked:
            self._session.expect(msg_id, None)
        while not self._queue.empty():  # the reader may wait for room
            self._queue.get_nowait()


class DoorSession:
    """A connection from HelloAck to its end."""

    def __init__(self, wire: Wire, address: Address, hello: HelloAck, account: CreditAccount) -> None:
        self.wire, self.address, self.hello, self.credits = wire, address, hello, account
        #: When each result was last sent here, by the clock of the worker, until it is settled.
        self.said: dict[Key, float] = {}
        #: Results whose report has been sent, or is not wanted: heartbeats do not list them.
        self.unlisted: set[Key] = set()
        #: Permanently refused results. They are sent again, and do not delay the others.
        self.refused: set[Key] = set()
        #: Results being sent.
        self.saying: set[Key] = set()
        #: Results of earlier connections, to be sent as soon as the door has room.
        self.backlog: deque[SpooledResult] = deque()
        #: Limits of concurrent archive uploads, and of spooled results in memory.
        self.uploads, self.beside = asyncio.Semaphore(2), asyncio.Semaphore(4)
        #: Whether the door has been sent what is running and finished: no credit goes before that.
        self.has_reported = False
        #: Whether the door takes LogChunks, and how many may be unanswered.
        self.takes_logs = LOGS in hello.capabilities and hello.log_credits > 0
        self.log_credits = asyncio.Semaphore(hello.log_credits)
        self._waiting: dict[UUID, Answers] = {}

    @property
    def is_open(self) -> bool:
        return self.wire.reason is None

    def expect(self, msg_id: UUID, answers: Answers | None) -> None:
        if answers is None:
            self._waiting.pop(msg_id, None)
        else:
            self._waiting[msg_id] = answers

    def answers(self) -> Answers:
        return Answers(self)

    async def answer(self, frame: Frame) -> bool:
        """Pass a frame to the request that it answers. Returns False if there is none (GRID-26)."""
        waiting = self._waiting.get(frame.corr_id)
        if waiting is not None:
            await waiting.put(frame)
        return waiting is not None

    def give_credit(self, count: int) -> bool:
        """Grant credits without waiting. Returns False if they could not be sent, and are still owed."""
        if count < 1 or not self.wire.send_soon(fresh(Type.CREDIT, CreditGrant(count).to_payload())):
            return False
        self.credits.gave(count)
        return True

    def end(self) -> None:
        """Notify all waiting requests that there will be no answer."""
        for answers in set(self._waiting.values()):
            answers.end()
        self._waiting.clear()
