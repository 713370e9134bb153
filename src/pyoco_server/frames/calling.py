"""How a client or a worker connects to a door: dial, send Hello, try the next door (GRID-45, GRID-123)."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from pyoco_server.core.frames.codec import Type
from pyoco_server.core.frames.messages import ErrorMessage, HelloAck, NotLeader
from pyoco_server.core.programs.faults import GridRefused
from pyoco_server.frames.addresses import Address, Addresses
from pyoco_server.frames.tls import why_unreachable
from pyoco_server.frames.wire import Timers, Wire, WireClosed, fresh

__all__ = ["PAUSE_SECONDS_MAX", "Caller", "Session", "search"]

log = logging.getLogger(__name__)

T = TypeVar("T")

#: The upper limit of the pause that a door may request.
PAUSE_SECONDS_MAX = 30.0
_DIAL_SECONDS = 10.0


@dataclass(frozen=True, eq=False)
class Session:
    """A connection whose Hello was accepted."""

    wire: Wire
    address: Address
    hello: HelloAck


@dataclass
class Caller:
    """Connects to doors. Payloads are built for each frame, because what a worker runs changes."""

    #: HELLO_CLIENT or HELLO_WORKER, and its payload.
    kind: Type
    hello: Callable[[], bytes]
    timers: Timers
    tls: ssl.SSLContext | None
    #: The exception to raise if a door refuses the Hello permanently before any door has accepted one.
    refusal: Callable[[Address, ErrorMessage], Exception]
    #: The payload of a Heartbeat.
    heartbeat: Callable[[], bytes] = bytes
    was_attached: bool = False

    async def call(self, address: Address) -> Session | NotLeader | ErrorMessage | None:
        """Connect and send Hello. None: unreachable, or not a door. Raises `refusal`."""
        try:
            async with asyncio.timeout(_DIAL_SECONDS):
                streams = await asyncio.open_connection(address.host, address.port, ssl=self.tls)
        except (OSError, TimeoutError) as error:
            # A certificate error needs an operator, so it is a warning.
            level = logging.WARNING if isinstance(error, ssl.SSLError) else logging.INFO
            why = why_unreachable(error)
            log.log(level, "door %s cannot be reached: %s", address, why, extra=_fields(address, reason=why))
            return None
        wire = Wire(*streams, self.timers, self.heartbeat)
        answer: HelloAck | NotLeader | ErrorMessage | None = None
        try:
            answer = await self._greet(wire, address)
        except WireClosed as closed:
            log.warning(
                "door %s closed the connection: %s",
                address,
                closed.reason,
                extra=_fields(address, reason=closed.reason),
            )
        except GridRefused as error:
            log.error("door %s sent an invalid message: %s", address, error, extra=_fields(address, reason=str(error)))
        finally:
            if not isinstance(answer, HelloAck):
                await wire.close("bad_hello")
        if isinstance(answer, ErrorMessage):
            fields = _fields(address, code=answer.code, reason=answer.message)
            log.error("door %s refused the Hello: %s: %s", address, answer.code, answer.message, extra=fields)
            if not answer.retry and not self.was_attached:
                raise self.refusal(address, answer)
        if not isinstance(answer, HelloAck):
            return answer
        self.was_attached = True
        for warning in answer.warnings:
            log.warning("warning from door %s: %s", address, warning, extra=_fields(address, reason=warning))
        return Session(wire, address, answer)

    async def _greet(self, wire: Wire, address: Address) -> HelloAck | NotLeader | ErrorMessage | None:
        await wire.send(fresh(self.kind, self.hello()))
        frame = await wire.receive()
        match frame.type:
            case Type.HELLO_ACK:
                return HelloAck.read(frame.payload)
            case Type.NOT_LEADER:
                message = NotLeader.read(frame.payload)
                fields = _fields(address, reason=message.reason, leader=message.leader)
                log.info("door %s is not the leader: %s", address, message.reason, extra=fields)
                return message
            case Type.ERROR:
                return ErrorMessage.read(frame.payload)
        log.error(
            "door %s answered Hello with unexpected frame type %#04x",
            address,
            frame.type,
            extra=_fields(address, type=int(frame.type)),
        )
        return None


def _fields(address: Address, **more: object) -> dict[str, object]:
    """Return the log fields. The message repeats them, because a client's log may show only messages."""
    return {"door": str(address), **more}


async def search(
    addresses: Addresses,
    call: Callable[[Address], Awaitable[T | NotLeader | ErrorMessage | None]],
    sleep: Callable[[float], Awaitable[None]],
) -> T:
    """Try all known doors in rounds, with a growing pause between rounds.

    Returns the first result of `call` that is neither a refusal nor None; None means that the door does not answer.
    After a connection has ended, a pause comes first (SAFE-17).
    """
    if addresses.was_attached:
        await sleep(addresses.delay())
    while True:
        pause = 0.0
        doors = addresses.round()
        while doors:
            answer = await call(doors.pop(0))
            if isinstance(answer, NotLeader):
                addresses.learn(answer.doors)
                leader = Address.find(answer.leader)
                if leader is not None and addresses.may_jump():
                    doors.insert(0, leader)
                else:
                    pause = max(pause, answer.retry_after_ms / 1_000)
            elif isinstance(answer, ErrorMessage):
                pause = max(pause, (answer.retry_after_ms or 0) / 1_000)
            elif answer is not None:
                return answer
        await sleep(max(addresses.delay(), min(pause, PAUSE_SECONDS_MAX)))
