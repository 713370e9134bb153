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
from pyoco_server.core.frames.messages import AssignJob, CancelJob, RunningJob
from pyoco_server.core.programs.dedup import DedupCache
from pyoco_server.core.programs.job import InputFile
from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.states import RunState
from pyoco_server.executors.capture.port import Captured
from pyoco_server.executors.program.port import ProgramExecution, ProgramExecutor, ProgramWork, WorkFile
from pyoco_server.frames.tasks import TaskSet
from pyoco_server.logs import get_logger
from pyoco_server.loops.tcp_worker.finished import FinishedArchive, FinishedJob
from pyoco_server.loops.tcp_worker.session import DoorSession, Key
from pyoco_server.loops.tcp_worker.spool import Spool, SpooledResult

__all__ = ["AssignedJobs", "Desk", "Origin"]

log = get_logger(__name__)

SUPERSEDED = "superseded"
#: Limits of jobs that wait for a slot. A door that respects the credits never causes one to wait.
_WAITING_MAX, _WAITING_BYTES_MAX = 10_000, 256 * 1024 * 1024
_STOP_SECONDS = 30.0
#: Ended attempts whose tokens are remembered, because their last lines may not be stored yet.
_ENDED_MAX = 10_000


@dataclass(frozen=True)
class Origin:
    """The AssignJob that an answer belongs to."""

    session: DoorSession
    msg_id: UUID

    def corr_id(self, session: DoorSession) -> UUID:
        """Return the msgId to answer (section 6), or NIL if the connection is another one."""
        return self.msg_id if session is self.session else NIL


class Desk(Protocol):
    """The parts of the worker that its jobs use."""

    async def deliver(self, kept: SpooledResult, finished: FinishedJob, origin: Origin | None) -> None:
        """Send a result to the current door, if there is one. Never raises: failed sends are repeated later."""

    def fetch(self, job_id: str, file: InputFile) -> AsyncIterator[bytes]:
        """Return the bytes of an input that was not in the frame."""

    def freed(self) -> None:
        """Note that a job is done, or a result was removed from the spool."""


@dataclass(eq=False)
class _Held:
    """A job of this worker."""

    assign: AssignJob
    #: Of the newest AssignJob for it.
    token: str
    attempt: int
    origin: Origin
    #: Bytes of the inputs that came with it.
    size: int
    execution: ProgramExecution | None = None
    #: The program has exited; its result is being stored or sent.
    is_over: bool = False
    #: Its result is to be discarded.
    is_dropped: bool = False

    @property
    def captured(self) -> Captured:
        """The attempt that its lines belong to."""
        return Captured(self.assign.run_id, self.assign.attempt)


class AssignedJobs:
    """Runs at most `places` programs at once, whatever a door assigns. Other jobs wait, and are listed as well.

    Limitation: it does not recognize a job that an earlier worker process ran, unless the result is in the spool.
    """

    def __init__(
        self, desk: Desk, executor: ProgramExecutor, spool: Spool, seen: DedupCache[None], places: int
    ) -> None:
        self._desk, self._executor, self._spool, self._seen, self._places = desk, executor, spool, seen, places
        self._jobs: dict[str, _Held] = {}
        self._waiting: deque[_Held] = deque()
        #: By JobId: AssignJobs for finished jobs that wait for their answer, the one being answered first.
        self._repeats: dict[str, deque[tuple[AssignJob, Origin]]] = {}
        #: Killed without a result, and not exited yet.
        self._dying: set[_Held] = set()
        #: By attempt, as it was started: JobId and newest token. Of running ones, and of the last that have ended.
        self._keys: dict[Captured, Key] = {}
        self._ended: deque[Captured] = deque()
        self._answering = 0
        self._running = 0
        self._tasks = TaskSet()

    @property
    def unfinished(self) -> int:
        """Number of AssignJobs whose credits must not be returned yet."""
        return len(self._jobs) + len(self._dying) + self._answering

    @property
    def running(self) -> int:
        """Number of running programs."""
        return self._running

    def key_of(self, attempt: Captured) -> Key | None:
        """Return JobId and token by which a door knows the attempt. None: it was forgotten."""
        return self._keys.get(attempt)

    def remember(self, left: Iterable[SpooledResult]) -> None:
        """Note the jobs that an earlier worker process has run, so that they do not run again here (GRID-109)."""
        for kept in left:
            if kept.is_worth_keeping:
                self._seen.put(kept.job_id, None)

    def listed(self) -> list[RunningJob]:
        """Return the jobs for a heartbeat, including waiting ones (GRID-105, GRID-106)."""
        return [RunningJob(job_id, held.token) for job_id, held in self._jobs.items()]

    def take(self, assign: AssignJob, origin: Origin) -> None:
        """Start a job, or answer with its known result. A JobId never runs twice (GRID-107)."""
        held = self._jobs.get(assign.job_id)
        if held is not None:
            log.info("repeated job, still running", job_id=assign.job_id, attempt=assign.attempt)
            held.token, held.attempt, held.origin = assign.token, assign.attempt, origin
            self._keys[held.captured] = (assign.job_id, assign.token)
            self._desk.freed()
            return
        if assign.job_id in self._repeats or self._known(assign) is not None:
            log.info("repeated job, already finished", job_id=assign.job_id, attempt=assign.attempt)
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
        self._seen.remove(assign.job_id)  # an older entry has expired, and its time would apply to the new result
        held = _Held(assign, assign.token, assign.attempt, origin, _size(assign))
        self._jobs[assign.job_id] = held
        self._keys[held.captured] = (assign.job_id, assign.token)
        self._waiting.append(held)
        self._fill()

    def _has_room_for(self, assign: AssignJob) -> bool:
        if self._running < self._places or not self._waiting:
            return True
        waiting = sum(each.size for each in self._waiting) if len(self._waiting) < _WAITING_MAX else _WAITING_BYTES_MAX
        return waiting + _size(assign) <= _WAITING_BYTES_MAX

    def refuse(self, finished: FinishedJob, origin: Origin) -> None:
        """Answer an invalid AssignJob like a finished job. A copy of a running one is not answered."""
        held = self._jobs.get(finished.job_id)
        if held is not None and held.token == finished.token:
            self._desk.freed()
            return
        self._answering += 1
        self._tasks.spawn(self._keep_and_answer(finished, origin))

    def cancel(self, ask: CancelJob) -> None:
        """Cancel a job, or drop it if it is superseded (GRID-110, GRID-112)."""
        job_id, token, reason = ask.job_id, ask.token, ask.reason
        held = self._jobs.get(job_id)
        if held is None or held.token != token:
            kept = self._spool.get(job_id)
            if reason == SUPERSEDED and kept is not None and kept.token == token:
                self._tasks.spawn(self._spool.settle(kept))
            else:
                log.info("cancel for an unknown job", job_id=job_id, reason=reason)
        elif reason == SUPERSEDED:
            log.info("job superseded; killing its program", job_id=job_id)
            self._drop(held)
        elif held.execution is not None:
            held.execution.cancel(ask.grace_seconds)
        elif held in self._waiting:
            self._waiting.remove(held)
            held.is_over = True  # set before `_end` runs, since the job is in no other list now
            report = Report(
                status=RunState.CANCELLED, error_code=ErrorCode.CANCELLED, error="cancelled before it was started"
            )
            self._tasks.spawn(self._end(held, report, None))

    def abandon(self) -> None:
        """Kill every program without reporting it (GRID-111, GRID-113). Finished jobs stay."""
        for held in [each for each in self._jobs.values() if not each.is_over]:
            self._drop(held)

    async def sweep(self) -> None:
        """Drop expired results, and those that exceed the limit of the spool (GRID-107)."""
        self._seen.sweep()
        surplus = self._spool.surplus()
        for job_id in surplus:
            self._seen.remove(job_id)
        await self._spool.forget([*surplus, *(each for each in self._spool.settled() if each not in self._seen)])

    async def settle(self, job_id: str, token: str) -> None:
        """Mark a result as settled: a door has it, or does not need it (GRID-109)."""
        kept = self._spool.get(job_id)
        if kept is None or kept.token != token:
            log.info("unknown result settled", job_id=job_id)
            return
        await self._spool.settle(kept)
        if self._spool.get(job_id) is None:
            self._seen.remove(job_id)
        else:
            self._seen.settle(job_id)
        self._desk.freed()

    async def stop(self) -> None:
        """Wait until every program has exited and every result is kept. To be called after `abandon`."""
        await self._tasks.settle(_STOP_SECONDS)

    def _known(self, assign: AssignJob) -> SpooledResult | None:
        kept = self._spool.get(assign.job_id)
        if kept is None or assign.job_id in self._seen:
            return kept
        # A WORKER_ERROR is not kept as the job's result, but answers repeats until another attempt is assigned.
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
            self._remove(held)
            return
        kept = FinishedArchive(archive.path, archive.size, archive.sha256) if archive is not None else None
        await self._end(held, outcome.report, kept)

    async def _end(self, held: _Held, report: Report, archive: FinishedArchive | None) -> None:
        """Store the result in the spool and send it. Repeat if a newer attempt was assigned meanwhile."""
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
            self._remove(held)

    async def _answer_repeats(self, repeats: deque[tuple[AssignJob, Origin]]) -> None:
        """Answer in sequence: two concurrent changes of a result's token would overwrite each other."""
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
        """Answer from the spool. Returns False if the result was deleted or damaged, so that the job must run again."""
        kept = self._spool.get(assign.job_id)
        again: tuple[SpooledResult, FinishedJob] | None = None
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

    async def _keep_and_answer(self, finished: FinishedJob, origin: Origin) -> None:
        try:
            kept, finished = await self._spool.put(finished)
            await self._desk.deliver(kept, finished, origin)
        finally:
            self._answering -= 1
            self._desk.freed()

    def _remember(self, finished: FinishedJob) -> None:
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
            self._forget_key(held)
            self._desk.freed()

    def _remove(self, held: _Held) -> None:
        self._dying.discard(held)
        self._forget_key(held)
        if self._jobs.get(held.assign.job_id) is held:
            del self._jobs[held.assign.job_id]
        self._desk.freed()

    def _forget_key(self, held: _Held) -> None:
        """Later: its last lines may not be stored yet."""
        self._ended.append(held.captured)
        if len(self._ended) > _ENDED_MAX:
            self._keys.pop(self._ended.popleft(), None)


def _size(assign: AssignJob) -> int:
    return sum(map(len, assign.files.values()))


def _finished(assign: AssignJob, token: str, attempt: int, report: Report) -> FinishedJob:
    return FinishedJob(
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
