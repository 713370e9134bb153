"""One group from the client's side: the jobs submitted to it and the messages still to be sent (section 17)."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import logging
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from pyoco_server.client.frames.faults import refusal_of
from pyoco_server.client.frames.fetch import Fetch
from pyoco_server.client.frames.job import Job
from pyoco_server.client.frames.link import Link, LinkSettings
from pyoco_server.core.frames.codec import NIL, Frame, Type
from pyoco_server.core.frames.messages import (
    BinaryPart,
    CancelJob,
    ErrorMessage,
    HelloClient,
    JobResult,
    SubmitAck,
)
from pyoco_server.core.states import RunState
from pyoco_server.frames.addresses import Address
from pyoco_server.frames.calling import Session
from pyoco_server.frames.wire import WireClosed, fresh

__all__ = ["Cancel", "Group", "GroupState", "Owner"]

log = logging.getLogger(__name__)

#: The longest sleep between two checks for due retries.
_CHECK_SECONDS = 0.25


class GroupState(StrEnum):
    CONNECTING = "connecting"
    #: HelloAck was received, and no NotLeader without an address is in force (GRID-125).
    LIVE = "live"
    PAUSED = "paused"
    CLOSED = "closed"


class Owner(Protocol):
    """The client that owns the groups. None of these methods blocks."""

    def came(self, group: Group) -> None:
        """The group is live."""

    def went(self, group: Group) -> None:
        """The group's connection was lost."""

    def accepted(self, job: Job, ack: SubmitAck) -> None:
        """A door has accepted the job, for the first time on this connection."""

    def finished(self, job: Job, group: Group, result: JobResult) -> None:
        """A job has its result and was removed from the table."""

    def refused(self, job: Job, error: Exception) -> None:
        """A job was refused permanently and was removed from the table."""

    def is_late(self, group: Group, result: JobResult) -> None:
        """A result arrived for a job that is not, or no longer, in the table."""

    def spared(self, group: Group) -> None:
        """The group did not cancel a job as requested, so the job may be submitted to it again."""

    def said(self, group: Group) -> None:
        """A message was sent: there may be room for more."""


@dataclass(frozen=True)
class Cancel:
    """A request to cancel a job, which may not be in the table."""

    job_id: str


_Asked = Job | Cancel | Fetch
#: A HelloClient changes the cap or the API key.
_Ask = _Asked | HelloClient


class Group:
    """Its table holds every job that was submitted to it and has no result.

    After each HelloAck all of them are submitted again, in their order, with the same bytes (GRID-122).
    """

    def __init__(self, owner: Owner, doors: tuple[Address, ...], hello: HelloClient, settings: LinkSettings) -> None:
        self.name = "|".join(map(str, doors))
        self.state = GroupState.CONNECTING
        self.table: dict[str, Job] = {}
        #: Jobs that were sent here and have moved to another group: to be cancelled here (GRID-130). By id, with the
        #: names of the groups that were sent a CancelJob (`Job.cancelled_in`).
        self.strays: dict[str, set[str]] = {}
        self.sent = self.results = self.attachments = 0
        self._owner, self._hello, self._pace = owner, hello, settings.pace
        self._outbox: deque[_Ask] = deque()
        self._has_work = asyncio.Event()
        #: Unanswered requests on this connection, by msgId; and the msgIds of CancelJobs, by job.
        self._unanswered: dict[UUID, _Asked] = {}
        self._cancels: dict[str, UUID] = {}
        self._fetches: list[Fetch] = []
        #: Why the group was closed.
        self._failure: Exception | None = None
        self._session: Session | None = None
        self._pump: asyncio.Task[None] | None = None
        self._later: list[tuple[float, int, _Asked]] = []
        self._numbers = itertools.count()
        self._retrier: asyncio.Task[None] | None = None
        self.link = Link(self, doors, settings)

    @property
    def is_live(self) -> bool:
        return self.state is GroupState.LIVE

    @property
    def waiting(self) -> int:
        """The number of messages that are not sent yet."""
        return len(self._outbox)

    # Called by the client.

    def submit(self, job: Job) -> None:
        """Put the job in the table, and send it as soon as a door is connected."""
        self.table[job.job_id] = job
        self.strays.pop(job.job_id, None)
        if self._session is not None:
            self._post(job)

    def say_again(self, job: Job) -> None:
        """Submit the job again, so that the door acknowledges it again."""
        job.is_acked = False
        if self._session is not None:
            self._post(job)

    def take_back(self, job: Job) -> None:
        """Release the job, so that another group may take it. If it was sent, it is to be cancelled here."""
        if self.table.pop(job.job_id, None) is job and job.sent_at is not None:
            self.strays[job.job_id] = job.cancelled_in
        job.sent_at = job.first_msg_id = None
        job.is_acked = False

    def cancel(self, job: Job) -> None:
        """Cancel the job, but only after the door has accepted it: before that the door could not find it."""
        job.is_cancelling = True
        if self._session is not None and job.is_acked:
            self._post(Cancel(job.job_id))

    def cancel_strays(self) -> None:
        for job_id in self.strays:
            self._post(Cancel(job_id))

    def fetch(self, fetch: Fetch) -> None:
        self._fetches.append(fetch)
        if self._failure is not None:
            fetch.fail(self._failure)
        elif self._session is not None:
            self._post(fetch)

    def stop_fetching(self, fetch: Fetch) -> None:
        self._fetches.remove(fetch)
        fetch.forget()

    def change_hello(self, hello: HelloClient) -> None:
        """Use another cap or another API key from now on."""
        self._hello = hello
        if self._session is not None:
            self._post(hello)

    def unsent(self) -> list[Job]:
        """Return the jobs that were never sent, in the order of submission (GRID-126)."""
        return [job for job in self.table.values() if job.sent_at is None and job.payload is not None]

    def close(self, error: Exception) -> None:
        """Stop all work. Downloads in progress fail with `error`."""
        self.state, self._failure = GroupState.CLOSED, error
        for task in filter(None, (self._pump, self._retrier)):
            task.cancel()
        for fetch in self._fetches:
            fetch.fail(error)

    # Called by the link.

    def hello(self) -> bytes:
        return self._hello.to_payload()

    def attached(self, session: Session) -> None:
        self.attachments += 1
        self._session, self.state = session, GroupState.LIVE
        self._unanswered.clear()
        self._cancels.clear()
        for job in self.table.values():
            job.is_acked = False
        self._post_all()
        self._pump = asyncio.create_task(self._send_all(session), name=f"send to {session.address}")
        self._owner.came(self)

    def parted(self, session: Session) -> None:
        for frame in session.wire.unwritten:
            ask = self._unanswered.get(frame.msg_id)
            if isinstance(ask, Job) and ask.first_msg_id == frame.msg_id:
                ask.sent_at = ask.first_msg_id = None
        if self._pump is not None:
            self._pump.cancel()
        self._session = self._pump = None
        self._outbox.clear()
        if self.state is not GroupState.CLOSED:
            self.state = GroupState.CONNECTING
            self._owner.went(self)

    def paused(self, session: Session) -> None:
        if session is self._session:
            self.state = GroupState.PAUSED

    def resumed(self, session: Session) -> None:
        if session is self._session:
            self.state = GroupState.LIVE
            self._post_all()
            self._owner.came(self)

    async def heard(self, session: Session, frame: Frame) -> None:
        if session is not self._session:
            return
        match frame.type:
            case Type.SUBMIT_ACK:
                self._accepted(SubmitAck.read(frame.payload))
            case Type.RESULT:
                self._ended(JobResult.read(frame.payload))
            case Type.ERROR:
                self._refused(frame, ErrorMessage.read(frame.payload))
            case Type.OBJECT_CHUNK:
                await self._arrived(frame)
            case Type.HEARTBEAT | Type.HELLO_ACK:  # a HelloAck answers a repeated Hello
                pass
            case _:
                log.warning("dropped unexpected frame from door %s: type %#04x", session.address, frame.type)

    def _accepted(self, ack: SubmitAck) -> None:
        job = self.table.get(ack.job_id)
        if job is None:
            return
        job.is_acked = True
        self._forget(job)
        self._owner.accepted(job, ack)
        if job.is_cancelling:
            self._post(Cancel(job.job_id))

    def _ended(self, result: JobResult) -> None:
        self._forget_cancel(result.job_id)
        job = self.table.pop(result.job_id, None)
        if job is None:
            if result.status is RunState.CANCELLED:
                self.strays.pop(result.job_id, None)
            else:
                self._forget_stray(result.job_id)
            self._owner.is_late(self, result)
            return
        self._forget(job)
        self.results += 1
        self._owner.finished(job, self, result)

    def _refused(self, frame: Frame, message: ErrorMessage) -> None:
        """Handle an Error. GRID-26: its request is found by corrId first, by JobId second."""
        ask = None if frame.corr_id == NIL else self._unanswered.pop(frame.corr_id, None)
        if ask is None and message.job_id is not None:
            ask = self.table.get(message.job_id)
        if ask is None:
            log.warning("door sent error without matching request: %s: %s", message.code, message.message)
        elif isinstance(ask, Fetch):
            if message.retry:
                self._again(ask, message)
            else:
                ask.fail(refusal_of(message))
        elif isinstance(ask, Cancel):
            self._cancel_refused(ask, message)
        elif self.table.get(ask.job_id) is ask:
            self._job_refused(ask, message)

    def _job_refused(self, job: Job, message: ErrorMessage) -> None:
        if message.retry:
            self._again(job, message)
            return
        del self.table[job.job_id]
        self._forget(job)
        self._owner.refused(job, refusal_of(message))

    def _cancel_refused(self, ask: Cancel, message: ErrorMessage) -> None:
        job = self.table.get(ask.job_id)
        if message.retry and (job is not None or ask.job_id in self.strays):
            self._again(ask, message)
        elif job is None:
            self._forget_stray(ask.job_id)
        elif job.payload is None:
            self._job_refused(job, message)
        else:  # the job has ended or is unknown; the answer to its SubmitJob will tell
            log.info("door did not cancel job %s: %s", ask.job_id, message.code)

    async def _arrived(self, frame: Frame) -> None:
        ask = self._unanswered.get(frame.corr_id)
        if not isinstance(ask, Fetch):
            return  # the download was abandoned
        await ask.put(BinaryPart.read(frame.payload))
        if ask.is_over:
            self._unanswered.pop(frame.corr_id, None)

    def _forget(self, job: Job) -> None:
        """Forget the SubmitJob of the job, which has been answered."""
        if job.msg_id is not None:
            self._unanswered.pop(job.msg_id, None)

    def _forget_stray(self, job_id: str) -> None:
        """Forget a moved job that was not cancelled here: the group never had it, or had finished it."""
        self.strays.pop(job_id, set()).discard(self.name)
        self._owner.spared(self)

    def _forget_cancel(self, job_id: str) -> None:
        msg_id = self._cancels.pop(job_id, None)
        if msg_id is not None:
            self._unanswered.pop(msg_id, None)

    # Sending.

    def _post(self, ask: _Ask) -> None:
        self._outbox.append(ask)
        self._has_work.set()

    def _post_all(self) -> None:
        """Queue every job that the door has not accepted on this connection, in the order of submission (GRID-122)."""
        hellos = [ask for ask in self._outbox if isinstance(ask, HelloClient)]
        self._outbox.clear()
        for hello in hellos:
            self._post(hello)
        for job in self.table.values():
            if not job.is_acked:
                self._post(job)
            elif job.is_cancelling:
                self._post(Cancel(job.job_id))
        for fetch in self._fetches:
            if not fetch.is_over and fetch not in self._unanswered.values():
                self._post(fetch)

    async def _send_all(self, session: Session) -> None:
        with contextlib.suppress(WireClosed):  # the link handles it
            while True:
                while not self._outbox:
                    self._has_work.clear()
                    await self._has_work.wait()
                await self._send_one(session, self._outbox.popleft())
                self._owner.said(self)

    async def _send_one(self, session: Session, ask: _Ask) -> None:
        if isinstance(ask, Job) and ask.payload is None:
            ask = Cancel(ask.job_id)
        if isinstance(ask, HelloClient):
            await session.wire.send(fresh(Type.HELLO_CLIENT, ask.to_payload()))
        elif isinstance(ask, Fetch):
            if not ask.is_over:
                frame = fresh(Type.OBJECT_GET, ask.ask().to_payload())
                self._unanswered[frame.msg_id] = ask
                await session.wire.send(frame)
        elif isinstance(ask, Cancel):
            await self._send_cancel(session, ask)
        elif self.table.get(ask.job_id) is ask and not ask.is_acked:
            await self._send_submit(session, ask)

    async def _send_cancel(self, session: Session, ask: Cancel) -> None:
        """Send a CancelJob for a moved job or a job being cancelled, unless the job has been submitted here again."""
        job = self.table.get(ask.job_id)
        if ask.job_id in self.strays:
            self.strays[ask.job_id].add(self.name)
        elif job is None or not (job.is_cancelling or job.payload is None):
            return
        frame = fresh(Type.CANCEL_JOB, CancelJob(job_id=ask.job_id).to_payload())
        self._forget_cancel(ask.job_id)
        self._unanswered[frame.msg_id], self._cancels[ask.job_id] = ask, frame.msg_id
        await session.wire.send(frame)

    async def _send_submit(self, session: Session, job: Job) -> None:
        frame = fresh(Type.SUBMIT_JOB, job.payload or b"", subject=job.subject)
        self._forget(job)
        job.msg_id = frame.msg_id
        self._unanswered[frame.msg_id] = job
        await session.wire.send(frame)
        if job.sent_at is None:
            job.sent_at, job.first_msg_id = self._pace.clock(), frame.msg_id
        self.sent += 1

    def _again(self, ask: _Asked, message: ErrorMessage) -> None:
        """Schedule a retry with growing delays, no earlier than the door allows."""
        tries = 1
        if not isinstance(ask, Cancel):
            ask.tries = tries = ask.tries + 1
        seconds = self._pace.retry_seconds(tries, (message.retry_after_ms or 0) / 1_000)
        heapq.heappush(self._later, (self._pace.clock() + seconds, next(self._numbers), ask))
        if self._retrier is None or self._retrier.done():
            self._retrier = asyncio.create_task(self._retry(), name="retry what a door refused")

    async def _retry(self) -> None:
        """Send due retries. One task for all of them: a full queue may refuse thousands of jobs."""
        while self._later:
            due, _, ask = self._later[0]
            left = due - self._pace.clock()
            if left > 0:
                await self._pace.sleep(min(left, _CHECK_SECONDS))
                continue
            heapq.heappop(self._later)
            if self._session is not None:  # otherwise everything is sent again after the next HelloAck
                self._post(ask)
