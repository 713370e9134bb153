"""A client's connection at a router: sends its jobs to groups, and their results back (GRID-134 to GRID-137).

The placement of a job is stored before it is sent, so this router after a crash, and any other one, finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from pyoco_server.actions.programs.admit import effective_cap
from pyoco_server.client.frames.faults import ClientClosed
from pyoco_server.client.frames.group import Group
from pyoco_server.client.frames.job import Job
from pyoco_server.client.frames.shares import Turn, shares
from pyoco_server.core.frames.codec import Frame, Type
from pyoco_server.core.frames.messages import (
    CancelJob,
    HelloAck,
    HelloClient,
    JobRequest,
    JobResult,
    ObjectGet,
    SubmitAck,
)
from pyoco_server.core.frames.subjects import result_subject, submit_subject
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.job import fingerprint
from pyoco_server.doors.frames.faults import as_refusal, error_frame
from pyoco_server.doors.frames.guard import Visitor
from pyoco_server.doors.frames.router.choice import Choice
from pyoco_server.doors.frames.router.outbox import Outbox
from pyoco_server.doors.frames.router.passage import Passage
from pyoco_server.doors.frames.router.placed import PlacedJob, PlacedJobs
from pyoco_server.doors.frames.submits import LARGE_BYTES, read_submit
from pyoco_server.errors import PyocoError
from pyoco_server.frames.calling import Session as Attachment
from pyoco_server.frames.wire import WireClosed, fresh
from pyoco_server.logs import get_logger
from pyoco_server.ports.door_records.port import DoorState
from pyoco_server.ports.routes.port import Route

if TYPE_CHECKING:
    from pyoco_server.doors.frames.router.router import RouterContext
    from pyoco_server.doors.frames.session import Session

__all__ = ["RouterPeer"]

log = get_logger(__name__)

#: Interval of failover checks, and the number of jobs moved concurrently.
_CHECK_SECONDS = 0.25
_MOVES_AT_ONCE = 32
#: A Hello is answered when all groups have been reached, or after this time.
_REACH_SECONDS = 1.0
#: Delay before a group that refused this client is tried again: its ACL may have changed.
_REFUSED_SECONDS = 5.0
_AGENT = "pyoco-grid-router"


class _PacedGroup(Group):
    """A group that is read at the pace of the client: while the client does not read, neither does this."""

    outbox: Outbox

    async def heard(self, session: Attachment, frame: Frame) -> None:
        await super().heard(session, frame)
        await self.outbox.room()


class RouterPeer:
    """Holds one connection to each group, with the client's own id and key, and a share of its cap."""

    def __init__(self, session: Session[RouterContext], visitor: Visitor, hello: HelloClient) -> None:
        self.visitor = visitor
        self._session, self._context = session, session.context
        self._hello = hello
        self._cap = 0
        self._groups: Turn[Group] = Turn([])
        #: Since when a group has been lost; live groups are not included. And why a group refuses this client.
        self._lost_at: dict[Group, float] = {}
        self._refusals: dict[Group, GridRefused] = {}
        self._choice = Choice(self._context, self._groups, self._refusals)
        self._placed = PlacedJobs(self._context.held)
        self._passages: dict[Passage, Group] = {}
        self._outbox = Outbox(session.wire)
        self._tasks: set[asyncio.Task[None]] = set()
        self._groups_changed = asyncio.Event()
        self._is_gone = False

    @classmethod
    async def begin(
        cls, session: Session[RouterContext], visitor: Visitor, hello: HelloClient, frame: Frame
    ) -> RouterPeer:
        """Process the Hello. A group that cannot be reached delays it only briefly."""
        peer = cls(session, visitor, hello)
        try:
            await peer._open()
            peer._outbox.put(peer._hello_ack(frame))
        except BaseException:
            await peer.gone()
            raise
        return peer

    async def _open(self) -> None:
        context = self._context
        self._cap = effective_cap(context.programs, self.visitor.id, self._hello.desired_parallelism)
        for backend, hello in zip(context.plan.backends, self._hellos(), strict=True):
            group = _PacedGroup(self, backend.doors, hello, context.link_settings)
            group.outbox = self._outbox
            self._groups.append(group)
            self._choice.name(group, backend.name)
            self._lost_at[group] = context.now()
            self._spawn(self._keep(group))
        self._spawn(self._outbox.run())
        self._spawn(self._watch_groups())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REACH_SECONDS):
                while len(self._refusals) + sum(group.is_live for group in self._groups) < len(self._groups):
                    self._groups_changed.clear()
                    await self._groups_changed.wait()

    def _hellos(self) -> list[HelloClient]:
        """Return the Hello for each group, with its share of the cap (GRID-136)."""
        return [
            HelloClient(client_id=self.visitor.id, desired_parallelism=share, token=self._hello.token, agent=_AGENT)
            for share in shares(self._cap, len(self._context.plan.backends))
        ]

    def _hello_ack(self, frame: Frame) -> Frame:
        context = self._context
        ack = HelloAck(
            door_id=context.router_id,
            group=context.router_id,
            session=self._session.id,
            cap=self._cap,
            doors=tuple(context.redirects.all()),
            heartbeat_sec=context.programs.config.exec_heartbeat_sec,
        )
        return fresh(Type.HELLO_ACK, ack.to_payload(), corr_id=frame.msg_id)

    # Frames of the client.

    async def take(self, frame: Frame) -> None:
        await self._outbox.room()
        match frame.type:
            case Type.SUBMIT_JOB:
                await self._context.in_work.take(len(frame.payload))
                self._session.work(frame, self._submit)
            case Type.CANCEL_JOB:
                self._session.work(frame, self._cancel)
            case Type.OBJECT_GET:
                self._session.work(frame, self._pass_object)
            case Type.HELLO_CLIENT:
                await self._handle_repeated_hello(frame)

    async def _handle_repeated_hello(self, frame: Frame) -> None:
        """Process another Hello of this client, which may change its cap. Raises GridRefused, Leave, Unavailable."""
        self._hello, self.visitor = await self._session.admit_again(frame, self.visitor)
        self._send_cap()
        self._outbox.put(self._hello_ack(frame))

    def _send_cap(self) -> None:
        self._cap = effective_cap(self._context.programs, self.visitor.id, self._hello.desired_parallelism)
        for group, hello in zip(self._groups, self._hellos(), strict=True):
            group.change_hello(hello)

    async def _submit(self, frame: Frame) -> None:
        """Answer with SubmitAck when a group has stored the job (GRID-49), or with an Error."""
        try:
            state = self._context.state()
            if state is not DoorState.SERVING:
                await self._session.wire.send(self._session.not_leader(state, frame.msg_id))
                return
            if len(frame.payload) > LARGE_BYTES:
                request, content = await asyncio.to_thread(self._read, frame)
            else:
                request, content = self._read(frame)
            try:
                await self._route(request, content, frame)
            except PyocoError as error:
                raise as_refusal(error, request.job_id) from error
        finally:
            self._context.in_work.give(len(frame.payload))

    def _read(self, frame: Frame) -> tuple[JobRequest, str]:
        """Parse a SubmitJob and return it with the fingerprint of its content. Raises GridRefused."""
        request = read_submit(frame, self.visitor.id)
        return request, fingerprint(request.ask("router"))

    async def _route(self, request: JobRequest, content: str, frame: Frame) -> None:
        if self._joins(request.job_id, content, frame):
            return
        group, route = await self._place(request)
        if self._is_gone or self._joins(request.job_id, content, frame):  # the same job was submitted concurrently
            return
        future: asyncio.Future[JobResult] = asyncio.get_running_loop().create_future()
        job = Job(request.job_id, request.exec_name, frame.payload, submit_subject(request.exec_name), future)
        job.is_cancelling = self._placed.get(job.job_id) is not None
        self._placed.put(
            PlacedJob(job, group, route, content, frame.msg_id, self._context.now(), asks=[frame.msg_id]),
        )
        group.submit(job)

    def _joins(self, job_id: str, content: str, frame: Frame) -> bool:
        """Return whether this connection has submitted the job before, and register the repeat. Raises GridRefused."""
        known = self._placed.get(job_id)
        if known is None or known.job.payload is None:
            return False
        if known.fingerprint != content:
            raise GridRefused(Code.JOB_ID_CONFLICT, "this JobId has another content")
        known.ask(frame.msg_id)
        known.group.say_again(known.job)
        return True

    async def _place(self, request: JobRequest) -> tuple[Group, Route]:
        """Return where a job is placed, or place it (GRID-135). Raises GridRefused, Unavailable."""
        choice, routes, now = self._choice, self._context.routes, self._context.clock()
        candidates = choice.candidates(self.visitor, request.exec_name)
        chosen = choice.choose(candidates)
        if chosen is None:
            route = await routes.find(request.job_id)
            group = None if route is None else choice.group(route.group)
            if route is None or group is None:
                raise choice.why_not(candidates)
            return group, route
        route = await routes.place(request.job_id, choice.name_of(chosen), now)
        group = choice.group(route.group)
        if group is None:  # placed by a router with other backends: move it to one of ours
            route = await routes.move(route, choice.name_of(chosen), now)
            group = choice.group(route.group) or chosen
        return group, route

    async def _cancel(self, frame: Frame) -> None:
        """Cancel a job. The response is its Result, or NOT_FOUND (GRID-163). The group checks its owner."""
        ask = CancelJob.read(frame.payload)
        route, group = None, None
        if self._placed.get(ask.job_id) is None:
            route, group = await self._find(ask.job_id)
        placed = self._placed.get(ask.job_id)
        if placed is not None:
            placed.group.cancel(placed.job)
        elif route is None or group is None:
            raise GridRefused(Code.NOT_FOUND, "this client has no such job", job_id=ask.job_id)
        elif not self._is_gone:
            job = Job(ask.job_id, "", None, "", asyncio.get_running_loop().create_future())
            self._placed.put(PlacedJob(job, group, route, "", frame.msg_id, self._context.now()))
            group.submit(job)

    async def _find(self, job_id: str) -> tuple[Route | None, Group | None]:
        try:
            route = await self._context.routes.find(job_id)
        except PyocoError as error:
            raise as_refusal(error, job_id) from error
        return route, None if route is None else self._choice.group(route.group)

    async def _pass_object(self, frame: Frame) -> None:
        ask = ObjectGet.read(frame.payload)
        _, group = await self._find(ask.job_id)
        if group is None:
            raise GridRefused(Code.NOT_FOUND, "there is no such job", job_id=ask.job_id)
        if self._is_gone:
            return
        if not group.is_live:
            raise GridRefused(Code.UNAVAILABLE, "its group cannot be reached just now", job_id=ask.job_id)
        passage = Passage(ask, self._session.wire, frame.msg_id)
        self._passages[passage] = group
        group.fetch(passage)
        try:
            await passage.done
        except ClientClosed as closed:  # the connection has ended
            raise WireClosed("peer_closed") from closed
        except PyocoError as error:
            raise as_refusal(error, ask.job_id) from error
        finally:
            del self._passages[passage]
            group.stop_fetching(passage)

    # Events of the groups (`client/frames/group.py`). Nothing here waits.

    def came(self, group: Group) -> None:
        self._lost_at.pop(group, None)
        self._refusals.pop(group, None)
        self._groups_changed.set()
        group.cancel_strays()

    def went(self, group: Group) -> None:
        self._lost_at.setdefault(group, self._context.now())

    def accepted(self, job: Job, ack: SubmitAck) -> None:
        placed = self._placed.get(job.job_id)
        if placed is not None and placed.job is job:
            for corr_id in placed.answered():
                self._outbox.put(fresh(Type.SUBMIT_ACK, ack.to_payload(), corr_id=corr_id))

    def finished(self, job: Job, group: Group, result: JobResult) -> None:
        placed = self._placed.drop(job.job_id)
        if placed is not None:
            payload, subject = result.to_payload(), result_subject(result.exec_name)
            self._outbox.put(fresh(Type.RESULT, payload, corr_id=placed.corr_id, subject=subject))

    def refused(self, job: Job, error: Exception) -> None:
        placed = self._placed.drop(job.job_id)
        if placed is None or not isinstance(error, PyocoError):
            return
        refusal = as_refusal(error, job.job_id)
        for corr_id in placed.answered() or [placed.corr_id]:
            self._context.meter.error(refusal.code)
            self._outbox.put(error_frame(refusal, corr_id))

    def is_late(self, group: Group, result: JobResult) -> None:
        name = self._choice.name_of(group)
        log.info("late result dropped", job_id=result.job_id, group=name, status=result.status)

    def spared(self, group: Group) -> None:
        """Nothing to do: the next check of the groups detects it."""

    def said(self, group: Group) -> None:
        """Nothing to do: a router does not wait for room, since its requests are bounded."""

    # Lost groups.

    async def _keep(self, group: Group) -> None:
        while True:
            try:
                await group.link.run()
            except PyocoError as error:
                name = self._choice.name_of(group)
                log.warning("group refuses this client", group=name, client_id=self.visitor.id, why=str(error))
                self._refusals[group] = as_refusal(error)
                self._groups_changed.set()
            await asyncio.sleep(_REFUSED_SECONDS)

    async def _watch_groups(self) -> None:
        """Check all jobs periodically. A job whose group has been lost for the grace period is placed in another one.

        The new placement is stored, and so applies to all routers (GRID-135).
        """
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            for passage, group in list(self._passages.items()):
                if self._is_away(group):
                    passage.fail(GridRefused(Code.UNAVAILABLE, "its group cannot be reached just now"))
            due = [placed for placed in self._placed if self._is_away(placed.group, placed.since)]
            for start in range(0, len(due), _MOVES_AT_ONCE):
                await asyncio.gather(*map(self._try_move, due[start : start + _MOVES_AT_ONCE]))

    def _is_away(self, group: Group, since: float = 0.0) -> bool:
        """Return whether a group has been lost for the grace period, counted from `since` at the earliest."""
        lost_at = self._lost_at.get(group)
        return lost_at is not None and self._context.now() - max(lost_at, since) >= self._context.grace_seconds

    async def _try_move(self, placed: PlacedJob) -> None:
        if placed.job.payload is None:
            self._give_up(placed, GridRefused(Code.UNAVAILABLE, "its group cannot be reached just now"))
            return
        try:
            await self._move(placed)
        except PyocoError as error:
            log.warning("could not move a job; trying again", job_id=placed.job.job_id, why=str(error))

    async def _move(self, placed: PlacedJob) -> None:
        """Move a job to another group, by the rules of its first placement. Raises Unavailable."""
        job_id, old = placed.job.job_id, placed.group
        try:
            candidates = self._choice.candidates(self.visitor, placed.job.exec_name) - {old}
        except GridRefused:
            candidates = set()
        # A group that was sent a cancel for a job already moved away would end it as cancelled, without a request for
        # that.
        candidates = {each for each in candidates if each.name not in placed.job.cancelled_in}
        chosen = self._choice.choose(candidates)
        if chosen is None:
            refusal = self._refusals.get(old)
            if refusal is not None and not candidates:  # no other group may have it, and this one refuses the client
                self._give_up(placed, refusal)
            return
        routes, now = self._context.routes, self._context.clock()
        route = await routes.move(placed.route, self._choice.name_of(chosen), now)
        if self._placed.get(job_id) is not placed:
            if not self._is_gone:  # it has ended in its old group, and its files must be found there
                await routes.move(route, self._choice.name_of(old), now)
            return
        placed.route, placed.since = route, self._context.now()
        group = self._choice.group(route.group) or chosen
        if group is not old:
            log.info("job moved to another group", job_id=job_id, group=route.group)
            old.take_back(placed.job)
            placed.group = group
            group.submit(placed.job)

    def _give_up(self, placed: PlacedJob, error: GridRefused) -> None:
        placed.group.table.pop(placed.job.job_id, None)
        self.refused(placed.job, GridRefused(error.code, error.message))

    # Periodic review, and the end.

    async def review(self) -> None:
        """Apply a lower `max_cap` to this connected client (GRID-168). Permissions are checked for each job."""
        if effective_cap(self._context.programs, self.visitor.id, self._hello.desired_parallelism) != self._cap:
            self._send_cap()

    async def gone(self) -> None:
        """Close the connections. Jobs continue: a client that submits them again gets their results."""
        self._is_gone = True
        for group in self._groups:
            group.close(ClientClosed())
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._placed.clear()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._session.tasks.spawn(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
