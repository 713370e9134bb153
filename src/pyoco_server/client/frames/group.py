"""One group, as a client sees it: which of its jobs are there, and what is still to be said (section 17)."""

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

#: How long a retry may be late.
_LOOK_SECONDS = 0.25


class GroupState(StrEnum):
    CONNECTING = "connecting"
    #: HelloAck has come, and no NotLeader without an address is in force (GRID-125).
    LIVE = "live"
    PAUSED = "paused"
    CLOSED = "closed"


class Owner(Protocol):
    """The client. Nothing here waits."""

    def came(self, group: Group) -> None:
        """It is live."""

    def went(self, group: Group) -> None:
        """Its connection is gone."""

    def accepted(self, job: Job, ack: SubmitAck) -> None:
        """A door has taken it, for the first time on this connection."""

    def finished(self, job: Job, group: Group, result: JobResult) -> None:
        """A job has its result, and is out of the table."""

    def refused(self, job: Job, error: Exception) -> None:
        """A job was refused for good, and is out of the table."""

    def is_late(self, group: Group, result: JobResult) -> None:
        """A result of a job that is not here (any more)."""

    def spared(self, group: Group) -> None:
        """A job that it was told to cancel was not cancelled there, and may come back."""

    def said(self, group: Group) -> None:
        """Something has left: there may be room for more."""


@dataclass(frozen=True)
class Cancel:
    """Ask for the end of a job that is not in the table."""

    job_id: str


_Asked = Job | Cancel | Fetch
#: A HelloClient says another cap.
_Ask = _Asked | HelloClient


class Group:
    """Its table holds every job that was given to it and has no result. After each HelloAck all of them are submitted
    again, in their order, with the same bytes (GRID-122)."""

    def __init__(self, owner: Owner, doors: tuple[Address, ...], hello: HelloClient, settings: LinkSettings) -> None:
        self.name = "|".join(map(str, doors))
        self.state = GroupState.CONNECTING
        self.table: dict[str, Job] = {}
        #: Jobs that were sent here and have gone elsewhere: to be cancelled here (GRID-130). By id, with the groups
        #: that were told so (`Job.cancelled_in`).
        self.strays: dict[str, set[str]] = {}
        self.sent = self.results = self.attachments = 0
        self._owner, self._hello, self._pace = owner, hello, settings.pace
        self._outbox: deque[_Ask] = deque()
        self._has_mail = asyncio.Event()
        #: What has been asked on this connection and not been answered, by the msgId; those of CancelJobs by job.
        self._asked: dict[UUID, _Asked] = {}
        self._cancels: dict[str, UUID] = {}
        self._fetches: list[Fetch] = []
        #: Why nothing will come any more.
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
        """Of what is to be said, how much has not been."""
        return len(self._outbox)

    # What the client wants.

    def submit(self, job: Job) -> None:
        """Put it in the table, and send it as soon as there is a door."""
        self.table[job.job_id] = job
        self.strays.pop(job.job_id, None)
        if self._session is not None:
            self._post(job)

    def say_again(self, job: Job) -> None:
        """Submit it once more: somebody wants to hear again that it was taken."""
        job.is_acked = False
        if self._session is not None:
            self._post(job)

    def take_back(self, job: Job) -> None:
        """It is somebody else's from now on; and to be cancelled here, when it was sent."""
        if self.table.pop(job.job_id, None) is job and job.sent_at is not None:
            self.strays[job.job_id] = job.cancelled_in
        job.sent_at = job.first_msg_id = None
        job.is_acked = False

    def cancel(self, job: Job) -> None:
        """Once the door has taken it: before, it would not know what to cancel."""
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
        """Another cap, or another key, from now on."""
        self._hello = hello
        if self._session is not None:
            self._post(hello)

    def unsent(self) -> list[Job]:
        """In the order in which they came (GRID-126)."""
        return [job for job in self.table.values() if job.sent_at is None and job.payload is not None]

    def close(self, error: Exception) -> None:
        """Nothing more will come; files that are on their way end with `error`."""
        self.state, self._failure = GroupState.CLOSED, error
        for task in filter(None, (self._pump, self._retrier)):
            task.cancel()
        for fetch in self._fetches:
            fetch.fail(error)

    # What the link says.

    def hello(self) -> bytes:
        return self._hello.to_payload()

    def attached(self, session: Session) -> None:
        self.attachments += 1
        self._session, self.state = session, GroupState.LIVE
        self._asked.clear()
        self._cancels.clear()
        for job in self.table.values():
            job.is_acked = False
        self._post_all()
        self._pump = asyncio.create_task(self._send_all(session), name=f"send to {session.address}")
        self._owner.came(self)

    def parted(self, session: Session) -> None:
        for frame in session.wire.unwritten:
            ask = self._asked.get(frame.msg_id)
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
            case Type.HEARTBEAT | Type.HELLO_ACK:  # the latter answers a Hello that was said again
                pass
            case _:
                log.warning("door %s sent a frame of type %#04x, which is dropped", session.address, frame.type)

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
        """GRID-26: by corrId first, by JobId second."""
        ask = None if frame.corr_id == NIL else self._asked.pop(frame.corr_id, None)
        if ask is None and message.job_id is not None:
            ask = self.table.get(message.job_id)
        if ask is None:
            log.warning("a door said %s, which answers nothing: %s", message.code, message.message)
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
        else:  # it has a result by now, or nobody may know it; its own answer will say which
            log.info("a door did not cancel job %s: %s", ask.job_id, message.code)

    async def _arrived(self, frame: Frame) -> None:
        ask = self._asked.get(frame.corr_id)
        if not isinstance(ask, Fetch):
            return  # whoever wanted it has gone
        await ask.put(BinaryPart.read(frame.payload))
        if ask.is_over:
            self._asked.pop(frame.corr_id, None)

    def _forget(self, job: Job) -> None:
        """Its SubmitJob has been answered."""
        if job.msg_id is not None:
            self._asked.pop(job.msg_id, None)

    def _forget_stray(self, job_id: str) -> None:
        """It was not cancelled here: the group never had it, or had finished it."""
        self.strays.pop(job_id, set()).discard(self.name)
        self._owner.spared(self)

    def _forget_cancel(self, job_id: str) -> None:
        msg_id = self._cancels.pop(job_id, None)
        if msg_id is not None:
            self._asked.pop(msg_id, None)

    # What is to be said.

    def _post(self, ask: _Ask) -> None:
        self._outbox.append(ask)
        self._has_mail.set()

    def _post_all(self) -> None:
        """GRID-122: every job that the door has not taken on this connection, in the order in which they came."""
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
            if not fetch.is_over and fetch not in self._asked.values():
                self._post(fetch)

    async def _send_all(self, session: Session) -> None:
        with contextlib.suppress(WireClosed):  # the link notices, too
            while True:
                while not self._outbox:
                    self._has_mail.clear()
                    await self._has_mail.wait()
                await self._say(session, self._outbox.popleft())
                self._owner.said(self)

    async def _say(self, session: Session, ask: _Ask) -> None:
        if isinstance(ask, Job) and ask.payload is None:
            ask = Cancel(ask.job_id)
        if isinstance(ask, HelloClient):
            await session.wire.send(fresh(Type.HELLO_CLIENT, ask.to_payload()))
        elif isinstance(ask, Fetch):
            if not ask.is_over:
                frame = fresh(Type.OBJECT_GET, ask.ask().to_payload())
                self._asked[frame.msg_id] = ask
                await session.wire.send(frame)
        elif isinstance(ask, Cancel):
            await self._say_cancel(session, ask)
        elif self.table.get(ask.job_id) is ask and not ask.is_acked:
            await self._say_submit(session, ask)

    async def _say_cancel(self, session: Session, ask: Cancel) -> None:
        """Of a stray, or of one that somebody wants stopped: one that has come back here since is neither."""
        job = self.table.get(ask.job_id)
        if ask.job_id in self.strays:
            self.strays[ask.job_id].add(self.name)
        elif job is None or not (job.is_cancelling or job.payload is None):
            return
        frame = fresh(Type.CANCEL_JOB, CancelJob(job_id=ask.job_id).to_payload())
        self._forget_cancel(ask.job_id)
        self._asked[frame.msg_id], self._cancels[ask.job_id] = ask, frame.msg_id
        await session.wire.send(frame)

    async def _say_submit(self, session: Session, job: Job) -> None:
        frame = fresh(Type.SUBMIT_JOB, job.payload or b"", subject=job.subject)
        self._forget(job)
        job.msg_id = frame.msg_id
        self._asked[frame.msg_id] = job
        await session.wire.send(frame)
        if job.sent_at is None:
            job.sent_at, job.first_msg_id = self._pace.clock(), frame.msg_id
        self.sent += 1

    def _again(self, ask: _Asked, message: ErrorMessage) -> None:
        """Later: as the door says, and later each time."""
        tries = 1
        if not isinstance(ask, Cancel):
            ask.tries = tries = ask.tries + 1
        seconds = self._pace.retry_seconds(tries, (message.retry_after_ms or 0) / 1_000)
        heapq.heappush(self._later, (self._pace.clock() + seconds, next(self._numbers), ask))
        if self._retrier is None or self._retrier.done():
            self._retrier = asyncio.create_task(self._retry(), name="retry what a door refused")

    async def _retry(self) -> None:
        """One task for all of them: a full queue may refuse thousands."""
        while self._later:
            due, _, ask = self._later[0]
            left = due - self._pace.clock()
            if left > 0:
                await self._pace.sleep(min(left, _LOOK_SECONDS))
                continue
            heapq.heappop(self._later)
            if self._session is not None:  # else all is said again when there is one
                self._post(ask)
