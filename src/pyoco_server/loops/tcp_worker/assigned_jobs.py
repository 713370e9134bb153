"""The jobs of one worker, from AssignJob to a result in the spool (GRID-105, GRID-107, GRID-110 to GRID-112)."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol
from uuid import UUID

from pyoco_server.core.frames.codec import NIL
from pyoco_server.core.frames.messages import AssignJob, RunningJob
from pyoco_server.core.programs.dedup import DedupCache
from pyoco_server.core.programs.job import InputFile
from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.states import RunState
from pyoco_server.executors.program.port import ProgramExecution, ProgramExecutor, ProgramWork, WorkFile
from pyoco_server.frames.tasks import Tasks
from pyoco_server.logs import get_logger
from pyoco_server.loops.tcp_worker.finished import Archive, Finished
from pyoco_server.loops.tcp_worker.session import Session
from pyoco_server.loops.tcp_worker.spool import Kept, Spool

__all__ = ["AssignedJobs", "Desk", "Origin"]

log = get_logger(__name__)

SUPERSEDED = "superseded"
#: What may wait for a place. A door that keeps to its credits never has one wait.
_WAITING_MAX, _WAITING_BYTES_MAX = 10_000, 256 * 1024 * 1024
_STOP_SECONDS = 30.0


@dataclass(frozen=True)
class Origin:
    """The AssignJob that an answer belongs to."""

    session: Session
    msg_id: UUID

    def corr_id(self, session: Session) -> UUID:
        """Section 6: nothing, once the connection is another one."""
        return self.msg_id if session is self.session else NIL


class Desk(Protocol):
    """What the crew needs of the worker around it."""

    async def deliver(self, kept: Kept, finished: Finished, origin: Origin | None) -> None:
        """Say it to the door, if there is one now. Never raises: what did not get through is said again later."""

    def fetch(self, job_id: str, file: InputFile) -> AsyncIterator[bytes]:
        """The bytes of an input that was not in the frame."""

    def freed(self) -> None:
        """A job is off the table, or a result out of the spool."""


@dataclass(eq=False)
class _Held:
    """A job on the table."""

    assign: AssignJob
    #: Of the newest AssignJob for it.
    token: str
    attempt: int
    origin: Origin
    #: Of the inputs that came with it.
    size: int
    execution: ProgramExecution | None = None
    #: The program is over; its result is on its way.
    is_over: bool = False
    #: Its result is nobody's any more.
    is_dropped: bool = False


class AssignedJobs:
    """At most `places` programs at once, whatever a door assigns; the rest waits its turn and is listed all the same.

    What it cannot do: know a job again that a worker before it ran, unless that one left its result in the spool.
    """

    def __init__(
        self, desk: Desk, executor: ProgramExecutor, spool: Spool, seen: DedupCache[None], places: int
    ) -> None:
        self._desk, self._executor, self._spool, self._seen, self._places = desk, executor, spool, seen, places
        self._jobs: dict[str, _Held] = {}
        self._waiting: deque[_Held] = deque()
        #: By JobId: AssignJobs for finished jobs that wait for their answer, the first one in progress.
        self._repeats: dict[str, deque[tuple[AssignJob, Origin]]] = {}
        #: Killed without a result, and not gone yet.
        self._dying: set[_Held] = set()
        self._answering = 0
        self._running = 0
        self._tasks = Tasks()

    @property
    def unfinished(self) -> int:
        """AssignJobs that no credit may be given back for yet."""
        return len(self._jobs) + len(self._dying) + self._answering

    @property
    def running(self) -> int:
        """Programs that run right now."""
        return self._running

    def remember(self, left: Iterable[Kept]) -> None:
        """GRID-109: what the worker before this one has run does not run again here."""
        for kept in left:
            if kept.is_worth_keeping:
                self._seen.put(kept.job_id, None)

    def listed(self) -> list[RunningJob]:
        """GRID-105, GRID-106: what Heartbeat says, waiting ones included."""
        return [RunningJob(job_id, held.token) for job_id, held in self._jobs.items()]

    def take(self, assign: AssignJob, origin: Origin) -> None:
        """Start it, or answer from what is known of the job. Never twice the program of one JobId (GRID-107)."""
        held = self._jobs.get(assign.job_id)
        if held is not None:
            log.info("a job came again while it runs", job_id=assign.job_id, attempt=assign.attempt)
            held.token, held.attempt, held.origin = assign.token, assign.attempt, origin
            self._desk.freed()
            return
        if assign.job_id in self._repeats or self._known(assign) is not None:
            log.info("a job came again after its end", job_id=assign.job_id, attempt=assign.attempt)
            self._answering += 1
            repeats = self._repeats.setdefault(assign.job_id, deque())
            repeats.append((assign, origin))
            if len(repeats) == 1:
                self._tasks.spawn(self._answer_repeats(repeats))
            return
        if not self._has_room_for(assign):
            report = Report(status=RunState.FAILED, error_code=ErrorCode.WORKER_ERROR, error="too many jobs wait here")
            self.refuse(_finished(assign, assign.token, assign.attempt, report), origin)
            return
        self._seen.remove(assign.job_id)  # what is left of it is too old, and would make the new result as old
        held = _Held(assign, assign.token, assign.attempt, origin, _size(assign))
        self._jobs[assign.job_id] = held
        self._waiting.append(held)
        self._fill()

    def _has_room_for(self, assign: AssignJob) -> bool:
        if self._running < self._places or not self._waiting:
            return True
        waiting = sum(each.size for each in self._waiting) if len(self._waiting) < _WAITING_MAX else _WAITING_BYTES_MAX
        return waiting + _size(assign) <= _WAITING_BYTES_MAX

    def refuse(self, finished: Finished, origin: Origin) -> None:
        """An AssignJob that cannot be: its answer, like any other. But a copy of one that runs says nothing of it."""
        held = self._jobs.get(finished.job_id)
        if held is not None and held.token == finished.token:
            self._desk.freed()
            return
        self._answering += 1
        self._tasks.spawn(self._keep_and_answer(finished, origin))

    def cancel(self, job_id: str, token: str, reason: str | None) -> None:
        """GRID-110, GRID-112"""
        held = self._jobs.get(job_id)
        if held is None or held.token != token:
            kept = self._spool.get(job_id)
            if reason == SUPERSEDED and kept is not None and kept.token == token:
                self._tasks.spawn(self._spool.settle(kept))
            else:
                log.info("a cancel for a job that is not here", job_id=job_id, reason=reason)
        elif reason == SUPERSEDED:
            log.info("a job was superseded; its program is ended", job_id=job_id)
            self._drop(held)
        elif held.execution is not None:
            held.execution.cancel()
        elif held in self._waiting:
            self._waiting.remove(held)
            held.is_over = True  # before `_end` has its turn: whoever drops it now finds it nowhere else
            report = Report(
                status=RunState.CANCELLED, error_code=ErrorCode.CANCELLED, error="cancelled before it was started"
            )
            self._tasks.spawn(self._end(held, report, None))

    def abandon(self) -> None:
        """GRID-111, GRID-113: end every program and say nothing of it. Finished ones stay."""
        for held in [each for each in self._jobs.values() if not each.is_over]:
            self._drop(held)

    async def sweep(self) -> None:
        """GRID-107: forget what is too old, and what there is no room for."""
        self._seen.sweep()
        surplus = self._spool.surplus()
        for job_id in surplus:
            self._seen.remove(job_id)
        await self._spool.forget([*surplus, *(each for each in self._spool.settled() if each not in self._seen)])

    async def settle(self, job_id: str, token: str) -> None:
        """GRID-109: a door has the result, or no use for it."""
        kept = self._spool.get(job_id)
        if kept is None or kept.token != token:
            log.info("a result was settled that is not here", job_id=job_id)
            return
        await self._spool.settle(kept)
        if self._spool.get(job_id) is None:
            self._seen.remove(job_id)
        else:
            self._seen.settle(job_id)
        self._desk.freed()

    async def stop(self) -> None:
        """After `abandon`: until every program is gone and every result is kept."""
        await self._tasks.settle(_STOP_SECONDS)

    def _known(self, assign: AssignJob) -> Kept | None:
        kept = self._spool.get(assign.job_id)
        if kept is None or assign.job_id in self._seen:
            return kept
        # A fault of the worker itself is not kept as the job's result; but nobody has asked for another attempt yet.
        return kept if kept.token == assign.token and not kept.is_settled else None

    def _fill(self) -> None:
        while self._waiting and self._running < self._places:
            held = self._waiting.popleft()
            self._running += 1
            held.execution = self._executor.begin(self._work_of(held.assign))
            self._tasks.spawn(self._run(held, held.execution))

    def _work_of(self, assign: AssignJob) -> ProgramWork:
        inline = [
            WorkFile(name, len(data), hashlib.sha256(data).hexdigest(), _opened(data))
            for name, data in assign.files.items()
        ]
        return ProgramWork(
            job_id=assign.job_id,
            run_id=assign.run_id,
            attempt=assign.attempt,
            client_id=assign.client_id,
            exec_name=assign.exec_name,
            args=assign.args,
            timeout_sec=assign.timeout_sec,
            files=[*inline, *(self._fetched(assign.job_id, each) for each in assign.input_refs)],
        )

    def _fetched(self, job_id: str, file: InputFile) -> WorkFile:
        return WorkFile(file.name, file.size, file.sha256, lambda: self._desk.fetch(job_id, file))

    async def _run(self, held: _Held, execution: ProgramExecution) -> None:
        outcome = await execution.outcome()
        self._running -= 1
        held.execution, held.is_over = None, True
        self._fill()
        archive = outcome.archive
        if held.is_dropped:
            if archive is not None:
                await asyncio.to_thread(archive.discard)
            self._off(held)
            return
        kept = Archive(archive.path, archive.size, archive.sha256) if archive is not None else None
        await self._end(held, outcome.report, kept)

    async def _end(self, held: _Held, report: Report, archive: Archive | None) -> None:
        """Into the spool, and to the door; once more when a newer attempt asked meanwhile."""
        held.is_over = True
        job_id = held.assign.job_id
        finished = replace(_finished(held.assign, held.token, held.attempt, report), archive=archive)
        try:
            while True:
                kept, finished = await self._spool.put(finished)
                self._remember(finished)
                if held.is_dropped:
                    self._seen.remove(job_id)
                    await self._spool.forget([job_id])
                    return
                await self._desk.deliver(kept, finished, held.origin)
                if held.token == finished.token:
                    return
                finished = finished.with_token(held.token, held.attempt)
        finally:
            self._off(held)

    async def _answer_repeats(self, repeats: deque[tuple[AssignJob, Origin]]) -> None:
        """One after another: two that change the token of one result at a time would each lose the other's."""
        forgotten: list[tuple[AssignJob, Origin]] = []
        job_id = repeats[0][0].job_id
        try:
            while repeats:
                if not await self._answer(*repeats[0]):
                    forgotten.append(repeats[0])
                repeats.popleft()
                self._answering -= 1
                self._desk.freed()
        finally:
            del self._repeats[job_id]
        for assign, origin in forgotten:
            self.take(assign, origin)

    async def _answer(self, assign: AssignJob, origin: Origin) -> bool:
        """From the spool. False: the result is no longer there, or damaged; the job has to run again."""
        kept = self._spool.get(assign.job_id)
        again: tuple[Kept, Finished] | None = None
        if kept is not None and kept.token == assign.token:
            finished = await self._spool.read(kept)
            again = None if finished is None else (kept, finished)
        elif kept is not None:
            again = await self._spool.retoken(kept, assign.token, assign.attempt)
        if again is None:
            return False
        self._remember(again[1])
        await self._desk.deliver(*again, origin)
        return True

    async def _keep_and_answer(self, finished: Finished, origin: Origin) -> None:
        try:
            kept, finished = await self._spool.put(finished)
            await self._desk.deliver(kept, finished, origin)
        finally:
            self._answering -= 1
            self._desk.freed()

    def _remember(self, finished: Finished) -> None:
        if finished.is_worth_keeping:
            self._seen.put(finished.job_id, None)

    def _drop(self, held: _Held) -> None:
        held.is_dropped = True
        if held.is_over:
            return
        self._jobs.pop(held.assign.job_id, None)
        if held.execution is not None:
            self._dying.add(held)
            held.execution.kill()
        else:
            self._waiting.remove(held)
            self._desk.freed()

    def _off(self, held: _Held) -> None:
        self._dying.discard(held)
        if self._jobs.get(held.assign.job_id) is held:
            del self._jobs[held.assign.job_id]
        self._desk.freed()


def _size(assign: AssignJob) -> int:
    return sum(map(len, assign.files.values()))


def _finished(assign: AssignJob, token: str, attempt: int, report: Report) -> Finished:
    return Finished(
        job_id=assign.job_id,
        run_id=assign.run_id,
        client_id=assign.client_id,
        exec_name=assign.exec_name,
        attempt=attempt,
        token=token,
        report=report,
    )


def _opened(data: bytes) -> Callable[[], AsyncIterator[bytes]]:
    async def read() -> AsyncIterator[bytes]:
        yield data

    return read
