"""Parses SubmitJob frames, for doors and routers (section 26.1)."""

from __future__ import annotations

from pyoco_server.core.frames.codec import Frame
from pyoco_server.core.frames.messages import JobRequest
from pyoco_server.core.frames.subjects import exec_of_submit
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.names import check_exec_name

__all__ = ["LARGE_BYTES", "read_submit"]

#: A larger payload is parsed in a thread.
LARGE_BYTES = 256 * 1024


def read_submit(frame: Frame, client_id: str) -> JobRequest:
    """Parse a job, which must be this client's. Checks the subject before the payload. Raises GridRefused."""
    exec_name = exec_of_submit(frame.subject)
    if exec_name is None or "." in exec_name:
        raise GridRefused(Code.BAD_SUBJECT, "the subject of a SubmitJob is job.submit.<ExecName>")
    check_exec_name(exec_name)
    request = JobRequest.read(frame.payload)
    if request.client_id != client_id:
        raise GridRefused(
            Code.CLIENT_ID_MISMATCH, "ClientId is not that of the Hello", field="ClientId", job_id=request.job_id
        )
    if request.exec_name != exec_name:
        raise GridRefused(Code.BAD_SUBJECT, "subject and ExecName name two programs", job_id=request.job_id)
    return request
