"""A client's connection to one door of a group, with failover to its other doors (GRID-45, GRID-123)."""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass, field
from typing import Protocol

from pyoco_server.client.frames.faults import DoorUnreachable, refusal_of
from pyoco_server.client.frames.pace import Pace
from pyoco_server.core.frames.codec import Frame, Type
from pyoco_server.core.frames.messages import ErrorMessage, NotLeader
from pyoco_server.core.programs.faults import GridRefused
from pyoco_server.frames.addresses import Address, Addresses
from pyoco_server.frames.calling import PAUSE_SECONDS_MAX, Caller, Session, search
from pyoco_server.frames.wire import Timers, WireClosed

__all__ = ["Link", "LinkSettings", "Listener"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LinkSettings:
    """How a client connects."""

    timers: Timers = field(default_factory=Timers)
    tls: ssl.SSLContext | None = None
    #: The client gives up after this time without a door; None: never.
    connect_timeout: float | None = None
    pace: Pace = field(default_factory=Pace)


class Listener(Protocol):
    """The owner of a link. No method blocks, except that `heard` may apply backpressure."""

    def hello(self) -> bytes:
        """Return the payload of a HelloClient."""

    def attached(self, session: Session) -> None:
        """A door has sent HelloAck. `parted` was called before for the previous session, if any."""

    def parted(self, session: Session) -> None:
        """The connection has ended, or another one replaces it. Called once for each `attached`."""

    def paused(self, session: Session) -> None:
        """The door temporarily accepts no jobs, and no other door does."""

    def resumed(self, session: Session) -> None:
        """The pause has ended: the door may be sent jobs again."""

    async def heard(self, session: Session, frame: Frame) -> None:
        """Handle any other frame. Raises GridRefused for an invalid one; the connection is then closed."""


class Link:
    """Maintains one connection. It cannot distinguish a slow door from a dead one before the timers expire."""

    def __init__(self, listener: Listener, doors: tuple[Address, ...], settings: LinkSettings) -> None:
        self._listener, self._settings, self._pace = listener, settings, settings.pace
        self._addresses = Addresses(doors, clock=self._pace.clock, chance=self._pace.chance)
        self._caller = Caller(Type.HELLO_CLIENT, listener.hello, settings.timers, settings.tls, _refusal)
        self._redirects: asyncio.Queue[NotLeader] = asyncio.Queue(maxsize=1)
        self._leaving: set[asyncio.Task[None]] = set()
        #: Set once a door has accepted, or every door has been tried.
        self.tried = asyncio.Event()

    async def run(self) -> None:
        """Run until cancelled. Raises DoorUnreachable, and GridRefused if the first Hello is refused permanently."""
        try:
            while True:
                session: Session | None = await self._find()
                while session is not None:
                    session = await self._stay(session)
        finally:
            self.tried.set()
            if self._leaving:
                await asyncio.wait(self._leaving)

    async def _find(self) -> Session:
        try:
            async with asyncio.timeout(self._settings.connect_timeout):
                return await self._search()
        except TimeoutError:
            doors = ", ".join(map(str, self._addresses.round()))
            waited = f"{self._settings.connect_timeout:g}"
            raise DoorUnreachable(f"no door answers within {waited} s at {doors}") from None

    async def _search(self) -> Session:
        return await search(self._addresses, self._dial, self._pause)

    async def _pause(self, seconds: float) -> None:
        self.tried.set()
        await self._pace.sleep(seconds)

    def _learn(self, message: NotLeader) -> Address | None:
        """Store the doors that a NotLeader lists. Returns the leader to use next, if it names one."""
        self._addresses.learn(message.doors)
        return Address.find(message.leader)

    async def _dial(self, address: Address) -> Session | NotLeader | ErrorMessage | None:
        """Call a door, as `Caller.call`. Raises GridRefused."""
        answer = await self._caller.call(address)
        if isinstance(answer, Session):
            self._addresses.attached(address)
            self._addresses.learn(answer.hello.doors)
        return answer

    async def _stay(self, session: Session) -> Session | None:
        """Stay connected until the connection ends or the door redirects us.

        Returns the session at the next door; None: no next door yet.
        """
        self._redirects = asyncio.Queue(maxsize=1)
        self._listener.attached(session)
        self.tried.set()
        reading = asyncio.create_task(self._read(session), name=f"read from {session.address}")
        successor: Session | None = None
        try:
            while successor is None and not reading.done():
                redirect = asyncio.create_task(self._redirects.get())
                try:
                    await asyncio.wait({reading, redirect}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    redirect.cancel()
                if redirect.done() and not redirect.cancelled() and not reading.done():
                    successor = await self._move(session, redirect.result(), reading)
        finally:
            reading.cancel()  # first: frames handled after `parted` would be handled twice
            self._listener.parted(session)
            leaving = asyncio.create_task(self._leave(session, reading))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
        return successor

    async def _leave(self, session: Session, reading: asyncio.Task[None]) -> None:
        await asyncio.wait({reading})
        await session.wire.close("draining")

    async def _move(self, old: Session, message: NotLeader, reading: asyncio.Task[None]) -> Session | None:
        """Connect to the named leader immediately; else to any other door; else stay and resume later (GRID-45).

        Frames of the old door are still handled meanwhile.
        """
        log.info("redirected by door %s: %s", old.address, message.reason)
        leader = self._learn(message)
        if leader is not None and self._addresses.may_jump():
            answer = await self._dial(leader)
            if isinstance(answer, Session):
                return answer
        self._listener.paused(old)
        least = min(message.retry_after_ms / 1_000, PAUSE_SECONDS_MAX)
        pause = asyncio.ensure_future(self._pace.sleep(max(least, self._addresses.delay())))
        try:
            await asyncio.wait({pause, reading}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            pause.cancel()
        for address in self._addresses.round():
            if reading.done():
                return None
            if address != old.address and isinstance(answer := await self._dial(address), Session):
                return answer
        if not reading.done():
            self._listener.resumed(old)
        return None

    async def _read(self, session: Session) -> None:
        """Handle frames until the connection ends."""
        reason = "draining"  # we close the connection, unless an error below ends it first
        try:
            while True:
                frame = await session.wire.receive()
                if frame.type == Type.NOT_LEADER:
                    message = NotLeader.read(frame.payload)
                    if not self._redirects.full():  # a door sends one per job; the first one is enough
                        self._redirects.put_nowait(message)
                else:
                    await self._listener.heard(session, frame)
        except WireClosed as closed:
            reason = closed.reason
        except GridRefused as error:  # section 26.1: log, close, and reconnect
            reason = "bad_frame"
            log.error("door %s sent an invalid message: %s", session.address, error)
        except Exception:  # the top of a connection: a defect in handling one frame must not end the client
            reason = "internal_error"
            log.exception("frame handling failed")
        finally:
            log.info("disconnected from door %s: %s", session.address, reason)


def _refusal(_: Address, message: ErrorMessage) -> GridRefused:
    return refusal_of(message)
