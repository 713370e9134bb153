"""The worker's connection to a door: one at a time, with failover and redirects (GRID-45, GRID-110, GRID-123)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from pyoco_server.core.frames.codec import Frame, Type
from pyoco_server.core.frames.messages import ErrorMessage, NotLeader
from pyoco_server.core.programs.faults import GridRefused
from pyoco_server.errors import UsageError
from pyoco_server.frames.addresses import Address, Addresses
from pyoco_server.frames.calling import PAUSE_SECONDS_MAX, Caller, search
from pyoco_server.frames.calling import Session as Attachment
from pyoco_server.frames.wire import Timers, WireClosed
from pyoco_server.logs import get_logger
from pyoco_server.loops.tcp_worker.credits import CreditAccount
from pyoco_server.loops.tcp_worker.session import DoorSession

__all__ = ["Host", "Link", "Unwelcome"]

log = get_logger(__name__)

#: How long a worker stays connected to both doors when it moves.
_OVERLAP_SECONDS = 0.5


class Unwelcome(UsageError):
    """The door refuses this worker permanently: retrying is useless."""


class Host(Protocol):
    """The owner of the link."""

    def hello(self) -> bytes: ...

    def heartbeat(self) -> bytes:
        """Return the heartbeat of an idle connection."""

    def account(self) -> CreditAccount:
        """Create the credits of a new connection."""

    async def attached(self, session: DoorSession) -> None:
        """Report what is running, finished and free, after a HelloAck. Raises WireClosed."""

    async def heard(self, session: DoorSession, frame: Frame) -> None:
        """Handle a frame. Raises GridRefused for an invalid one: the connection is closed then."""


class Link:
    """Connects to a door, passes on its frames, and connects to another one when it is lost, until cancelled.

    Limitation: it cannot tell a slow door from a lost one before the timers of the wire do.
    """

    def __init__(
        self,
        host: Host,
        addresses: Addresses,
        timers: Timers,
        tls: ssl.SSLContext | None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._host, self._addresses, self._sleep = host, addresses, sleep
        self._caller = Caller(Type.HELLO_WORKER, host.hello, timers, tls, _unwelcome, host.heartbeat)
        #: The current door; None: searching.
        self.current: DoorSession | None = None
        self._found = asyncio.Event()
        self._readers: dict[DoorSession, asyncio.Task[None]] = {}
        self._redirect: asyncio.Future[NotLeader] | None = None

    async def session(self) -> DoorSession:
        """Return the current door, waiting until there is one."""
        while self.current is None:
            await self._found.wait()
        return self.current

    def wait_at_least(self, seconds: float) -> bool:
        """Set a minimum delay before the next connection. Returns True for the first such request of a series."""
        return self._addresses.wait_at_least(min(seconds, PAUSE_SECONDS_MAX))

    def redirect(self, session: DoorSession, message: NotLeader) -> None:
        """Move to another door, because the current one requests it (GRID-45)."""
        self._addresses.learn(message.doors)
        if session is self.current and self._redirect is not None and not self._redirect.done():
            self._redirect.set_result(message)

    async def run(self) -> None:
        """Run until cancelled, then close all connections. Raises Unwelcome only before the first door."""
        try:
            while True:
                session: DoorSession | None = await self._find()
                while session is not None:
                    session = await self._serve(session)
        finally:
            self._set_current(None)
            await self._hang_up(*self._readers)

    async def _serve(self, session: DoorSession) -> DoorSession | None:
        """Serve a connection until it is lost or redirected. Returns the next connection, if the worker has moved."""
        self._redirect = asyncio.get_running_loop().create_future()
        reading = self._readers[session]
        either: set[asyncio.Future[Any]] = {reading, self._redirect}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            moved = await self._move(session, self._redirect.result())
            if moved is not None:
                return moved
        self._set_current(None)
        await self._hang_up(session)
        return None

    async def _move(self, old: DoorSession, message: NotLeader) -> DoorSession | None:
        """Connect to a new door before closing the old connection (GRID-45). None: the old one was lost first."""
        log.info("door redirects this worker", reason=message.reason, door=str(old.address))
        reading = self._readers[old]
        wait = message.retry_after_ms / 1_000
        leader: Address | None = Address.find(message.leader)
        while not reading.done():
            if leader is not None and self._addresses.may_jump():
                tried, leader = [leader], None
            else:
                await self._sleep_or(reading, min(max(wait, self._addresses.delay()), PAUSE_SECONDS_MAX))
                tried, wait = [each for each in self._addresses.round() if each != old.address], 0.0
            for address in tried:
                if reading.done():
                    return None
                answer = await self._dial(address)
                if isinstance(answer, DoorSession):
                    # The new door becomes the holder meanwhile, so the old one has nothing to put back.
                    await self._sleep_or(reading, _OVERLAP_SECONDS)
                    await self._hang_up(old)
                    return answer
                if isinstance(answer, NotLeader) and answer.leader is not None:
                    leader = Address.find(answer.leader)
        return None

    async def _find(self) -> DoorSession:
        return await search(self._addresses, self._dial, self._sleep)

    async def _dial(self, address: Address) -> DoorSession | NotLeader | ErrorMessage | None:
        """Connect, as `Caller.call`. Also returns None if the connection was lost before the first reports."""
        answer = await self._caller.call(address)
        if not isinstance(answer, Attachment):
            return answer
        session = DoorSession(answer.wire, address, answer.hello, self._host.account())
        return session if await self._enter(session) else None

    async def _enter(self, session: DoorSession) -> bool:
        """Make this the current door. Returns False if the connection was lost before the first reports were sent."""
        self._addresses.attached(session.address)
        self._addresses.learn(session.hello.doors)
        self._readers[session] = asyncio.create_task(self._read(session), name=f"read from {session.address}")
        old = self.current
        self._set_current(session)
        try:
            await self._host.attached(session)
        except WireClosed:
            self._set_current(old if old is not None and old.is_open else None)
            await self._hang_up(session)
            return False
        log.info(
            "connected to door", door=str(session.address), group=session.hello.group, session=session.hello.session
        )
        return True

    async def _read(self, session: DoorSession) -> None:
        reason = "bad_frame"
        try:
            while True:
                await self._host.heard(session, await session.wire.receive())
        except WireClosed as closed:
            reason = closed.reason
        except GridRefused as error:  # section 26.1: log, close and reconnect
            log.error("invalid frame from a door", door=str(session.address), reason=str(error))
        except Exception:  # the top of a connection: an unexpected exception in a frame must not end the worker
            log.exception("handling a frame failed; closing the connection", door=str(session.address))
            reason = "internal_error"
        finally:
            session.end()
            log.info(
                "disconnected from door",
                door=str(session.address),
                reason=reason,
                frames=session.wire.frames_read,
                bytes=session.wire.bytes_read,
            )
            await session.wire.close(reason)

    def _set_current(self, session: DoorSession | None) -> None:
        self.current = session
        if session is None:
            self._found.clear()
        else:
            self._found.set()

    async def _hang_up(self, *sessions: DoorSession) -> None:
        for session in sessions:
            await session.wire.close("draining")
            await asyncio.wait({self._readers.pop(session)})

    async def _sleep_or(self, reading: asyncio.Task[None], seconds: float) -> None:
        pause = asyncio.ensure_future(self._sleep(seconds))
        try:
            await asyncio.wait({pause, reading}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            pause.cancel()


def _unwelcome(address: Address, message: ErrorMessage) -> Unwelcome:
    return Unwelcome(f"the door at {address} refuses this worker: {message.code}: {message.message}")
