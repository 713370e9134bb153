"""A job in a client's table, from submit to result (GRID-122, GRID-128)."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field, replace

from pyoco_server.core.frames.codec import LENGTH_MAX, LENGTH_MIN
from pyoco_server.core.frames.messages import JobRequest, JobResult
from pyoco_server.core.frames.subjects import submit_subject
from pyoco_server.core.programs.faults import Code, GridRefused

__all__ = ["Job", "job_of", "whole_of"]


@dataclass(eq=False)
class Job:
    job_id: str
    exec_name: str
    #: Of its SubmitJob: the same bytes each time. None: it was submitted by somebody else, and is only to be cancelled.
    payload: bytes | None = field(repr=False)
    subject: str
    future: asyncio.Future[JobResult]
    #: When its frame was first handed to the connection of its group; None: it never was (GRID-126).
    sent_at: float | None = None
    #: Whether the door has taken it on the connection that there is now.
    is_acked: bool = False
    #: Somebody wants it stopped.
    is_cancelling: bool = False
    #: Refusals that may be different next time.
    tries: int = 0
    #: Of the latest frame that asks for it; of the first one in its group.
    msg_id: uuid.UUID | None = None
    first_msg_id: uuid.UUID | None = None
    #: Groups, by name, that were told to cancel it after it had moved on: there it can only be CANCELLED (GRID-130).
    cancelled_in: set[str] = field(default_factory=set)

    def succeed(self, result: JobResult) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def job_of(request: JobRequest, client_id: str, future: asyncio.Future[JobResult]) -> Job:
    """Raises GridRefused."""
    whole, payload = whole_of(request, client_id)
    return Job(whole.job_id, whole.exec_name, payload, submit_subject(whole.exec_name), future)


def whole_of(request: JobRequest, client_id: str) -> tuple[JobRequest, bytes]:
    """Fills in the ids and checks all of it, before anything is sent: what is sent, and as which bytes.

    Raises GridRefused. What a frame cannot hold is refused here, and the error says what to do (GRID-147).
    """
    job_id = request.job_id or str(uuid.uuid4())
    if request.client_id not in ("", client_id):
        raise GridRefused(Code.CLIENT_ID_MISMATCH, "the job is of another client", field="ClientId", job_id=job_id)
    whole = replace(request, job_id=job_id, client_id=client_id, args=tuple(request.args))
    ask = whole.ask("default")
    whole = replace(whole, job_id=ask.job_id)
    room = LENGTH_MAX - LENGTH_MIN - len(submit_subject(ask.exec_name))
    # What base64 alone takes, before anything is written that cannot fit.
    payload = whole.to_payload() if sum(each.size for each in ask.files) * 4 // 3 <= room else b""
    if not payload or len(payload) > room:
        message = "the input files do not fit into a frame, which holds about 3 MB of them: send them with POST /jobs"
        raise GridRefused(Code.TOO_LARGE, message, field="Files", job_id=ask.job_id)
    return whole, payload
