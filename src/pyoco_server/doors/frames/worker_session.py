"""The door's side of a worker connection: sends jobs, receives signs of life and results (sections 12.1, 13 and 15)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self
from uuid import UUID

from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.put_back import Why
from pyoco_server.actions.programs.reattach import reattach
from pyoco_server.core.frames.codec import Frame, Type
from pyoco_server.core.frames.hello import PROGRAMS_MAX
from pyoco_server.core.frames.messages import (
    LOG_CREDITS,
    LOGS,
    CancelJob,
    CreditGrant,
    Heartbeat,
    HelloAck,
    HelloWorker,
)
from pyoco_server.core.frames.subjects import assign_subject, can_match_assign, matches
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.names import run_id_of, tenant_token
from pyoco_server.core.programs.offers import has_program
from pyoco_server.core.programs.record import CANCEL_GRACE_SECONDS
from pyoco_server.core.run import Run
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.doors.frames.acks import Acks
from pyoco_server.doors.frames.assigning import Assigning
from pyoco_server.doors.frames.faults import error_frame
from pyoco_server.doors.frames.guard import Visitor
from pyoco_server.doors.frames.log_chunks import LogChunks
from pyoco_server.doors.frames.receiving import Receiving
from pyoco_server.doors.frames.submits import LARGE_BYTES
from pyoco_server.errors import PyocoError
from pyoco_server.frames.wire import WireClosed, fresh
from pyoco_server.logs import get_logger
from pyoco_server.loops.programs.dispatcher import WorkerLost
from pyoco_server.loops.programs.shelf import ANNOUNCED_MAX
from pyoco_server.ports.door_records.port import DoorState

if TYPE_CHECKING:
    from pyoco_server.doors.frames.context import DoorContext
    from pyoco_server.doors.frames.session import Session

__all__ = ["WorkerPeer"]

log = get_logger(__name__)

#: Concurrent record reads for attempts of another door.
_ATTACHING_AT_ONCE = 16
#: Limit of waiting reattachments of one connection: a worker with the maximum of credits has no more attempts.
_ATTACHING_MAX = 10_000
#: Time limit for tasks in progress when the connection ends.
_GONE_SECONDS = 10.0


class WorkerPeer:
    """A connected worker, with the attempts that were assigned or reattached on this connection.

    They stay its own until they end, are put back, or the connection ends: then they go back to the queue (GRID-81).
    """

    def __init__(self, session: Session[DoorContext], visitor: Visitor, hello: HelloWorker) -> None:
        self.visitor, self.session, self._context = visitor, session, session.context
        self.patterns, self.max_parallel, self.agent = hello.patterns, hello.max_parallel, hello.agent
        #: Announced programs (None: not announced), and those it has since reported as missing.
        self._programs = None if hello.programs is None else frozenset(hello.programs)
        self._allow = hello.allow
        self._lacks: set[str] = set()
        self.cpu: float | None = None
        self.attempts: dict[str, ProgramAttempt] = {}
        self.is_open = True
        #: The door itself stops: running attempts stay with the worker, which attaches them elsewhere (section 9.4).
        self.lets_go = False
        self._attaching: dict[str, asyncio.Task[None]] = {}
        self._attach_gate = asyncio.Semaphore(_ATTACHING_AT_ONCE)
        self._assigning = Assigning(self)
        self._acks = Acks(self)
        self._receiving = Receiving(self)
        self._log_chunks = LogChunks(self, self._context.lines if LOGS in hello.capabilities else None)

    @property
    def worker_id(self) -> str:
        return self.visitor.id

    @property
    def context(self) -> DoorContext:
        return self._context

    @classmethod
    async def begin(cls, session: Session[DoorContext], visitor: Visitor, hello: HelloWorker, frame: Frame) -> Self:
        """Process the Hello. An older connection of the same worker is closed first.

        The attempts of that connection are put back, so that they can be attached here (GRID-39).
        """
        context = session.context
        while (older := context.workers.get(hello.worker_id)) is not None:
            context.tasks.spawn(older.session.leave("worker_replaced", _replaced(hello.worker_id)))
            await older.session.over.wait()
        peer = context.workers[hello.worker_id] = cls(session, visitor, hello)
        takes_logs = context.lines is not None and LOGS in hello.capabilities
        ack = HelloAck(
            door_id=context.door_id,
            group=context.group,
            session=session.id,
            doors=tuple(context.redirects.all()),
            warnings=tuple(
                f"pattern {number} can match no job"
                for number, each in enumerate(hello.patterns, 1)
                if not can_match_assign(each)
            ),
            heartbeat_sec=context.programs.config.exec_heartbeat_sec,
            capabilities=(LOGS,) if takes_logs else (),
            log_credits=LOG_CREDITS if takes_logs else 0,
        )
        try:
            await session.wire.send(fresh(Type.HELLO_ACK, ack.to_payload(), corr_id=frame.msg_id))
        except WireClosed:
            del context.workers[hello.worker_id]
            raise
        context.worker_credits.add(peer)
        context.announce()
        return peer

    async def take(self, frame: Frame) -> None:
        match frame.type:
            case Type.CREDIT:
                self._context.worker_credits.add_credits(self, CreditGrant.read(frame.payload).count)
                self._context.nudge()
            case Type.HEARTBEAT:
                await self._handle_heartbeat(frame.payload)
            case Type.ACK_JOB:
                await self._acks.take(frame)
            case Type.OBJECT_PUT:
                await self._receiving.take(frame)
            case Type.OBJECT_GET:
                self.session.work(frame, self._assigning.send_input)
            case Type.LOG_CHUNK:
                self._log_chunks.take(frame)

    # Assigning.

    def takes(self, exec_name: str) -> bool:
        subject = assign_subject(exec_name)
        return any(matches(pattern, subject) for pattern in self.patterns)

    def accepts(self, exec_name: str) -> bool:
        return self.takes(exec_name) and has_program(exec_name, self._programs, self._lacks)

    def may_handle(self, tenant: str | None) -> bool:
        return self._context.guard.may_handle(self.visitor, tenant)

    def may_have(self, run: Run) -> bool:
        """Return whether the worker may run this job (SAFE-4). If not, the run is treated as an unknown one."""
        return self.may_handle(None if run.tenant_id is None else tenant_token(run.tenant_id))

    def miss(self, exec_name: str) -> None:
        """Note that the worker has reported that it cannot run this program.

        It gets no more jobs of it until it announces other programs or reconnects.
        """
        if exec_name not in self._lacks and len(self._lacks) < PROGRAMS_MAX:
            self._lacks.add(exec_name)
            self._offer_changed()

    def _update_programs(self, programs: tuple[str, ...] | None) -> None:
        if programs is not None and frozenset(programs) != self._programs:
            self._programs = frozenset(programs)
            self._lacks.clear()
            self._offer_changed()

    def _offer_changed(self) -> None:
        self._context.worker_credits.changed()
        self._context.announce()
        self._context.nudge()

    async def hand_over(self, attempt: ProgramAttempt) -> None:
        """Raises WorkerLost."""
        if not self.is_open:
            raise WorkerLost
        self.own(attempt)
        self._assigning.start(attempt)

    def own(self, attempt: ProgramAttempt) -> None:
        self.attempts[attempt.run.run_id] = attempt
        self._context.assigned[attempt.run.run_id] = self

    def lose(self, attempt: ProgramAttempt) -> None:
        """Forget an attempt that this worker no longer owns."""
        self.forget(attempt)
        self._log_chunks.lost(attempt)

    def forget(self, attempt: ProgramAttempt) -> None:
        """Forget an attempt that is over on this connection. Idempotent."""
        run_id = attempt.run.run_id
        if self.attempts.get(run_id) is attempt:
            self._log_chunks.ended(attempt)
            del self.attempts[run_id]
            self._assigning.forget(run_id)
            if self._context.assigned.get(run_id) is self:
                del self._context.assigned[run_id]

    def stop_attempt(self, attempt: ProgramAttempt) -> None:
        """Send a cancel request to the worker."""
        self._context.tasks.spawn(self._send_cancel(attempt))

    async def _send_cancel(self, attempt: ProgramAttempt) -> None:
        await self._assigning.sent(attempt.run.run_id)
        given = attempt.run.cancel_grace_seconds
        # Not sent if it is that of every program: workers of earlier versions do not know it.
        grace = given if given is not None and given < CANCEL_GRACE_SECONDS else None
        await self.cancel(attempt.job.job_id, attempt.attempt_id, "cancelled", grace)

    async def cancel(self, job_id: str, token: str, reason: str, grace_seconds: float | None = None) -> None:
        ask = CancelJob(job_id=job_id, reason=reason, token=token, grace_seconds=grace_seconds)
        await self.session.wire.send(fresh(Type.CANCEL_JOB, ask.to_payload(), corr_id=UUID(job_id)))

    # Signs of life.

    async def _handle_heartbeat(self, payload: bytes) -> None:
        """Process a heartbeat. Raises GridRefused.

        A long list takes a fraction of a second to parse, so that is done in a thread and does not block other
        connections.
        """
        in_flight, group = self._context.in_flight, self._context.group
        if len(payload) > LARGE_BYTES:
            beat, run_ids = await asyncio.to_thread(_read_beat, payload, group)
        else:
            beat, run_ids = _read_beat(payload, group)
        self.cpu = beat.cpu
        self._update_programs(beat.programs)
        for run_id, each in zip(run_ids, beat.running, strict=True):
            if not in_flight.seen(run_id, each.token) and self._may_attach(run_id):
                self._attach(run_id, each.job_id, each.token)
        self._acks.hear_beat()

    def _may_attach(self, run_id: str) -> bool:
        """Return whether to reattach now.

        Attempts beyond the limit wait for a later heartbeat: a list may be forged and endless.
        """
        return run_id not in self._attaching and len(self._attaching) < _ATTACHING_MAX

    def _attach(self, run_id: str, job_id: str, token: str) -> None:
        """Start to reattach an attempt (GRID-110). Not while draining: another door will do it."""
        if self._context.state() is DoorState.DRAINING or not self.is_open:
            return
        task = self._attaching[run_id] = self._context.tasks.spawn(self._attach_now(run_id, job_id, token))
        task.add_done_callback(lambda _: self._attaching.pop(run_id, None))

    async def _attach_now(self, run_id: str, job_id: str, token: str) -> None:
        context = self._context
        async with self._attach_gate:
            if not self.is_open or context.in_flight.seen(run_id, token):
                return
            try:
                attempt = await reattach(
                    context.backend,
                    run_id,
                    token,
                    worker_id=self.worker_id,
                    holder=context.door_id,
                    may_have=self.may_have,
                )
            except PyocoError as error:  # the next heartbeat tries again
                log.warning("could not attach an attempt yet", run_id=run_id, job_id=job_id, why=str(error))
                return
        if attempt is None:
            log.info("attempt superseded", run_id=run_id, job_id=job_id, worker_id=self.worker_id)
            await self.cancel(job_id, token, "superseded")
            return
        context.in_flight.add(attempt)
        if self._has_left():
            await context.in_flight.put_back(attempt, Why.WORKER_DOWN)
            return
        self.own(attempt)
        log.info("attempt reattached", run_id=run_id, job_id=job_id, worker_id=self.worker_id)

    def _has_left(self) -> bool:
        return not self.is_open

    async def attached(self, run_id: str) -> None:
        """Wait for a reattachment of this run, if one is in progress."""
        task = self._attaching.get(run_id)
        if task is not None:
            await asyncio.wait({task})

    # Periodic review, and the end.

    def describe(self, now: float) -> WorkerRecord:
        """Return the worker's record (GRID-115)."""
        running = tuple(sorted(self.attempts))
        return WorkerRecord(
            worker_id=self.worker_id,
            instance_id=self.session.id,
            state=WorkerState.RUNNING if running else WorkerState.IDLE,
            tags=("exec",),
            last_seen_at=now,
            last_heartbeat_at=now,
            current_run_id=running[0] if running else None,
            slots=self.max_parallel or max(1, len(running)),
            running=running,
            kind="exec-tcp",
            patterns=self.patterns,
            credits=self._context.worker_credits.credits(self),
            max_parallel=self.max_parallel,
            door_id=self._context.door_id,
            group=self._context.group,
            cpu=self.cpu,
            programs=self._listed_programs(),
            lacks=tuple(sorted(self._lacks)[:ANNOUNCED_MAX]) or None,
            allow=self._allow,
            tenants=self._context.guard.tenants_of(self.visitor),
            logs=self._log_chunks.totals.document(),
        )

    def _listed_programs(self) -> tuple[str, ...] | None:
        if self._programs is None or len(self._programs) > ANNOUNCED_MAX:
            return None
        return tuple(sorted(self._programs))

    async def review(self) -> None:
        """Forget attempts that are over, and drop stalled uploads."""
        for attempt in [each for each in self.attempts.values() if each.closed]:
            self.forget(attempt)
        self._receiving.drop_silent()

    async def drain(self) -> None:
        """Release the jobs that were claimed and not sent yet (GRID-41)."""
        await self._assigning.release_unsent()

    async def gone(self) -> None:
        self.is_open = False
        context = self._context
        context.worker_credits.remove(self)
        try:
            self._receiving.close()
            if self._attaching:
                await asyncio.wait(set(self._attaching.values()), timeout=_GONE_SECONDS)
            await self._assigning.end()
            await self.put_back_all()
        finally:
            if context.workers.get(self.worker_id) is self:
                del context.workers[self.worker_id]

    async def put_back_all(self) -> None:
        """Put back all attempts, except those whose result has been received and only has to be recorded."""
        lost = [each for each in self.attempts.values() if not self._acks.is_in_work(each)]
        for attempt in lost:
            self.forget(attempt)
        if self.lets_go or not lost:
            return
        log.info("worker disconnected; putting its jobs back", worker_id=self.worker_id, jobs=len(lost))
        in_flight = self._context.in_flight
        await asyncio.gather(*(in_flight.put_back(attempt, Why.WORKER_DOWN) for attempt in lost))


def _read_beat(payload: bytes, group: str) -> tuple[Heartbeat, list[str]]:
    """Parse a heartbeat. Returns it with the run id of each listed job."""
    beat = Heartbeat.read(payload)
    return beat, [run_id_of(each.job_id, group) for each in beat.running]


def _replaced(worker_id: str) -> Frame:
    """Build the Error that tells a worker why its connection is closed, and how long to wait (SAFE-17).

    Two workers with the same id would otherwise replace each other continuously.
    """
    text = f"another connection of worker {worker_id} has taken its place; each worker needs an id of its own"
    return error_frame(GridRefused(Code.TOO_MANY_CONNECTIONS, text))
