"""A door: the connections of this process, and the loops that serve them (sections 8 to 13).

It keeps connections, credits and timers. All other state is in JetStream: a door may be killed at any moment without
losing a job or a result (GRID-40).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine

from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.measure import ProgramFigures
from pyoco_server.core.frames.codec import Frame
from pyoco_server.core.frames.messages import HelloClient, HelloWorker
from pyoco_server.core.run import Run
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.doors.frames.client_session import ClientPeer
from pyoco_server.doors.frames.context import DoorContext
from pyoco_server.doors.frames.counting import count_end
from pyoco_server.doors.frames.credits import WorkerCredits
from pyoco_server.doors.frames.end_waiters import EndWaiters
from pyoco_server.doors.frames.guard import Guard, Visitor
from pyoco_server.doors.frames.records import Records
from pyoco_server.doors.frames.redirects import Redirects
from pyoco_server.doors.frames.session import Peer, Session
from pyoco_server.doors.frames.settings import DoorOptions
from pyoco_server.doors.frames.worker_session import WorkerPeer
from pyoco_server.errors import Unavailable
from pyoco_server.frames.wire import Wire
from pyoco_server.logs import get_logger
from pyoco_server.loops.log_sender import LogSender
from pyoco_server.loops.loop import Loop
from pyoco_server.loops.programs.client_slots import ClientSlots
from pyoco_server.loops.programs.dispatcher import Dispatcher
from pyoco_server.loops.programs.in_flight import InFlight
from pyoco_server.loops.programs.in_flight_events import AttemptLost, CancelRequested, InFlightEvent, QuorumChanged
from pyoco_server.loops.programs.meter import Gauges, ProgramMeter
from pyoco_server.loops.programs.unoffered import UnofferedJobs
from pyoco_server.ports.backend import DoorBackend
from pyoco_server.ports.door_records.port import DoorRecord, DoorState
from pyoco_server.ports.wakeups.port import Listening, Wakeup

__all__ = ["Door"]

log = get_logger(__name__)

#: The delay until the connections of a revoked key are closed, and a change of the ACL applies (GRID-167, GRID-168).
_REVIEW_SECONDS = 2.0
#: Time for tasks in progress to end when a door stops.
_SETTLE_SECONDS = 5.0
#: Time limit for the last write of the door's record.
_LAST_WRITE_SECONDS = 2.0


class Door:
    """A door. Call `start`, then `serve` for each connection, then optionally `drain`, then `stop`."""

    def __init__(
        self,
        backend: DoorBackend,
        options: DoorOptions,
        *,
        sweeper: Loop | None = None,
        lines: LogSender | None = None,
    ) -> None:
        """`lines` stores what the programs of workers print. None: that is not taken."""
        assert backend.programs is not None, "a door deals with programs"
        programs = backend.programs
        self._backend, self._programs, self._options = backend, programs, options
        self._group = programs.config.exec_group
        self._is_standby, self._is_draining = options.is_standby, False
        self._started_at = backend.clock()
        self.sessions: set[Session[DoorContext]] = set()
        self.meter = ProgramMeter(self._group)
        self._emptied = asyncio.Event()
        self._listening: Listening | None = None
        self._reader: asyncio.Task[None] | None = None
        guard = Guard(backend, programs, self._group)
        worker_credits = WorkerCredits(guard.may_run)
        slots = ClientSlots(backend, options.door_id)
        self._in_flight = InFlight(backend, slots, self.meter)
        self._dispatcher = Dispatcher(backend, worker_credits, self._in_flight, slots)
        redirects = Redirects(
            programs.doors,
            group=self._group,
            door_id=options.door_id,
            own=options.address,
            peers=options.peers,
            is_up=backend.is_up,
        )
        self._records = Records(programs.doors, backend.registry, self.describe, self._workers)
        self._context = DoorContext(
            backend=backend,
            programs=programs,
            group=self._group,
            door_id=options.door_id,
            guard=guard,
            redirects=redirects,
            worker_credits=worker_credits,
            in_flight=self._in_flight,
            end_waiters=EndWaiters(backend.runs),
            state=lambda: self.state,
            nudge=self._dispatcher.nudge,
            announce=self._records.nudge,
            meter=self.meter,
            lines=lines,
        )
        self._review = _Review(self._review_all)
        unoffered = UnofferedJobs(backend, worker_credits, slots.queues, on_end=self._ended_unoffered)
        self._loops: list[Loop] = [self._records, self._context.end_waiters, self._review, unoffered]
        if sweeper is not None:
            self._loops.append(sweeper)

    @property
    def context(self) -> DoorContext:
        return self._context

    @property
    def state(self) -> DoorState:
        if self._is_draining:
            return DoorState.DRAINING
        if self._is_standby:
            return DoorState.STANDBY
        return DoorState.SERVING if self._in_flight.is_quorate else DoorState.NO_QUORUM

    def describe(self) -> DoorRecord:
        return DoorRecord(
            door_id=self._options.door_id,
            addr=self._options.address,
            group=self._group,
            state=self.state,
            started_at=self._started_at,
            connections=len(self.sessions),
        )

    def _workers(self) -> list[WorkerRecord]:
        now = self._backend.clock()
        return [peer.describe(now) for peer in self._worker_peers()]

    def figures(self) -> ProgramFigures:
        """Return what its metrics show."""
        peers, worker_credits = self._worker_peers(), self._context.worker_credits
        gauges = Gauges(
            connections=Counter(session.role for session in self.sessions),
            credits={each.worker_id: worker_credits.credits(each) for each in peers},
            cpu={each.worker_id: each.cpu for each in peers if each.cpu is not None},
            inflight=Counter(attempt.job.exec_name for attempt in self._in_flight.all()),
        )
        return self.meter.figures(gauges)

    def _worker_peers(self) -> list[WorkerPeer]:
        return list(self._context.workers.values())

    # Lifecycle.

    async def start(self) -> None:
        """Start, and return once the door can serve. Raises Unavailable."""
        self._listening = await self._programs.wakeups.listen(self._group, self._on_wakeup)
        self._reader = self._reader or asyncio.create_task(self._in_flight.events.read(self._take_event))
        await self._in_flight.start()
        if not self._is_standby:
            await self._dispatcher.start()
        for loop in self._loops:
            await loop.start()

    async def promote(self) -> None:
        """Make a standby serve (GRID-43). Idempotent."""
        if self._is_standby and not self._is_draining:
            self._is_standby = False
            await self._dispatcher.start()
            self._records.nudge()
            log.info("standby promoted", door_id=self._options.door_id)

    async def serve(self, wire: Wire, certificate_name: str | None = None) -> None:
        """Serve one connection to its end. Never raises."""
        session = Session(self._context, wire, _begin, certificate_name)
        self.sessions.add(session)
        try:
            await session.run()
        finally:
            self.sessions.discard(session)
            if not self.sessions:
                self._emptied.set()
            if isinstance(session.peer, WorkerPeer):
                now = self._backend.clock()
                reason = wire.reason or "internal_error"
                self._context.tasks.spawn(self._records.retire(session.peer.describe(now), reason, now))

    async def drain(self) -> None:
        """Stop claiming, redirect all peers, and wait until they have disconnected (GRID-41).

        The caller stops accepting connections before, and calls `stop` after.
        """
        self._is_draining = True
        self._context.worker_credits.close()
        await _briefly(self._records.announce_door())
        await self._dispatcher.stop()
        log.info("door draining", door_id=self._options.door_id, connections=len(self.sessions))
        for session in list(self.sessions):
            self._context.tasks.spawn(self._redirect(session))
        try:
            async with asyncio.timeout(self._programs.config.exec_drain_sec):
                while self.sessions:
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            log.info("drain time is over; connections remain", connections=len(self.sessions))

    async def _redirect(self, session: Session[DoorContext]) -> None:
        if isinstance(session.peer, WorkerPeer):
            await session.peer.drain()
        await session.wire.send(session.not_leader(DoorState.DRAINING))

    async def stop(self) -> None:
        """Close all connections and end.

        Running programs continue: their workers attach them at another door (section 9.4).
        """
        self._is_draining = True
        self._context.worker_credits.close()
        await self._dispatcher.stop()
        for session in list(self.sessions):
            if isinstance(session.peer, WorkerPeer):
                session.peer.lets_go = True
        leaving = [session.leave("draining") for session in list(self.sessions)]
        await asyncio.gather(*leaving, *(session.over.wait() for session in list(self.sessions)))
        await self._context.tasks.settle(_SETTLE_SECONDS)
        # A sweep may take minutes and is not waited for: it may be interrupted anywhere.
        stopping = [asyncio.create_task(loop.stop()) for loop in self._loops]
        await asyncio.wait(stopping, timeout=_SETTLE_SECONDS)
        if self._listening is not None:
            await self._listening.close()
        await self._in_flight.stop()
        if self._reader is not None:
            await self._reader
            self._reader = None
        await _briefly(self._records.remove_door(self._options.door_id))

    # Notifications.

    def _on_wakeup(self, wakeup: Wakeup, run_id: str) -> None:
        # The end of an attempt in flight here is reported directly in a moment, without a read.
        if wakeup is Wakeup.DONE and self._in_flight.get(run_id) is None:
            self._context.end_waiters.doubt(run_id)

    def _ended_unoffered(self, run: Run) -> None:
        count_end(self.meter, run)
        self._context.end_waiters.ended(run)

    def _take_event(self, event: InFlightEvent) -> None:
        match event:
            case CancelRequested(attempt):
                peer = self._context.assigned.get(attempt.run.run_id)
                if peer is not None:
                    peer.stop_attempt(attempt)
            case AttemptLost(attempt):
                self._forget(attempt)
            case QuorumChanged():
                log.info("door state changed", door_id=self._options.door_id, state=self.state)
                self._records.nudge()

    def _forget(self, attempt: ProgramAttempt) -> None:
        """Forget an attempt that another process owns by now, or that has ended elsewhere.

        If its worker still runs it, its next heartbeat attaches it again or stops it as superseded.
        """
        peer = self._context.assigned.get(attempt.run.run_id)
        if peer is not None:
            peer.lose(attempt)
        self._context.end_waiters.doubt(attempt.run.run_id)

    # Periodic review.

    async def _review_all(self) -> None:
        for session in list(self.sessions):
            peer = session.peer
            if peer is None:
                continue
            try:
                welcome = await self._context.guard.still_welcome(peer.visitor)
            except Unavailable:  # unknown: the next review checks again
                continue
            if not welcome:
                self._context.tasks.spawn(session.leave("key_revoked"))
            else:
                await peer.review()


async def _briefly(work: Coroutine[None, None, None]) -> None:
    """Await with a time limit, since NATS may be unavailable and the peers of the door wait.

    A stale record soon expires.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LAST_WRITE_SECONDS):
            await work


async def _begin(
    session: Session[DoorContext], visitor: Visitor, hello: HelloClient | HelloWorker, frame: Frame
) -> Peer:
    if isinstance(hello, HelloClient):
        return await ClientPeer.begin(session, visitor, hello, frame)
    return await WorkerPeer.begin(session, visitor, hello, frame)


class _Review(Loop):
    def __init__(self, review: Callable[[], Awaitable[None]]) -> None:
        super().__init__(every_seconds=_REVIEW_SECONDS)
        self._look = review

    async def turn(self) -> None:
        await self._look()
