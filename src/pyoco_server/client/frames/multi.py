"""A client of several groups (section 17.2): distribution, failover, and one result for each JobId."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from typing import Self

from pyoco_server.client.frames.faults import ClientClosed
from pyoco_server.client.frames.fetch import Fetch
from pyoco_server.client.frames.group import Group, GroupState
from pyoco_server.client.frames.job import Job, job_of
from pyoco_server.client.frames.link import LinkSettings
from pyoco_server.client.frames.output import ARCHIVE, save
from pyoco_server.client.frames.shares import Spread, Turn, shares
from pyoco_server.core.frames.messages import CAP_DEFAULT, CAP_MAX, HelloClient, JobRequest, JobResult, SubmitAck
from pyoco_server.core.programs.names import check_client_id, read_job_id
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.states import RunState
from pyoco_server.errors import PyocoError, UsageError
from pyoco_server.frames.addresses import Address

__all__ = ["PENDING_MAX", "ClientStats", "GridMultiClient", "GroupStats"]

log = logging.getLogger(__name__)

#: The limit of jobs that are not sent yet (GRID-127).
PENDING_MAX = 100_000
#: Results whose group is remembered, for later downloads of their files.
_ORIGINS_MAX = 100_000
#: How long a new client waits for the other groups once one has answered.
_ALL_GROUPS_SECONDS = 2.0
_AGENT = "pyoco-grid-client"


@dataclass(frozen=True)
class GroupStats:
    """The current state of one group."""

    #: The addresses of its doors, separated by `|`.
    name: str
    #: `connecting`, `live`, `paused` or `closed`.
    state: str
    #: Its share of the cap.
    share: int
    unfinished: int
    #: The number of SubmitJobs, including repeated ones.
    sent: int
    results: int
    reconnects: int


@dataclass(frozen=True)
class ClientStats:
    groups: tuple[GroupStats, ...]
    #: Jobs and other messages that are not sent yet.
    pending: int
    #: Jobs that were moved from a group that did not reconnect in time.
    failovers: int
    #: Results that arrived after the first one of their job; dropped.
    late_results: int


class GridMultiClient:
    """Submits each job to one of several groups, and to another if that group is lost for longer than the grace period.

        async with GridMultiClient("clientA", ["127.0.0.1:5000", "127.0.0.1:5001|127.0.0.1:5002"]) as client:
            future = await client.submit(JobRequest(exec_name="calcA", args=("--n", "3")))
            result = await future

    A group is a string with the addresses of its doors. The grid promises one result for each JobId, not one execution:
    a group that was only disconnected may still run a job that was moved.
    """

    def __init__(
        self,
        client_id: str,
        groups: Sequence[str],
        *,
        desired_total: int = CAP_DEFAULT,
        spread: Spread | None = None,
        token: str | None = None,
        settings: LinkSettings | None = None,
    ) -> None:
        """`token` is an API key. Raises UsageError, GridRefused."""
        if not groups:
            raise UsageError("a client needs the address of a door; example: 127.0.0.1:5000")
        if not 1 <= desired_total <= CAP_MAX:
            raise UsageError(f"the number of jobs at once is from 1 to {CAP_MAX}")
        self.client_id = check_client_id(client_id)
        self._settings = settings or LinkSettings()
        self._spread = spread or Spread()
        self._shares = shares(desired_total, len(groups))
        # GRID-124: limits the total if the minimum share of 1 per group would exceed it.
        self._sent_max = desired_total if desired_total < len(groups) else None
        self._groups = Turn([self._group_of(*each, token) for each in zip(groups, self._shares, strict=True)])
        self._jobs: dict[str, Job] = {}
        #: The group of each job; jobs without one are pending.
        self._places: dict[str, Group] = {}
        self._pending: deque[Job] = deque()
        #: Pending jobs that every live group was asked to cancel. They wait for a group that was not.
        self._stranded: deque[Job] = deque()
        self._origins: OrderedDict[str, Group] = OrderedDict()
        self._failovers = self._late = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._failure: PyocoError | None = None

    def _group_of(self, text: str, share: int, token: str | None) -> Group:
        doors = tuple(Address.read(each) for each in text.split("|"))
        hello = HelloClient(client_id=self.client_id, desired_parallelism=share, token=token, agent=_AGENT)
        return Group(self, doors, hello, self._settings)

    # Called by the user.

    async def connect(self) -> None:
        """Wait until a group is connected and the others were tried, the latter for at most two seconds (FIND-15).

        Jobs submitted after that are spread over all connected groups. Raises GridRefused or DoorUnreachable if every
        group has failed permanently.
        """
        for group in self._groups:
            self._spawn(self._keep(group), f"link to {group.name}")
        while not any(group.is_live for group in self._groups):
            if self._failure is not None:
                raise self._failure
            self._news.clear()
            await self._news.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ALL_GROUPS_SECONDS):
                for group in self._groups:
                    if group.state is not GroupState.CLOSED:
                        await group.link.tried.wait()

    async def submit(self, request: JobRequest) -> asyncio.Future[JobResult]:
        """Submit a job and return the future of its result. An unfinished JobId returns the same future again.

        Waits while 100,000 jobs are not sent yet. The job waits if no group is connected (GRID-127). Raises GridRefused
        for an invalid request. The future raises GridRefused, DoorUnreachable, ClientClosed.
        """
        job = job_of(request, self.client_id, asyncio.get_running_loop().create_future())
        while job.job_id not in self._jobs and self.pending >= PENDING_MAX and self._failure is None:
            self._room.clear()
            await self._room.wait()
        if self._failure is not None:
            raise self._failure
        known = self._jobs.get(job.job_id)
        if known is not None:
            if known.future.cancelled():  # by an earlier caller
                known.future = job.future
            return known.future
        self._jobs[job.job_id] = job
        self._pending.append(job)
        self._dispatch()
        return job.future

    async def run(self, request: JobRequest) -> JobResult:
        """Submit a job and wait for its result."""
        return await (await self.submit(request))

    def cancel(self, job_id: str) -> asyncio.Future[JobResult]:
        """Cancel a job, even one that another process of this client submitted. Returns the future of its result.

        Raises GridRefused for an invalid JobId. The future raises GridRefused: NOT_FOUND if no group has the job.
        """
        job_id = read_job_id(job_id)
        job = self._jobs.get(job_id)
        if job is None:
            return asyncio.ensure_future(self._cancel_anywhere(job_id))
        group = self._places.get(job_id)
        if group is None:  # never sent
            self._unstrand()
            self._pending.remove(job)
            self._close_job(job).succeed(self._never_sent(job))
        else:
            group.cancel(job)
        return job.future

    async def save_output(self, result: JobResult, path: str | os.PathLike[str]) -> bool:
        """Write the archive of a result to a file atomically, after checking its sha256. False: it has no archive.

        Constant memory. Raises GridRefused (if it has expired, for example), OutputDamaged, ClientClosed, OSError.
        """
        return await save(result, path, self._pieces)

    def stats(self) -> ClientStats:
        groups = tuple(
            GroupStats(
                name=group.name,
                state=group.state,
                share=share,
                unfinished=len(group.table),
                sent=group.sent,
                results=group.results,
                reconnects=max(0, group.attachments - 1),
            )
            for group, share in zip(self._groups, self._shares, strict=True)
        )
        return ClientStats(groups, self.pending, self._failovers, self._late)

    @property
    def unfinished(self) -> tuple[str, ...]:
        """The JobIds without a result, in the order of submission."""
        return tuple(self._jobs)

    @property
    def pending(self) -> int:
        """The number of jobs and other messages that are not sent yet."""
        return len(self._pending) + len(self._stranded) + sum(group.waiting for group in self._groups)

    async def close(self) -> None:
        """Disconnect. Jobs continue; futures without a result raise ClientClosed. May be called more than once."""
        self._give_up(ClientClosed(), is_expected=True)
        for group in self._groups:
            group.close(ClientClosed())
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def __aenter__(self) -> Self:
        try:
            await self.connect()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Called by the groups.

    def came(self, group: Group) -> None:
        self._unstrand()
        self._dispatch()
        if self._spread.cancel_stale:
            group.cancel_strays()
        self._news.set()

    def went(self, group: Group) -> None:
        """Move unsent jobs to any group; the others wait for the grace period (GRID-126, GRID-129)."""
        self._take_back(group, group.unsent())
        grace = self._spread.grace_seconds
        if grace is not None and group.table:
            self._spawn(self._wait_for(group, group.attachments, grace), f"grace of {group.name}")
        self._dispatch()

    def accepted(self, job: Job, ack: SubmitAck) -> None:
        """Do nothing: callers wait for the result."""

    def finished(self, job: Job, group: Group, result: JobResult) -> None:
        if result.output_ref is not None:
            self._origins[result.job_id] = group
            if len(self._origins) > _ORIGINS_MAX:
                self._origins.popitem(last=False)
        self._close_job(job).succeed(result)
        self._dispatch()

    def refused(self, job: Job, error: Exception) -> None:
        self._close_job(job).fail(error)
        self._dispatch()

    def is_late(self, group: Group, result: JobResult) -> None:
        self._late += 1
        log.warning("dropped late result of job %s from %s: %s", result.job_id, group.name, result.status)

    def spared(self, group: Group) -> None:
        self._unstrand()
        self._dispatch()

    def said(self, group: Group) -> None:
        self._room.set()

    # Internals.

    def _dispatch(self) -> None:
        """Submit pending jobs to live groups (GRID-125)."""
        while self._pending and (self._sent_max is None or len(self._places) < self._sent_max):
            if not any(group.is_live for group in self._groups):
                return
            job = self._pending.popleft()
            group = self._choose(job)
            if group is None:
                self._stranded.append(job)
                continue
            self._places[job.job_id] = group
            group.submit(job)

    def _choose(self, job: Job) -> Group | None:
        """Choose a live group, but not one that was asked to cancel this job after it had moved on.

        That group would report CANCELLED, although the user has not cancelled the job. It is chosen only if all other
        groups are closed.
        """
        barred = job.cancelled_in
        if barred and all(each.name in barred for each in self._groups if each.state is not GroupState.CLOSED):
            barred = set()
        return self._groups.choose(lambda each: each.is_live and each.name not in barred, self._weight)

    def _unstrand(self) -> None:
        """Move the stranded jobs to the front of the queue, in their order."""
        while self._stranded:
            self._pending.appendleft(self._stranded.pop())

    def _weight(self, group: Group) -> int:
        return len(group.table) if self._spread.policy == "least" else 0

    def _take_back(self, group: Group, jobs: Sequence[Job]) -> None:
        """Move jobs of a group to the front of the queue: they were submitted before those in it."""
        for job in reversed(jobs):
            group.take_back(job)
            self._places.pop(job.job_id, None)
            self._pending.appendleft(job)

    async def _wait_for(self, group: Group, attachments: int, seconds: float) -> None:
        await self._settings.pace.sleep(seconds)
        if group.attachments == attachments:
            self._move_all(group)

    def _move_all(self, group: Group) -> None:
        jobs = [job for job in group.table.values() if job.payload is not None]
        self._failovers += len(jobs)
        self._take_back(group, jobs)
        self._dispatch()

    async def _keep(self, group: Group) -> None:
        try:
            await group.link.run()
        except PyocoError as error:
            log.error("giving up group %s: %s", group.name, error)
            group.close(error)
            self._unstrand()
            self._move_all(group)
            for job in list(group.table.values()):  # only cancellations are left
                group.table.pop(job.job_id).fail(error)
            if all(each.state is GroupState.CLOSED for each in self._groups):
                self._give_up(error, is_expected=False)

    def _give_up(self, error: PyocoError, *, is_expected: bool) -> None:
        if self._failure is None:
            self._failure = error
        jobs = [*self._jobs.values(), *(job for group in self._groups for job in group.table.values())]
        for job in jobs:
            job.fail(error)
            if is_expected and not job.future.cancelled():
                job.future.exception()  # mark it as retrieved, since no caller may be waiting
        self._jobs.clear()
        self._places.clear()
        self._pending.clear()
        self._stranded.clear()
        for group in self._groups:
            group.table.clear()
        self._news.set()
        self._room.set()

    def _close_job(self, job: Job) -> Job:
        if self._jobs.get(job.job_id) is job:
            del self._jobs[job.job_id]
            self._places.pop(job.job_id, None)
        return job

    def _never_sent(self, job: Job) -> JobResult:
        return JobResult(
            job_id=job.job_id,
            client_id=self.client_id,
            exec_name=job.exec_name,
            status=RunState.CANCELLED,
            error_code=ErrorCode.CANCELLED,
            error="cancelled before it was sent",
        )

    async def _cancel_anywhere(self, job_id: str) -> JobResult:
        """Return the answer of the first group that has the job. Raises the last group's error if none has it."""
        if self._failure is not None:
            raise self._failure
        loop = asyncio.get_running_loop()
        answers = []
        for group in self._groups:
            if group.state is GroupState.CLOSED:
                continue  # a closed group never answers
            if job_id not in group.table:  # otherwise an earlier request is pending, whose answer serves both
                group.submit(Job(job_id, "", None, "", loop.create_future()))
            answers.append(group.table[job_id].future)
        error: Exception = ClientClosed()
        for answer in asyncio.as_completed(answers):
            try:
                return await answer
            except PyocoError as refused:
                error = refused
        raise error

    async def _pieces(self, result: JobResult) -> AsyncIterator[bytes]:
        reference = result.output_ref
        assert reference is not None
        if self._failure is not None:
            raise self._failure
        group = self._origins.get(result.job_id) or self._groups[0]
        fetch = Fetch(result.job_id, ARCHIVE, reference.size, reference.sha256)
        group.fetch(fetch)
        try:
            async for piece in fetch.pieces():
                yield piece
        finally:
            group.stop_fetching(fetch)

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
