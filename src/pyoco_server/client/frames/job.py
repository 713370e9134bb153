"""A job in a client's table, from submit to result (GRID-122, GRID-128)."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field, replace

from pyoco_server.core.frames.codec import LENGTH_MAX, LENGTH_MIN
from pyoco_server.core.frames.messages import JobRequest, JobResult
from pyoco_server.core.frames.subjects import submit_subject
from pyoco_server.core.programs.faults import Code, GridRefused

__all__ = ["Job", "completed_request", "job_of"]


@dataclass(eq=False)
class Job:
    job_id: str
    exec_name: str
    #: The payload of its SubmitJob: the same bytes each time. None: submitted by another process, only to be cancelled.
    payload: bytes | None = field(repr=False)
    subject: str
    future: asyncio.Future[JobResult]
    #: When its frame was first queued on the connection of its group; None: never (GRID-126).
    sent_at: float | None = None
    #: Whether the door has accepted it on the current connection.
    is_acked: bool = False
    #: Whether its cancellation was requested.
    is_cancelling: bool = False
    #: The number of temporary refusals.
    tries: int = 0
    #: The msgId of its latest SubmitJob, and of the first one in its group.
    msg_id: uuid.UUID | None = None
    first_msg_id: uuid.UUID | None = None
    #: Names of the groups that were sent a CancelJob after it had moved on: there it can only be CANCELLED (GRID-130).
    cancelled_in: set[str] = field(default_factory=set)

    def succeed(self, result: JobResult) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def job_of(request: JobRequest, client_id: str, future: asyncio.Future[JobResult]) -> Job:
    """Return the job of a request. Raises GridRefused."""
    completed, payload = completed_request(request, client_id)
    return Job(completed.job_id, completed.exec_name, payload, submit_subject(completed.exec_name), future)


def completed_request(request: JobRequest, client_id: str) -> tuple[JobRequest, bytes]:
    """Fill in the ids and validate the request. Returns the completed request and its payload; sends nothing.

    Raises GridRefused, also for a request that exceeds a frame; that error tells what to do instead (GRID-147).
    """
    job_id = request.job_id or str(uuid.uuid4())
    if request.client_id not in ("", client_id):
        raise GridRefused(Code.CLIENT_ID_MISMATCH, "the job is of another client", field="ClientId", job_id=job_id)
    completed = replace(request, job_id=job_id, client_id=client_id, args=tuple(request.args))
    ask = completed.ask("default")
    completed = replace(completed, job_id=ask.job_id)
    room = LENGTH_MAX - LENGTH_MIN - len(submit_subject(ask.exec_name))
    # Check the base64 size of the files first, to avoid encoding a payload that cannot fit.
    payload = completed.to_payload() if sum(each.size for each in ask.files) * 4 // 3 <= room else b""
    if not payload or len(payload) > room:
        message = "the input files do not fit into a frame, which holds about 3 MB of them: send them with POST /jobs"
        raise GridRefused(Code.TOO_LARGE, message, field="Files", job_id=ask.job_id)
    return completed, payload
