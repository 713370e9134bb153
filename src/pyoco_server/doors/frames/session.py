"""One connection, from its first byte to its last (section 8)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar
from uuid import UUID, uuid4

from pyoco_server.core.frames.codec import NIL, Frame, FrameError, Type
from pyoco_server.core.frames.messages import HelloClient, HelloWorker
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.doors.frames.faults import PROTOCOL_ERRORS, ErrorCount, Leave, as_refusal, error_frame
from pyoco_server.doors.frames.guard import Guard, Visitor
from pyoco_server.doors.frames.redirects import Redirects
from pyoco_server.errors import PyocoError, Unavailable
from pyoco_server.frames.tasks import Tasks
from pyoco_server.frames.wire import Wire, WireClosed, fresh
from pyoco_server.logs import get_logger
from pyoco_server.loops.programs.meter import Meter
from pyoco_server.ports.door_records.port import DoorState

__all__ = ["ACCEPTED", "WORKS_MAX", "Begin", "ConnectionContext", "Peer", "Session"]

log = get_logger(__name__)

#: GRID-37: requests of one connection that are worked on at a time; then its socket is not read.
WORKS_MAX = 64

_HELLOS = frozenset({Type.HELLO_CLIENT, Type.HELLO_WORKER})
#: Section 8.1: what each role may send. Everything else gets BAD_STATE.
ACCEPTED: dict[str, frozenset[int]] = {
    "client": frozenset(
        {Type.HELLO_CLIENT, Type.SUBMIT_JOB, Type.CANCEL_JOB, Type.OBJECT_GET, Type.HEARTBEAT},
    ),
    "worker": frozenset({Type.CREDIT, Type.ACK_JOB, Type.OBJECT_PUT, Type.OBJECT_GET, Type.HEARTBEAT}),
}
_TYPES = frozenset(Type)
_DEFECT: GridRefused | None = GridRefused(Code.INTERNAL, "something went wrong here; the log says what")


class Peer(Protocol):
    """What a connection is to the door, once it has said Hello."""

    visitor: Visitor

    async def take(self, frame: Frame) -> None:
        """A frame of its role. Raises PyocoError, which is answered with an Error, and Leave."""

    async def review(self) -> None:
        """Every so often: what has changed since the Hello? Must not raise."""

    async def gone(self) -> None:
        """The connection has ended. Returns when nothing is left of it."""


class ConnectionContext(Protocol):
    """Where a connection comes in: a door, or a router."""

    @property
    def guard(self) -> Guard: ...

    @property
    def redirects(self) -> Redirects: ...

    @property
    def state(self) -> Callable[[], DoorState]: ...

    @property
    def tasks(self) -> Tasks: ...

    @property
    def meter(self) -> Meter: ...


P = TypeVar("P", bound=ConnectionContext)
#: What a connection becomes after its Hello, which it answers. Raises Leave, Unavailable.
Begin = Callable[["Session[P]", Visitor, HelloClient | HelloWorker, Frame], Awaitable[Peer]]


class Session(Generic[P]):
    """Reads one frame after the other; long work is done beside, at most 64 at a time. A tenth protocol error within
    a minute, a broken frame and a silent peer end it, and nobody else hears of it (GRID-195)."""

    def __init__(
        self,
        context: P,
        wire: Wire,
        begin: Begin[P],
        certificate_name: str | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.id = str(uuid4())
        self.context, self.wire, self._begin = context, wire, begin
        self._certificate_name = certificate_name
        self._errors = ErrorCount(clock)
        self.peer: Peer | None = None
        #: Ended with the connection.
        self.tasks = Tasks()
        self._works = 0
        #: Set when there may be room for more work, or the end has come.
        self._stirred = asyncio.Event()
        #: Nothing is held for it any more; its last words may still be on their way.
        self.over = asyncio.Event()

    @property
    def role(self) -> str:
        return self.peer.visitor.role if self.peer is not None else "new"

    async def run(self) -> None:
        """Returns when the connection is closed and nothing of it is left. Never raises but for a cancel."""
        reason, error, corr_id = "internal_error", _DEFECT, NIL
        try:
            while True:
                await self._one_frame()
        except WireClosed as closed:
            reason, error = closed.reason, closed.fault
        except Leave as leave:
            reason, error, corr_id = leave.reason, leave.error, leave.corr_id
        except Exception:  # the top of a connection: a defect of ours must not reach the others
            log.exception("a connection failed", peer=self.wire.peer)
        await self._end(reason, None if error is None else self._refused(error, corr_id))

    async def _one_frame(self) -> None:
        while self._works >= WORKS_MAX and self.wire.reason is None:
            self._stirred.clear()
            await self._stirred.wait()
        try:
            frame = await self.wire.receive()
        except FrameError as error:
            await self.refuse(error, error.msg_id)
            return
        try:
            if self.peer is None:
                await self._greet(frame)
            else:
                self._check_state(frame, ACCEPTED[self.peer.visitor.role])
                await self.peer.take(frame)
        except PyocoError as error:
            await self.refuse(error, frame.msg_id)
        except Leave as leave:
            leave.corr_id = frame.msg_id
            raise

    @staticmethod
    def _check_state(frame: Frame, accepted: frozenset[int]) -> None:
        if frame.type not in _TYPES:
            raise GridRefused(Code.UNKNOWN_TYPE, f"there is no frame of type 0x{frame.type:02x}")
        if frame.type not in accepted:
            raise GridRefused(Code.BAD_STATE, "a frame of this type does not belong here")

    # Hello.

    async def _greet(self, frame: Frame) -> None:
        if frame.type not in _HELLOS:
            raise Leave("bad_state", GridRefused(Code.BAD_STATE, "the first frame is a Hello"))
        kind = HelloClient if frame.type == Type.HELLO_CLIENT else HelloWorker
        try:
            hello = kind.read(frame.payload)
        except GridRefused as error:
            raise Leave("bad_hello", error) from None
        state = self.context.state()
        if state is not DoorState.SERVING:
            await self._send_elsewhere(state, frame.msg_id)
            return
        try:
            visitor = await self.admit(hello)
        except Unavailable:
            await self._send_elsewhere(DoorState.NO_QUORUM, frame.msg_id)
            return
        try:
            self.peer = await self._begin(self, visitor, hello, frame)
        except Unavailable:
            await self._send_elsewhere(DoorState.NO_QUORUM, frame.msg_id)

    async def admit(self, hello: HelloClient | HelloWorker) -> Visitor:
        """Raises Leave for who may not come in, and Unavailable."""
        guard = self.context.guard
        try:
            if isinstance(hello, HelloClient):
                return await guard.admit("client", hello.client_id, hello.token, self._certificate_name)
            return await guard.admit("worker", hello.worker_id, hello.token, self._certificate_name)
        except GridRefused as error:
            raise Leave("auth_failed", error) from None

    async def admit_again(self, frame: Frame, visitor: Visitor) -> tuple[HelloClient, Visitor]:
        """Another Hello of the same client, which may say another cap. Raises GridRefused, Leave, Unavailable."""
        hello = HelloClient.read(frame.payload)
        if hello.client_id != visitor.id:
            raise GridRefused(Code.BAD_STATE, "this connection belongs to another client")
        return hello, await self.admit(hello)

    async def _send_elsewhere(self, state: DoorState, corr_id: UUID) -> None:
        """GRID-42. Who has nowhere to go may say Hello again on this connection, unless the door closes."""
        await self.wire.send(self.not_leader(state, corr_id))
        if state is DoorState.DRAINING:
            raise Leave("draining")

    def not_leader(self, state: DoorState, corr_id: UUID = NIL) -> Frame:
        return fresh(Type.NOT_LEADER, self.context.redirects.not_leader(state).to_payload(), corr_id=corr_id)

    # Work beside the reading.

    def work(self, frame: Frame, job: Callable[[Frame], Awaitable[None]]) -> None:
        """Do it beside: `job(frame)` is awaited, and what it raises is answered. Goes on when the peer has gone: a
        submission that is cut off would leave a run that nobody knows of."""
        self._works += 1
        self.context.tasks.spawn(self._worked(frame, job))

    async def _worked(self, frame: Frame, job: Callable[[Frame], Awaitable[None]]) -> None:
        try:
            await job(frame)
        except PyocoError as error:
            await self.refuse(error, frame.msg_id)
        finally:
            self._works -= 1
            self._stirred.set()

    async def refuse(self, error: PyocoError, corr_id: UUID) -> None:
        """Answer with an Error. The tenth protocol error in a minute is the last one (GRID-35). Raises WireClosed."""
        refusal = as_refusal(error)
        frame = self._refused(refusal, corr_id)
        if refusal.code in PROTOCOL_ERRORS and self._errors.add():
            await self.leave("too_many_errors", frame)
            return
        await self.wire.send(frame)

    def _refused(self, error: GridRefused, corr_id: UUID) -> Frame:
        self.context.meter.error(error.code)
        return error_frame(error, corr_id)

    # The end.

    async def leave(self, reason: str, last: Frame | None = None) -> None:
        """Close it from outside, or from work beside. `run` does the rest."""
        closing = asyncio.create_task(self.wire.close(reason, last))
        self._stirred.set()
        await asyncio.wait({closing})

    async def _end(self, reason: str, last: Frame | None) -> None:
        self._stirred.set()
        wire, peer = self.wire, self.peer
        log.info(
            "a connection ended",
            peer=wire.peer,
            role=self.role,
            id=peer.visitor.id if peer is not None else None,
            reason=wire.reason or reason,
            bytes_read=wire.bytes_read,
            frames_read=wire.frames_read,
        )
        # The last words may take a while; what this connection held is wanted elsewhere now.
        leaving = asyncio.create_task(wire.close(reason, last))
        try:
            if peer is not None:
                await peer.gone()
        except Exception:  # as above: whoever waits for the end of this connection must not wait for ever
            log.exception("the end of a connection failed", peer=wire.peer)
        await self.tasks.end()
        self.over.set()
        await asyncio.wait({leaving})
