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
from pyoco_server.frames.tasks import TaskSet
from pyoco_server.frames.wire import Wire, WireClosed, fresh
from pyoco_server.logs import get_logger
from pyoco_server.loops.programs.meter import ProgramMeter
from pyoco_server.ports.door_records.port import DoorState

__all__ = ["ACCEPTED", "WORKS_MAX", "Begin", "ConnectionContext", "Peer", "Session", "unknown_type"]

log = get_logger(__name__)

#: GRID-37: limit of requests of one connection in progress; at the limit its socket is not read.
WORKS_MAX = 64

_HELLOS = frozenset({Type.HELLO_CLIENT, Type.HELLO_WORKER})
#: Section 8.1: the frames that each role may send. All others get BAD_STATE.
ACCEPTED: dict[str, frozenset[int]] = {
    "client": frozenset(
        {Type.HELLO_CLIENT, Type.SUBMIT_JOB, Type.CANCEL_JOB, Type.OBJECT_GET, Type.HEARTBEAT},
    ),
    "worker": frozenset(
        {Type.CREDIT, Type.ACK_JOB, Type.OBJECT_PUT, Type.OBJECT_GET, Type.LOG_CHUNK, Type.HEARTBEAT},
    ),
}
#: The types that exist without any capability.
_BASIC_TYPES = frozenset(Type) - {Type.LOG_CHUNK, Type.LOG_CREDIT}
_DEFECT: GridRefused | None = GridRefused(Code.INTERNAL, "something went wrong here; the log says what")


def unknown_type(frame: Frame) -> GridRefused:
    return GridRefused(Code.UNKNOWN_TYPE, f"there is no frame of type 0x{frame.type:02x}")


class Peer(Protocol):
    """The role of a connection after its Hello."""

    visitor: Visitor

    async def take(self, frame: Frame) -> None:
        """Process a frame. Raises Leave, and PyocoError, which is answered with an Error."""

    async def review(self) -> None:
        """Apply changes since the Hello. Called periodically. Must not raise."""

    async def gone(self) -> None:
        """Clean up after the connection has ended, and return when that is done."""


class ConnectionContext(Protocol):
    """The owner of a connection: a door, or a router."""

    @property
    def guard(self) -> Guard: ...

    @property
    def redirects(self) -> Redirects: ...

    @property
    def state(self) -> Callable[[], DoorState]: ...

    @property
    def tasks(self) -> TaskSet: ...

    @property
    def meter(self) -> ProgramMeter: ...


P = TypeVar("P", bound=ConnectionContext)
#: Creates the peer after a Hello, and answers the Hello. Raises Leave, Unavailable.
Begin = Callable[["Session[P]", Visitor, HelloClient | HelloWorker, Frame], Awaitable[Peer]]


class Session(Generic[P]):
    """Reads one frame after the other; long requests run in tasks, at most 64 at a time.

    The tenth protocol error within a minute, a broken frame or a peer that stops sending end the connection, without
    effect on other connections (GRID-195).
    """

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
        #: Cancelled when the connection ends.
        self.tasks = TaskSet()
        self._works = 0
        #: Set when a request has ended, or the connection ends.
        self._work_changed = asyncio.Event()
        #: Nothing is held for the connection any more; its last frames may still be being sent.
        self.over = asyncio.Event()

    @property
    def role(self) -> str:
        return self.peer.visitor.role if self.peer is not None else "new"

    async def run(self) -> None:
        """Serve the connection. Returns when it is closed and cleaned up. Raises only CancelledError."""
        reason, error, corr_id = "internal_error", _DEFECT, NIL
        try:
            while True:
                await self._one_frame()
        except WireClosed as closed:
            reason, error = closed.reason, closed.fault
        except Leave as leave:
            reason, error, corr_id = leave.reason, leave.error, leave.corr_id
        except Exception:  # the top of a connection: an unexpected exception must not affect the others
            log.exception("connection failed", peer=self.wire.peer)
        await self._end(reason, None if error is None else self._refused(error, corr_id))

    async def _one_frame(self) -> None:
        while self._works >= WORKS_MAX and self.wire.reason is None:
            self._work_changed.clear()
            await self._work_changed.wait()
        try:
            frame = await self.wire.receive()
        except FrameError as error:
            await self.refuse(error, error.msg_id)
            return
        try:
            if self.peer is None:
                await self._handle_hello(frame)
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
        if frame.type in accepted:
            return
        if frame.type not in _BASIC_TYPES:
            raise unknown_type(frame)
        raise GridRefused(Code.BAD_STATE, "a frame of this type does not belong here")

    # Hello.

    async def _handle_hello(self, frame: Frame) -> None:
        if frame.type not in _HELLOS:
            raise Leave("bad_state", GridRefused(Code.BAD_STATE, "the first frame is a Hello"))
        kind = HelloClient if frame.type == Type.HELLO_CLIENT else HelloWorker
        try:
            hello = kind.read(frame.payload)
        except GridRefused as error:
            raise Leave("bad_hello", error) from None
        state = self.context.state()
        if state is not DoorState.SERVING:
            await self._redirect(state, frame.msg_id)
            return
        try:
            visitor = await self.admit(hello)
        except Unavailable:
            await self._redirect(DoorState.NO_QUORUM, frame.msg_id)
            return
        try:
            self.peer = await self._begin(self, visitor, hello, frame)
        except Unavailable:
            await self._redirect(DoorState.NO_QUORUM, frame.msg_id)

    async def admit(self, hello: HelloClient | HelloWorker) -> Visitor:
        """Authenticate a Hello. Raises Leave for a peer that may not connect, and Unavailable."""
        guard = self.context.guard
        try:
            if isinstance(hello, HelloClient):
                return await guard.admit("client", hello.client_id, hello.token, self._certificate_name)
            return await guard.admit("worker", hello.worker_id, hello.token, self._certificate_name)
        except GridRefused as error:
            raise Leave("auth_failed", error) from None

    async def admit_again(self, frame: Frame, visitor: Visitor) -> tuple[HelloClient, Visitor]:
        """Process another Hello of this client, which may change its cap. Raises GridRefused, Leave, Unavailable."""
        hello = HelloClient.read(frame.payload)
        if hello.client_id != visitor.id:
            raise GridRefused(Code.BAD_STATE, "this connection belongs to another client")
        return hello, await self.admit(hello)

    async def _redirect(self, state: DoorState, corr_id: UUID) -> None:
        """Redirect a peer (GRID-42).

        If there is no other door, it may repeat its Hello on this connection, unless this one drains.
        """
        await self.wire.send(self.not_leader(state, corr_id))
        if state is DoorState.DRAINING:
            raise Leave("draining")

    def not_leader(self, state: DoorState, corr_id: UUID = NIL) -> Frame:
        return fresh(Type.NOT_LEADER, self.context.redirects.not_leader(state).to_payload(), corr_id=corr_id)

    # Requests in tasks.

    def work(self, frame: Frame, job: Callable[[Frame], Awaitable[None]]) -> None:
        """Run `job(frame)` in a task, and answer what it raises with an Error.

        Continues after the peer has disconnected: an interrupted submission would leave an unacknowledged
        run behind.
        """
        self._works += 1
        self.context.tasks.spawn(self._run_work(frame, job))

    async def _run_work(self, frame: Frame, job: Callable[[Frame], Awaitable[None]]) -> None:
        try:
            await job(frame)
        except PyocoError as error:
            await self.refuse(error, frame.msg_id)
        finally:
            self._works -= 1
            self._work_changed.set()

    async def refuse(self, error: PyocoError, corr_id: UUID) -> None:
        """Answer with an Error.

        The tenth protocol error within a minute closes the connection (GRID-35). Raises WireClosed.
        """
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
        """Close the connection from another task. `run` cleans up."""
        closing = asyncio.create_task(self.wire.close(reason, last))
        self._work_changed.set()
        await asyncio.wait({closing})

    async def _end(self, reason: str, last: Frame | None) -> None:
        self._work_changed.set()
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
        # The last frames may take a while to send; release what this connection held without waiting for that.
        leaving = asyncio.create_task(wire.close(reason, last))
        try:
            if peer is not None:
                await peer.gone()
        except Exception:  # as above: tasks that wait for the end of this connection must not wait forever
            log.exception("cleanup of a connection failed", peer=wire.peer)
        await self.tasks.end()
        self.over.set()
        await asyncio.wait({leaving})
