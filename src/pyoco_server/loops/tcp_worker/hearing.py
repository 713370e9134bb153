"""Handles the frames that a worker receives from a door (sections 5 and 26.1)."""

from __future__ import annotations

from pyoco_server.core.frames.codec import Frame, Type
from pyoco_server.core.frames.hello import TOKEN_CHARACTERS_MAX
from pyoco_server.core.frames.messages import AssignJob, CancelJob, ErrorMessage, NotLeader, Settled
from pyoco_server.core.frames.reading import Fields
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.names import is_client_id, is_exec_name, read_job_id
from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.states import RunState
from pyoco_server.frames.tasks import TaskSet
from pyoco_server.logs import get_logger
from pyoco_server.loops.tcp_worker.assigned_jobs import AssignedJobs, Origin
from pyoco_server.loops.tcp_worker.finished import FinishedJob
from pyoco_server.loops.tcp_worker.link import Link
from pyoco_server.loops.tcp_worker.saying import Saying
from pyoco_server.loops.tcp_worker.session import DoorSession

__all__ = ["Hearing"]

log = get_logger(__name__)

_UNKNOWN = "unknown"
_STOP_SECONDS = 10.0


class Hearing:
    """Handles one frame at a time. Waits only for a reader that consumes an input more slowly than it arrives."""

    def __init__(self, jobs: AssignedJobs, link: Link, saying: Saying) -> None:
        self._jobs, self._link, self._saying = jobs, link, saying
        self._tasks = TaskSet()

    async def heard(self, session: DoorSession, frame: Frame) -> None:
        """Handle a frame. Raises GridRefused for an invalid payload; an invalid AssignJob is answered instead."""
        match frame.type:
            case Type.ASSIGN_JOB:
                self._assigned(session, frame)
            case Type.CANCEL_JOB:
                self._cancelled(CancelJob.read(frame.payload))
            case Type.SETTLED:
                settled = Settled.read(frame.payload)
                self._tasks.spawn(self._jobs.settle(settled.job_id, settled.token))
                self._saying.settled(session, (settled.job_id, settled.token))
            case Type.NOT_LEADER:
                self._link.redirect(session, NotLeader.read(frame.payload))
            case Type.ERROR if not await session.answer(frame):
                error = ErrorMessage.read(frame.payload)
                if error.code == Code.TOO_MANY_CONNECTIONS:
                    is_first = self._link.wait_at_least((error.retry_after_ms or 0) / 1_000)
                    tell = log.warning if is_first else log.info
                    tell("the door closes this connection", reason=error.message, door=str(session.address))
                    return
                log.error("door refused a frame", code=error.code, reason=error.message, job_id=error.job_id)
                self._saying.refused(session, error)
            case Type.OBJECT_ACK | Type.OBJECT_CHUNK | Type.LOG_CREDIT if not await session.answer(frame):
                log.info("unexpected answer", type=frame.type)
            case Type.ERROR | Type.OBJECT_ACK | Type.OBJECT_CHUNK | Type.LOG_CREDIT | Type.HEARTBEAT:
                pass
            case _:  # a door of another version: the frame is complete, so the next one can be read
                log.warning("unknown frame type", type=frame.type)

    async def stop(self) -> None:
        await self._tasks.settle(_STOP_SECONDS)

    def _assigned(self, session: DoorSession, frame: Frame) -> None:
        session.credits.took()
        origin = Origin(session, frame.msg_id)
        try:
            assign = _assignment(frame)
        except GridRefused as error:
            log.error("invalid AssignJob frame", door=str(session.address), reason=str(error))
            refusal = _refusal(frame, error)
            if refusal is not None:
                self._jobs.refuse(refusal, origin)
            return
        self._jobs.take(assign, origin)

    def _cancelled(self, cancel: CancelJob) -> None:
        if cancel.token is None:
            log.error("CancelJob without a token", job_id=cancel.job_id)
        else:
            self._jobs.cancel(cancel)


def _assignment(frame: Frame) -> AssignJob:
    """Raises GridRefused."""
    assign = AssignJob.read(frame.payload)
    if frame.subject != f"job.assign.{assign.exec_name}":
        raise GridRefused(Code.BAD_SUBJECT, "the subject is of another program")
    return assign


def _refusal(frame: Frame, error: GridRefused) -> FinishedJob | None:
    """Build the answer to an invalid AssignJob. None: not even its job and token can be read."""
    try:
        fields = Fields.of(frame.payload)
        job_id, token = read_job_id(fields.get("JobId")), fields.text("Token", TOKEN_CHARACTERS_MAX)
    except GridRefused:
        return None
    client_id, exec_name = fields.get("ClientId"), fields.get("ExecName")
    run_id, attempt = fields.get("RunId"), fields.get("Attempt")
    code = ErrorCode.BAD_FILE_NAME if error.code is Code.BAD_FILE_NAME else ErrorCode.WORKER_ERROR
    return FinishedJob(
        job_id=job_id,
        run_id=run_id if isinstance(run_id, str) and is_client_id(run_id) else job_id,
        client_id=client_id if isinstance(client_id, str) and is_client_id(client_id) else _UNKNOWN,
        exec_name=exec_name if isinstance(exec_name, str) and is_exec_name(exec_name) else _UNKNOWN,
        attempt=attempt if isinstance(attempt, int) and attempt > 0 else 1,
        token=token,
        report=Report(status=RunState.FAILED, error_code=code, error=error.message),
    )
