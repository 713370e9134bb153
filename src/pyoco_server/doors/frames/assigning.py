"""Sends jobs to a worker, with their inputs (GRID-146, GRID-147)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING
from uuid import UUID

from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.inputs import StagedInputs, open_inputs
from pyoco_server.core.frames.codec import Frame, Type
from pyoco_server.core.frames.messages import AssignJob, ObjectGet
from pyoco_server.core.frames.subjects import assign_subject
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.job import InlineInputs, InputFile, ProgramJob, decode_inline
from pyoco_server.core.programs.names import run_id_of
from pyoco_server.doors.frames.downloads import send_object
from pyoco_server.doors.frames.faults import as_refusal
from pyoco_server.errors import PyocoError
from pyoco_server.frames.tasks import beating
from pyoco_server.frames.wire import fresh
from pyoco_server.logs import get_logger

if TYPE_CHECKING:
    from pyoco_server.doors.frames.worker_session import WorkerPeer
    from pyoco_server.ports.backend import Backend

__all__ = ["Assigning", "split_inputs"]

log = get_logger(__name__)

#: Bytes of input files that travel in the frame, before base64. The rest of the 4 MiB is for names, arguments and ids.
INLINE_BYTES_MAX = 2_900_000
_DOWNLOADS_MAX = 4


def split_inputs(files: tuple[InputFile, ...]) -> tuple[list[str], tuple[InputFile, ...]]:
    """Split files into those that travel in the frame (the first that fit, by name) and those that are fetched."""
    inline, refs, left = [], [], INLINE_BYTES_MAX
    for each in files:
        if each.size <= left:
            inline.append(each.name)
            left -= each.size
        else:
            refs.append(each)
    return inline, tuple(refs)


class Assigning:
    """AssignJobs of one connection. Inputs are fetched in tasks, so that the dispatcher never waits for them."""

    def __init__(self, peer: WorkerPeer) -> None:
        self._peer = peer
        #: Attempts whose AssignJob is not sent yet, and the task that sends it.
        self._sending: dict[str, tuple[ProgramAttempt, asyncio.Task[None]]] = {}
        self._staged: dict[str, _Staging] = {}
        self._downloads = asyncio.Semaphore(_DOWNLOADS_MAX)

    def start(self, attempt: ProgramAttempt) -> None:
        """Send the job. Small inputs are part of the job, so most AssignJobs are on the wire when this returns."""
        inputs = attempt.job.inputs
        wire = self._peer.session.wire
        if isinstance(inputs, InlineInputs) and wire.send_soon(self._assign(attempt, _decoded(inputs), ())):
            return
        run_id = attempt.run.run_id
        task = self._peer.context.tasks.spawn(self._send(attempt))
        self._sending[run_id] = (attempt, task)
        task.add_done_callback(lambda _: self._sending.pop(run_id, None))

    async def _send(self, attempt: ProgramAttempt) -> None:
        inputs = attempt.job.inputs
        if isinstance(inputs, InlineInputs):
            frame = self._assign(attempt, _decoded(inputs), ())
        else:
            frame = await self._fetched(attempt, inputs.files)
        await self._peer.session.wire.send(frame)

    async def _fetched(self, attempt: ProgramAttempt, files: tuple[InputFile, ...]) -> Frame:
        """Build the frame.

        Inputs that cannot be read now are sent as references: the worker gets the error when it fetches them, and
        reports it.
        """
        names, refs = split_inputs(files)
        if not names:
            return self._assign(attempt, {}, refs)
        context = self._peer.context
        try:
            async with (
                # A large archive may take longer than the ack timeout, and the worker has not received the job yet.
                beating(lambda: context.in_flight.seen(attempt.run.run_id, attempt.attempt_id)),
                open_inputs(context.backend, attempt.job) as staged,
            ):
                inline = {name: b"".join([piece async for piece in staged.read(name)]) for name in names}
        except PyocoError as error:
            log.warning("could not read the inputs of a job", run_id=attempt.run.run_id, why=str(error))
            return self._assign(attempt, {}, files)
        return self._assign(attempt, inline, refs)

    def _assign(self, attempt: ProgramAttempt, files: dict[str, bytes], refs: tuple[InputFile, ...]) -> Frame:
        job, run = attempt.job, attempt.run
        seconds = job.timeout_sec
        assign = AssignJob(
            job_id=job.job_id,
            client_id=job.client_id,
            exec_name=job.exec_name,
            args=job.args,
            files=files,
            timeout_sec=self._peer.context.programs.config.exec_job_timeout_sec if seconds is None else seconds,
            run_id=run.run_id,
            attempt=run.attempt,
            token=attempt.attempt_id,
            input_refs=refs,
        )
        return fresh(
            Type.ASSIGN_JOB, assign.to_payload(), corr_id=UUID(job.job_id), subject=assign_subject(job.exec_name)
        )

    async def sent(self, run_id: str) -> None:
        """Wait until the AssignJob of this run is on the wire, or is certain not to be sent."""
        if run_id in self._sending:
            await asyncio.wait({self._sending[run_id][1]})

    async def release_unsent(self) -> None:
        """Release the attempts whose AssignJob is not sent yet (GRID-41)."""
        for attempt, task in list(self._sending.values()):
            task.cancel()
            await asyncio.wait({task})
            if task.cancelled():
                self._peer.forget(attempt)
                await self._peer.context.in_flight.release(attempt)

    async def send_input(self, frame: Frame) -> None:
        """Answer ObjectGet: inputs of attempts that this worker holds."""
        asked = ObjectGet.read(frame.payload)
        try:
            run_id = run_id_of(asked.job_id, self._peer.context.group)
            attempt = self._peer.attempts.get(run_id)
            if attempt is None or attempt.closed:
                raise GridRefused(Code.FORBIDDEN, "this worker holds no attempt at this job")
            found = next((each for each in _files(attempt.job) if each.name == asked.name), None)
            if found is None:
                raise GridRefused(Code.NOT_FOUND, "the job has no such input", field="Name")
            staging = self._staged.setdefault(run_id, _Staging(self._peer.context.backend, attempt.job))
            async with self._downloads:
                pieces = (await staging.open()).read(asked.name)
                await send_object(self._peer.session.wire, asked, frame.msg_id, found.size, found.sha256, pieces)
        except PyocoError as error:
            raise as_refusal(error, asked.job_id) from error

    def forget(self, run_id: str) -> None:
        staging = self._staged.pop(run_id, None)
        if staging is not None:
            self._peer.context.tasks.spawn(staging.close())

    async def end(self) -> None:
        for _, task in list(self._sending.values()):
            task.cancel()
        for run_id in list(self._staged):
            self.forget(run_id)


class _Staging:
    """The inputs of one attempt: opened at the worker's first request, and kept until the attempt ends."""

    def __init__(self, backend: Backend, job: ProgramJob) -> None:
        self._backend, self._job = backend, job
        self._gate = asyncio.Lock()
        self._stack = contextlib.AsyncExitStack()
        self._staged: StagedInputs | None = None
        self._is_closed = False

    async def open(self) -> StagedInputs:
        async with self._gate:
            if self._is_closed:
                raise GridRefused(Code.FORBIDDEN, "the attempt has ended")
            if self._staged is None:
                self._staged = await self._stack.enter_async_context(open_inputs(self._backend, self._job))
            return self._staged

    async def close(self) -> None:
        async with self._gate:
            self._is_closed = True
            await self._stack.aclose()


def _files(job: ProgramJob) -> tuple[InputFile, ...]:
    return () if isinstance(job.inputs, InlineInputs) else job.inputs.files


def _decoded(inputs: InlineInputs) -> dict[str, bytes]:
    return {name: decode_inline(text) for name, text in inputs.files.items()}
