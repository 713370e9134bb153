"""The door's side of a client connection: receives jobs, sends results (sections 9, 10 and 12.3)."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from uuid import UUID

from pyoco_server.actions.programs.admit import effective_cap
from pyoco_server.actions.programs.cancel import cancel_job
from pyoco_server.actions.programs.read_artifact import find_left, open_left
from pyoco_server.actions.programs.result import job_result
from pyoco_server.actions.programs.set_cap import set_cap
from pyoco_server.actions.programs.submit import Inline, submit_job
from pyoco_server.actions.read import read_run
from pyoco_server.core.delays import delay_problem
from pyoco_server.core.frames.codec import NIL, Frame, Type
from pyoco_server.core.frames.messages import CancelJob, HelloAck, HelloClient, JobRequest, ObjectGet, SubmitAck
from pyoco_server.core.frames.subjects import result_subject
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.job import JobAsk
from pyoco_server.core.programs.names import client_key, run_id_of
from pyoco_server.core.run import Run
from pyoco_server.doors.frames.downloads import send_object
from pyoco_server.doors.frames.faults import as_refusal
from pyoco_server.doors.frames.guard import Visitor
from pyoco_server.doors.frames.submits import LARGE_BYTES, read_submit
from pyoco_server.errors import PyocoError, RunNotFound, Unavailable
from pyoco_server.frames.wire import fresh
from pyoco_server.logs import get_logger
from pyoco_server.ports.door_records.port import DoorState
from pyoco_server.ports.runs.port import Stored

if TYPE_CHECKING:
    from pyoco_server.doors.frames.context import DoorContext
    from pyoco_server.doors.frames.session import Session

__all__ = ["ClientPeer"]

log = get_logger(__name__)

#: Results of one connection that are read and sent concurrently.
_SENDERS_MAX = 8
#: Ended runs kept in memory until they are sent. Of further ones only the id is kept, to be read again (GRID-77).
_RUNS_KEPT = 64
#: Objects sent concurrently; further requests wait.
_DOWNLOADS_MAX = 4


@dataclass(eq=False)
class _Wait:
    """A job whose Result this connection will send."""

    #: The msgId of the latest SubmitJob for it.
    corr_id: UUID = NIL
    #: Submissions of it in progress on this connection. A Result is never sent before its SubmitAck.
    submitting: int = 0
    is_acked: bool = False
    is_queued: bool = False
    #: The ended run, until the Result may be sent.
    ended: Run | None = None


class ClientPeer:
    """Submissions are processed concurrently, and results are sent as runs end; neither waits for the other."""

    def __init__(self, session: Session[DoorContext], visitor: Visitor) -> None:
        self.visitor = visitor
        self._session, self._context = session, session.context
        self._waits: dict[str, _Wait] = {}
        self._ended: deque[tuple[str, Run | None]] = deque()
        self._senders = 0
        self._desired = self._cap = 0
        self._downloads = asyncio.Semaphore(_DOWNLOADS_MAX)
        self._is_gone = False

    @classmethod
    async def begin(cls, session: Session[DoorContext], visitor: Visitor, hello: HelloClient, frame: Frame) -> Self:
        """Process the Hello. Raises Unavailable."""
        peer = cls(session, visitor)
        await peer._handle_hello(hello, frame)
        return peer

    @property
    def _client(self) -> str:
        """The client within its tenant: the caps of two tenants are separate."""
        return client_key(self.visitor.id, self.visitor.caller.tenant_id)

    async def _handle_hello(self, hello: HelloClient, frame: Frame) -> None:
        context = self._context
        allowed = effective_cap(context.programs, hello.client_id, hello.desired_parallelism)
        cap = await set_cap(context.backend, context.group, self._client, hello.desired_parallelism, "hello")
        # Not the cap in force: another connection of this client may have set it last, and that one stays.
        self._desired, self._cap = hello.desired_parallelism, allowed
        ack = HelloAck(
            door_id=context.door_id,
            group=context.group,
            session=self._session.id,
            cap=cap.cap,
            doors=tuple(context.redirects.all()),
            heartbeat_sec=context.programs.config.exec_heartbeat_sec,
        )
        await self._session.wire.send(fresh(Type.HELLO_ACK, ack.to_payload(), corr_id=frame.msg_id))

    async def take(self, frame: Frame) -> None:
        match frame.type:
            case Type.SUBMIT_JOB:
                await self._context.in_work.take(len(frame.payload))
                self._session.work(frame, self._submit)
            case Type.CANCEL_JOB:
                self._session.work(frame, self._cancel)
            case Type.OBJECT_GET:
                self._session.work(frame, self._send_object)
            case Type.HELLO_CLIENT:
                await self._handle_repeated_hello(frame)

    async def _handle_repeated_hello(self, frame: Frame) -> None:
        """Process another Hello of this client, which may change its cap. Raises GridRefused, Leave, Unavailable."""
        hello, self.visitor = await self._session.admit_again(frame, self.visitor)
        await self._handle_hello(hello, frame)

    # Submissions.

    async def _submit(self, frame: Frame) -> None:
        try:
            if not self._is_gone:
                await self._submit_checked(frame)
        finally:
            self._context.in_work.give(len(frame.payload))

    async def _submit_checked(self, frame: Frame) -> None:
        state = self._context.state()
        if state in (DoorState.DRAINING, DoorState.STANDBY):
            await self._session.wire.send(self._session.not_leader(state, frame.msg_id))
            return
        if len(frame.payload) > LARGE_BYTES:
            request, ask = await asyncio.to_thread(self._read, frame)
        else:
            request, ask = self._read(frame)
        try:
            self._context.guard.check_ask(self.visitor, ask.exec_name)
            if state is DoorState.NO_QUORUM or self._context.end_waiters.is_full:
                raise GridRefused(Code.UNAVAILABLE, "this door cannot accept jobs just now")
            await self._accept(frame, ask, Inline(request.files))
        except PyocoError as error:
            raise as_refusal(error, ask.job_id) from error

    def _read(self, frame: Frame) -> tuple[JobRequest, JobAsk]:
        """Parse a SubmitJob. Raises GridRefused."""
        request = read_submit(frame, self.visitor.id)
        ask = request.ask(self._context.group)
        backend = self._context.backend
        problem = delay_problem(ask.delay, backend.clock(), backend.config.delay_max_sec, "PYOCO_DELAY_MAX_SEC")
        if problem is not None:  # DELAY-3
            raise GridRefused(Code.BAD_SCHEMA, f"NotBefore {problem[1]}", field="NotBefore", job_id=ask.job_id)
        return request, ask

    async def _accept(self, frame: Frame, ask: JobAsk, content: Inline) -> None:
        run_id = ask.run_id
        wait = self._begin_wait(run_id)
        try:
            done = await submit_job(self._context.backend, self.visitor.caller, ask, content)
            if done.duplicate:
                self._context.meter.duplicate()
            ack = SubmitAck(job_id=ask.job_id, run_id=run_id, status=done.run.status, duplicate=done.duplicate)
            await self._session.wire.send(fresh(Type.SUBMIT_ACK, ack.to_payload(), corr_id=frame.msg_id))
            self._acknowledged(run_id, wait, frame.msg_id, done.run)
        finally:
            self._end_submission(run_id, wait)

    # Waiting for results.

    def _begin_wait(self, run_id: str) -> _Wait:
        """Register before the job is queued, so that an immediate end is not missed."""
        wait = self._waits.setdefault(run_id, _Wait())
        wait.submitting += 1
        self._context.end_waiters.wait(run_id, self)
        return wait

    def _acknowledged(self, run_id: str, wait: _Wait, corr_id: UUID, run: Run) -> None:
        wait.corr_id, wait.is_acked = corr_id, True
        ended = run if run.is_terminal else wait.ended
        if ended is not None:
            self._queue(run_id, wait, ended)

    def _end_submission(self, run_id: str, wait: _Wait) -> None:
        wait.submitting -= 1
        if not wait.submitting and not wait.is_acked:
            self._forget(run_id)

    def _forget(self, run_id: str) -> None:
        self._waits.pop(run_id, None)
        self._context.end_waiters.leave(run_id, self)

    def tell(self, run: Run) -> None:
        """Notify that the run has ended: in this process, by a wakeup, or by a read of its record."""
        wait = self._waits.get(run.run_id)
        if wait is None:
            return
        wait.ended = run
        if wait.is_acked:
            self._queue(run.run_id, wait, run)

    def _queue(self, run_id: str, wait: _Wait, run: Run) -> None:
        wait.ended = None
        if wait.is_queued:
            return
        wait.is_queued = True
        self._ended.append((run_id, run if len(self._ended) < _RUNS_KEPT else None))
        if self._senders < _SENDERS_MAX:
            self._senders += 1
            self._session.tasks.spawn(self._send_ended())

    async def _send_ended(self) -> None:
        try:
            while self._ended:
                run_id, run = self._ended.popleft()
                wait = self._waits.get(run_id)
                if wait is not None:
                    await self._send_result(run_id, run, wait)
        finally:
            self._senders -= 1

    async def _send_result(self, run_id: str, run: Run | None, wait: _Wait) -> None:
        """Send the Result, built from the record (GRID-51). Waits while the client does not read."""
        try:
            run = run or await self._ended_run(run_id)
            result = await job_result(self._context.backend, run)
        except PyocoError as error:  # `end_waiters` notifies again
            log.warning("could not read a result; trying again", run_id=run_id, why=str(error))
            wait.is_queued = False
            return
        subject = result_subject(result.exec_name)
        await self._session.wire.send(
            fresh(Type.RESULT, result.to_payload(), corr_id=wait.corr_id, subject=subject),
        )
        wait.is_queued = False
        if wait.submitting:  # that submission gets a Result of its own, after its SubmitAck
            wait.is_acked, wait.ended = False, run
        else:
            self._forget(run_id)

    async def _ended_run(self, run_id: str) -> Run:
        run = (await self._read_visible(run_id)).run
        if not run.is_terminal:
            raise Unavailable("the record of a run that has ended is not there")
        return run

    # Cancel and outputs.

    async def _cancel(self, frame: Frame) -> None:
        """Cancel a job. The response is its Result (GRID-163)."""
        ask = CancelJob.read(frame.payload)
        run_id = run_id_of(ask.job_id, self._context.group)
        try:
            stored = await self._read_visible(run_id)
            if self._is_gone or not self._is_own(stored.run):
                raise GridRefused(Code.NOT_FOUND, "this client has no such job")
            wait = self._begin_wait(run_id)
            try:
                by = self.visitor.caller.api_key_id
                stored = await cancel_job(self._context.backend, run_id, by, ask.reason)
                corr_id = wait.corr_id if wait.is_acked else frame.msg_id
                self._acknowledged(run_id, wait, corr_id, stored.run)
            finally:
                self._end_submission(run_id, wait)
        except PyocoError as error:
            raise as_refusal(error, ask.job_id) from error

    async def _send_object(self, frame: Frame) -> None:
        """Send an output of one of this client's ended jobs (GRID-146)."""
        ask = ObjectGet.read(frame.payload)
        try:
            backend, caller = self._context.backend, self.visitor.caller
            run_id = run_id_of(ask.job_id, self._context.group)
            if not self._is_own((await self._read_visible(run_id)).run):
                raise GridRefused(Code.FORBIDDEN, "this job belongs to another client")
            run, left = await find_left(backend, caller, run_id, ask.name)
            async with self._downloads:
                pieces = await open_left(backend, run, left)
                await send_object(self._session.wire, ask, frame.msg_id, left.size, left.sha256, pieces)
        except PyocoError as error:
            raise as_refusal(error, ask.job_id) from error

    async def _read_visible(self, run_id: str) -> Stored:
        """Return the record if this visitor may see it.

        Raises RunNotFound, for another tenant's run as well (SAFE-4); Unavailable.
        """
        stored = await read_run(self._context.backend, self.visitor.caller, run_id)
        if not self._context.guard.may_see(self.visitor, stored.run):
            raise RunNotFound
        return stored

    def _is_own(self, run: Run) -> bool:
        """Return whether the run is of a job of this client (GRID-169)."""
        return run.program is not None and run.program.client_id == self.visitor.id

    # Periodic review, and the end.

    async def review(self) -> None:
        """Apply a changed `max_cap` to this connected client (GRID-168), unless its cap was set again since."""
        context = self._context
        cap = effective_cap(context.programs, self.visitor.id, self._desired)
        if cap == self._cap:
            return
        known = context.programs.slots.cap(context.group, self._client)
        try:
            if known is None or known.cap == self._cap or known.cap > cap:
                await set_cap(context.backend, context.group, self._client, self._desired, "hello")
        except Unavailable as error:
            log.warning("could not write a cap; trying again", client_id=self.visitor.id, why=str(error))
        else:
            self._cap = cap

    async def gone(self) -> None:
        self._is_gone = True
        for run_id in list(self._waits):
            self._context.end_waiters.leave(run_id, self)
        self._waits.clear()
        self._ended.clear()
