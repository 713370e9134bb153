"""Reports of attempts that have ended, from AckJob to Settled (GRID-54, GRID-27)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from pyoco_server.actions.authenticate import NOBODY
from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.finish import Output, Settlement, finish_reported
from pyoco_server.actions.read import read_run
from pyoco_server.core.frames.codec import Frame, Type
from pyoco_server.core.frames.messages import JobResult, OutputRef, Settled
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.names import run_id_of
from pyoco_server.core.programs.record import artifact_object
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.doors.frames.counting import count_end
from pyoco_server.doors.frames.faults import as_refusal
from pyoco_server.errors import ObjectNotFound, PyocoError, Unavailable
from pyoco_server.frames.wire import WireClosed, fresh
from pyoco_server.logs import get_logger

if TYPE_CHECKING:
    from pyoco_server.doors.frames.worker_session import WorkerPeer

__all__ = ["Acks"]

log = get_logger(__name__)

#: Limit of reports of one connection in progress. The others are skipped: a worker sends a report again until it is
#: settled.
_AT_ONCE = 64
#: Delays before a report is tried again while JetStream does not answer.
_PAUSES = (0.5, 1.0, 2.0, 5.0)
_LARGE_BYTES = 256 * 1024
#: GRID-143: the length to which an output is cut that did not fit.
_CUT_BYTES = 64 * 1024
_PIECE_BYTES = 128 * 1024


class Acks:
    """Records the reports of one connection.

    Never blocks reading: signs of life are received even while nothing can be written.
    """

    def __init__(self, peer: WorkerPeer) -> None:
        self._peer = peer
        #: Reports in progress, by run and token; and reported attempts, including skipped ones. The worker is
        #: responsible for the latter, so its signs of life count for them.
        self._in_work: set[tuple[str, str]] = set()
        self._reported: dict[str, str] = {}
        self._count = 0

    async def take(self, frame: Frame) -> None:
        """Start recording a report. Waits only to read the payload of a skipped one: those must not accumulate."""
        budget = self._peer.context.reports_in_work
        if self._count >= _AT_ONCE or not budget.try_take(len(frame.payload)):
            log.debug("report skipped; the worker will send it again", worker_id=self._peer.worker_id)
            self._report_seen(await _read(frame))
            return
        self._count += 1
        self._peer.context.tasks.spawn(self._settle(frame))

    def hear_beat(self) -> None:
        """Count a heartbeat of the worker as a sign of life of each attempt it has reported."""
        for run_id, token in list(self._reported.items()):
            if not self._peer.context.in_flight.seen(run_id, token):
                del self._reported[run_id]

    def is_in_work(self, attempt: ProgramAttempt) -> bool:
        return (attempt.run.run_id, attempt.attempt_id) in self._in_work

    def _report_seen(self, result: JobResult) -> str:
        assert result.token is not None
        run_id = run_id_of(result.job_id, self._peer.context.group)
        if self._peer.context.in_flight.seen(run_id, result.token):
            self._reported[run_id] = result.token
        return run_id

    async def _settle(self, frame: Frame) -> None:
        peer = self._peer
        try:
            result = await _read(frame)
            run_id = self._report_seen(result)
            assert result.token is not None
            key = (run_id, result.token)
            if key in self._in_work:
                return  # sent again while the first one is being written: one answer serves both
            self._in_work.add(key)
            try:
                await peer.attached(run_id)
                settlement = await self._record(run_id, result)
                if settlement is not None:
                    await self._send_settled(frame, run_id, result, settlement)
            finally:
                self._in_work.discard(key)
                self._reported.pop(run_id, None)
                if not peer.is_open:  # its worker disconnected meanwhile, and left this attempt to this task
                    await peer.put_back_all()
        except PyocoError as error:
            await peer.session.refuse(error, frame.msg_id)
        finally:
            self._count -= 1
            peer.context.reports_in_work.give(len(frame.payload))

    async def _record(self, run_id: str, result: JobResult) -> Settlement | None:
        """Try until the report is recorded.

        None: the connection has ended, and the worker sends the report to another door.
        """
        peer, tries = self._peer, 0
        assert result.token is not None
        while True:
            try:
                outputs = await self._outputs(run_id, result)
                return await self._finish(run_id, result, outputs)
            except Unavailable as error:
                log.warning("could not write a report yet", run_id=run_id, job_id=result.job_id, why=str(error))
            except PyocoError as error:
                raise as_refusal(error, result.job_id) from error
            if not peer.is_open:
                return None
            peer.context.in_flight.seen(run_id, result.token)
            await asyncio.sleep(_PAUSES[min(tries, len(_PAUSES) - 1)])
            tries += 1

    async def _finish(self, run_id: str, result: JobResult, outputs: list[Output]) -> Settlement:
        context = self._peer.context
        assert result.token is not None
        if result.error_code == ErrorCode.EXEC_NOT_FOUND:  # before the job can be assigned again
            self._peer.miss(result.exec_name)
        attempt = context.in_flight.get(run_id)
        if attempt is None or attempt.attempt_id != result.token:
            settlement = await finish_reported(
                context.backend,
                run_id,
                result.token,
                self._peer.worker_id,
                result.report(),
                outputs,
                may_have=self._peer.may_have,
            )
            context.end_waiters.doubt(run_id)
            return settlement
        settlement = await context.in_flight.finish(attempt, result.report(), outputs)
        owner = context.assigned.get(run_id)
        if owner is not None:
            owner.forget(attempt)
        if attempt.run.is_terminal and settlement is Settlement.RECORDED:
            count_end(context.meter, attempt.run)
            context.end_waiters.ended(attempt.run)
        else:
            context.end_waiters.doubt(run_id)
        return settlement

    async def _outputs(self, run_id: str, result: JobResult) -> list[Output]:
        """Return the outputs in the report and those uploaded before it (GRID-144)."""
        outputs = []
        if result.output_archive is not None:
            outputs.append(await _inline(result.output_archive))
        elif result.output_ref is not None:
            outputs.append(await self._uploaded(run_id, result, result.output_ref))
        for name, text, is_cut in (
            ("stdout.txt", result.stdout, result.stdout_truncated),
            ("stderr.txt", result.stderr, result.stderr_truncated),
        ):
            if is_cut and len(text.encode()) <= _CUT_BYTES:
                found = await self._find(run_id, result.attempt, name)
                outputs += [] if found is None else [found]
        return outputs

    async def _uploaded(self, run_id: str, result: JobResult, reference: OutputRef) -> Output:
        found = await self._find(run_id, result.attempt, "output.zip")
        if found is None or (found.size, found.sha256) != (reference.size, reference.sha256):
            message = "the archive that the report names is not here; send it again, then the report"
            raise GridRefused(Code.BAD_OBJECT, message, field="OutputRef", job_id=result.job_id)
        return found

    async def _find(self, run_id: str, attempt: int, name: str) -> Output | None:
        stored = artifact_object(run_id, attempt, name)
        try:
            info = await self._peer.context.programs.artifacts.info(stored)
        except ObjectNotFound:
            return None
        return Output(name, info.size_bytes, info.sha256_hex, object=stored)

    async def _send_settled(self, frame: Frame, run_id: str, result: JobResult, settlement: Settlement) -> None:
        peer = self._peer
        assert result.token is not None
        outcome = "stale" if settlement is Settlement.STALE else "recorded"
        if settlement is Settlement.STALE:
            peer.context.meter.stale()
            await self._log_stale(run_id, result)
        settled = Settled(job_id=result.job_id, token=result.token, outcome=outcome)
        try:
            await peer.session.wire.send(fresh(Type.SETTLED, settled.to_payload(), corr_id=frame.msg_id))
        except WireClosed:
            log.debug("worker disconnected before it received Settled", run_id=run_id)

    async def _log_stale(self, run_id: str, result: JobResult) -> None:
        """Log a late result. One of another worker's job is a security event (section 26.1)."""
        peer = self._peer
        owner: str | None = None
        try:
            owner = (await read_run(peer.context.backend, NOBODY, run_id)).run.worker_id
        except PyocoError as error:
            log.debug("cannot read the owner of a job", run_id=run_id, why=str(error))
        facts = {"run_id": run_id, "job_id": result.job_id, "worker_id": peer.worker_id, "peer": peer.session.wire.peer}
        if owner is not None and owner != peer.worker_id:
            log.warning("worker reported another worker's job", security=True, owner=owner, **facts)
        else:
            log.info("stale result dropped", **facts)


async def _read(frame: Frame) -> JobResult:
    if len(frame.payload) > _LARGE_BYTES:
        return await asyncio.to_thread(JobResult.read_ack, frame.payload)
    return JobResult.read_ack(frame.payload)


async def _inline(archive: bytes) -> Output:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(archive), _PIECE_BYTES):
            yield archive[start : start + _PIECE_BYTES]

    if len(archive) > _LARGE_BYTES:
        digest = (await asyncio.to_thread(hashlib.sha256, archive)).hexdigest()
    else:
        digest = hashlib.sha256(archive).hexdigest()
    return Output("output.zip", len(archive), digest, open=pieces)
