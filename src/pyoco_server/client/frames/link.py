"""A client's way to one group: at one of its doors, and at the next one when it must (GRID-45, GRID-123)."""

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
    #: Without a door for this time, it gives up; None: never.
    connect_timeout: float | None = None
    pace: Pace = field(default_factory=Pace)


class Listener(Protocol):
    """Whose link it is. Nothing here waits."""

    def hello(self) -> bytes:
        """The payload of a HelloClient."""

    def attached(self, session: Session) -> None:
        """A door said HelloAck. The session before, if there is one, has parted already."""

    def parted(self, session: Session) -> None:
        """The connection has ended, or is about to be left for another. Once for each that was attached."""

    def paused(self, session: Session) -> None:
        """The door takes nothing just now, and there is no other."""

    def resumed(self, session: Session) -> None:
        """It is time to ask it again."""

    async def heard(self, session: Session, frame: Frame) -> None:
        """Any other frame. Raises GridRefused for one that cannot be: the connection is closed then."""


class Link:
    """Keeps one connection, for ever. What it cannot do: tell a slow door from a dead one before the timers do."""

    def __init__(self, listener: Listener, doors: tuple[Address, ...], settings: LinkSettings) -> None:
        self._listener, self._settings, self._pace = listener, settings, settings.pace
        self._addresses = Addresses(doors, clock=self._pace.clock, chance=self._pace.chance)
        self._caller = Caller(Type.HELLO_CLIENT, listener.hello, settings.timers, settings.tls, _refusal)
        self._redirects: asyncio.Queue[NotLeader] = asyncio.Queue(maxsize=1)
        self._leaving: set[asyncio.Task[None]] = set()
        #: Set once a door has accepted, or every door has been tried.
        self.tried = asyncio.Event()

    async def run(self) -> None:
        """Until it is cancelled. Raises DoorUnreachable, and GridRefused when the first Hello is refused for good."""
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
        """What a door that is not the one to ask says of others; the one to use next."""
        self._addresses.learn(message.doors)
        return Address.find(message.leader)

    async def _dial(self, address: Address) -> Session | NotLeader | ErrorMessage | None:
        """As `Caller.call`. Raises GridRefused."""
        answer = await self._caller.call(address)
        if isinstance(answer, Session):
            self._addresses.attached(address)
            self._addresses.learn(answer.hello.doors)
        return answer

    async def _stay(self, session: Session) -> Session | None:
        """At this door until it is gone or sends us away. Returns the session at the door that it is at then."""
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
            reading.cancel()  # first: what is heard after `parted` would be heard twice
            self._listener.parted(session)
            leaving = asyncio.create_task(self._leave(session, reading))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
        return successor

    async def _leave(self, session: Session, reading: asyncio.Task[None]) -> None:
        await asyncio.wait({reading})
        await session.wire.close("draining")

    async def _move(self, old: Session, message: NotLeader, reading: asyncio.Task[None]) -> Session | None:
        """GRID-45: to the door that was named, at once; else to any other; else stay, and ask again later.

        What still comes from the old door is heard meanwhile.
        """
        log.info("door %s sends this client away: %s", old.address, message.reason)
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
        """Until the connection ends."""
        reason = "draining"  # we leave, unless something else happens
        try:
            while True:
                frame = await session.wire.receive()
                if frame.type == Type.NOT_LEADER:
                    message = NotLeader.read(frame.payload)
                    if not self._redirects.full():  # one for each job that was sent; the first says it all
                        self._redirects.put_nowait(message)
                else:
                    await self._listener.heard(session, frame)
        except WireClosed as closed:
            reason = closed.reason
        except GridRefused as error:  # section 26.1: logged, closed, and another try
            reason = "bad_frame"
            log.error("door %s said something that cannot be: %s", session.address, error)
        except Exception:  # the top of a connection: a defect in what one frame does must not end the client
            reason = "internal_error"
            log.exception("a frame was not handled")
        finally:
            log.info("away from door %s: %s", session.address, reason)


def _refusal(_: Address, message: ErrorMessage) -> GridRefused:
    return refusal_of(message)
